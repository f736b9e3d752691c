#include "llmc/run/start_record.h"

#include <unistd.h>

#include <algorithm>
#include <ctime>
#include <fstream>
#include <sstream>

#include "llmc/base/build.h"
#include "llmc/base/error.h"
#include "llmc/base/printable.h"
#include "llmc/base/text.h"
#include "llmc/comm/versions.h"
#include "llmc/device/versions.h"
#include "llmc/kernels/matmul.h"
#include "llmc/run/banner.h"
#include "llmc/run/run_lock.h"
#include "llmc/tokenizer/pattern.h"

namespace {

std::vector<std::string> libraries() {
  std::vector<std::string> all = {device_library(), Matmul::description(), nccl_version(), mpi_version(),
                                  pattern_library()};
  all.erase(std::remove(all.begin(), all.end(), ""), all.end());
  return all;
}

std::string built() { return format("for %s, by %s", kBuildTarget, kBuildCompiler); }

// Returns the command line as it was given, quoted for a shell.
std::string command() {
  std::ifstream file("/proc/self/cmdline");
  std::string text, word;
  while (std::getline(file, word, '\0')) text += (text.empty() ? "" : " ") + shell_quoted(word);
  return PrintableText().take(text);
}

std::string utc_now() {
  char text[32];
  const time_t now = time(nullptr);
  struct tm utc;
  strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&now, &utc));
  return text;
}

// Ranks of one host and one kind of device.
struct Host {
  std::string name, device;
  std::vector<int> ranks;
  Json gpus = Json::array();
};

// "0-3,8"
std::string ranges(const std::vector<int>& numbers) {
  std::string text;
  for (size_t first = 0, last; first < numbers.size(); first = last + 1) {
    for (last = first; last + 1 < numbers.size() && numbers[last + 1] == numbers[last] + 1;) ++last;
    text += (text.empty() ? "" : ",") + std::to_string(numbers[first]);
    if (last > first) text += "-" + std::to_string(numbers[last]);
  }
  return text;
}

}  // namespace

std::string host_name() {
  char name[256] = "";
  gethostname(name, sizeof name - 1);
  return name;
}

std::string version_text() {
  std::string text = format("train_llama %s\ncommit     %s\nbuilt      %s\n", kVersion, kBuildCommit, built().c_str());
  std::string lead = "libraries  ";
  for (const std::string& library : libraries()) text += lead + library, lead = ", ";
  return text + "\n";
}

Json hosts_json(const std::vector<std::string>& of_ranks) {
  std::vector<Host> hosts;
  for (size_t rank = 0; rank < of_ranks.size(); ++rank) {
    std::istringstream lines(of_ranks[rank]);
    std::string name, device, uuid;
    std::getline(lines, name), std::getline(lines, device), std::getline(lines, uuid);
    const auto is_this = [&](const Host& host) { return host.name == name && host.device == device; };
    auto host = std::find_if(hosts.begin(), hosts.end(), is_this);
    if (host == hosts.end()) host = hosts.insert(hosts.end(), Host{name, device, {}, Json::array()});
    host->ranks.push_back(int(rank));
    if (!uuid.empty()) host->gpus.push_back(uuid);
  }
  Json json = Json::array();
  for (const Host& host : hosts) {
    Json entry = Json::object();
    entry.set("host", PrintableText().take(host.name)).set("ranks", ranges(host.ranks)).set("device", host.device);
    if (host.gpus.size() > 0) entry.set("gpus", host.gpus);
    json.push_back(entry);
  }
  return json;
}

Json start_record(int64_t first_step, const std::string& from, const std::string& stage, const Ranks& ranks,
                  const DeviceInfo& device, Communicator& communicator, Stream& stream) {
  const std::vector<std::string> of_ranks =
      gather_texts(communicator, stream, host_name() + "\n" + device.name + "\n" + device.uuid);
  Json versions = Json::array();
  for (const std::string& library : libraries()) versions.push_back(library);
  Json record = Json::object();
  record.set("time", utc_now())
      .set("first_step", first_step)
      .set("command", command())
      .set("launcher", ranks.how)
      .set("ranks", ranks.size)
      .set("process", this_process())
      .set("hosts", hosts_json(of_ranks))
      .set("commit", kBuildCommit)
      .set("built", built())
      .set("libraries", versions);
  if (!from.empty()) record.set("from", from);
  if (!stage.empty()) record.set("stage", stage);
  if (device.gpu) record.set("driver", driver_version());
  return record;
}

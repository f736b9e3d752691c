#include "llmc/run/run_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <fstream>
#include <sstream>
#include <utility>

#include "llmc/base/error.h"
#include "llmc/base/printable.h"
#include "llmc/run/run_folder.h"

namespace {

std::string host_name() {
  char name[256] = "";
  gethostname(name, sizeof name - 1);
  return PrintableText().take(name);
}

// Returns when the process began, in clock ticks from the boot of this machine; -1 if there is none, or if /proc does
// not tell.
int64_t start_of(int64_t pid) {
  std::ifstream file(format("/proc/%lld/stat", (long long)pid));
  std::string text;
  std::getline(file, text);
  std::istringstream fields(text.substr(std::min(text.size(), text.rfind(')') + 1)));  // its name may hold blanks
  std::string field;
  constexpr int kStartTime = 22 - 2;  // proc(5) numbers it 22; pid and name come before
  for (int i = 0; i < kStartTime; ++i) fields >> field;
  return fields ? std::stoll(field) : -1;
}

// Returns whether the file that was opened is still the one of this name.
bool is_still(int file, const std::string& path) {
  struct stat opened, named;
  return fstat(file, &opened) == 0 && stat(path.c_str(), &named) == 0 && opened.st_dev == named.st_dev &&
         opened.st_ino == named.st_ino;
}

}  // namespace

RunLock::~RunLock() {
  if (file_ >= 0) close(file_);
}
RunLock::RunLock(RunLock&& other) noexcept : file_(std::exchange(other.file_, -1)) {}
RunLock& RunLock::operator=(RunLock&& other) noexcept {
  std::swap(file_, other.file_);
  return *this;
}

// A run that goes on may write its log anew, under the same name: then the lock of the old file means nothing.
bool RunLock::take(const std::string& folder) {
  const std::string path = folder + "/train.jsonl";
  const int file = open(path.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC | O_NOFOLLOW);
  if (file < 0) return true;
  const bool locked = flock(file, LOCK_EX | LOCK_NB) == 0, busy = !locked && errno == EWOULDBLOCK;
  if (locked && is_still(file, path)) file_ = file;
  else close(file);
  return file_ >= 0 || !(busy || locked);
}

FILE* RunLock::release() { return file_ < 0 ? nullptr : fdopen(std::exchange(file_, -1), "a"); }

Json this_process() {
  return Json::object()
      .set("host", host_name())
      .set("pid", int64_t(getpid()))
      .set("pid_start", start_of(int64_t(getpid())));
}

std::string last_process(const std::string& folder) {
  try {
    const Json starts = starts_in(folder + "/run.json");
    if (starts.elements().empty()) return "";
    const Json& start = starts.elements().back();
    const Json& process = start.at("process");
    const int64_t pid = process.get_int("pid");
    const std::string& host = process.get_string("host");
    std::string text = format("the last start there is process %lld on %s, of %s", (long long)pid, host.c_str(),
                              start.get_string("time").c_str());
    if (host != host_name()) return text;
    if (kill(pid_t(pid), 0) != 0 && errno == ESRCH)
      return text + ", which has ended: its machine, the file server or another start holds the lock";
    if (start_of(pid) != process.get_int("pid_start"))
      return text + ", whose number another process has by now: it has ended";
    return text + ", which still runs";
  } catch (const Error&) {
    return "";
  }
}

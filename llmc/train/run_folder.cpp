#include "llmc/train/run_folder.h"

#include <sys/file.h>

#include <cerrno>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>

#include "llmc/base/error.h"
#include "llmc/base/new_file.h"
#include "llmc/base/text.h"

namespace fs = std::filesystem;

namespace {

std::string today() {
  char text[32];
  const time_t now = time(nullptr);
  struct tm local;
  strftime(text, sizeof text, "%Y-%m-%d_%H-%M-%S", localtime_r(&now, &local));
  return text;
}

// A model may be named by a path.
std::string as_file_name(std::string model) {
  const std::string name = fs::path(model).filename().string();
  return name.empty() ? "model" : name;
}

// Whether a line of the log is of what had happened when `step` steps were done: what is measured after a step comes
// behind its checkpoint.
bool happened_by(const std::string& line, int64_t step) {
  try {
    const Json json = Json::parse(line, "a line of train.jsonl");
    return json.get_int("step") < step + json.contains("loss");
  } catch (const Error&) {  // cut off, when the process was killed
    return false;
  }
}

}  // namespace

RunFolder::RunFolder(const std::string& out, const std::string& model) {
  std::error_code error;
  if (out.empty()) {
    const std::string base = "runs/" + today() + "-" + as_file_name(model);
    path_ = base;
    fs::create_directories("runs", error);
    // Another run may begin in the same second.
    for (int i = 2; !error && !fs::create_directory(path_, error); ++i) path_ = format("%s-%d", base.c_str(), i);
  } else {
    path_ = out;
    REQUIRE(!fs::exists(path_, error) || (fs::is_directory(path_, error) && fs::is_empty(path_, error)),
            "--out %s exists and is not an empty directory\n  a run never writes over another: name a new one",
            path_.c_str());
    fs::create_directories(path_, error);
  }
  REQUIRE(!error, "cannot make the run's folder %s: %s\n  choose another place with --out DIR", path_.c_str(),
          error.message().c_str());
  open_log("wx");     // only if it is not there
  if (out.empty()) {  // a convenience: a run goes on without it
    fs::remove("runs/latest", error);
    fs::create_directory_symlink(fs::path(path_).filename(), "runs/latest", error);
  }
}

RunFolder RunFolder::reopen(const std::string& path, int64_t step) {
  RunFolder folder;
  folder.path_ = path;
  const std::string log = folder.file("train.jsonl"), set_aside = folder.file("train.rolled-back.jsonl");
  folder.open_log("a");
  std::ifstream lines(log);
  std::string kept, rolled_back;
  for (std::string line; std::getline(lines, line);) (happened_by(line, step) ? kept : rolled_back) += line + "\n";
  if (!rolled_back.empty()) {
    std::ofstream aside(set_aside, std::ios::app);
    REQUIRE(aside << rolled_back << std::flush, "cannot write %s: %s\n  is the disk full?", set_aside.c_str(),
            strerror(errno));
    write_file(log, kept);
    folder.open_log("a");
  }
  std::error_code error;
  const std::string exported = folder.file("export"),
                    before = format("%s.before-step-%lld", exported.c_str(), (long long)step);
  if (fs::exists(exported, error)) fs::rename(exported, before, error);
  REQUIRE(!error, "cannot move the export %s to %s: %s\n  move or remove one of them", exported.c_str(), before.c_str(),
          error.message().c_str());
  return folder;
}

void RunFolder::open_log(const char* mode) {
  log_.reset(fopen(file("train.jsonl").c_str(), mode));
  REQUIRE(log_, "cannot write %s: %s\n  choose another place with --out DIR", file("train.jsonl").c_str(),
          strerror(errno));
  const int result = flock(fileno(log_.get()), LOCK_EX | LOCK_NB);
  REQUIRE(result == 0 || errno != EWOULDBLOCK,
          "another process writes %s: its run has not ended\n  wait for it or end it", file("train.jsonl").c_str());
}

void RunFolder::write_about(const Json& config, const std::string& memory_plan) const {
  write_file(file("config.json"), config.dump(2) + "\n");
  write_file(file("memory.txt"), memory_plan + "\n");
}

void RunFolder::require_room(uint64_t bytes, const char* what) const {
  std::error_code error;
  const fs::space_info space = fs::space(path_, error);
  REQUIRE(error || space.available >= bytes,
          "%s need %s, and %s has %s left\n  choose another place with --out DIR, or --export off", what,
          human_bytes(bytes).c_str(), path_.c_str(), human_bytes(space.available).c_str());
}

void RunFolder::log(const Json& line) {
  const std::string text = line.dump() + "\n";
  REQUIRE(fwrite(text.data(), 1, text.size(), log_.get()) == text.size() && fflush(log_.get()) == 0,
          "cannot write %s: %s\n  is the disk full?", file("train.jsonl").c_str(), strerror(errno));
}

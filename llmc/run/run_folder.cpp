#include "llmc/run/run_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <utility>

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

// The name of a model may be a path.
std::string as_file_name(std::string model) {
  const std::string name = fs::path(model).filename().string();
  return name.empty() ? "model" : name;
}

// Returns whether a line of the log is about something that had happened when the checkpoint after `step` steps was
// taken. Evaluations and samples after a step come after its checkpoint.
bool happened_by(const std::string& line, int64_t step) {
  try {
    const Json json = Json::parse(line, "a line of train.jsonl");
    const char* const of_a_step[] = {"loss", "fp8", "look", "verified"};
    const bool before =
        std::any_of(std::begin(of_a_step), std::end(of_a_step), [&](const char* key) { return json.contains(key); });
    return json.get_int("step") < step + before;
  } catch (const Error&) {  // a line that was cut off when the process was killed
    return false;
  }
}

// The files that a start writes before its first step has ended.
constexpr const char* kOfAStart[] = {"config.json", "run.json", "memory.txt", "tuning.json", "train.jsonl"};

// Opens a file to append to it, or makes a new one; null on an error. A link is an error: whoever made it may mean
// another's file.
FILE* open_file(const std::string& path, bool is_new) {
  const int flags = O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW | (is_new ? O_EXCL : 0);
  const int descriptor = open(path.c_str(), flags, 0666);
  return descriptor < 0 ? nullptr : fdopen(descriptor, "a");
}

// Takes the lock of which readers ask, if the file system has such locks. It keeps no run out: on some (CIFS) it meets
// the lock that this process holds already.
void lock_for_readers(int descriptor) {
  struct flock whole {};
  whole.l_type = F_WRLCK, whole.l_whence = SEEK_SET;
  fcntl(descriptor, F_OFD_SETLK, &whole);
}

}  // namespace

Json starts_in(const std::string& path) {
  try {
    Json starts = Json::read(path).at("starts");
    starts.elements();
    return starts;
  } catch (const Error&) {
    return Json::array();
  }
}

bool RunFolder::holds_only_a_start(const std::string& path) {
  std::error_code error;
  if (!fs::exists(path + "/train.jsonl", error)) return false;
  for (const fs::directory_entry& entry : fs::directory_iterator(path, error)) {
    const fs::path name = entry.path().filename();
    const std::string whole = name.extension() == ".partial" ? name.stem() : name;
    if (std::find(std::begin(kOfAStart), std::end(kOfAStart), whole) == std::end(kOfAStart)) return false;
  }
  std::ifstream log(path + "/train.jsonl");
  std::string line;
  while (std::getline(log, line))
    if (!happened_by(line, 1) || Json::parse(line, "a line of train.jsonl").contains("loss")) return false;
  return !error;
}

RunFolder::RunFolder(const std::string& out, const std::string& model, RunLock lock) {
  std::error_code error;
  bool takes = false;
  if (out.empty()) {
    const std::string base = "runs/" + today() + "-" + as_file_name(model);
    path_ = base;
    fs::create_directories("runs", error);
    // Another run may begin in the same second.
    for (int i = 2; !error && !fs::create_directory(path_, error); ++i) path_ = format("%s-%d", base.c_str(), i);
  } else {
    path_ = out;
    takes = holds_only_a_start(path_);
    REQUIRE(takes || !fs::exists(path_, error) || (fs::is_directory(path_, error) && fs::is_empty(path_, error)),
            "--out %s exists and is not an empty directory\n  a run never writes over another: name a new one",
            path_.c_str());
    made_ = fs::create_directories(path_, error);
  }
  if (error)
    fail_as(code_of_file_error(error.value(), ExitCode::not_saved),
            "cannot make the run's folder %s: %s\n  choose another place with --out DIR", path_.c_str(),
            error.message().c_str());
  const bool locked = open_log(!takes, std::move(lock));
  REQUIRE(!takes || (locked && holds_only_a_start(path_)),
          "--out %s: a run was started there and has no step yet, and this file system does not tell whether it has "
          "ended\n  remove the folder, or name a new one",
          path_.c_str());
  REQUIRE_FILE(!takes || ftruncate(fileno(log_.get()), 0) == 0, not_saved, "cannot empty %s: %s",
               file("train.jsonl").c_str(), strerror(errno));
}

void RunFolder::remove_start(const std::string& path, bool with_folder) {
  if (holds_only_a_start(path))
    for (const char* name : kOfAStart)
      for (const char* end : {".partial", ""}) unlink((path + "/" + name + end).c_str());
  // Each rank does this, since another one may have removed the files and been killed before it came here.
  if (with_folder) rmdir(path.c_str());
}

int64_t RunFolder::logged_steps(const std::string& path) {
  int64_t steps = 0;
  std::ifstream log(path + "/train.jsonl");
  for (std::string line; std::getline(log, line);) {
    try {
      const Json json = Json::parse(line, "a line of train.jsonl");
      if (const Json* loss = json.find("loss"); loss && loss->is_number()) steps = json.get_int("step");
    } catch (const Error&) {  // cut off when the process was killed
    }
  }
  return steps;
}

void RunFolder::become_latest() const {
  std::error_code error;
  fs::create_directories("runs", error);
  const fs::path link = format("runs/.latest.%d", int(getpid()));
  fs::create_directory_symlink(fs::relative(path_, "runs", error), link, error);
  if (!error) fs::rename(link, "runs/latest", error);
  if (error) unlink(link.c_str());
}

RunFolder RunFolder::reopen(const std::string& path, RunLock lock) {
  RunFolder folder;
  folder.path_ = path;
  folder.open_log(false, std::move(lock));
  folder.starts_ = starts_in(folder.file("run.json"));
  return folder;
}

void RunFolder::roll_back(int64_t step) {
  const int64_t trained = logged_steps(path_);
  const std::string log = file("train.jsonl"), set_aside = file("train.rolled-back.jsonl");
  std::error_code error;
  std::ifstream lines(log);
  std::string kept, rolled_back;
  for (std::string line; std::getline(lines, line);) (happened_by(line, step) ? kept : rolled_back) += line + "\n";
  if (!rolled_back.empty()) {
    const std::unique_ptr<FILE, Close> aside(open_file(set_aside, false));
    REQUIRE_FILE(aside && fwrite(rolled_back.data(), 1, rolled_back.size(), aside.get()) == rolled_back.size() &&
                     fflush(aside.get()) == 0,
                 not_saved, "cannot write %s: %s\n  is the disk full?", set_aside.c_str(), strerror(errno));
    if (trained > step)
      moved_.push_back(trained == step + 1
                           ? format("step %lld has no checkpoint and is trained again", (long long)trained)
                           : format("steps %lld to %lld have no checkpoint and are trained again", (long long)step + 1,
                                    (long long)trained));
    moved_.push_back(
        format("the lines of train.jsonl after step %lld are in %s now", (long long)step, set_aside.c_str()));
  }
  if (kept.size() != fs::file_size(log, error)) {  // or its last line lacks the line end
    write_file(log, kept);
    open_log(false);
  }
}

bool RunFolder::open_log(bool is_new, RunLock lock) {
  FILE* const held = lock.release();
  log_.reset(held ? held : open_file(file("train.jsonl"), is_new));
  REQUIRE_FILE(log_, not_saved, "cannot write %s: %s\n  choose another place with --out DIR",
               file("train.jsonl").c_str(), strerror(errno));
  const int result = flock(fileno(log_.get()), LOCK_EX | LOCK_NB);
  if (result != 0 && errno == EWOULDBLOCK)
    fail_as(ExitCode::lost, "another process writes %s: its run has not ended\n  wait for it or end it",
            file("train.jsonl").c_str());
  lock_for_readers(fileno(log_.get()));
  return result == 0;
}

void RunFolder::write_about(const Json& config, Json facts, const Json& start, const std::string& memory_plan) const {
  Json starts = starts_;
  facts.set("starts", starts.push_back(start));
  write_file(file("config.json"), config.dump(2) + "\n");
  write_file(file("run.json"), facts.dump(2) + "\n");
  write_memory(memory_plan);
}

void RunFolder::write_memory(const std::string& text) const {
  try {
    write_file(file("memory.txt"), text + "\n");
  } catch (const Error&) {
    require_there();
    throw;
  }
}

void RunFolder::require_room(uint64_t bytes, const char* what) const {
  std::error_code error;
  const fs::space_info space = fs::space(path_, error);
  if (error || space.available >= bytes) return;
  fail_as(ExitCode::not_saved, "%s need %s, and %s has %s left\n  choose another place with --out DIR, or --export off",
          what, human_bytes(bytes).c_str(), path_.c_str(), human_bytes(space.available).c_str());
}

void RunFolder::log(Json line) {
  require_there();
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  line.set("time", double(std::chrono::duration_cast<std::chrono::milliseconds>(now).count()) / 1e3);
  const std::string text = line.dump() + "\n";
  if (fwrite(text.data(), 1, text.size(), log_.get()) != text.size() || fflush(log_.get()) != 0)
    fail_as(ExitCode::not_saved,
            "cannot write %s: %s\n  make room on the disk, and go on from the newest checkpoint: --resume auto",
            file("train.jsonl").c_str(), strerror(errno));
}

void RunFolder::require_there() const {
  struct stat written, found;
  REQUIRE_FILE(fstat(fileno(log_.get()), &written) == 0, not_saved, "cannot look at the log of %s: %s", path_.c_str(),
               strerror(errno));
  const bool looked = stat(file("train.jsonl").c_str(), &found) == 0;
  if (looked ? found.st_dev == written.st_dev && found.st_ino == written.st_ino : errno != ENOENT && errno != ENOTDIR)
    return;
  fail_as(ExitCode::not_saved,
          "the run's folder %s was removed, moved or replaced while the run wrote there, or its train.jsonl: nothing "
          "more can be saved in it\n  start again with another --out; a folder that was moved goes on by --resume auto",
          path_.c_str());
}

std::string RunFolder::set_export_aside(int64_t step) const {
  const std::string exported = file("export"), base = format("%s.before-step-%lld", exported.c_str(), (long long)step);
  std::error_code error;
  if (!fs::exists(fs::symlink_status(exported, error))) return "";
  std::string before = base;
  for (int i = 2; fs::exists(before, error); ++i) before = format("%s-%d", base.c_str(), i);
  fs::rename(exported, before, error);
  if (error)
    return format("the export of before stays in %s until this run replaces it: it cannot be moved: %s",
                  exported.c_str(), error.message().c_str());
  return format("the export of before is %s now", before.c_str());
}

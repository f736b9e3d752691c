// Covers: promise 2: a start of several ranks without MPI: each learns its rank and where all meet; an error that all
// have is printed once, and the first that fails, or is killed, ends all with its code and its name; requests to stop
// reach all ranks, also while they start, and what kills the starting process kills them
#include "llmc/comm/launch.h"

#include <filesystem>
#include <fstream>

#include "dev/test/heartbeat_processes.h"
#include "dev/test/test.h"
#include "dev/test/token_files.h"
#include "llmc/base/clock.h"
#include "llmc/run/interrupt.h"

namespace {

namespace fs = std::filesystem;

// This program starts itself: `test_launch ROLE FOLDER`, of which this is the part of a rank. Each rank leaves a file.
void play(const std::string& role, const std::string& folder) {
  if (role == "late") {
    std::ofstream(folder + "/early " + getenv("LLMC_RANK")) << "";
    sleep_for(0.5);  // a signal comes before anybody could receive it
  }
  StopRequests stop_requests;
  Ranks ranks = Ranks::start();
  const std::string name = folder + "/" + std::to_string(ranks.rank);
  std::ofstream(name + ".part") << ranks.name() << ", " << ranks.local_rank << " of " << ranks.local_size << " here, "
                                << ranks.how << ", " << fs::is_directory(fs::path(ranks.rendezvous).parent_path())
                                << ", process " << getpid() << ", " << ranks.rendezvous;
  fs::rename(name + ".part", name);
  for (int r = 0; r < ranks.size; ++r)  // so that no rank is killed before it could fail
    while (!fs::exists(folder + "/" + std::to_string(r))) sleep_for(0.005);
  try {
    if (role == "all fail") fail("no such data");
    if (role == "two fail" && ranks.rank != 1) fail_as(ExitCode::not_finite, "a step");
    if (role == "one fails" && ranks.rank == 1) fail_as(ExitCode::lost, "%s", std::string(100'000, 'x').c_str());
    if (role == "one exits" && ranks.rank == 1) end_now("it speaks for itself", ExitCode::wrong_gpu);
    if (role == "one fails later" && ranks.rank == 1) {
      while (!fs::exists(folder + "/go")) sleep_for(0.005);
      fail_as(ExitCode::lost, stop_requests.any() ? "it was asked to stop" : "later");
    }
    if (role == "has nothing to save") stop_requests.decline();
    for (const double end = seconds() + 60; role != "succeeds" && seconds() < end && !stop_requests.any();)
      sleep_for(0.01);
  } catch (const std::exception& error) {
    end_all_ranks(ranks, error);
  }
  std::ofstream(name + (stop_requests.any() ? " stopped" : " ended")) << "";
  if (role == "stays") sleep_for(60);
  _exit(0);
}

// Before main(), which would run the tests again.
[[maybe_unused]] const bool is_rank = [] {
  if (!getenv("LLMC_RANK")) return false;
  std::ifstream file("/proc/self/cmdline");
  std::string program, role, folder;
  std::getline(file, program, '\0'), std::getline(file, role, '\0'), std::getline(file, folder, '\0');
  play(role, folder);
  return true;
}();

std::vector<std::string> files(const fs::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.push_back(entry.path().filename());
  std::sort(names.begin(), names.end());
  return names;
}

std::string text_of(const fs::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

// A process that starts `size` ranks.
struct Started {
  Started(const std::string& role, int size)
      : size(size), process([&] {
          const std::vector<std::string> arguments = {"test_launch", role, folder.path()};
          _exit(launch_ranks(size, arguments));
        }) {}
  // Waits until each rank has left the file of this name, in which % is the rank.
  void wait(const std::string& name = "%") const {
    for (const double end = seconds() + 60; !all_have(name) && seconds() < end;) sleep_for(0.005);
    CHECK(all_have(name));
  }
  pid_t process_of(int rank) const {
    const std::string text = text_of(folder / std::to_string(rank)), words = "process ";
    return std::stoi(text.substr(text.find(words) + words.size()));
  }
  bool all_have(std::string name) const {
    const size_t at = name.find('%');
    bool all = true;
    for (int r = 0; r < size; ++r) all &= fs::exists(folder / name.replace(at, 1, std::to_string(r)));
    return all;
  }
  std::string end() { return process.ended(code); }  // when no rank is left that could write to stderr

  const TemporaryFolder folder;
  const int size;
  const Process process;
  int code = -1;
};

}  // namespace

TEST_CASE("each rank knows its number, the others, and where they meet") {
  Started started("succeeds", 3);
  CHECK(started.end().empty());
  CHECK(started.code == 0);
  CHECK(files(started.folder.path()) == std::vector<std::string>{"0", "0 ended", "1", "1 ended", "2", "2 ended"});
  std::string meeting;
  for (int r = 0; r < 3; ++r) {
    const std::string text = text_of(started.folder / std::to_string(r)), file = text.substr(text.rfind(", ") + 2);
    says(text, format("rank %d of 3, %d of 3 here, started by --gpus, without MPI, 1, process", r, r));
    CHECK((r == 0 || file == meeting));
    meeting = file;
  }
  CHECK(!fs::exists(fs::path(meeting).parent_path()));  // it is removed in the end
}

TEST_CASE("errors are printed once, with the ranks that have them, and end the others") {
  Started all("all fail", 3);
  CHECK(all.end() == "error on all 3 ranks: no such data\n");
  CHECK(all.code == int(ExitCode::wrong_input));
  Started two("two fail", 4);
  CHECK(two.end() == "error on ranks 0, 2, 3 of 4: a step\n");
  CHECK(two.code == int(ExitCode::not_finite));
  Started one("one fails", 2);
  says(one.end(), "error on rank 1 of 2: xxxxx", "xxxxx … xxxxx");
  CHECK(one.code == int(ExitCode::lost));
  Started exits("one exits", 2);
  CHECK(exits.end() == "it speaks for itself\n");
  CHECK(exits.code == int(ExitCode::wrong_gpu));
}

TEST_CASE("a rank that is killed ends all, and has a name") {
  Started started("waits", 3);
  started.wait();
  const pid_t lost = started.process_of(2);
  kill(lost, SIGKILL);
  says(started.end(), format("error on rank 2 of 3: its process %d was ended by signal 9 (Killed)", int(lost)),
       "dmesg");
  CHECK(started.code == 128 + SIGKILL);
  CHECK(files(started.folder.path()) == std::vector<std::string>{"0", "1", "2"});  // the others did not wait in vain
}

TEST_CASE("a request to stop reaches all ranks, also while they start") {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGUSR1}) {
    CAPTURE(signal);
    Started started("waits", 2);
    started.wait();
    started.process.kill(signal);
    CHECK(started.end().empty());
    CHECK(started.code == 0);
    CHECK(started.all_have("% stopped"));
  }
  Started late("late", 2);
  late.wait("early %");
  late.process.kill(SIGTERM);
  CHECK(late.end().empty());
  CHECK(late.code == 0);
  CHECK(late.all_have("% stopped"));
}

TEST_CASE("what is ignored stays ignored, as nohup asks, and other children of the process are not waited for") {
  const TemporaryFolder folder;
  const Process process([&] {
    signal(SIGHUP, SIG_IGN);
    if (fork() == 0) {  // one that goes on, as `tee` does
      std::ofstream(folder / "other") << getpid();
      for (int descriptor = STDERR_FILENO; descriptor < 100; ++descriptor) close(descriptor);
      sleep_for(600);
      _exit(0);
    }
    _exit(launch_ranks(2, {"test_launch", "one fails later", folder.path()}));
  });
  for (int r = 0; r < 2; ++r)
    while (!fs::exists(folder / std::to_string(r))) sleep_for(0.005);
  while (text_of(folder / "other").empty()) sleep_for(0.005);
  process.kill(SIGHUP);
  std::ofstream(folder / "go") << "";
  int code = 0;
  says(process.ended(code), "error on rank 1 of 2: later");
  CHECK(code == int(ExitCode::lost));
  CHECK(kill(std::stoi(text_of(folder / "other")), SIGKILL) == 0);  // the other child still runs
}

TEST_CASE("a second Ctrl-C ends all ranks; ranks that have nothing to save end at the first") {
  Started twice("stays", 2);
  twice.wait();
  twice.process.kill(SIGINT);
  twice.wait("% stopped");  // they could not end yet
  twice.process.kill(SIGINT);
  says(twice.end(), "second Ctrl-C");
  CHECK(twice.code == 128 + SIGINT);
  Started once("has nothing to save", 2);
  once.wait();
  once.process.kill(SIGTERM);
  CHECK(once.end().empty());
  CHECK(once.code == 128 + SIGTERM);
}

TEST_CASE("what kills the starting process kills the ranks") {
  Started started("waits", 2);
  started.wait();
  started.process.kill(SIGKILL);
  started.end();
  CHECK(files(started.folder.path()) == std::vector<std::string>{"0", "1"});  // neither stopped, nor ended later
}

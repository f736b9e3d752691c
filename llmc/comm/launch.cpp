#include "llmc/comm/launch.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <optional>

#include "llmc/base/clock.h"
#include "llmc/base/error.h"
#include "llmc/base/printable.h"

namespace {

constexpr int kSignals[] = {SIGCHLD, SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2, SIGPIPE};
constexpr double kMoment = 1;  // seconds that the other ranks have when one has failed

// What a failing rank sends: this, then its error's text.
struct Failure {
  int rank, code;
};
constexpr size_t kLongest = 1 << 16;  // bytes of a message

// A new folder for the file through which the ranks meet.
class MeetingFolder {
 public:
  MeetingFolder() : path_((std::filesystem::temp_directory_path() / "train_llama-XXXXXX").string()) {
    REQUIRE_FILE(mkdtemp(path_.data()), lost,
                 "--gpus: cannot make a folder %s in which the ranks meet: %s\n  TMPDIR names another place for it",
                 path_.c_str(), strerror(errno));
  }
  ~MeetingFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  MeetingFolder(const MeetingFolder&) = delete;
  std::string file() const { return path_ + "/meet"; }

 private:
  std::string path_;
};

class Launch {
 public:
  explicit Launch(int size) : size_(size) {
    sigset_t waited;
    sigemptyset(&waited);
    for (const int signal : kSignals) sigaddset(&waited, signal);
    sigprocmask(SIG_BLOCK, &waited, nullptr);
    signals_ = signalfd(-1, &waited, SFD_CLOEXEC | SFD_NONBLOCK);
    int ends[2];
    REQUIRE(signals_ >= 0 && socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends) == 0, "--gpus: no socket for the ranks: %s",
            strerror(errno));
    words_from_ = ends[0], words_to_ = ends[1];
    fcntl(words_from_, F_SETFD, FD_CLOEXEC);
    fcntl(words_from_, F_SETFL, O_NONBLOCK);
  }
  ~Launch() {
    kill_all();
    for (const int descriptor : {signals_, words_from_, words_to_}) close(descriptor);
  }
  Launch(const Launch&) = delete;

  void start(int rank, const std::vector<std::string>& arguments, const std::string& meeting_file) {
    const pid_t parent = getpid(), child = fork();
    REQUIRE(child >= 0, "--gpus %d: cannot start the process of rank %d: %s\n  ulimit -u may be too low", size_, rank,
            strerror(errno));
    if (child > 0) {
      running_[child] = rank;
      return;
    }
    become_rank(rank, meeting_file, parent);
    std::vector<char*> words;
    for (const std::string& argument : arguments) words.push_back(const_cast<char*>(argument.c_str()));
    words.push_back(nullptr);
    execv("/proc/self/exe", words.data());
    end_now(format("error on rank %d of %d: cannot run /proc/self/exe: %s", rank, size_, strerror(errno)));
  }

  int wait_for_end() {
    while (!running_.empty()) {
      pollfd sources[] = {{signals_, POLLIN, 0}, {words_from_, POLLIN, 0}};
      poll(sources, 2, failed_at_ ? int(1000 * std::max(0.0, *failed_at_ + kMoment - seconds())) + 1 : -1);
      hear();
      signalfd_siginfo signal;
      while (read(signals_, &signal, sizeof signal) == sizeof signal) receive(int(signal.ssi_signo));
      reap(WNOHANG);
      if (failed_at_ && seconds() >= *failed_at_ + kMoment) kill_all();
    }
    if (!errors_.empty()) print_error(joint_error(errors_, size_));
    return code_;
  }

 private:
  // The stop signals stay blocked, so that one that comes before the rank's handlers are installed waits for them. A
  // process group of its own keeps the terminal's Ctrl-C from it: this process passes that on.
  void become_rank(int rank, const std::string& meeting_file, pid_t parent) {
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(int(ExitCode::lost));  // it was killed before the line above
    sigset_t unblocked;
    sigemptyset(&unblocked);
    sigaddset(&unblocked, SIGCHLD);
    sigprocmask(SIG_UNBLOCK, &unblocked, nullptr);
    const int nothing = open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (nothing >= 0) dup2(nothing, STDIN_FILENO);
    setenv("LLMC_RANK", std::to_string(rank).c_str(), 1);
    setenv("LLMC_WORLD_SIZE", std::to_string(size_).c_str(), 1);
    setenv("LLMC_RENDEZVOUS", meeting_file.c_str(), 1);
    setenv("LLMC_LAUNCHER", std::to_string(words_to_).c_str(), 1);
    unsetenv("PMIX_RANK");  // of a launcher that started one process
  }

  void hear() {
    char bytes[kLongest];
    for (ssize_t length; (length = recv(words_from_, bytes, sizeof bytes, 0)) >= ssize_t(sizeof(Failure));) {
      Failure failure;
      memcpy(&failure, bytes, sizeof failure);
      errors_[failure.rank] = std::string(bytes + sizeof failure, size_t(length) - sizeof failure);
      fail_with(failure.code);
    }
  }

  void receive(int signal) {
    if (signal == SIGCHLD || signal == SIGPIPE) return;
    interrupts_ += signal == SIGINT;
    if (signal == SIGUSR2 || interrupts_ == 2) {
      print_error("second Ctrl-C: ending at once, nothing is saved");
      code_ = 128 + SIGINT;
      kill_all();
    } else {
      if (!asked_) asked_ = signal;
      for (const auto& [process, rank] : running_) kill(process, SIGUSR1);
    }
  }

  // Learns which ranks have ended.
  void reap(int options) {
    int status = 0;
    for (pid_t process; (process = waitpid(-1, &status, options)) > 0;) {
      const auto found = running_.find(process);
      if (found == running_.end()) continue;
      const int rank = found->second;
      running_.erase(found);
      hear();  // what it said before it ended
      if (WIFEXITED(status) && WEXITSTATUS(status) != 0) fail_with(WEXITSTATUS(status));
      if (!WIFSIGNALED(status) || killed_) continue;
      const int signal = WTERMSIG(status);
      if (asked_ && signal == SIGUSR1) {  // it had nothing to save
        fail_with(128 + asked_);
        continue;
      }
      errors_[rank] = format("its process %d was ended by signal %d (%s)%s", int(process), signal, strsignal(signal),
                             signal == SIGKILL ? "\n  if nobody did so, the system did, since the machine's memory ran "
                                                 "out: dmesg tells"
                                               : "");
      fail_with(128 + signal);
    }
  }

  void fail_with(int code) {
    if (!code_) code_ = code;
    if (!failed_at_) failed_at_ = seconds();
  }

  void kill_all() {
    killed_ = true;
    for (const auto& [process, rank] : running_) kill(process, SIGKILL);
    while (!running_.empty()) reap(0);
  }

  const int size_;
  int signals_ = -1, words_from_ = -1, words_to_ = -1;  // descriptors
  std::map<pid_t, int> running_;                        // the ranks of the processes
  std::map<int, std::string> errors_;                   // of the ranks that have failed
  std::optional<double> failed_at_;                     // when the first of them did, by clock.h
  int asked_ = 0, interrupts_ = 0, code_ = 0;           // the first signal that asked for a stop; Ctrl-C; the exit code
  bool killed_ = false;
};

}  // namespace

int launch_ranks(int size, const std::vector<std::string>& arguments) {
  const MeetingFolder folder;
  Launch launch(size);
  for (int rank = 0; rank < size; ++rank) launch.start(rank, arguments, folder.file());
  return launch.wait_for_end();
}

bool told_launcher(const Ranks& ranks, const std::string& error, int code) {
  const char* const launcher = getenv("LLMC_LAUNCHER");
  if (!launcher) return false;
  const Failure failure{ranks.rank, code};
  std::string message(reinterpret_cast<const char*>(&failure), sizeof failure);
  message += error.substr(0, kLongest - sizeof failure);
  return send(atoi(launcher), message.data(), message.size(), MSG_NOSIGNAL) == ssize_t(message.size());
}

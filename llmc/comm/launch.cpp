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
constexpr double kMoment = 1;     // seconds in which the other ranks may fail, too, when one has
constexpr double kPatience = 10;  // seconds in which killed processes must end

// A failing rank sends this, and its error's text after it.
struct Failure {
  int rank, code;
};
constexpr size_t kLongest = 1 << 16;  // bytes of a message

// A new folder for the file through which the ranks meet.
class MeetingFolder {
 public:
  MeetingFolder() {
    std::error_code error;
    path_ = (std::filesystem::temp_directory_path(error) / "train_llama-XXXXXX").string();
    const bool made = !error && mkdtemp(path_.data());
    if (!error && !made) error.assign(errno, std::generic_category());
    if (!made)
      fail_as(ExitCode::lost,
              "--gpus: cannot make a folder %s in which the ranks meet: %s\n  TMPDIR names another place for it",
              path_.c_str(), error.message().c_str());
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

// Returns the signals that a launch waits for. A signal that is ignored (nohup, & in a script) stays ignored.
sigset_t awaited_signals() {
  sigset_t signals;
  sigemptyset(&signals);
  for (const int signal : kSignals) {
    struct sigaction action;
    sigaction(signal, nullptr, &action);
    if (signal == SIGCHLD || action.sa_handler != SIG_IGN) sigaddset(&signals, signal);
  }
  return signals;
}

class Launch {
 public:
  explicit Launch(int size) : size_(size) {
    signal(SIGCHLD, SIG_DFL);  // ignored, it would not come
    const sigset_t signals = awaited_signals();
    sigprocmask(SIG_BLOCK, &signals, nullptr);
    signals_ = signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK);
    int ends[2] = {-1, -1};
    if (signals_ < 0 || socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends) != 0)
      fail_as(ExitCode::lost, "--gpus %d: no socket for the ranks: %s\n  ulimit -n may be too low", size,
              strerror(errno));
    errors_from_ = ends[0], errors_to_ = ends[1];
    fcntl(errors_from_, F_SETFD, FD_CLOEXEC);
    fcntl(errors_from_, F_SETFL, O_NONBLOCK);
  }
  ~Launch() {
    for (const auto& [process, rank] : running_) kill(process, SIGKILL);
    for (const int descriptor : {signals_, errors_from_, errors_to_}) close(descriptor);
  }
  Launch(const Launch&) = delete;

  void start(int rank, const std::vector<std::string>& arguments, const std::string& meeting_file) {
    const pid_t parent = getpid(), child = fork();
    if (child < 0)
      fail_as(ExitCode::lost,
              "--gpus %d: cannot start the process of rank %d: %s\n  ulimit -u, or the container's limit of processes, "
              "may be too low",
              size_, rank, strerror(errno));
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
      pollfd sources[] = {{signals_, POLLIN, 0}, {errors_from_, POLLIN, 0}};
      poll(sources, 2, deadline_ ? int(1000 * std::max(0.0, *deadline_ - seconds())) + 1 : -1);
      read_errors();
      signalfd_siginfo signal;
      while (read(signals_, &signal, sizeof signal) == sizeof signal) receive(int(signal.ssi_signo));
      reap();
      if (!deadline_ || seconds() < *deadline_) continue;
      if (!killed_) {
        kill_all();
      } else {
        for (const auto& [process, rank] : running_)
          print_error(format("rank %d of %d, process %d, does not end", rank, size_, int(process)));
        break;
      }
    }
    print_errors();
    return code_;
  }

 private:
  // The stop signals stay blocked, so that one that comes before the rank's handlers are installed waits for them. The
  // terminal's Ctrl-C reaches the rank, too, which ignores it, since the launcher passes it on.
  void become_rank(int rank, const std::string& meeting_file, pid_t parent) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(int(ExitCode::lost));  // it was killed before the line above
    signal(SIGINT, SIG_IGN);
    sigset_t unblocked;
    sigemptyset(&unblocked);
    sigaddset(&unblocked, SIGCHLD);
    sigprocmask(SIG_UNBLOCK, &unblocked, nullptr);
    const int nothing = open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (nothing >= 0) dup2(nothing, STDIN_FILENO);
    setenv("LLMC_RANK", std::to_string(rank).c_str(), 1);
    setenv("LLMC_WORLD_SIZE", std::to_string(size_).c_str(), 1);
    setenv("LLMC_RENDEZVOUS", meeting_file.c_str(), 1);
    setenv("LLMC_LAUNCHER", std::to_string(errors_to_).c_str(), 1);
    unsetenv("PMIX_RANK");  // of a launcher that started one process
  }

  void read_errors() {
    char bytes[kLongest];
    for (ssize_t length; (length = recv(errors_from_, bytes, sizeof bytes, 0)) >= ssize_t(sizeof(Failure));) {
      Failure failure;
      memcpy(&failure, bytes, sizeof failure);
      if (killed_) continue;  // it came too late for the joint error, which may have the same text
      errors_[failure.rank] = std::string(bytes + sizeof failure, size_t(length) - sizeof failure);
      fail_with(failure.code);
    }
  }

  void receive(int signal) {
    if (signal == SIGCHLD || signal == SIGPIPE) return;
    interrupts_ += signal == SIGINT;
    if (signal == SIGUSR2 || interrupts_ == 2) {
      print_error("second Ctrl-C: all ranks end at once, nothing is saved");
      code_ = 128 + SIGINT;
      kill_all();
    } else {
      if (!asked_) asked_ = signal;
      for (const auto& [process, rank] : running_) kill(process, SIGUSR1);
    }
  }

  // Learns which ranks have ended. This process may have other children.
  void reap() {
    for (auto at = running_.begin(); at != running_.end();) {
      const auto [process, rank] = *at;
      int status = 0;
      if (waitpid(process, &status, WNOHANG) == 0) {
        ++at;
        continue;
      }
      at = running_.erase(at);
      read_errors();  // what it said before it ended
      if (WIFEXITED(status) && WEXITSTATUS(status) != 0) fail_with(WEXITSTATUS(status));
      if (WIFSIGNALED(status)) ended_by_signal(rank, process, WTERMSIG(status));
    }
  }

  void ended_by_signal(int rank, pid_t process, int signal) {
    if (killed_ && signal == SIGKILL) return;
    if (asked_ && (signal == SIGUSR1 || signal == asked_)) return fail_with(128 + asked_);  // it had nothing to save
    errors_[rank] = format("its process %d was ended by signal %d (%s)%s", int(process), signal, strsignal(signal),
                           signal == SIGKILL ? "\n  if nobody did so, the system did, since the machine's memory ran "
                                               "out: dmesg tells"
                                             : "");
    fail_with(128 + signal);
  }

  void fail_with(int code) {
    if (!code_) code_ = code;
    if (!deadline_) deadline_ = seconds() + kMoment;
  }

  // Kills the ranks that are left. The errors are printed at once, for a process may take long to end.
  void kill_all() {
    print_errors();
    killed_ = true, deadline_ = seconds() + kPatience;
    for (const auto& [process, rank] : running_) kill(process, SIGKILL);
  }

  void print_errors() {
    if (!errors_.empty()) print_error(joint_error(errors_, size_));
    errors_.clear();
  }

  const int size_;
  int signals_ = -1, errors_from_ = -1, errors_to_ = -1;  // descriptors
  std::map<pid_t, int> running_;                          // the ranks of the processes
  std::map<int, std::string> errors_;                     // of ranks that have failed, until they are printed
  std::optional<double> deadline_;  // by clock.h: for the others to say why they fail, too, then for them to end
  int asked_ = 0, interrupts_ = 0, code_ = 0;  // the first signal that asked for a stop; Ctrl-C; the exit code
  bool killed_ = false;
};

}  // namespace

int launch_ranks(int size, const std::vector<std::string>& arguments) {
  const MeetingFolder folder;
  Launch launch(size);
  for (int rank = 0; rank < size; ++rank) launch.start(rank, arguments, folder.file());
  return launch.wait_for_end();
}

bool send_error_to_launcher(const Ranks& ranks, const std::string& error, int code) {
  const char* const launcher = getenv("LLMC_LAUNCHER");
  if (!launcher) return false;
  const Failure failure{ranks.rank, code};
  std::string message(reinterpret_cast<const char*>(&failure), sizeof failure);
  message += error.substr(0, kLongest - sizeof failure);
  return send(atoi(launcher), message.data(), message.size(), MSG_NOSIGNAL) == ssize_t(message.size());
}

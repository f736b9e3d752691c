// Covers: promise 2: ranks hear of each other apart from their collectives; a rank that waits in vain ends, and names
// the collective and the rank that is late, silent or gone; strangers' connections cost little, and no loss of the
// ranks' own connections ends a run whose collectives go on
#include <arpa/inet.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <memory>
#include <sstream>
#include <thread>

#include "dev/test/test.h"
#include "llmc/base/clock.h"
#include "llmc/comm/watchdog.h"

namespace {

void sleep_for(double seconds) { std::this_thread::sleep_for(std::chrono::duration<double>(seconds)); }

// Ranks of one process, each with the heartbeat that it would have in its own.
struct Calls {
  explicit Calls(int size) {
    for (int r = 0; r < size; ++r) ranks.push_back(std::make_unique<Heartbeat>(r, size));
    for (int r = 1; r < size; ++r) ranks[size_t(r)]->connect(ranks[0]->address());
  }
  // All that are still there tell what they have begun, some times.
  void exchange(bool asks = true) {
    for (int i = 0; i < 5; ++i) {
      for (size_t r = 0; r < ranks.size(); ++r)
        if (ranks[r]) ranks[r]->exchange(int64_t(10 + r), int64_t(r), asks);
      sleep_for(0.01);
    }
  }
  const Heartbeat::Sign& heard(int by, int of) { return ranks[size_t(by)]->exchange(10 + by, by, true)[size_t(of)]; }
  std::vector<std::unique_ptr<Heartbeat>> ranks;
};

Ranks rank_of(int rank, int size) {
  Ranks ranks;
  ranks.rank = rank, ranks.size = size;
  return ranks;
}

// Runs `body` in a process of its own.
class Process {
 public:
  explicit Process(const std::function<void()>& body) {
    int ends[2];
    REQUIRE(pipe(ends) == 0, "no pipe");
    child_ = fork();
    if (child_ == 0) {
      dup2(ends[1], STDERR_FILENO);
      body();
      _exit(0);
    }
    close(ends[1]);
    says_ = ends[0];
  }
  void kill() const { ::kill(child_, SIGKILL); }
  // Waits for its end. Returns what it wrote to stderr, and its exit code.
  std::string ended(int& code) const {
    std::string said;
    char buffer[1000];
    for (ssize_t n; (n = read(says_, buffer, sizeof buffer)) > 0;) said.append(buffer, size_t(n));
    close(says_);
    int status = 0;
    waitpid(child_, &status, 0);
    code = WEXITSTATUS(status);
    return said;
  }

 private:
  pid_t child_ = -1;
  int says_ = -1;
};

std::string ended(const std::function<void()>& body, int& code) { return Process(body).ended(code); }

// Returns a connection to the port of `address` on this machine's loopback `host`, or -1.
int connection(const std::string& address, const char* host = "127.0.0.1") {
  std::istringstream words(address);
  std::string token;
  int port = 0;
  words >> token >> port;
  sockaddr_in to{};
  to.sin_family = AF_INET, to.sin_port = htons(uint16_t(port));
  inet_pton(AF_INET, host, &to.sin_addr);
  const int made = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (connect(made, reinterpret_cast<const sockaddr*>(&to), sizeof to) == 0) return made;
  close(made);
  return -1;
}

bool is_open(int connection) {
  char byte;
  return recv(connection, &byte, 1, MSG_DONTWAIT) < 0 && (errno == EAGAIN || errno == EWOULDBLOCK);
}

long open_files() {
  namespace fs = std::filesystem;
  return std::distance(fs::directory_iterator("/proc/self/fd"), fs::directory_iterator());
}

// Stands between two heartbeats, until it is cut.
class Proxy {
 public:
  enum Cut { silent, ended };
  explicit Proxy(const std::string& address_of_rank_0)
      : listener_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)),
        token_(address_of_rank_0.substr(0, address_of_rank_0.find(' '))) {
    REQUIRE(listen(listener_, 8) == 0, "no listener");
    forwards_ = std::thread([this, address_of_rank_0] {
      const int to[] = {accept(listener_, nullptr, nullptr), connection(address_of_rank_0)};
      char bytes[4096];
      while (!is_cut_) {
        for (const int from : {0, 1}) {
          const ssize_t n = recv(to[from], bytes, sizeof bytes, MSG_DONTWAIT);
          if (n > 0) REQUIRE(send(to[1 - from], bytes, size_t(n), MSG_NOSIGNAL) == n, "the proxy cannot send");
        }
        sleep_for(0.005);
      }
      if (cut_ == ended) close(to[0]), close(to[1]);
    });
  }
  ~Proxy() { cut(silent); }
  std::string address() const {
    sockaddr_in own{};
    socklen_t length = sizeof own;
    getsockname(listener_, reinterpret_cast<sockaddr*>(&own), &length);
    return token_ + " " + std::to_string(ntohs(own.sin_port)) + " 127.0.0.1";
  }
  // Both connections end, or stay open and silent. Who connects again is not answered.
  void cut(Cut how) {
    if (!forwards_.joinable()) return;
    cut_ = how, is_cut_ = true;
    forwards_.join();
  }

 private:
  const int listener_;
  const std::string token_;
  Cut cut_ = silent;
  std::atomic<bool> is_cut_{false};
  std::thread forwards_;
};

// Rank 0 listens on the loopback, where strangers of these tests find it.
[[maybe_unused]] const int on_loopback = setenv("NCCL_SOCKET_IFNAME", "lo", 1);

}  // namespace

TEST_CASE("every rank hears of every other through rank 0") {
  Calls calls(3);
  calls.exchange();
  for (int by = 0; by < 3; ++by)
    for (int of = 0; of < 3; ++of) {
      CHECK(calls.heard(by, of).begun == 10 + of);
      CHECK(calls.heard(by, of).done == of);
      CHECK(calls.heard(by, of).age < 1);
      CHECK(!calls.heard(by, of).gone);
    }
}

TEST_CASE("a rank that does not ask hears that all are well, and of one that is not") {
  Calls calls(3);
  calls.exchange();
  for (int i = 0; i < 3; ++i) {
    for (int r = 0; r < 3; ++r) calls.ranks[size_t(r)]->exchange(20 + r, r, r == 2);
    sleep_for(0.01);
  }
  const Heartbeat::Sign of_1_to_2 = calls.ranks[2]->exchange(22, 2, true)[1];
  CHECK(of_1_to_2.begun == 21);
  const Heartbeat::Sign of_2_to_1 = calls.ranks[1]->exchange(21, 1, false)[2];
  CHECK(of_2_to_1.begun == 12);  // as it was when rank 1 last asked
  CHECK(of_2_to_1.age == 0);
  calls.ranks[0]->exchange(20, 0, false);  // hears the last of what was sent
  sleep_for(1.1);                          // rank 2 is silent
  for (int i = 0; i < 3; ++i) {
    for (int r = 0; r < 2; ++r) calls.ranks[size_t(r)]->exchange(30 + r, r, false);
    sleep_for(0.01);
  }
  const Heartbeat::Sign silent = calls.ranks[1]->exchange(31, 1, false)[2];
  CHECK(silent.begun == 22);
  CHECK(silent.age > 1);
}

TEST_CASE("a rank that ends is gone, unless it takes leave") {
  Calls calls(3);
  calls.exchange();
  calls.ranks[2] = nullptr;  // takes leave
  calls.exchange();
  CHECK(!calls.heard(1, 2).gone);
  int code = 0;
  const std::string address = calls.ranks[0]->address();
  ended(
      [&] {
        Heartbeat other(2, 3);
        other.connect(address);
        other.exchange(7, 7, true);
        sleep_for(0.2);
        _exit(0);  // without leave
      },
      code);
  calls.exchange();
  CHECK(calls.heard(1, 2).gone);
  CHECK(calls.heard(0, 2).gone);
}

TEST_CASE("a rank that ends soon after it has learned where rank 0 listens is gone, not unheard of") {
  Calls calls(2);
  int code = 0;
  const std::string address = calls.ranks[0]->address();
  ended(
      [&] {
        Watchdog other(rank_of(1, 2), 60);
        other.connect(address);
        sleep_for(0.1);
        _exit(0);
      },
      code);
  for (int i = 0; i < 5; ++i) calls.ranks[0]->exchange(1, 1, true), sleep_for(0.01);
  CHECK(calls.heard(0, 1).gone);
}

TEST_CASE("a rank that says nothing grows old") {
  Calls calls(2);
  calls.exchange();
  calls.heard(0, 1);  // the last of what was sent
  sleep_for(0.3);
  CHECK(calls.heard(0, 1).age >= 0.3);
}

TEST_CASE("a stranger is not heard") {
  Calls calls(2);
  Heartbeat stranger(1, 2);
  const std::string address = calls.ranks[0]->address();
  stranger.connect("1" + address);
  for (int i = 0; i < 5; ++i) stranger.exchange(99, 99, true), calls.ranks[0]->exchange(1, 1, true), sleep_for(0.01);
  CHECK(calls.heard(0, 1).begun != 99);
}

TEST_CASE("silent strangers take few files of rank 0, and keep no rank away") {
  Calls calls(3);
  const long before = open_files();
  std::vector<int> strangers;
  for (int i = 0; i < 300; ++i) strangers.push_back(connection(calls.ranks[0]->address()));
  calls.exchange();
  CHECK(calls.heard(0, 2).heard);
  CHECK(open_files() - before < 300 + 80);  // their own ends, and what rank 0 keeps
  CHECK(!is_open(strangers[0]));
  CHECK(is_open(strangers[299]));
  for (int stranger : strangers) close(stranger);
}

TEST_CASE("a stranger that sends noise is closed at once") {
  Calls calls(2);
  const int stranger = connection(calls.ranks[0]->address());
  const std::string noise(1 << 20, 'x');
  CHECK(send(stranger, noise.data(), noise.size(), MSG_DONTWAIT | MSG_NOSIGNAL) > 0);
  const long before = open_files();
  calls.ranks[0]->exchange(1, 1, false);
  CHECK(open_files() == before);
  CHECK(send(stranger, noise.data(), noise.size(), MSG_DONTWAIT | MSG_NOSIGNAL) < 0);
  close(stranger);
}

TEST_CASE("rank 0 takes only so much at a time of what a rank sends") {
  Heartbeat zero(0, 2), one(1, 2);
  one.connect(zero.address());
  for (int i = 0; i < 1000; ++i) one.exchange(i, i, false);  // nobody reads them yet
  sleep_for(0.05);
  CHECK(zero.exchange(0, 0, false)[1].begun == 127);
  CHECK(zero.exchange(0, 0, false)[1].begun == 255);
}

TEST_CASE("rank 0 listens on the interface that is named, else where NCCL starts, and on the loopback") {
  const auto address_on = [](const char* name) {
    setenv("NCCL_SOCKET_IFNAME", name, 1);
    std::istringstream words(Heartbeat(0, 2).address());
    std::string token, port, host;
    words >> token >> port >> host;
    return host;
  };
  const std::string chosen = address_on("");
  CHECK(chosen != "");
  for (const char* name : {"lo", "=lo", "l", "nothing,lo", "=nothing,lo"}) {
    CAPTURE(name);
    CHECK(address_on(name) == "127.0.0.1");
  }
  if (chosen != "127.0.0.1")  // a machine with a network
    for (const char* name : {"^lo", "^=lo,nothing", "^l"}) {
      CAPTURE(name);
      CHECK(address_on(name) != "127.0.0.1");
    }
  setenv("NCCL_SOCKET_IFNAME", "lo", 1);
  const Heartbeat zero(0, 2);
  const int there = connection(zero.address()), elsewhere = connection(zero.address(), "127.0.0.2");
  CHECK(there >= 0);
  CHECK(elsewhere < 0);
  close(there);
  setenv("NCCL_SOCKET_IFNAME", "", 1);
  const Heartbeat everywhere(0, 2);
  const int local = connection(everywhere.address());
  CHECK(local >= 0);
  close(local);
  setenv("NCCL_SOCKET_IFNAME", "lo", 1);
}

TEST_CASE("a connection that ends after the rank has come again marks nobody gone") {
  Calls calls(2);
  const std::string address = calls.ranks[0]->address();
  const Process former([&] {
    Heartbeat one(1, 2);
    one.connect(address);
    one.exchange(3, 3, true);
    sleep_for(60);
  });
  while (calls.ranks[0]->exchange(1, 1, true)[1].begun != 3) sleep_for(0.01);
  calls.exchange();
  former.kill();
  int code = 0;
  former.ended(code);
  calls.exchange();
  CHECK(calls.heard(0, 1).begun == 11);
  CHECK(!calls.heard(0, 1).gone);
}

TEST_CASE("a collective that is late ends the process, by its name and that of the rank which is late") {
  int code = 0;
  const std::string said = ended(
      [] {
        Watchdog watchdog(rank_of(0, 2), 0.5);
        Heartbeat other(1, 2);
        other.connect(watchdog.address());
        watchdog.begun("all_gather", {"here.cpp", 7}, nullptr, [] { return true; });
        watchdog.begun("reduce_scatter_sum", {"here.cpp", 8}, nullptr, [] { return false; });
        for (const double start = seconds(); seconds() - start < 10;) other.exchange(1, 1, true), sleep_for(0.02);
      },
      code);
  CHECK(code == int(ExitCode::lost));
  CHECK(said ==
        "error on rank 0 of 2: reduce_scatter_sum (here.cpp:8), collective 2 of this run: waited 0.5 s for rank 1\n"
        "  which has come to collective 1, and does something else now\n");
}

TEST_CASE("a call that waits for ranks ends the process, and names a silent one") {
  int code = 0;
  const std::string said = ended(
      [] {
        Watchdog watchdog(rank_of(0, 2), 1.8);
        const Watchdog::Call call(watchdog, "the start of NCCL");
        sleep_for(10);
      },
      code);
  CHECK(code == int(ExitCode::lost));
  CHECK(said.find("error on rank 0 of 2: the start of NCCL: waited 1.8 s for rank 1\n  which was never heard of") == 0);
}

TEST_CASE("an error of a library does not name ranks that are well, though they last told long ago how far they were") {
  int code = 0;
  const std::string said = ended(
      [] {
        Heartbeat zero(0, 3), two(2, 3);
        Watchdog watchdog(rank_of(1, 3), 60);
        two.connect(zero.address()), watchdog.connect(zero.address());
        const double start = seconds();
        const auto go_on = [&](double until, int64_t collectives) {
          while (seconds() - start < until)
            zero.exchange(collectives, collectives, false), two.exchange(collectives, collectives, false),
                sleep_for(0.02);
        };
        go_on(0.8, 0);
        for (int i = 0; i < 5; ++i) watchdog.begun("all_gather", {"here.cpp", 1}, nullptr, [] { return true; });
        watchdog.look_at([] { return "NCCL failed"; });
        go_on(10, 5);
      },
      code);
  CHECK(code == int(ExitCode::lost));
  CHECK(said ==
        "error on rank 1 of 3: NCCL failed\n  no rank is late: a kernel hangs, or the connection of the GPUs\n");
}

TEST_CASE("an error of a library ends the process; work that goes on does not") {
  int code = 0;
  const auto body = [](const char* error) {
    return [error] {
      Watchdog watchdog(rank_of(0, 2), 1.2);
      watchdog.look_at([error] { return std::string(error); });
      // Each is done 0.5 s after the one before: the clock starts again with each.
      const double start = seconds();
      for (int i = 1; i <= 6; ++i)
        watchdog.begun("all_gather", {"here.cpp", i}, nullptr, [=] { return seconds() - start > 0.5 * i; });
      sleep_for(3.2);
    };
  };
  CHECK(ended(body("NCCL failed"), code).find("error on rank 0 of 2: NCCL failed") == 0);
  CHECK(code == int(ExitCode::lost));
  CHECK(ended(body(""), code) == "");
  CHECK(code == 0);
}

TEST_CASE("a run whose connections are cut goes on while its collectives do; a rank that does not come again ends it") {
  // Two ranks of one process, whose heartbeats are cut from each other after so many collectives.
  struct Run {
    std::string what;
    Proxy::Cut cut;
    double timeout;
    std::vector<double> before, after;  // seconds that each collective takes
    std::string says;
    double at_most;
  };
  constexpr double kNever = 1e9;
  const std::vector<double> quick(10, 0.1);
  const Run runs[] = {
      // those that end early first
      {"silent, and no work goes on", Proxy::silent, 3, quick, {kNever}, "which is silent", 6},
      {"ended, and no work goes on", Proxy::ended, 60, quick, {kNever}, "whose process has ended", 8},
      {"silent", Proxy::silent, 2, quick, std::vector<double>(135, 0.1), "", 1e9},
      {"ended", Proxy::ended, 60, quick, std::vector<double>(80, 0.1), "", 1e9},
      {"ended, and no collective is slower than one before", Proxy::ended, 60, {3}, {6}, "", 1e9},
  };
  std::vector<Process> processes;
  const double start = seconds();
  for (const Run& run : runs)
    processes.emplace_back([&run] {
      Watchdog zero(rank_of(0, 2), run.timeout), one(rank_of(1, 2), run.timeout);
      Proxy proxy(zero.address());
      one.connect(proxy.address());
      const auto collectives = [&](const std::vector<double>& durations) {
        for (const double duration : durations) {
          const double begin = seconds();
          for (Watchdog* watchdog : {&zero, &one})
            watchdog->begun("all_gather", {"here.cpp", 7}, nullptr, [=] { return seconds() - begin >= duration; });
          sleep_for(std::min(duration, 20.));
        }
      };
      collectives(run.before);
      proxy.cut(run.cut);
      collectives(run.after);
      _exit(0);
    });
  // They take longer than a stranger may be silent.
  Heartbeat patient(0, 2);
  const int stranger = connection(patient.address());
  patient.exchange(0, 0, false);
  CHECK(is_open(stranger));
  for (size_t i = 0; i < processes.size(); ++i) {
    const Run& run = runs[i];
    CAPTURE(run.what);
    int code = 0;
    const std::string said = processes[i].ended(code);
    CHECK(code == (run.says.empty() ? 0 : int(ExitCode::lost)));
    if (run.says.empty()) CHECK(said == "");
    else says(said, "all_gather (here.cpp:7), collective 11 of this run", run.says);
    CHECK(seconds() - start < run.at_most);
  }
  patient.exchange(0, 0, false);
  CHECK(!is_open(stranger));
  close(stranger);
}

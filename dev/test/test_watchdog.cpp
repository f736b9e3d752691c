// Covers: promise 2: a rank that waits in vain ends, and names the collective and the rank that is late, silent or
// gone, be it rank 0, from its start on; no loss of the ranks' own connections ends a run whose collectives go on
#include "llmc/comm/watchdog.h"

#include <atomic>
#include <sstream>
#include <vector>

#include "dev/test/heartbeat_processes.h"
#include "dev/test/test.h"
#include "llmc/base/clock.h"
#include "llmc/comm/ras.h"

namespace {

// Stands between two heartbeats, until it is cut.
class Proxy {
 public:
  enum Cut { silent, ended, none };
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

}  // namespace

TEST_CASE("a collective that is late ends the process, by its name and that of the rank which is late") {
  int code = 0;
  const std::string said = ended(
      [] {
        Watchdog watchdog(rank_of(0, 2), {.comm = 0.5});
        Heartbeat other(1, 2, 0);
        other.connect(watchdog.address());
        watchdog.begun("all_gather", {"here.cpp", 7}, nullptr, [] { return true; });
        watchdog.begun("reduce_scatter_sum", {"here.cpp", 8}, nullptr, [] { return false; });
        for (const double start = seconds(); seconds() - start < 10;) other.exchange(1, 1), sleep_for(0.02);
      },
      code);
  CHECK(code == int(ExitCode::lost));
  CHECK(said ==
        "error on rank 0 of 2: reduce_scatter_sum (here.cpp:8), collective 2 of this run: waited 0.5 s for rank 1\n"
        "  which has come to collective 1, and does something else now\n");
}

namespace {

// Answers one client as NCCL's RAS does, in a thread of its own.
class RasStandIn {
 public:
  RasStandIn(std::string greeting, std::string status) : listener_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    REQUIRE(listen(listener_, 1) == 0, "no listener");
    sockaddr_in own{};
    socklen_t length = sizeof own;
    getsockname(listener_, reinterpret_cast<sockaddr*>(&own), &length);
    setenv("NCCL_RAS_ADDR", ("127.0.0.1:" + std::to_string(ntohs(own.sin_port))).c_str(), 1);
    thread_ = std::thread([this, greeting, status] {
      const int client = accept(listener_, nullptr, nullptr);
      const auto hear = [client] {
        std::string line;
        for (char c; line.find('\n') == line.npos && recv(client, &c, 1, 0) == 1;) line += c;
        return line;
      };
      const auto say = [client](const std::string& text) { send(client, text.data(), text.size(), MSG_NOSIGNAL); };
      asked_ += hear(), say(greeting);
      asked_ += hear(), say("OK\n");
      asked_ += hear(), say(status);
      close(client);
    });
  }
  // Returns what the client asked.
  std::string finish() {
    shutdown(listener_, SHUT_RDWR);
    thread_.join();
    unsetenv("NCCL_RAS_ADDR");
    return asked_;
  }

 private:
  const int listener_;
  std::string asked_;
  std::thread thread_;
};

constexpr const char* kRasStatus =
    "NCCL version 2.28.3\n\nJob summary\n===========\n\n  Nodes  Processes\n      1          4\n\n"
    "Communicators... (2.05s)\n=============\n\nGroup     Status  Errors\n    0    RUNNING  INCOMPLETE\n\n"
    "Errors\n======\n\nINCOMPLETE\n  Missing communicator data from 1 job process\n"
    "  Process 3487984 on node 172.16.64.213 managing GPU 5\n\n"
    "Warnings\n========\n\nTIMEOUT\n  Encountered 2 communication timeouts\n";

}  // namespace

TEST_CASE("NCCL's RAS is asked what is wrong, and not waited for") {
  const std::string errors =
      "    INCOMPLETE\n      Missing communicator data from 1 job process\n"
      "      Process 3487984 on node 172.16.64.213 managing GPU 5";
  CHECK(faults_of_ras(kRasStatus) == errors);
  CHECK(faults_of_ras("Errors\n======\n\nWarnings\n========\n\nTIMEOUT\n  2 times") == "    TIMEOUT\n      2 times");
  CHECK(faults_of_ras("Communicators... (0.00s)\n=====\n\n 0 RUNNING OK\n") == "");
  CHECK(faults_of_ras("Errors\n======\na\n\x1b[2Jb\n") == "    a\n    \ufffd[2Jb");
  std::string many = "Errors\n======\n";
  for (int i = 0; i < 100; ++i) many += "e\n";
  CHECK(faults_of_ras(many).size() == 12 * 6 - 1);
  {
    RasStandIn ras("SERVER PROTOCOL 2\n", kRasStatus);
    CHECK(ask_ras(5) == errors);
    CHECK(ras.finish() == "CLIENT PROTOCOL 2\nTIMEOUT 1\nVERBOSE STATUS\n");
  }
  {
    RasStandIn other("HTTP/1.1 400 Bad Request\n", "");
    CHECK(ask_ras(5) == "");
    other.finish();
  }
  {  // one that takes the connection and says nothing
    RasStandIn silent("", "");
    const double begin = seconds();
    CHECK(ask_ras(0.3) == "");
    CHECK(seconds() - begin >= 0.29);
    silent.finish();
  }
  setenv("NCCL_RAS_ADDR", "127.0.0.1:1", 1);  // nobody listens there
  CHECK(ask_ras(0.3) == "");
  setenv("NCCL_RAS_ADDR", "a.name.that.is.not.asked.for:28028", 1);
  CHECK(ask_ras(0.3) == "");
  unsetenv("NCCL_RAS_ADDR");
}

TEST_CASE("a rank that names no lost one adds what NCCL's RAS says") {
  RasStandIn ras("SERVER PROTOCOL 2\n", kRasStatus);
  int code = 0;
  const std::string said = ended(
      [] {
        Watchdog watchdog(rank_of(0, 1), {.comm = 0.5});
        watchdog.begun("all_gather", {"here.cpp", 7}, nullptr, [] { return false; });
        sleep_for(20);
      },
      code);
  CHECK(code == int(ExitCode::lost));
  CHECK(said ==
        "error on rank 0 of 1: all_gather (here.cpp:7), collective 1 of this run: waited 0.5 s\n"
        "  no rank is late: a kernel hangs, or the connection of the GPUs\n"
        "  NCCL's own status (RAS):\n    INCOMPLETE\n      Missing communicator data from 1 job process\n"
        "      Process 3487984 on node 172.16.64.213 managing GPU 5\n");
  ras.finish();
}

TEST_CASE("a call that waits for ranks ends the process, and names those that were never heard of") {
  int code = 0;
  const std::string said = ended(
      [] {
        Watchdog watchdog(rank_of(0, 2), {.comm = 1.8});
        const Watchdog::Call call(watchdog, "the start of NCCL");
        sleep_for(10);
      },
      code);
  CHECK(code == int(ExitCode::lost));
  CHECK(said.find("error on rank 0 of 2: the start of NCCL: waited 1.8 s for rank 1\n  which was never heard of") == 0);
  const std::string of_many = ended(
      [] {
        Watchdog watchdog(rank_of(0, 20), {.comm = 0.5});
        const Watchdog::Call call(watchdog, "the start of NCCL");
        sleep_for(10);
      },
      code);
  says(of_many, "waited 0.5 s for ranks 1, 2, 3, 4, 5, 6, 7, 8 and 11 more\n  which was never heard of");
}

TEST_CASE("an error of a library does not name ranks that are well, though they last told long ago how far they were") {
  int code = 0;
  const std::string said = ended(
      [] {
        Heartbeat zero(0, 3, 0), two(2, 3, 0);
        Watchdog watchdog(rank_of(1, 3), {.comm = 60});
        two.connect(zero.address()), watchdog.connect(zero.address());
        const double start = seconds();
        const auto go_on = [&](double until, int64_t collectives) {
          while (seconds() - start < until)
            zero.exchange(collectives, collectives), two.exchange(collectives, collectives), sleep_for(0.02);
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
      Watchdog watchdog(rank_of(0, 2), {.comm = 1.2});
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
    Timeouts timeouts;
    std::vector<double> before, after;  // seconds that each collective takes
    std::string says;
    double at_most;
  };
  constexpr double kNever = 1e9;
  const std::vector<double> quick(10, 0.1);
  const Run runs[] = {
      // those that end early first
      {"silent, and no work goes on", Proxy::silent, {60, 2}, quick, {kNever}, "\n  silent for ", 40},
      {"ended, and no work goes on", Proxy::ended, {60, 60}, quick, {kNever}, "whose process has ended", 40},
      {"silent, which does not count", Proxy::silent, {6, 0}, quick, {kNever}, "waited 6 s", 40},
      {"silent", Proxy::silent, {2, 2}, quick, std::vector<double>(135, 0.1), "", 1e9},
      {"silent, and no collective is slower than one before", Proxy::silent, {60, 3}, {4}, {5}, "", 1e9},
      {"ended", Proxy::ended, {60, 60}, quick, std::vector<double>(80, 0.1), "", 1e9},
      {"ended, and no collective is slower than one before", Proxy::ended, {60, 60}, {3}, {6}, "", 1e9},
      {"one rank computes for long", Proxy::none, {60, 4}, quick, {9}, "", 1e9},
  };
  // Rank 1 is silent for a moment, when rank 0 has waited for longer than a rank may be silent.
  const Process blinks([] {
    Watchdog zero(rank_of(0, 2), {60, 6});
    Heartbeat one(1, 2, 6);
    one.connect(zero.address());
    const Watchdog::Call call(zero, "a split");
    const auto live = [&, start = seconds()](double until) {
      while (seconds() - start < until) one.exchange(0, 0), sleep_for(0.1);
    };
    live(8);
    sleep_for(2.5);
    live(11.5);
    _exit(0);
  });
  std::vector<Process> processes;
  const double start = seconds();
  for (const Run& run : runs)
    processes.emplace_back([&run] {
      Watchdog zero(rank_of(0, 2), run.timeouts), one(rank_of(1, 2), run.timeouts);
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
      if (run.cut != Proxy::none) proxy.cut(run.cut);
      collectives(run.after);
      _exit(0);
    });
  // They take longer than a stranger may be silent.
  Heartbeat patient(0, 2, 0);
  const int stranger = connection(patient.address());
  patient.exchange(0, 0);
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
  int code = 0;
  CHECK(blinks.ended(code) == "");
  CHECK(code == 0);
  patient.exchange(0, 0);
  CHECK(!is_open(stranger));
  close(stranger);
}

namespace {

// Ranks in processes of their own, of which one is lost.
struct Lost {
  std::string what;
  int size, rank, signal;
  Timeouts timeouts;
  // Rank 0 is killed: when the others have an address, but no connection; when they have one; when all have been heard.
  enum When { before_connections, before_exchanges, later } when;
  std::string what_is_said, why;
};

// Writes to stderr what each of the other ranks says at its end, and a zero byte behind it.
void lose(const Lost& lost) {
  int ends[2];
  REQUIRE(pipe(ends) == 0, "no pipe");
  const auto hear = [&] {
    std::string words;
    for (char c; read(ends[0], &c, 1) == 1 && c != '\n';) words += c;
    return words;
  };
  const auto tell = [&](const std::string& words) {
    REQUIRE(write(ends[1], (words + "\n").data(), words.size() + 1) == ssize_t(words.size()) + 1, "cannot tell");
  };
  // Once all have been heard, the lost rank says so.
  const auto be_lost = [&](Heartbeat& heartbeat) {
    while (lost.when != Lost::later || heartbeat.exchange(0, 0).unheard.count > 0) sleep_for(0.02);
    tell("all are heard");
    for (;;) heartbeat.exchange(0, 0), sleep_for(0.05);
  };
  const auto wait_in_vain = [&](Watchdog& watchdog) {
    const Watchdog::Call call(watchdog, "the start of NCCL");
    sleep_for(100);
  };
  std::string address;
  std::vector<Process> processes;
  for (int r = 0; r < lost.size; ++r) {
    if (r == 1 && lost.when == Lost::before_connections) processes[0].kill(lost.signal), sleep_for(0.2);
    processes.emplace_back([&, r] {
      if (r == lost.rank) {
        Heartbeat heartbeat(r, lost.size, lost.timeouts.silent);
        if (r == 0) tell(heartbeat.address());
        else heartbeat.connect(address);
        be_lost(heartbeat);
      }
      Watchdog watchdog(rank_of(r, lost.size), lost.timeouts);
      if (r == 0) tell(watchdog.address());
      else watchdog.connect(address);
      wait_in_vain(watchdog);
    });
    if (r == 0) address = hear();
  }
  if (lost.when == Lost::before_exchanges) sleep_for(1);
  if (lost.when == Lost::later) hear();
  const Process& gone = processes[size_t(lost.rank)];
  gone.kill(lost.signal);
  for (int r = 0; r < lost.size; ++r)
    if (int code = 0; r != lost.rank) {
      std::string words = processes[size_t(r)].ended(code);
      if (code != int(ExitCode::lost)) words += format(" (exit code %d)", code);
      fwrite(words.c_str(), 1, words.size() + 1, stderr);
    }
  gone.kill();
  int code = 0;
  gone.ended(code);
}

}  // namespace

// Nothing else ends such a rank before 60 s.
TEST_CASE(
    "a rank that is killed or stopped is named by all others within seconds, and so is rank 0 from its start on") {
  const Timeouts patient{60, 60}, quick{60, 4}, never{6, 0};
  const std::string ended = "\n  whose process has ended", silent = "\n  silent for ";
  std::vector<Lost> all = {{"stopped, which does not count", 2, 1, SIGSTOP, never, Lost::later, "waited 6 s", silent}};
  for (const int size : {2, 4}) {
    const int last = size - 1;
    const std::string vain = "waits in vain";
    all.push_back({"killed", size, last, SIGKILL, patient, Lost::later, vain, ended});
    all.push_back({"rank 0 is killed", size, 0, SIGKILL, patient, Lost::later, vain, ended});
    all.push_back({"rank 0 is killed at its start", size, 0, SIGKILL, patient, Lost::before_exchanges, vain, ended});
    all.push_back({"rank 0 is killed at once", size, 0, SIGKILL, patient, Lost::before_connections, vain, ended});
    all.push_back({"stopped", size, last, SIGSTOP, quick, Lost::later, vain, silent});
    all.push_back({"rank 0 is stopped", size, 0, SIGSTOP, quick, Lost::later, vain, silent});
    all.push_back({"rank 0 is stopped at its start", size, 0, SIGSTOP, quick, Lost::before_exchanges, vain, silent});
  }
  std::vector<Process> processes;  // all at the same time
  const double start = seconds();
  for (const Lost& lost : all) processes.emplace_back([&lost] { lose(lost); });
  for (size_t i = 0; i < all.size(); ++i) {
    CAPTURE(all[i].what);
    int code = 0, ranks = 0;
    std::istringstream said(processes[i].ended(code));
    for (std::string words; std::getline(said, words, '\0'); ++ranks)
      says(words, all[i].what_is_said + format(" for rank %d", all[i].rank) + all[i].why);
    CHECK(code == 0);
    CHECK(ranks == all[i].size - 1);
  }
  CHECK(seconds() - start < 50);
}

TEST_CASE("a rank 0 that no connection has reached is not silent; its refusals count until collectives are done") {
  const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);  // that does not listen
  sockaddr_in own{};
  own.sin_family = AF_INET, own.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof own;
  bind(listener, reinterpret_cast<const sockaddr*>(&own), length);
  getsockname(listener, reinterpret_cast<sockaddr*>(&own), &length);
  const std::string address = "123 " + std::to_string(ntohs(own.sin_port)) + " 127.0.0.1";
  const auto with = [&](int collectives) {
    return Process([=] {
      Watchdog watchdog(rank_of(1, 2), {10, 1});
      watchdog.connect(address);
      for (int i = 0; i < collectives; ++i) watchdog.begun("all_gather", {"here.cpp", 1}, nullptr, [] { return true; });
      sleep_for(1);
      const Watchdog::Call call(watchdog, "a split");
      sleep_for(60);
    });
  };
  const Process some = with(3), none = with(0);
  int code = 0;
  says(some.ended(code), "a split: waited 10 s for rank 0\n  which was never heard of");
  says(none.ended(code), "a split: waits in vain for rank 0\n  whose process has ended");
  close(listener);
}

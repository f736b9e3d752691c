// Covers: promise 2: ranks hear of each other apart from their collectives: who is late, silent or gone; strangers'
// connections cost little
#include "llmc/comm/heartbeat.h"

#include <sys/resource.h>

#include <filesystem>
#include <memory>
#include <vector>

#include "dev/test/heartbeat_processes.h"
#include "dev/test/test.h"
#include "llmc/comm/watchdog.h"

namespace {

// Ranks of one process, each with the heartbeat that it would have in its own.
struct Calls {
  explicit Calls(int size, double silent_seconds = 0) {
    for (int r = 0; r < size; ++r) ranks.push_back(std::make_unique<Heartbeat>(r, size, silent_seconds));
    for (int r = 1; r < size; ++r) ranks[size_t(r)]->connect(ranks[0]->address());
  }
  // All that are still there tell what they have begun, some times.
  void exchange() {
    for (int i = 0; i < 5; ++i) {
      for (size_t r = 0; r < ranks.size(); ++r)
        if (ranks[r]) ranks[r]->exchange(int64_t(10 + r), int64_t(r));
      sleep_for(0.01);
    }
  }
  const Heartbeat::News& news(int of) { return ranks[size_t(of)]->exchange(10 + of, of); }
  std::vector<std::unique_ptr<Heartbeat>> ranks;
};

std::vector<int> named(const Heartbeat::Few& ranks) { return {ranks.first, ranks.first + ranks.named()}; }
using Named = std::vector<int>;

long open_files() {
  namespace fs = std::filesystem;
  return std::distance(fs::directory_iterator("/proc/self/fd"), fs::directory_iterator());
}

}  // namespace

TEST_CASE("every rank hears of every other through rank 0") {
  Calls calls(3);
  CHECK(named(calls.news(0).unheard) == Named{1, 2});
  CHECK(named(calls.news(2).unheard) == Named{0, 1});
  calls.exchange();
  for (int r = 0; r < 3; ++r) {
    const Heartbeat::News& news = calls.news(r);
    CHECK(news.begun.number == 10);
    CHECK(named(news.begun.ranks) == Named{0});
    CHECK(news.done.number == 0);
    CHECK(news.most_done == 2);
    CHECK(news.gone.count + news.silent.count + news.unheard.count + news.ends == 0);
  }
  calls.ranks[2]->exchange(10, 0), sleep_for(0.01);
  CHECK(named(calls.news(0).begun.ranks) == Named{0, 2});
  CHECK(calls.news(0).most_done == 1);
}

TEST_CASE("of many ranks a few are named, and the rest is counted; the news have one size") {
  Heartbeat zero(0, 2000, 0), last(1999, 2000, 0);
  CHECK(zero.exchange(1, 1).unheard.count == 1999);
  CHECK(named(zero.exchange(1, 1).unheard) == Named{1, 2, 3, 4, 5, 6, 7, 8});
  CHECK(named(last.exchange(1, 1).unheard) == Named{0, 1, 2, 3, 4, 5, 6, 7});
  static_assert(sizeof(Heartbeat::News) < 300);
}

TEST_CASE("a rank that says nothing is silent: those that are for the silent timeout alone, if there are such") {
  Calls calls(4, 4);
  calls.exchange();
  const auto until = [&](int talking, float silence) {
    for (;;) {
      for (int r = 1; r < talking; ++r) calls.news(r);
      if (calls.news(0).silence >= silence && calls.news(0).silent.count) break;
      sleep_for(0.05);
    }
    sleep_for(0.01);
  };
  until(3, 1.5);
  for (const int r : {0, 1, 2}) CHECK(named(calls.news(r).silent) == Named{3});
  until(2, 4);  // one exchange adds at most a second to the silence of a rank
  for (const int r : {0, 1}) {
    CHECK(named(calls.news(r).silent) == Named{3});
    CHECK(calls.news(r).silence >= 4);
  }
}

TEST_CASE("a machine that was suspended makes nobody silent") {
  Calls calls(2, 1.8);
  calls.exchange();
  calls.news(0);
  sleep_for(2.5);
  CHECK(calls.news(0).silent.count == 0);
  CHECK(calls.news(1).silent.count == 0);
}

TEST_CASE("a rank that ends is gone, unless it takes leave") {
  Calls calls(3);
  calls.exchange();
  calls.ranks[2] = nullptr;  // takes leave
  calls.exchange();
  CHECK(calls.news(1).gone.count == 0);
  CHECK(calls.news(1).begun.number == 10);
  int code = 0;
  const std::string address = calls.ranks[0]->address();
  ended(
      [&] {
        Heartbeat other(2, 3, 0);
        other.connect(address);
        other.exchange(7, 7);
        sleep_for(0.2);
        _exit(0);  // without leave
      },
      code);
  calls.exchange();
  CHECK(named(calls.news(1).gone) == Named{2});
  CHECK(named(calls.news(0).gone) == Named{2});
}

TEST_CASE("a rank that ends soon after it has learned where rank 0 listens is gone, not unheard of") {
  Calls calls(2);
  int code = 0;
  const std::string address = calls.ranks[0]->address();
  ended(
      [&] {
        Watchdog other(rank_of(1, 2), {.comm = 60});
        other.connect(address);
        sleep_for(0.1);
        _exit(0);
      },
      code);
  for (int i = 0; i < 5; ++i) calls.news(0), sleep_for(0.01);
  CHECK(named(calls.news(0).gone) == Named{1});
}

TEST_CASE("a stranger is not heard") {
  Calls calls(2);
  Heartbeat stranger(1, 2, 0);
  stranger.connect("1" + calls.ranks[0]->address());
  for (int i = 0; i < 5; ++i) stranger.exchange(99, 99), calls.news(0), sleep_for(0.01);
  CHECK(calls.news(0).most_done != 99);
}

TEST_CASE("the loopback of another machine is not taken for rank 0's") {
  Calls calls(2);
  Heartbeat other(1, 2, 0);
  other.connect(calls.ranks[0]->address() + "x");
  for (int i = 0; i < 5; ++i) other.exchange(99, 99), calls.news(0), sleep_for(0.01);
  CHECK(calls.news(0).most_done != 99);
  CHECK(named(other.exchange(99, 99).unheard) == Named{0});
}

TEST_CASE("silent strangers take few files of rank 0, and keep no rank away") {
  Calls calls(3);
  const long before = open_files();
  std::vector<int> strangers;
  for (int i = 0; i < 300; ++i) strangers.push_back(connection(calls.ranks[0]->address()));
  calls.exchange();
  CHECK(calls.news(0).unheard.count == 0);
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
  calls.news(0);
  CHECK(open_files() == before);
  CHECK(send(stranger, noise.data(), noise.size(), MSG_DONTWAIT | MSG_NOSIGNAL) < 0);
  close(stranger);
}

TEST_CASE("rank 0 takes only so much at a time of what a rank sends") {
  Heartbeat zero(0, 2, 0), one(1, 2, 0);
  one.connect(zero.address());
  for (int i = 0; i < 1000; ++i) one.exchange(i, i);  // nobody reads them yet
  sleep_for(0.05);
  CHECK(zero.exchange(0, 0).most_done == 127);
  CHECK(zero.exchange(0, 0).most_done == 255);
}

TEST_CASE("rank 0 does not listen if the ranks would take the files that others need, and warns") {
  int code = 0;
  const std::string said = ended(
      [] {
        const rlimit limit{300, 300};
        setrlimit(RLIMIT_NOFILE, &limit);
        _exit(Heartbeat(0, 100, 0).address() != "" && Heartbeat(0, 200, 0).address() == "" ? 7 : 0);
      },
      code);
  CHECK(code == 7);
  says(said, "warning: this process may not open the 264 files of the ranks' heartbeats");
}

TEST_CASE("rank 0 listens on the interface that is named, else where NCCL starts, and on the loopback") {
  const auto address_on = [](const char* name) {
    setenv("NCCL_SOCKET_IFNAME", name, 1);
    std::istringstream words(Heartbeat(0, 2, 0).address());
    std::string token, port, host;
    words >> token >> port >> host;
    return host.substr(0, host.find('@'));
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
  const Heartbeat zero(0, 2, 0);
  const int there = connection(zero.address()), elsewhere = connection(zero.address(), "127.0.0.2");
  CHECK(there >= 0);
  CHECK(elsewhere < 0);
  close(there);
  setenv("NCCL_SOCKET_IFNAME", "", 1);
  const Heartbeat everywhere(0, 2, 0);
  const int local = connection(everywhere.address());
  CHECK(local >= 0);
  close(local);
  setenv("NCCL_SOCKET_IFNAME", "lo", 1);
}

TEST_CASE("a connection that ends after the rank has come again marks nobody gone") {
  Calls calls(2);
  const std::string address = calls.ranks[0]->address();
  const Process former([&] {
    Heartbeat one(1, 2, 0);
    one.connect(address);
    one.exchange(3, 3);
    sleep_for(60);
  });
  while (calls.news(0).most_done != 3) sleep_for(0.01);
  calls.exchange();
  former.kill();
  int code = 0;
  former.ended(code);
  calls.exchange();
  CHECK(calls.news(0).most_done == 1);
  CHECK(calls.news(0).gone.count == 0);
}

// Covers: promise 2: ranks hear of each other beside their collectives; who waits in vain ends, and names the
// collective and the rank that is behind, silent or gone
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <memory>

#include "dev/test/test.h"
#include "llmc/base/clock.h"
#include "llmc/comm/watchdog.h"

namespace {

void sleep_for(double seconds) { std::this_thread::sleep_for(std::chrono::duration<double>(seconds)); }

// Ranks of one process, each with the roll call that it would have in its own.
struct Calls {
  explicit Calls(int size) {
    for (int r = 0; r < size; ++r) ranks.push_back(std::make_unique<RollCall>(r, size));
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
  const RollCall::Sign& heard(int by, int of) { return ranks[size_t(by)]->exchange(10 + by, by, true)[size_t(of)]; }
  std::vector<std::unique_ptr<RollCall>> ranks;
};

Ranks rank_of(int rank, int size) {
  Ranks ranks;
  ranks.rank = rank, ranks.size = size;
  return ranks;
}

// Runs `body` in a process of its own for `seconds` at most. Returns what it wrote to stderr, and its exit code.
std::string ended(const std::function<void()>& body, int& code) {
  int ends[2];
  REQUIRE(pipe(ends) == 0, "no pipe");
  const pid_t child = fork();
  if (child == 0) {
    dup2(ends[1], STDERR_FILENO);
    body();
    _exit(0);
  }
  close(ends[1]);
  std::string said;
  char buffer[1000];
  for (ssize_t n; (n = read(ends[0], buffer, sizeof buffer)) > 0;) said.append(buffer, size_t(n));
  close(ends[0]);
  int status = 0;
  waitpid(child, &status, 0);
  code = WEXITSTATUS(status);
  return said;
}

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
  const RollCall::Sign of_1_to_2 = calls.ranks[2]->exchange(22, 2, true)[1];
  CHECK(of_1_to_2.begun == 21);
  const RollCall::Sign of_2_to_1 = calls.ranks[1]->exchange(21, 1, false)[2];
  CHECK(of_2_to_1.begun == 12);  // as it was when rank 1 last asked
  CHECK(of_2_to_1.age == 0);
  calls.ranks[0]->exchange(20, 0, false);  // hears the last of what was sent
  sleep_for(1.1);                          // rank 2 is silent
  for (int i = 0; i < 3; ++i) {
    for (int r = 0; r < 2; ++r) calls.ranks[size_t(r)]->exchange(30 + r, r, false);
    sleep_for(0.01);
  }
  const RollCall::Sign silent = calls.ranks[1]->exchange(31, 1, false)[2];
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
        RollCall other(2, 3);
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
  RollCall stranger(1, 2);
  const std::string address = calls.ranks[0]->address();
  stranger.connect("1" + address);
  for (int i = 0; i < 5; ++i) stranger.exchange(99, 99, true), calls.ranks[0]->exchange(1, 1, true), sleep_for(0.01);
  CHECK(calls.heard(0, 1).begun != 99);
}

TEST_CASE("a collective that is late ends the process, by its name and that of the rank which is behind") {
  int code = 0;
  const std::string said = ended(
      [] {
        Watchdog watchdog(rank_of(0, 2), 0.5);
        RollCall other(1, 2);
        other.connect(watchdog.address());
        watchdog.begun("all_gather", {"here.cpp", 7}, nullptr, [] { return true; });
        watchdog.begun("reduce_scatter_sum", {"here.cpp", 8}, nullptr, [] { return false; });
        for (const double start = seconds(); seconds() - start < 10;) other.exchange(1, 1, true), sleep_for(0.02);
      },
      code);
  CHECK(code == 1);
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
  CHECK(code == 1);
  CHECK(said.find("error on rank 0 of 2: the start of NCCL: waited 1.8 s for rank 1\n  which was never heard of") == 0);
}

TEST_CASE("an error of a library does not name ranks that are well, though they last told long ago how far they were") {
  int code = 0;
  const std::string said = ended(
      [] {
        RollCall zero(0, 3), two(2, 3);
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
  CHECK(code == 1);
  CHECK(said ==
        "error on rank 1 of 3: NCCL failed\n  no rank is behind: a kernel hangs, or the connection of the GPUs\n");
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
  CHECK(code == 1);
  CHECK(ended(body(""), code) == "");
  CHECK(code == 0);
}

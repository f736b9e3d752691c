// Covers: the device backend: the order check reports what a plain one does that forgets nothing, with a log that stays
// small
#include "llmc/device/order_check.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <vector>

#include "dev/test/test.h"
#include "llmc/device/random.h"

namespace {

// Finds the plain way what the order check must report: every access knows all that happened before it.
class PlainOrder {
 public:
  using Known = std::vector<bool>;  // which earlier accesses
  explicit PlainOrder(size_t timelines) : known_(timelines) {}

  // Returns whether it conflicts with an access that did not happen before it.
  bool access(size_t timeline, const Access* accesses, size_t count) {
    if (timeline != OrderCheck::kHost) join(timeline, known_[OrderCheck::kHost]);
    bool conflict = false;
    const size_t before = log_.size();
    for (const Access* a = accesses; a != accesses + count; ++a) {
      const char* begin = static_cast<const char*>(a->data);
      for (size_t i = 0; i < before; ++i) {
        const Access& e = log_[i];
        const char* earlier = static_cast<const char*>(e.data);
        const bool overlaps = a->bytes && e.bytes && begin < earlier + e.bytes && earlier < begin + a->bytes;
        conflict |= overlaps && (a->write || e.write) && !(i < known_[timeline].size() && known_[timeline][i]);
      }
      log_.push_back(*a);
    }
    known_[timeline].resize(log_.size());
    for (size_t i = before; i < log_.size(); ++i) known_[timeline][i] = true;
    return conflict;
  }
  Known now(size_t timeline) const { return known_[timeline]; }
  void join(size_t timeline, const Known& other) {
    Known& mine = known_[timeline];
    if (mine.size() < other.size()) mine.resize(other.size());
    for (size_t i = 0; i < other.size(); ++i) mine[i] = mine[i] || other[i];
  }

 private:
  std::vector<Known> known_;
  std::vector<Access> log_;
};

}  // namespace

TEST_CASE("the order check agrees with a plain one that forgets nothing") {
  int reports = 0, quiet = 0, wrong = 0;
  char data[40];
  for (unsigned long seed = 1; seed <= 4000; ++seed) {
    Random random(seed);
    OrderCheck order;
    for (const char* name : {"one", "two", "three"}) order.add_timeline(name);
    PlainOrder plain(4);
    std::vector<OrderCheck::Clock> clocks(3);
    std::vector<PlainOrder::Known> known(3);
    const size_t busy = 1 + random.below(12);  // how often there is an event between accesses
    for (int step = 0; step < 60; ++step) {
      const size_t timeline = random.below(4), event = random.below(3);
      if (random.below(busy + 1) == 0) {
        Access accesses[2];
        for (Access& a : accesses) {
          const size_t begin = random.below(40);
          a = {data + begin, random.below(4) ? random.below(41 - begin) : 40 - begin, random.below(3) == 0};
        }
        const bool expected = plain.access(timeline, accesses, 2);
        const bool reported = error_of([&] { order.access(int(timeline), "step", {"here", step}, accesses, 2); }) != "";
        wrong += expected != reported;
        ++(expected ? reports : quiet);
        if (expected || reported) break;
      } else if (random.below(2)) {
        clocks[event] = order.now(int(timeline));
        known[event] = plain.now(timeline);
      } else {
        order.join(int(timeline), clocks[event]);
        plain.join(timeline, known[event]);
      }
    }
  }
  CAPTURE(reports);
  CAPTURE(quiet);
  CHECK(wrong == 0);
  CHECK(reports > 1000);
  CHECK(quiet > 5000);
}

TEST_CASE("the log of accesses stays small") {
  OrderCheck order;
  const int one = order.add_timeline("one"), two = order.add_timeline("two");
  float data[1000];
  const auto now = [] { return std::chrono::steady_clock::now(); };
  const auto begin = now();
  size_t largest = 0;
  for (int step = 0; step < 100000; ++step) {
    const int mine = step % 2 ? one : two, theirs = step % 2 ? two : one;
    order.join(mine, order.now(theirs));
    // Ranges of all lengths, and now and then one that covers everything.
    const size_t first = size_t(step) * 37 % 900, length = 1 + size_t(step) * 11 % 100;
    const Access accesses[] = {{data + first, length * sizeof(float), step % 3 == 0},
                               {data + (first + 450) % 900, length * sizeof(float), step % 3 == 1}};
    order.access(mine, "step", {"here", step}, accesses, 2);
    largest = std::max(largest, order.entries());
  }
  const double seconds = std::chrono::duration<double>(now() - begin).count();
  printf("10^5 ordered accesses: %.3f s, at most %zu entries in the log\n", seconds, largest);
  CHECK(largest < 2000);
  float elsewhere[8];
  const Access all[] = {{data, sizeof data, true}}, accesses_elsewhere[] = {{elsewhere, sizeof elsewhere, true}};
  order.access(one, "all", {"here", 1}, all, 1);
  CHECK(order.entries() <= 3);  // and what the last step of the other timeline did
  order.forget(data, sizeof data);
  CHECK(order.entries() == 0);
  order.access(one, "before the host waits", {"here", 1}, all, 1);
  order.access(two, "next to it", {"here", 1}, accesses_elsewhere, 1);
  order.join(OrderCheck::kHost, order.now(one));
  CHECK(order.entries() == 1);
}

// Which ranks are slow, and what a GPU's sensors say, read from a stand-in for NVML.
//
// Covers: --gpu-every: a rank is slow after several measurements in a row, and until one that is not; one of two ranks
// can be; the sensors that NVML knows, and those that it lacks, or a library that is missing
#include <cstdlib>

#include "dev/test/test.h"
#include "llmc/run/rank_times.h"

namespace {

using Found = std::vector<int>;

struct Judge {
  SlowRanks slow;
  Found recovered = {};
  Found take(const std::vector<double>& seconds) {
    recovered.clear();
    return slow.take(seconds, recovered);
  }
};

}  // namespace

TEST_CASE("the median of an even number is the smaller of the two in the middle") {
  CHECK(SlowRanks::median({3}) == 3);
  CHECK(SlowRanks::median({3, 1}) == 1);
  CHECK(SlowRanks::median({9, 1, 5}) == 5);
  CHECK(SlowRanks::median({4, 9, 1, 5}) == 4);
}

TEST_CASE("a rank is slow after several measurements in a row, and until one that is not") {
  Judge judge;
  const std::vector<double> slow = {1, 1.2, 1, 1.05}, even = {1, 1.1, 1, 1};
  for (size_t i = 1; i < SlowRanks::kMany; ++i) CHECK(judge.take(slow).empty());
  CHECK(judge.take(even).empty());  // which begins the row again
  for (size_t i = 1; i < SlowRanks::kMany; ++i) CHECK(judge.take(slow).empty());
  CHECK(judge.take(slow) == Found{1});
  CHECK(judge.take(slow).empty());  // it was said
  CHECK(judge.recovered.empty());
  CHECK(judge.take(even).empty());
  CHECK(judge.recovered == Found{1});
  CHECK(judge.take(even).empty());
  CHECK(judge.recovered.empty());
}

TEST_CASE("one of two ranks can be slow, also of short steps, and several of eight") {
  Judge two, eight, quick;
  Found of_two, of_eight, of_quick;
  for (size_t i = 0; i < SlowRanks::kMany; ++i) {
    of_two = two.take({1.16, 1});
    of_quick = quick.take({0.001, 0.00116});
    of_eight = eight.take({1, 2, 1, 1, 3, 1, 1, 1.149});
  }
  CHECK(of_two == Found{0});
  CHECK(of_quick == Found{1});
  CHECK(of_eight == Found{1, 4});
}

TEST_CASE("where all ranks differ, a slow one has to differ more") {
  Judge noisy, clear, four, below;
  for (size_t i = 0; i < SlowRanks::kMany; ++i) {
    const bool last = i + 1 == SlowRanks::kMany;
    CHECK(below.take({0.5, 0.6, 1, 1, 1.3})
              .empty());  // 0.3 from the median, and most ranks are up to 0.3, if faster, too
    CHECK(noisy.take({1, 1.4, 1.2, 1.75}).empty());  // 0.55 from the median, and most ranks are up to 0.2
    CHECK(clear.take({1, 1.4, 1.2, 2.5}) == (last ? Found{3} : Found{}));
    CHECK(four.take({1, 1, 1.01, 1.2}) == (last ? Found{3} : Found{}));
  }
}

TEST_CASE("where times differ from look to look, a slow rank has to differ more") {
  Judge noisy, clear;
  Found of_noisy, of_clear;
  for (size_t i = 0; i < SlowRanks::kMany; ++i) {
    const double load = i == 2 ? 2 : 1;  // both ranks share a processor that has more to do in this look
    of_noisy = noisy.take({load, 1.8 * load});
    of_clear = clear.take({load, 2.5 * load});
  }
  CHECK(of_noisy.empty());
  CHECK(of_clear == Found{1});
  for (size_t i = 2; i < SlowRanks::kMany; ++i) of_noisy = noisy.take({1, 1.8});
  CHECK(of_noisy == Found{1});  // the look in between is forgotten
}

TEST_CASE("what the sensors say, in words") {
  GpuSensors::Reading r;
  CHECK(r.text() == "");
  CHECK(!r.any());
  r = {.mhz = 1200, .most_mhz = 1980, .watts = 420, .most_watts = 700, .celsius = 84, .reasons = 0x21};
  CHECK(r.text() == "1200 of 1980 MHz, 420 of 700 W, 84 °C, throttled: SW Thermal Slowdown");
  r.corrected = 12, r.not_corrected = 0, r.most_watts = -1, r.reasons = 0x48;
  CHECK(r.text() ==
        "1200 of 1980 MHz, 420 W, 84 °C, throttled: HW Slowdown, HW Thermal Slowdown, "
        "12 corrected and 0 other memory errors");
}

// LD_LIBRARY_PATH, by which the stand-in is found, is read at the start of a process: slow_ranks.sh runs this with it.
TEST_CASE("NVML is read, as far as it is there") {
  const char* stand_in = getenv("LLMC_TEST_NVML");
  GpuSensors sensors("GPU-8a6e");
  if (!stand_in) {
    CHECK(sensors.missing().starts_with("libnvidia-ml.so.1"));
    CHECK(!sensors.read().any());
    return;
  }
  CHECK(sensors.missing() == "");
  CHECK(sensors.read().text() ==
        "1200 of 1980 MHz, 420 of 700 W, 84 °C, throttled: SW Power Cap, 3 corrected and 1 other memory errors");
  GpuSensors other("GPU-0000");
  CHECK(other.missing() == "libnvidia-ml.so.1 does not know the GPU GPU-0000");
  CHECK(!other.read().any());
}

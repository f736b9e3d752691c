#include "llmc/train/defaults.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace {

constexpr double kSmallest = 0.86e6;  // parameters: `tiny` and smaller models have x = 1
constexpr int64_t kSteps = 160, kTokens = kSteps * 16 * 128;

// Returns the largest power of two that is not above `least` x^power and `most`.
int64_t power_of_two(int64_t least, double x, double power, int64_t most) {
  const double wanted = std::min(double(least) * std::pow(x, power), double(most));
  return int64_t(std::bit_floor(uint64_t(wanted)));
}

double two_digits(double number) {
  const double unit = std::pow(10, std::floor(std::log10(number)) - 1);
  return std::round(number / unit) / std::round(1 / unit);  // the nearest double of a number such as 0.0011
}

}  // namespace

Defaults defaults_of(const ModelConfig& config) {
  const double x = std::max(1.0, double(config.parameters()) / kSmallest);
  const int64_t T = power_of_two(128, x, 1 / 2., 4096), G = power_of_two(16, x, 1 / 5., 64);
  return {std::min<int64_t>(config.max_positions, T), G, std::max<int64_t>(1, kTokens / (T * G)),
          int64_t(std::min(double(kSteps) * x * x, 1e15)), std::max(3e-4, two_digits(4e-3 * std::pow(x, -3 / 8.)))};
}

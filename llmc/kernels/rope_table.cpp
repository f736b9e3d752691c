// The frequencies of rotary position embedding and the table of its angles, on the host (contract: rope.h).
#include <algorithm>
#include <cmath>

#include "llmc/base/error.h"
#include "llmc/kernels/rope.h"

void RopeScaling::check(const char* who) const {
  REQUIRE(theta > 0, "%s: theta = %g: expected a positive number, such as 10000", who, theta);
  REQUIRE(factor >= 1, "%s: factor %g: expected 1 or more", who, factor);
  REQUIRE(type != RopeType::llama3 ||
              (low_freq_factor > 0 && high_freq_factor > low_freq_factor && original_max_position >= 1),
          "%s: llama3 scaling with low_freq_factor %g, high_freq_factor %g, original context %d\n"
          "  expected 0 < low_freq_factor < high_freq_factor, a context of at least 1",
          who, low_freq_factor, high_freq_factor, original_max_position);
  REQUIRE(type != RopeType::yarn || (theta > 1 && beta_slow > 0 && beta_fast >= beta_slow &&
                                     original_max_position >= 1 && attention_factor > 0),
          "%s: yarn scaling with theta %g, beta_fast %g, beta_slow %g, original context %d, attention_factor %g\n"
          "  expected theta > 1, 0 < beta_slow <= beta_fast, a context of at least 1, a positive attention_factor",
          who, theta, beta_fast, beta_slow, original_max_position, attention_factor);
}

namespace {

// The part of each frequency that stays, 0 to 1; the rest of it is divided by the factor.
double kept_of_llama3(const RopeScaling& s, double frequency) {
  // The turns that fit into the original context: up to `low` turns the wave is long, from `high` turns on it is short.
  const double turns = s.original_max_position * frequency / (2 * M_PI);
  return std::clamp((turns - s.low_freq_factor) / (s.high_freq_factor - s.low_freq_factor), 0.0, 1.0);
}
double kept_of_yarn(const RopeScaling& s, int i, int HD) {
  // The index, a real number, whose wave makes this many turns within the original context.
  const auto index = [&](double turns) {
    return HD * std::log(s.original_max_position / (2 * M_PI * turns)) / (2 * std::log(s.theta));
  };
  double first = index(s.beta_fast), last = index(s.beta_slow);
  if (s.truncate) first = std::floor(first), last = std::ceil(last);
  first = std::max(first, 0.0), last = std::min(last, HD - 1.0);
  if (first == last) last += 0.001;  // as Hugging Face does
  return 1 - std::clamp((i - first) / (last - first), 0.0, 1.0);
}

}  // namespace

std::vector<double> rope_frequencies(const RopeScaling& scaling, int HD) {
  REQUIRE(HD >= 2 && HD % 2 == 0, "RoPE: head size %d: expected an even number", HD);
  scaling.check("RoPE");
  std::vector<double> frequencies(size_t(HD / 2));
  for (int i = 0; i < HD / 2; ++i) {
    const double frequency = std::pow(scaling.theta, -2.0 * i / HD);
    const double kept = scaling.type == RopeType::plain    ? 1
                        : scaling.type == RopeType::linear ? 0
                        : scaling.type == RopeType::llama3 ? kept_of_llama3(scaling, frequency)
                                                           : kept_of_yarn(scaling, i, HD);
    frequencies[size_t(i)] = (1 - kept) * frequency / scaling.factor + kept * frequency;
  }
  return frequencies;
}

std::vector<float> rope_table(const RopeScaling& scaling, int HD, int positions) {
  REQUIRE(positions >= 1, "RoPE: a table of %d positions: expected at least one", positions);
  const std::vector<double> frequencies = rope_frequencies(scaling, HD);
  const double times = scaling.type == RopeType::yarn ? scaling.attention_factor : 1;
  std::vector<float> table;
  table.reserve(size_t(positions) * HD);
  for (int p = 0; p < positions; ++p)
    for (const double frequency : frequencies) {
      table.push_back(float(times * std::cos(p * frequency)));
      table.push_back(float(times * std::sin(p * frequency)));
    }
  return table;
}

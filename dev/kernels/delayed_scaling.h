// Checks delayed scaling (quantize.h) against its formula on the host, over many steps.
#pragma once

#include <algorithm>
#include <cstring>
#include <deque>
#include <tuple>
#include <vector>

#include "dev/kernels/other_schedules.h"
#include "dev/kernels/quantize_cases.h"
#include "llmc/kernels/quantize.h"

struct Delayed {
  int tensors, length, margin;
  bool latest, power_of_two;
};

inline bool same_bytes(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

using DelayedOutputs = std::tuple<std::vector<float>, std::vector<double>>;  // scales of all steps, counts and the rest

inline std::vector<float> largest_of(int tensors) {
  std::vector<float> largest;
  for (int t = 0; t < tensors; ++t) largest.push_back(t % 2 ? 57344.0f : 448.0f);
  return largest;
}

inline DelayedOutputs run(Stream& stream, const Delayed& d, const std::vector<std::vector<float>>& steps) {
  const size_t tensors = size_t(d.tensors);
  Array<float> amax(stream, tensors), scale(stream, std::vector<float>(tensors, 0.0f)),
      history(stream, tensors * size_t(d.length)), largest(stream, largest_of(d.tensors));
  Array<uint32_t> entries(stream, std::vector<uint32_t>(tensors, 0u));
  StepState first{};
  first.fp8 = {100, 200, 300};
  Array<StepState> state(stream, std::vector{first});
  std::vector<float> scales;
  std::vector<double> rest;
  for (const auto& step : steps) {
    amax.upload(step);
    update_delayed_scales(stream,
                          {amax.data(), scale.data(), history.data(), entries.data(), largest.data(), d.tensors,
                           d.length, d.latest, d.power_of_two, d.margin},
                          state.data());
    const std::vector<float> now = scale.download();
    scales.insert(scales.end(), now.begin(), now.end());
    const Fp8Counts c = state.download()[0].fp8;
    for (const int64_t count : {c.overflows, c.underflows, c.no_scale}) rest.push_back(double(count));
    for (const float x : amax.download()) rest.push_back(double(x));
    for (const uint32_t x : entries.download()) rest.push_back(double(x));
  }
  // A held step forgets its amaxes and changes nothing else.
  const std::vector<float> history_before = history.download(), scale_before = scale.download();
  StepState held = state.download()[0];
  held.held = 1;
  const Array<StepState> held_state(stream, std::vector{held});
  amax.upload(steps[0]);
  update_delayed_scales(stream,
                        {amax.data(), scale.data(), history.data(), entries.data(), largest.data(), d.tensors, d.length,
                         d.latest, d.power_of_two, d.margin},
                        held_state.data());
  const Fp8Counts counts = held_state.download()[0].fp8;
  const std::vector<float> left = amax.download();
  REQUIRE(same_bytes(history.download(), history_before) && same_bytes(scale.download(), scale_before) &&
              entries.download() == std::vector<uint32_t>(tensors, uint32_t(steps.size())) &&
              memcmp(&counts, &held.fp8, sizeof counts) == 0 &&
              std::all_of(left.begin(), left.end(), [](float x) { return x == 0; }),
          "a held step has changed the scales, the history or the counts, or left an amax");
  return {scales, rest};
}

inline DelayedOutputs expected(const Delayed& d, const std::vector<std::vector<float>>& steps) {
  const size_t tensors = size_t(d.tensors);
  const std::vector<float> largest = largest_of(d.tensors);
  std::vector<float> scale(tensors, 0.0f), scales;
  std::vector<double> rest;
  std::vector<std::deque<float>> newest(tensors);
  double overflows = 100, underflows = 200, no_scale = 300;
  for (size_t n = 0; n < steps.size(); ++n) {
    for (size_t t = 0; t < tensors; ++t) {
      const float amax = steps[n][t];
      // 1e-6: the old scale may be its own amax's, rounded.
      if (scale[t] != 0 && double(amax) * double(scale[t]) > double(largest[t]) * (1 + 1e-6)) ++overflows;
      const Fp8Format format = largest[t] == 448 ? Fp8Format::e4m3 : Fp8Format::e5m2;
      const uint8_t byte = fp8_bits(amax * scale[t], format == Fp8Format::e4m3 ? 4 : 5, Overflow::saturate);
      if (scale[t] != 0 && amax != 0 && (byte & 0x7f) == 0) ++underflows;
      newest[t].push_back(amax);
      if (newest[t].size() > size_t(d.length)) newest[t].pop_front();
      float most = 0;
      bool finite = true;
      for (const float& x : newest[t]) {
        if (d.latest && &x != &newest[t].back()) continue;
        finite = finite && std::isfinite(x);
        most = std::max(most, x);
      }
      if (!finite || most == 0) {
        no_scale += scale[t] == 0;
        continue;
      }
      const double exact = double(largest[t]) * std::pow(2.0, -d.margin) / double(most);
      scale[t] = float(
          std::clamp(exact, double(std::numeric_limits<float>::min()), double(std::numeric_limits<float>::max())));
      int exponent;
      if (d.power_of_two) std::frexp(scale[t], &exponent), scale[t] = std::ldexp(1.0f, exponent - 1);
    }
    scales.insert(scales.end(), scale.begin(), scale.end());
    for (const double count : {overflows, underflows, no_scale}) rest.push_back(count);
    for (size_t t = 0; t < tensors; ++t) rest.push_back(0);
    for (size_t t = 0; t < tensors; ++t) rest.push_back(double(n + 1));
  }
  return {scales, rest};
}

inline void check_delayed(Checker& checker) {
  OtherSchedules orders;
  Generator generator(8);
  for (const int tensors : {1, 31, 70})
    for (const int length : {1, 2, 7, 16, 100})
      for (const bool latest : {false, true})
        for (const bool power_of_two : {false, true})
          for (const int margin : {0, 1, -1, 9}) {
            if ((margin != 0) + (tensors != 70) > 1 || (few_sizes() && (tensors != 31 || length != 7))) continue;
            const Delayed d{tensors, length, margin, latest, power_of_two};
            std::vector<std::vector<float>> steps(40);
            for (auto& step : steps)
              for (int t = 0; t < tensors; ++t) {
                const int kind = generator.integer(0, 40);
                // The same number for some tensors all the time: a scale of its own amax is no overflow. Others begin
                // with zeros.
                step.push_back(t % 5 == 4                               ? 0.1f + float(t)
                               : t % 5 == 3 && &step - steps.data() < t ? 0.0f
                               : kind == 0                              ? 0.0f
                               : kind == 1                              ? 1e-41f
                               : kind == 2                              ? 3e38f
                               : kind == 3                              ? INFINITY
                               : kind == 4                              ? std::bit_cast<float>(0x7fff0000u)
                                           : std::ldexp(1 + float(generator.uniform()), generator.integer(-5, 5)));
              }
            const std::string name =
                format("delayed scales of %d tensors, %d steps of %d, %s%s, margin %d", tensors, int(steps.size()),
                       length, latest ? "the latest" : "the largest", power_of_two ? ", powers of two" : "", margin);
            const DelayedOutputs want = expected(d, steps), got = run(checker.stream, d, steps);
            checker.same_bits(name, std::get<0>(got), std::get<0>(want));
            checker.same_bits(name + ", counts, entries and amax", std::get<1>(got), std::get<1>(want));
            if (tensors == 70 && margin == 0 && length == 16)
              orders.same_bits(checker, name, want, [&](Stream& stream) { return run(stream, d, steps); });
          }
}

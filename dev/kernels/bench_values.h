// Values for benchmarks at real sizes, where drawing each by itself would take longer than what is measured.
#pragma once

#include <algorithm>
#include <vector>

#include "dev/kernels/check.h"

// Standard normal numbers, 65536 different ones over and over.
template <class T>
std::vector<T> repeated_normal(size_t count) {
  Generator generator(1);
  std::vector<T> values = random_normal<T>(generator, std::min(count, size_t(1) << 16));
  for (size_t filled = values.size(); filled < count; filled = values.size()) {
    values.resize(std::min(count, 2 * filled));
    std::copy_n(values.begin(), values.size() - filled, values.begin() + std::ptrdiff_t(filled));
  }
  return values;
}

#include "llmc/data/token_order.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "llmc/base/error.h"

void sort_indices_by_token(const int32_t* tokens, int n, int32_t* order, std::vector<int32_t>& scratch) {
  constexpr int kDigitBits = 11, kDigits = 1 << kDigitBits;
  int32_t largest = 0;
  for (int i = 0; i < n; i++) {
    REQUIRE(tokens[i] >= 0, "token %d at position %d of %d\n  expected 0 or more", tokens[i], i, n);
    largest = std::max(largest, tokens[i]);
  }
  if (scratch.size() < size_t(n)) scratch.resize(size_t(n));

  // Stable passes from the lowest digit to the highest that any token has. Each pass reads one array and writes the
  // other. The number of passes decides which array is first, so that the last pass writes `order`.
  const int passes = std::max(1, (int(std::bit_width(uint32_t(largest))) + kDigitBits - 1) / kDigitBits);
  int32_t *from = passes % 2 ? scratch.data() : order, *to = passes % 2 ? order : scratch.data();
  for (int i = 0; i < n; i++) from[i] = i;
  for (int pass = 0; pass < passes; pass++) {
    const auto digit = [&](int32_t index) { return (tokens[index] >> (pass * kDigitBits)) & (kDigits - 1); };
    int32_t next[kDigits] = {};  // where the next index with this digit goes
    for (int i = 0; i < n; i++) next[digit(from[i])]++;
    for (int32_t d = 0, sum = 0; d < kDigits; d++) sum += std::exchange(next[d], sum);
    for (int i = 0; i < n; i++) to[next[digit(from[i])]++] = from[i];
    std::swap(from, to);
  }
}

// The tokens of a sequence that a rank has under context parallelism (Llama team 2024, section 3.3.2). The T tokens are
// cut into 2 x degree chunks, and rank i has chunks i and 2 degree - 1 - i, so that all ranks have the same number of
// visible pairs of a query and a key. With B sequences a rank keeps the earlier chunk of each, one behind the other,
// and then the later chunk of each: (2, B, T / (2 degree)).
#pragma once

#include <cstddef>

struct ContextPart {
  int degree = 1, rank = 0;

  bool whole() const { return degree == 1; }
  // T must be a multiple of this.
  int multiple() const { return whole() ? 1 : 2 * degree; }
  int chunk(int T) const { return T / (2 * degree); }
  // Returns the place in the sequence where the earlier (half = 0) or the later chunk begins.
  int first(int half, int T) const { return (half ? 2 * degree - 1 - rank : rank) * chunk(T); }
  // Returns the place in B whole sequences (B, T) of this rank's token i, which counts through (2, B, T / (2 degree)).
  size_t place(size_t i, int B, int T) const {
    if (whole()) return i;
    const size_t c = size_t(chunk(T)), sequence = i / c % size_t(B);
    return sequence * size_t(T) + size_t(first(int(i / c / size_t(B)), T)) + i % c;
  }
};

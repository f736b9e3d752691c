// Which tokens of a sequence a rank has where context parallelism shares sequences out (Llama team 2024, section
// 3.3.2): of T tokens in 2 x degree chunks rank i has chunks i and 2 degree - 1 - i, so that all have as many pairs of
// a query and a key it sees. Of B sequences it keeps the earlier chunk of each, one behind the other, and then the
// later one of each: (2, B, T / (2 degree)).
#pragma once

#include <cstddef>

struct ContextPart {
  int degree = 1, rank = 0;

  bool whole() const { return degree == 1; }
  // What T divides by.
  int multiple() const { return whole() ? 1 : 2 * degree; }
  int chunk(int T) const { return T / (2 * degree); }
  // Where in the sequence the earlier (half = 0) or the later chunk begins.
  int first(int half, int T) const { return (half ? 2 * degree - 1 - rank : rank) * chunk(T); }
  // Where in B whole sequences (B, T) token i of these lies.
  size_t place(size_t i, int B, int T) const {
    if (whole()) return i;
    const size_t c = size_t(chunk(T)), sequence = i / c % size_t(B);
    return sequence * size_t(T) + size_t(first(int(i / c / size_t(B)), T)) + i % c;
  }
};

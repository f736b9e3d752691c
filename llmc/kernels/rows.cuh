// Shared by the row-wise kernels: some threads walk a row of C elements in vectors of 8. If C is not a multiple of 8,
// the same source walks single elements.
#pragma once

#include <climits>
#include <cstdint>
#include <initializer_list>
#include <type_traits>

#include "llmc/device/launch.cuh"
#include "llmc/device/tensor.h"

// Returns the vector width for rows of C elements.
constexpr int vector_width(int C) { return C % 8 == 0 ? 8 : 1; }

// Throws unless x is a contiguous matrix (N, C) with at least one row and one column, which both fit an int.
inline void require_rows(const char* who, const char* name, const Tensor& x) {
  require_tensor(who, name, x, x.type, {-1, -1});
  REQUIRE(x.size() >= 1 && x.rows() <= INT_MAX && x.columns() <= INT_MAX,
          "%s: %s is %s\n  expected at least one row and one column", who, name, x.text().c_str());
}

// Calls `body` with vector_width(C) as a constant. Throws if the width is 8 and a buffer is not 16-byte aligned.
template <class Body>
void with_vector_width(const char* who, int C, std::initializer_list<const void*> buffers, const Body& body) {
  if (vector_width(C) == 1) return body(std::integral_constant<int, 1>{});
  for (const void* buffer : buffers)
    REQUIRE(reinterpret_cast<uintptr_t>(buffer) % 16 == 0,
            "%s: a buffer of rows of %d numbers begins at %p\n"
            "  rows whose length is a multiple of 8 are read 16 bytes at a time: align the buffer to 16 bytes",
            who, C, buffer);
  body(std::integral_constant<int, 8>{});
}

// Returns how many threads share a row of `vectors` vectors: a power of two, at most `most`, that leaves each of them
// `each` vectors or more.
constexpr int threads_for_row(int vectors, int each, int most) {
  int threads = 1;
  while (2 * threads <= most && vectors >= 2 * threads * each) threads *= 2;
  return threads;
}

template <int width>
__device__ __forceinline__ float total(const float (&x)[width]) {
  float sum = 0;
#pragma unroll
  for (int j = 0; j < width; ++j) sum += x[j];
  return sum;
}

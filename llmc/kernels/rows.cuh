// Rows of C numbers, each walked by some threads in vectors of 8: what the row-wise kernels share. Where C is not a
// multiple of 8 they walk single numbers with the same text.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <type_traits>

#include "llmc/device/launch.cuh"

// `width` numbers, a power of two: usually 8, in 16 or 32 bytes (which fills the CPU's vector registers in fp32 too),
// or 1. The address is aligned to their size, or to 16 bytes if they are more.
template <class T, int width>
struct alignas(sizeof(T) * width < 16 ? sizeof(T) * width : 16) Vector {
  T v[width];
};

template <int width, class T>
__device__ __forceinline__ void load_vector(float (&to)[width], const T* from) {
  const Vector<T, width> vector = *reinterpret_cast<const Vector<T, width>*>(from);
#pragma unroll
  for (int j = 0; j < width; ++j) to[j] = to_float(vector.v[j]);
}
template <int width, class T>
__device__ __forceinline__ void store_vector(T* to, const float (&from)[width]) {
  Vector<T, width> vector;
#pragma unroll
  for (int j = 0; j < width; ++j) vector.v[j] = from_float<T>(from[j]);
  *reinterpret_cast<Vector<T, width>*>(to) = vector;
}

// The width that rows of C numbers are walked in.
constexpr int vector_width(int C) { return C % 8 == 0 ? 8 : 1; }

// Calls `body` with vector_width(C) as a constant; throws if the buffers do not allow it.
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

// How many threads share a row of `vectors`: a power of two, at most `most`, that leaves each of them `each` or more.
constexpr int threads_for_row(int vectors, int each, int most) {
  int threads = 1;
  while (2 * threads <= most && vectors >= 2 * threads * each) threads *= 2;
  return threads;
}

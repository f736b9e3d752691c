// Vector: neighbouring elements, as kernels load and store them (load_vector and store_vector in kernel.cuh).
#pragma once

// `width` numbers. `width` is a power of two: usually 8, which takes 16 or 32 bytes (in fp32 it also fills a vector
// register of the CPU), or 1. The address is aligned to the size of the vector, or to 16 bytes if the size is greater.
template <class T, int width>
struct alignas(sizeof(T) * width < 16 ? sizeof(T) * width : 16) Vector {
  T v[width];
};

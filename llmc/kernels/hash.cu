// The hash of a tensor's bits (contract: hash.h). Expected limit on a GPU: device memory; a word takes three
// multiplications of 64 bits.
#include "llmc/kernels/hash.h"

#include "llmc/base/error.h"
#include "llmc/device/kernel.cuh"
#include "llmc/device/launch.cuh"

// ---------------------------------------------------------------------------------------------- kernels

namespace {

constexpr size_t kWord = sizeof(uint32_t);
constexpr int kThreads = 128;
constexpr int kAtOnce = 8;  // words that a thread loads before it mixes the first one
constexpr size_t kWordsPerBlock = 1 << 15;

struct HashRows {
  size_t bytes, stride;        // of a row, and from one row to the next
  size_t words_of_row, words;  // of a row, and of all rows
  unsigned long long first_word;
};

__device__ __forceinline__ unsigned long long mix(unsigned long long place, uint32_t word) {
  unsigned long long z = word ^ ((place + 1) * 0x9e3779b97f4a7c15ull);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}

// The word at `from`, of which `bytes` belong to the row. `from` is a multiple of sizeof(U).
template <class U>
__device__ __forceinline__ uint32_t load_word(const unsigned char* from, size_t bytes) {
  uint32_t word = 0;
  if (bytes >= kWord) {
#pragma unroll
    for (int k = 0; k < int(kWord / sizeof(U)); ++k)
      word |= uint32_t(reinterpret_cast<const U*>(from)[k]) << (8 * sizeof(U) * unsigned(k));
  } else {
    for (size_t k = 0; k < bytes; ++k) word |= uint32_t(from[k]) << (8 * k);
  }
  return word;
}

template <class U, bool kOneRow>
__global__ void __launch_bounds__(kThreads)
    hash_kernel(unsigned long long* sum, const unsigned char* data, HashRows rows) {
  const size_t begin = size_t(blockIdx.x) * kWordsPerBlock,
               end = begin + kWordsPerBlock < rows.words ? begin + kWordsPerBlock : rows.words;
  unsigned long long own = 0;
  uint32_t words[kAtOnce];
  for (size_t first = begin + threadIdx.x; first < end; first += size_t(kThreads) * kAtOnce) {
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) {
      const size_t i = first + size_t(k) * kThreads;
      if (i >= end) continue;
      const size_t row = kOneRow ? 0 : i / rows.words_of_row, at = (kOneRow ? i : i % rows.words_of_row) * kWord;
      words[k] = load_word<U>(data + row * rows.stride + at, rows.bytes - at);
    }
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) {
      const size_t i = first + size_t(k) * kThreads;
      if (i < end) own += mix(rows.first_word + i, words[k]);
    }
  }
  own = block_sum(own);
  if (threadIdx.x == 0) atomic_add(sum, own);
}

}  // namespace

// ---------------------------------------------------------------------------------------------- launchers

void hash_bits(Stream& stream, uint64_t* sum, const Tensor& x, uint64_t first_word) {
  const char* who = "hash_bits";
  REQUIRE(x.size() > 0, "%s of no numbers", who);
  const size_t element = bytes_of(x.type), bytes = size_t(x.contiguous() ? x.size() : x.columns()) * element;
  const size_t count = x.contiguous() ? 1 : size_t(x.rows()), of_row = (bytes + kWord - 1) / kWord;
  const HashRows rows{bytes, count == 1 ? 0 : size_t(x.row_stride()) * element, of_row, count * of_row, first_word};
  const auto run = [&](auto unit, auto one_row) {
    launch<hash_kernel<decltype(unit), decltype(one_row)::value>>(
        {stream, who, {reads(x), updates(sum, 1)}}, blocks_for(rows.words, kWordsPerBlock), kThreads, 0,
        reinterpret_cast<unsigned long long*>(sum), static_cast<const unsigned char*>(x.data), rows);
  };
  const uintptr_t aligned = reinterpret_cast<uintptr_t>(x.data) | rows.stride;
  with_constant(count == 1, [&](auto one_row) {
    if (aligned % 4 == 0) run(uint32_t{}, one_row);
    else if (aligned % 2 == 0) run(uint16_t{}, one_row);
    else run(uint8_t{}, one_row);
  });
}

// The hash of a tensor's bits against a plain loop over bytes; what it must see: a bit anywhere, swapped words, another
// place.
//
// Covers: hash_bits: ugly sizes, types, addresses and rows that lie apart; each flipped bit and each two swapped words
// change it, other schedules do not
#include "llmc/kernels/hash.h"

#include "dev/kernels/check.h"
#include "dev/kernels/other_schedules.h"

namespace {

uint64_t mixed(uint64_t place, uint64_t word) {
  uint64_t z = word ^ ((place + 1) * 0x9e3779b97f4a7c15u);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

// Rows of `bytes` bytes that begin `stride` apart.
uint64_t expected(const std::vector<uint8_t>& data, size_t at, size_t rows, size_t bytes, size_t stride,
                  uint64_t place = 0) {
  uint64_t sum = 0;
  for (size_t row = 0; row < rows; ++row)
    for (size_t begin = 0; begin < bytes; begin += 4) {
      uint64_t word = 0;
      for (size_t k = begin; k < std::min(begin + 4, bytes); ++k)
        word |= uint64_t(data[at + row * stride + k]) << (8 * (k - begin));
      sum += mixed(place++, word);
    }
  return sum;
}

std::vector<uint8_t> random_bytes(size_t n, uint32_t seed) {
  Generator generator(seed);
  std::vector<uint8_t> bytes(n);
  for (uint8_t& byte : bytes) byte = uint8_t(generator.integer(0, 255));
  return bytes;
}

// The hash of a view of bytes on the device, which begins at `at`.
uint64_t hashed(Stream& stream, const std::vector<uint8_t>& bytes, size_t at, const Tensor& shape, uint64_t place = 0,
                uint64_t before = 0) {
  const Array<uint8_t> data(stream, bytes);
  const Array<uint64_t> sum(stream, std::vector<uint64_t>{before});
  Tensor view = shape;
  view.data = data.data() + at;
  hash_bits(stream, sum.data(), view, place);
  return sum.download()[0];
}

Tensor shaped(DType type, TensorShape shape) { return Tensor(static_cast<void*>(nullptr), type, shape); }

void check_sizes(Checker& checker, OtherSchedules& orders) {
  for (const auto& [type, name] : {std::pair(DType::fp32, "fp32"), {DType::bf16, "bf16"}, {DType::uint8, "bytes"}})
    for (const size_t n : {1, 2, 3, 5, 7, 8, 9, 31, 257, 4095, 8193, 32769, 70001})
      for (const size_t shift : {0, 1, 3}) {  // elements: the address is a multiple of one element alone
        const size_t element = bytes_of(type), at = shift * element;
        const std::vector<uint8_t> bytes = random_bytes((n + 3) * element, uint32_t(n));
        const Tensor shape = shaped(type, {n});
        const uint64_t got = hashed(checker.stream, bytes, at, shape);
        const std::string what = format("%s n=%zu, shifted by %zu", name, n, shift);
        checker.that(what, got == expected(bytes, at, 1, n * element, 0), format("%016llx", (unsigned long long)got));
        if (shift == 0)
          orders.each([&](const std::string& order, Stream& stream) {
            const uint64_t again = hashed(stream, bytes, at, shape);
            checker.that(what + ", " + order, again == got, format("%016llx", (unsigned long long)again));
          });
      }
}

void check_rows(Checker& checker) {
  for (const size_t columns : {1, 3, 4, 17, 128}) {
    constexpr size_t kRows = 37, kApart = 131;
    const std::vector<uint8_t> bytes = random_bytes(kRows * kApart * 2, uint32_t(columns));
    const Tensor rows = shaped(DType::bf16, {kRows, kApart}).columns(2, columns);
    const uint64_t got = hashed(checker.stream, bytes, 4, rows);
    checker.that(format("rows of %zu numbers that lie apart", columns),
                 got == expected(bytes, 4, kRows, columns * 2, kApart * 2), format("%016llx", (unsigned long long)got));
  }
}

// Each bit of a tensor, and each two of its words.
void check_changes(Checker& checker) {
  constexpr size_t kBytes = 61;
  const std::vector<uint8_t> bytes = random_bytes(kBytes, 5);
  const Tensor shape = shaped(DType::uint8, {kBytes});
  const uint64_t sound = hashed(checker.stream, bytes, 0, shape);
  size_t unseen = 0;
  for (size_t bit = 0; bit < 8 * kBytes; ++bit) {
    std::vector<uint8_t> other = bytes;
    other[bit / 8] ^= uint8_t(1u << bit % 8);
    unseen += hashed(checker.stream, other, 0, shape) == sound;
  }
  checker.that("a flipped bit", unseen == 0, format("%zu of %zu unseen", unseen, 8 * kBytes));
  unseen = 0;
  for (size_t a = 0; a < kBytes; ++a)
    for (size_t b = 0; b < a; ++b) {
      std::vector<uint8_t> other = bytes;
      std::swap(other[a], other[b]);
      unseen += other != bytes && hashed(checker.stream, other, 0, shape) == sound;
    }
  checker.that("swapped bytes", unseen == 0, format("%zu unseen", unseen));
  const std::vector<uint8_t> zeros(24, 0);
  const Tensor words = shaped(DType::fp32, {6});
  checker.that("zeros at another place",
               hashed(checker.stream, zeros, 0, words) != hashed(checker.stream, zeros, 0, words, 1), "");
}

// Two parts add up to the whole, on top of what is there.
void check_parts(Checker& checker) {
  const std::vector<uint8_t> bytes = random_bytes(4 * 4001, 9);
  const uint64_t whole = expected(bytes, 0, 1, bytes.size(), 0), before = 12345;
  const uint64_t first = hashed(checker.stream, bytes, 0, shaped(DType::fp32, {257}), 0, before);
  const uint64_t both = hashed(checker.stream, bytes, 4 * 257, shaped(DType::fp32, {4001 - 257}), 257, first);
  checker.that("two parts", both == before + whole, format("%016llx", (unsigned long long)both));
}

}  // namespace

void check(Checker& checker) {
  OtherSchedules orders;
  check_sizes(checker, orders);
  check_rows(checker);
  check_changes(checker);
  check_parts(checker);
  const Array<uint64_t> sum(checker.stream, std::vector<uint64_t>{0});
  checker.refused("nothing", "no numbers", [&] { hash_bits(checker.stream, sum.data(), shaped(DType::fp32, {0})); });
}

void bench(Bencher& bencher) {
  const size_t n = bencher.gpu_sizes() ? size_t(1) << 28 : size_t(1) << 22;
  const Array<float> x(bencher.stream, repeated_normal<float>(n));
  const Array<uint64_t> sum(bencher.stream, std::vector<uint64_t>{0});
  bencher.time(format("hash_bits fp32 n=%zu", n), 4.0 * double(n), double(n),
               [&] { hash_bits(bencher.stream, sum.data(), x.tensor()); });
  bencher.time(format("hash_bits fp32 n=%zu, 4 bytes off", n - 1), 4.0 * double(n), double(n),
               [&] { hash_bits(bencher.stream, sum.data(), x.tensor().elements(1, n - 1)); });
}

// The 64-bit matrix descriptor tells wgmma where an operand lies in shared memory. It states how tiles of 8 rows of 16
// bytes follow one another, and in which pattern (swizzle) the 16-byte chunks of a row are permuted (PTX ISA,
// "Asynchronous warpgroup level matrix shared memory layout"). Both backends build the bits here. The CPU backend reads
// its operands through element_address, which a test compares with CuTe's layouts (dev/test/descriptors).
//
//   bits  0-13  start address / 16         bits 49-51  base offset: 0, since our patterns begin at multiples of 1024
//   bits 16-29  leading byte offset / 16   bits 62-63  swizzle
//   bits 32-45  stride byte offset / 16    the others are 0
//
// Elements have 16 bits. An operand is M x 16 (left) or N x 16 (right). `mn` counts along M or N, `k` along the 16
// elements that are summed. In a swizzled operand with lines of L = 32, 64 or 128 bytes:
//   k-major   a line holds one mn and L bytes of k. 8 lines form a pattern. `stride` is the distance from 8 lines to
//             the next 8. `leading` is not used: 16.
//   mn-major  a line holds one k and L bytes of mn. 8 lines form a pattern. `stride` is the distance from 8 k to the
//             next 8, `leading` the distance from L bytes of mn to the next L (0 if there are no more).
// Without a swizzle the pattern is 8 lines of 16 bytes. In both majors `leading` is the distance from 8 k to the next
// 8, and `stride` the distance from 8 mn to the next 8.
#pragma once

#include <cstdint>

#include "llmc/device/backend.h"

enum class Swizzle : uint32_t { none = 0, bytes128 = 1, bytes64 = 2, bytes32 = 3 };
enum class Major { k = 0, mn = 1 };  // the numbers that instructions use

// Returns the bytes of a line; 8 lines form a pattern.
HOST_DEVICE constexpr uint32_t line_bytes(Swizzle swizzle) {
  return swizzle == Swizzle::none ? 16 : swizzle == Swizzle::bytes32 ? 32 : swizzle == Swizzle::bytes64 ? 64 : 128;
}

// Returns where the swizzle puts the byte of `address` in shared memory: bits 4 to 6 are XORed with bits 7 to 9, as
// many of them as the pattern has. TMA writes by the same rule.
HOST_DEVICE constexpr uint32_t swizzled_byte(uint32_t address, Swizzle swizzle) {
  return address ^ (address >> 3 & (line_bytes(swizzle) - 16));
}

// Builds a descriptor. `address` is an address in shared memory, below 256 KiB. `address`, `leading` and `stride` are
// multiples of 16 bytes.
HOST_DEVICE constexpr uint64_t matrix_descriptor(uint32_t address, uint32_t leading, uint32_t stride, Swizzle swizzle) {
  return uint64_t(address >> 4 & 0x3fff) | uint64_t(leading >> 4 & 0x3fff) << 16 |
         uint64_t(stride >> 4 & 0x3fff) << 32 | uint64_t(swizzle) << 62;
}

// The fields of a descriptor, in bytes.
struct MatrixDescriptor {
  uint32_t start, leading, stride, base_offset;
  Swizzle swizzle;
  uint64_t reserved;  // the bits that must be 0, at their places

  explicit constexpr MatrixDescriptor(uint64_t bits)
      : start(uint32_t(bits & 0x3fff) << 4),
        leading(uint32_t(bits >> 16 & 0x3fff) << 4),
        stride(uint32_t(bits >> 32 & 0x3fff) << 4),
        base_offset(uint32_t(bits >> 49 & 7)),
        swizzle(Swizzle(uint32_t(bits >> 62))),
        reserved(bits & ~(0x3fffull | 0x3fffull << 16 | 0x3fffull << 32 | 7ull << 49 | 3ull << 62)) {}
};

// Returns the address in shared memory of element (mn, k), k < 16, of an operand of 16-bit elements. The base offset is
// 0.
constexpr uint32_t element_address(const MatrixDescriptor& d, Major major, uint32_t mn, uint32_t k) {
  const uint32_t line = line_bytes(d.swizzle), elements = line / 2;
  uint32_t offset = 0;
  if (d.swizzle == Swizzle::none)
    offset = major == Major::k ? mn / 8 * d.stride + k / 8 * d.leading + mn % 8 * 16 + k % 8 * 2
                               : mn / 8 * d.stride + k / 8 * d.leading + k % 8 * 16 + mn % 8 * 2;
  else if (major == Major::k) offset = mn / 8 * d.stride + mn % 8 * line + k * 2;
  else offset = mn / elements * d.leading + k / 8 * d.stride + k % 8 * line + mn % elements * 2;
  return swizzled_byte(d.start + offset, d.swizzle);
}

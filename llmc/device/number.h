// Number types of 16 and 8 bits, with the same bits in both backends: bf16, and the FP8 types e4m3 and e5m2 (OCP 8-bit
// floating point). e4m3 has no infinity, and its largest number is 448. e5m2 is IEEE-like, and its largest finite
// number is 57344. Rounding is to nearest, ties to even. NaN becomes 0x7fff in bf16 and 0x7f in FP8, as in CUDA's
// headers.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include "llmc/device/backend.h"

#if LLMC_CUDA
#include <cuda_bf16.h>
#include <cuda_fp8.h>
#endif

struct bf16 {
  uint16_t bits;
};
struct e4m3 {
  uint8_t bits;
};
struct e5m2 {
  uint8_t bits;
};

// The type of a tensor's elements. Tunings and checkpoints store fp32 and bf16 by these numbers.
enum class DType : uint8_t { fp32, bf16, fp64, int32, uint8, int64 };
enum class Fp8Format : uint8_t { e4m3, e5m2 };

template <class T>
inline constexpr DType kDType = T::no_tensor_has_elements_of_this_type;
template <>
inline constexpr DType kDType<float> = DType::fp32;
template <>
inline constexpr DType kDType<bf16> = DType::bf16;
template <>
inline constexpr DType kDType<double> = DType::fp64;
template <>
inline constexpr DType kDType<int32_t> = DType::int32;
template <>
inline constexpr DType kDType<uint8_t> = DType::uint8;
template <>
inline constexpr DType kDType<int64_t> = DType::int64;

constexpr const char* dtype_name(DType type) {
  constexpr const char* kNames[] = {"fp32", "bf16", "fp64", "int32", "uint8", "int64"};
  return kNames[int(type)];
}
constexpr size_t bytes_of(DType type) {
  constexpr size_t kBytes[] = {4, 2, 8, 4, 1, 8};
  return kBytes[int(type)];
}
constexpr const char* format_name(Fp8Format format) { return format == Fp8Format::e4m3 ? "e4m3" : "e5m2"; }
// The largest finite number of the format.
HOST_DEVICE constexpr float largest_fp8(Fp8Format format) { return format == Fp8Format::e4m3 ? 448.0f : 57344.0f; }

// The result for a number beyond the largest of its FP8 type. saturate: the largest number, which training uses;
// special: NaN in e4m3, infinity in e5m2.
enum class Overflow { saturate, special };

constexpr uint16_t bf16_bits(float x) {
  const uint32_t u = std::bit_cast<uint32_t>(x);
  if ((u & 0x7fffffffu) > 0x7f800000u) return 0x7fff;
  return uint16_t((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

// Returns the FP8 bits of x, subnormals included. `exponent_bits` of the 7 bits below the sign are the exponent: 4 for
// e4m3, 5 for e5m2.
constexpr uint8_t fp8_bits(float x, int exponent_bits, Overflow overflow) {
  const uint32_t u = std::bit_cast<uint32_t>(x), magnitude = u & 0x7fffffffu;
  const uint8_t sign = uint8_t(u >> 24 & 0x80);
  if (magnitude > 0x7f800000u) return 0x7f;
  const bool e4 = exponent_bits == 4;
  const int mantissa_bits = 7 - exponent_bits, bias = (1 << (exponent_bits - 1)) - 1;
  const uint8_t largest = e4 ? 0x7e : 0x7b;
  const uint8_t special = e4 ? 0x7f : 0x7c;
  const uint8_t beyond = uint8_t(sign | (overflow == Overflow::saturate ? largest : special));
  if (magnitude == 0x7f800000u) return beyond;
  int exponent = int(magnitude >> 23) - 127 + bias;
  uint64_t mantissa = (magnitude & 0x7fffffu) | (magnitude >> 23 ? 0x800000u : 0u);
  int shift = 23 - mantissa_bits;  // bits that rounding drops
  if (exponent < 1) {
    shift += 1 - exponent;
    exponent = 1;
    if (shift > 40) shift = 40;
  }
  const uint64_t half = uint64_t(1) << (shift - 1), rest = mantissa & ((half << 1) - 1);
  uint64_t rounded = mantissa >> shift;
  if (rest > half || (rest == half && (rounded & 1))) ++rounded;
  // A mantissa whose hidden bit is set adds 1 to the exponent field by itself, also when rounding has carried into that
  // bit.
  const uint64_t code = (uint64_t(exponent - 1) << mantissa_bits) + rounded;
  return code > largest ? beyond : uint8_t(sign | code);
}

constexpr float fp8_value(uint8_t bits, int exponent_bits) {
  const int mantissa_bits = 7 - exponent_bits, bias = (1 << (exponent_bits - 1)) - 1;
  const int exponent = bits >> mantissa_bits & ((1 << exponent_bits) - 1), mantissa = bits & ((1 << mantissa_bits) - 1);
  const uint32_t sign = uint32_t(bits & 0x80) << 24;
  const bool top = exponent == (1 << exponent_bits) - 1;
  if (exponent_bits == 4 ? top && mantissa == 7 : top && mantissa != 0) return std::bit_cast<float>(sign | 0x7fc00000u);
  if (exponent_bits == 5 && top) return std::bit_cast<float>(sign | 0x7f800000u);
  float value = float(mantissa) + (exponent ? float(1 << mantissa_bits) : 0.0f);
  const int power = (exponent ? exponent : 1) - bias - mantissa_bits;
  value *= std::bit_cast<float>(uint32_t(127 + power) << 23);
  return std::bit_cast<float>(std::bit_cast<uint32_t>(value) | sign);
}

HOST_DEVICE inline float to_float(float x) { return x; }
HOST_DEVICE inline float to_float(bf16 x) { return bits_to_float(uint32_t(x.bits) << 16); }

template <class T>
HOST_DEVICE T from_float(float x);
template <>
HOST_DEVICE inline float from_float<float>(float x) {
  return x;
}
template <>
HOST_DEVICE inline bf16 from_float<bf16>(float x) {
#if LLMC_ON_GPU
  return bf16{__bfloat16_as_ushort(__float2bfloat16_rn(x))};
#else
  // This has no branch, so that a loop over elements becomes vector code.
  const uint32_t u = float_to_bits(x), rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
  return bf16{uint16_t((u & 0x7fffffffu) > 0x7f800000u ? 0x7fffu : rounded)};
#endif
}

// Computes fp8_bits(x, exponent_bits, Overflow::saturate) without a branch. `u` holds the bits of one float or of a
// vector of floats.
template <int exponent_bits, class Float, class Bits>
inline Bits saturated_fp8_bits(Bits u) {
  constexpr int mantissa_bits = 7 - exponent_bits, bias = (1 << (exponent_bits - 1)) - 1, dropped = 23 - mantissa_bits;
  const Bits largest = Bits{} + (exponent_bits == 4 ? 0x7eu : 0x7bu), nan = Bits{} + 0x7fu;
  const Bits magnitude = u & 0x7fffffffu, sign = u >> 24 & 0x80u;
  const Bits rounded = (magnitude + ((1u << (dropped - 1)) - 1) + (magnitude >> dropped & 1u)) >> dropped;
  const Bits normal = rounded - (uint32_t(127 - bias) << mantissa_bits);
  // Subnormal results are rounded by an fp32 addition: the last place of the sum is the smallest FP8 subnormal.
  constexpr uint32_t offset = uint32_t(127 + 1 - bias - mantissa_bits + 23) << 23;
  const Bits subnormal = std::bit_cast<Bits>(std::bit_cast<Float>(magnitude) + bits_to_float(offset)) - offset;
  const Bits code = magnitude < (uint32_t(127 + 1 - bias) << 23) ? subnormal : normal;
  const Bits finite = sign | (code < largest ? code : largest);
  return magnitude > 0x7f800000u ? nan : finite;
}
template <int exponent_bits>
inline uint8_t saturated_fp8_bits(float x) {
  return uint8_t(saturated_fp8_bits<exponent_bits, float>(float_to_bits(x)));
}

HOST_DEVICE inline e4m3 to_e4m3(float x, Overflow overflow = Overflow::saturate) {
#if LLMC_ON_GPU
  return e4m3{__nv_cvt_float_to_fp8(x, overflow == Overflow::saturate ? __NV_SATFINITE : __NV_NOSAT, __NV_E4M3)};
#else
  return e4m3{overflow == Overflow::saturate ? saturated_fp8_bits<4>(x) : fp8_bits(x, 4, overflow)};
#endif
}
HOST_DEVICE inline e5m2 to_e5m2(float x, Overflow overflow = Overflow::saturate) {
#if LLMC_ON_GPU
  return e5m2{__nv_cvt_float_to_fp8(x, overflow == Overflow::saturate ? __NV_SATFINITE : __NV_NOSAT, __NV_E5M2)};
#else
  return e5m2{overflow == Overflow::saturate ? saturated_fp8_bits<5>(x) : fp8_bits(x, 5, overflow)};
#endif
}
HOST_DEVICE inline float to_float(e4m3 x) { return fp8_value(x.bits, 4); }
HOST_DEVICE inline float to_float(e5m2 x) { return fp8_value(x.bits, 5); }

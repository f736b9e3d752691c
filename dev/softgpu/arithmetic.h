// What PTX's instructions compute, as inline functions that translated kernels call. Each follows the PTX ISA 9.0,
// section "Instruction Set"; what that leaves open follows an H100. A name is the opcode's where C++ allows it.
//
// Translated kernels are compiled without contraction of products and sums, and with strict NaNs and signed zeros.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

namespace softgpu {

using u8 = uint8_t;
using u16 = uint16_t;
using u32 = uint32_t;
using u64 = uint64_t;
using s8 = int8_t;
using s16 = int16_t;
using s32 = int32_t;
using s64 = int64_t;
using f32 = float;
using f64 = double;

#define SOFTGPU_INLINE static inline __attribute__((always_inline))

// ---------------------------------------------------------------------------------------------- registers

// Reads a register of type From as type To: the same bits, or the low ones of a wider register.
template <class To, class From>
SOFTGPU_INLINE To as(From x) {
  if constexpr (std::is_same_v<To, From>) {
    return x;
  } else if constexpr (sizeof(To) == sizeof(From)) {
    return std::bit_cast<To>(x);
  } else {
    static_assert(sizeof(To) < sizeof(From), "PTX has no operand that is wider than its register");
    To low;
    memcpy(&low, &x, sizeof low);
    return low;
  }
}
// Writes a result to a register, which may be wider. A signed result is extended by its sign, any other by zeros
// ("Operand Size Exceeding Instruction-Type Size").
template <class Register, class From>
SOFTGPU_INLINE void set(Register& r, From x) {
  if constexpr (sizeof(Register) == sizeof(From)) {
    r = as<Register>(x);
  } else if constexpr (std::is_integral_v<From>) {
    static_assert(sizeof(Register) > sizeof(From), "PTX has no result that is wider than its register");
    r = as<Register>(std::conditional_t<sizeof(Register) == 8, s64, s32>(x));
  } else {
    set(r, as<std::conditional_t<sizeof(From) == 4, u32, u64>>(x));
  }
}
template <class T>
SOFTGPU_INLINE T load(const u8* p) {
  T x;
  memcpy(&x, p, sizeof x);
  return x;
}
template <class T>
SOFTGPU_INLINE void store(u8* p, T x) {
  memcpy(p, &x, sizeof x);
}

// ---------------------------------------------------------------------------------------------- floating point

// A result that is NaN has these bits in single precision ("Floating Point Comparisons", "Single Precision"). In double
// precision payloads are kept, as x86 keeps them.
SOFTGPU_INLINE f32 canonical(f32 x) { return x == x ? x : std::bit_cast<f32>(0x7fffffffu); }
SOFTGPU_INLINE f64 canonical(f64 x) { return x; }
// .ftz: a subnormal operand or result becomes a zero of its sign.
SOFTGPU_INLINE f32 flush(f32 x) { return std::fabs(x) < std::numeric_limits<f32>::min() ? std::copysign(0.0f, x) : x; }
// .sat: 0 to 1, and 0 for NaN.
SOFTGPU_INLINE f32 saturate(f32 x) { return x > 0 ? (x < 1 ? x : 1.0f) : 0.0f; }

template <class T>
SOFTGPU_INLINE T fma(T a, T b, T c) {
  return canonical(std::fma(a, b, c));
}
// fma.rm and fma.rp. a * b is exact in double precision; its sum with c is s + error, exactly (Knuth's TwoSum).
template <bool up>
SOFTGPU_INLINE f32 directed_fma(f32 a, f32 b, f32 c) {
  const f64 product = f64(a) * b, s = product + c, t = s - product, error = (product - (s - t)) + (c - t);
  const f32 r = f32(s);
  if (!std::isfinite(s)) return canonical(r);
  if (std::isinf(r))  // finite, but beyond the largest float
    return (r > 0) == up ? r : std::copysign(std::numeric_limits<f32>::max(), r);
  const f64 difference = s - f64(r);                                    // exact: what r lacks, but for the error
  const bool below = difference < 0 || (difference == 0 && error < 0);  // the true sum lies below r
  const bool above = difference > 0 || (difference == 0 && error > 0);
  if (up && above) return std::nextafter(r, INFINITY);
  if (!up && below) return std::nextafter(r, -INFINITY);
  if (r == 0 && product + c == 0 && !(product == 0 && c == 0)) return up ? 0.0f : -0.0f;  // x - x
  return r;
}
// These return the smaller or the larger of two operands. Of a NaN and a number they return the number; -0 is below +0.
template <class T>
SOFTGPU_INLINE T min_number(T a, T b) {
  if (a != a) return canonical(b);
  if (b != b) return a;
  return a == b ? (std::signbit(a) ? a : b) : (a < b ? a : b);
}
template <class T>
SOFTGPU_INLINE T max_number(T a, T b) {
  if (a != a) return canonical(b);
  if (b != b) return a;
  return a == b ? (std::signbit(a) ? b : a) : (a > b ? a : b);
}

// The units that approximate: these results are more accurate than a GPU's, whose errors the ISA bounds (ex2: 2 ulp;
// rcp: 1 ulp; rsqrt: a relative error of 2^-22.9).
SOFTGPU_INLINE f32 ex2_approx(f32 x) { return canonical(f32(std::exp2(f64(x)))); }
SOFTGPU_INLINE f32 rcp_approx(f32 x) { return canonical(1.0f / x); }
SOFTGPU_INLINE f32 rsqrt_approx(f32 x) { return canonical(f32(1.0 / std::sqrt(f64(x)))); }

// ---------------------------------------------------------------------------------------------- conversions

SOFTGPU_INLINE u16 to_bf16(f32 x) {  // to the nearest, ties to even
  if (x != x) return 0x7fff;
  const u32 bits = std::bit_cast<u32>(x);
  return u16((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
// cvt.rn.satfinite.e4m3x2 and e5m2x2, one of the two: to the nearest, ties to even, at most the largest finite number.
template <int exponent_bits, int mantissa_bits>
SOFTGPU_INLINE u8 to_fp8(f32 x) {
  static_assert(exponent_bits + mantissa_bits == 7);
  constexpr int lowest_exponent = 2 - (1 << (exponent_bits - 1));  // of a normal number
  constexpr f32 largest = exponent_bits == 4 ? 448.0f : 57344.0f;
  if (x != x) return 0x7f;
  const f32 magnitude = std::fabs(x);
  const u8 sign = std::signbit(x) ? 0x80 : 0;
  if (magnitude >= largest) return u8(sign | (exponent_bits == 4 ? 0x7e : 0x7b));
  const int exponent = std::max(magnitude == 0 ? lowest_exponent : std::ilogb(magnitude), lowest_exponent);
  // A count of units in the last place, whose carry moves into the exponent.
  const u32 count = u32(std::nearbyint(std::ldexp(magnitude, mantissa_bits - exponent)));
  return u8(sign | (count + (u32(exponent - lowest_exponent) << mantissa_bits)));
}
// From a floating-point number that is already rounded to an integer: clamped to the type's range, and 0 for NaN.
template <class T, class F>
SOFTGPU_INLINE T to_integer(F x) {
  constexpr F end = F(sizeof(T) == 8 ? 0x1p63 : 0x1p31) * (std::is_signed_v<T> ? 1 : 2);
  if (x != x) return 0;
  if (x >= end) return std::numeric_limits<T>::max();
  if (x < (std::is_signed_v<T> ? -end : F(0))) return std::numeric_limits<T>::min();
  return T(x);
}

// ---------------------------------------------------------------------------------------------- integers

template <class T>
SOFTGPU_INLINE T mul_lo(T a, T b) {
  return T(u64(a) * u64(b));
}
template <class Wide, class T>
SOFTGPU_INLINE Wide mul_wide(T a, T b) {
  return Wide(Wide(a) * Wide(b));
}
template <class T>
SOFTGPU_INLINE T mul_hi(T a, T b) {
  return T((std::conditional_t<std::is_signed_v<T>, __int128, unsigned __int128>(a) * b) >> sizeof(T) * 8);
}
// A quotient by 0 is unspecified; a GPU gives all ones.
template <class T>
SOFTGPU_INLINE T divide(T a, T b) {
  if (b == 0) return T(~T(0));
  if (std::is_signed_v<T> && b == T(-1)) return T(0 - std::make_unsigned_t<T>(a));
  return T(a / b);
}
template <class T>
SOFTGPU_INLINE T remainder(T a, T b) {
  if (b == 0) return a;
  if (std::is_signed_v<T> && b == T(-1)) return 0;
  return T(a % b);
}
// Shifts by more than the width shift everything out; a signed number keeps its sign.
template <class T>
SOFTGPU_INLINE T shl(T x, u32 n) {
  return n < sizeof(T) * 8 ? T(std::make_unsigned_t<T>(x) << n) : T(0);
}
template <class T>
SOFTGPU_INLINE T shr(T x, u32 n) {
  constexpr u32 last = sizeof(T) * 8 - 1;
  return n <= last ? T(x >> n) : std::is_signed_v<T> ? T(x >> last) : T(0);
}
// A byte for each nibble of the selector: its low 3 bits number a byte of {b, a}; bit 3 asks for 8 copies of its sign.
SOFTGPU_INLINE u32 prmt(u32 a, u32 b, u32 selector) {
  const u64 bytes = u64(b) << 32 | a;
  u32 result = 0;
  for (int i = 0; i < 4; ++i) {
    const u32 nibble = selector >> 4 * i & 15;
    const u8 byte = u8(bytes >> 8 * (nibble & 7));
    result |= u32(nibble & 8 ? u8(s8(byte) >> 7) : byte) << 8 * i;
  }
  return result;
}
// b, but for `length` bits from bit `begin` on, which are the low ones of a.
template <class T>
SOFTGPU_INLINE T bfi(T a, T b, u32 begin, u32 length) {
  constexpr u32 width = sizeof(T) * 8;
  begin &= 255, length &= 255;
  if (begin >= width || length == 0) return b;
  const T mask = T((length >= width ? T(~T(0)) : T((T(1) << length) - 1)) << begin);
  return T((b & ~mask) | (T(a << begin) & mask));
}
// Two 16-bit numbers in each operand.
template <class Half, class F>
SOFTGPU_INLINE u32 each_half(u32 a, u32 b, F f) {
  return u32(u16(f(Half(a), Half(b)))) | u32(u16(f(Half(a >> 16), Half(b >> 16)))) << 16;
}

// ---------------------------------------------------------------------------------------------- atomics

// Blocks run on several threads of the host. Each returns the value before.
template <class T>
SOFTGPU_INLINE T atomic_add(u8* p, T x) {
  return __atomic_fetch_add(reinterpret_cast<T*>(p), x, __ATOMIC_RELAXED);
}
template <class T>
SOFTGPU_INLINE T atomic_or(u8* p, T x) {
  return __atomic_fetch_or(reinterpret_cast<T*>(p), x, __ATOMIC_RELAXED);
}
template <class T>
SOFTGPU_INLINE T atomic_exch(u8* p, T x) {
  return __atomic_exchange_n(reinterpret_cast<T*>(p), x, __ATOMIC_RELAXED);
}
template <class T>
SOFTGPU_INLINE T atomic_cas(u8* p, T expected, T x) {
  __atomic_compare_exchange_n(reinterpret_cast<T*>(p), &expected, x, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
  return expected;
}
template <class T, class Better>
SOFTGPU_INLINE T atomic_replace_if(u8* p, T x, Better better) {
  T* const q = reinterpret_cast<T*>(p);
  T seen = __atomic_load_n(q, __ATOMIC_RELAXED);
  while (better(x, seen) && !__atomic_compare_exchange_n(q, &seen, x, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
  }
  return seen;
}
template <class T>
SOFTGPU_INLINE T atomic_max(u8* p, T x) {
  return atomic_replace_if(p, x, [](T a, T b) { return a > b; });
}
template <class T>
SOFTGPU_INLINE T atomic_min(u8* p, T x) {
  return atomic_replace_if(p, x, [](T a, T b) { return a < b; });
}

// ld.volatile. Other threads may write the address atomically at the same time.
template <class T>
SOFTGPU_INLINE T load_volatile(const u8* p) {
  return __atomic_load_n(reinterpret_cast<const T*>(p), __ATOMIC_RELAXED);
}

}  // namespace softgpu

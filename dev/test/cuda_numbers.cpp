// Compares our number types with CUDA's headers (cuda_bf16.h, cuda_fp8.h), on the host: every bf16, every FP8 code, and
// fp32 numbers of every exponent with every kind of tail. Built and run by cuda_numbers.sh, where the headers are.
#include <cuda_bf16.h>
#include <cuda_fp8.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <vector>

#include "llmc/device/number.h"

namespace {

int differences = 0;

void result(const char* what, size_t compared, size_t different) {
  printf("%s %-28s %10zu compared, %zu different\n", different ? "FAIL" : "ok  ", what, compared, different);
  differences += different > 0;
}

bool same(float ours, float cuda) {
  return std::isnan(cuda) ? std::isnan(ours) : std::bit_cast<uint32_t>(ours) == std::bit_cast<uint32_t>(cuda);
}

float cuda_fp8(uint8_t code, __nv_fp8_interpretation_t type) {
  const __half_raw half = __nv_cvt_fp8_to_halfraw(code, type);
  return __half2float(__half(half));
}

// Every sign and exponent with mantissas around each place where a small type rounds: for each of the places 0 .. 22
// the bit alone, its neighbours, all bits below it and all above it; and a sweep over all patterns.
std::vector<float> numbers() {
  std::vector<float> values;
  for (uint32_t high = 0; high < 512; ++high) {
    const uint32_t sign_and_exponent = high << 23;
    for (uint32_t top = 0; top < 128; ++top)  // the mantissa's highest bits: more than any of the types keeps
      for (int place = 0; place < 17; ++place)
        for (uint32_t tail : {0u, 1u << place, (1u << place) - 1, (1u << place) + 1})
          values.push_back(std::bit_cast<float>(sign_and_exponent | ((top << 16 | tail) & 0x7fffffu)));
  }
  for (uint64_t bits = 0; bits < uint64_t(1) << 32; bits += 1021)
    values.push_back(std::bit_cast<float>(uint32_t(bits)));
  return values;
}

}  // namespace

int main() {
  size_t wrong = 0;
  for (uint32_t i = 0; i < 65536; ++i) {
    __nv_bfloat16_raw raw;
    raw.x = uint16_t(i);
    wrong += !same(to_float(bf16{uint16_t(i)}), __bfloat162float(__nv_bfloat16(raw)));
  }
  result("bf16 to fp32", 65536, wrong);

  size_t wrong4 = 0, wrong5 = 0;
  for (uint32_t i = 0; i < 256; ++i) {
    wrong4 += !same(to_float(e4m3{uint8_t(i)}), cuda_fp8(uint8_t(i), __NV_E4M3));
    wrong5 += !same(to_float(e5m2{uint8_t(i)}), cuda_fp8(uint8_t(i), __NV_E5M2));
  }
  result("e4m3 to fp32", 256, wrong4);
  result("e5m2 to fp32", 256, wrong5);

  const std::vector<float> values = numbers();
  size_t wrong_bf16 = 0, wrong_fp8[4] = {};
  for (float x : values) {
    const uint16_t want = __nv_bfloat16_raw(__float2bfloat16_rn(x)).x;
    wrong_bf16 += bf16_bits(x) != want || from_float<bf16>(x).bits != want;
    wrong_fp8[0] += to_e4m3(x).bits != __nv_cvt_float_to_fp8(x, __NV_SATFINITE, __NV_E4M3);
    wrong_fp8[1] += to_e4m3(x, Overflow::special).bits != __nv_cvt_float_to_fp8(x, __NV_NOSAT, __NV_E4M3);
    wrong_fp8[2] += to_e5m2(x).bits != __nv_cvt_float_to_fp8(x, __NV_SATFINITE, __NV_E5M2);
    wrong_fp8[3] += to_e5m2(x, Overflow::special).bits != __nv_cvt_float_to_fp8(x, __NV_NOSAT, __NV_E5M2);
  }
  result("fp32 to bf16", values.size(), wrong_bf16);
  result("fp32 to e4m3, saturating", values.size(), wrong_fp8[0]);
  result("fp32 to e4m3, with NaN", values.size(), wrong_fp8[1]);
  result("fp32 to e5m2, saturating", values.size(), wrong_fp8[2]);
  result("fp32 to e5m2, with infinity", values.size(), wrong_fp8[3]);
  return differences > 0;
}

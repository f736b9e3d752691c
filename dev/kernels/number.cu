// Numbers on the device against the host's: types of 16 and 8 bits, fp32 functions, 16-byte accesses.
//
// Covers: promise 7: number types: the same bits on device and host, exp and rsqrt to 2 units in the last place
#include "llmc/device/number.h"

#include "dev/kernels/check.h"
#include "llmc/device/launch.cuh"

namespace {

struct Conversions {
  uint16_t bf16_bits;
  uint8_t e4m3_saturated, e4m3_special, e5m2_saturated, e5m2_special;
};

__global__ void convert_kernel(Conversions* out, const float* in, int n) {
  const int i = int(blockIdx.x * blockDim.x + threadIdx.x);
  if (i >= n) return;
  out[i] = {from_float<bf16>(in[i]).bits, to_e4m3(in[i]).bits, to_e4m3(in[i], Overflow::special).bits,
            to_e5m2(in[i]).bits, to_e5m2(in[i], Overflow::special).bits};
}

__global__ void decode_kernel(float* out) {  // every pattern of bf16, then of e4m3, then of e5m2
  const int i = int(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < 65536) out[i] = to_float(bf16{uint16_t(i)});
  else if (i < 65536 + 256) out[i] = to_float(e4m3{uint8_t(i)});
  else if (i < 65536 + 512) out[i] = to_float(e5m2{uint8_t(i)});
}

// Floats of all sizes: random patterns, and every number of the small types with its neighbours and midpoints.
std::vector<float> floats_of_all_sizes() {
  std::vector<float> values = {0.0f, -0.0f, INFINITY, -INFINITY, NAN,   -NAN,   448,
                               464,  465,   57344,    61440,     61441, 3.4e38f};
  for (int i = 0; i < 512; ++i) {
    const float x = fp8_value(uint8_t(i), i < 256 ? 4 : 5), y = fp8_value(uint8_t(i + 1), i < 256 ? 4 : 5);
    for (const float v : {x, (x + y) / 2})
      for (const float step : {-1.0f, 0.0f, 1.0f}) values.push_back(v * (1 + step * 0x1p-22f));
  }
  Generator generator(23);
  for (int i = 0; i < 200000; ++i) values.push_back(std::bit_cast<float>(uint32_t(generator.uniform() * 0x1p32)));
  for (int i = 0; i < 200000; ++i) values.push_back(float(std::ldexp(generator.normal(), generator.integer(-24, 18))));
  for (uint32_t i = 0; i < 65536; ++i) values.push_back(std::bit_cast<float>(i << 16 | 0x8000u));  // bf16's midpoints
  return values;
}

void check_conversions(Checker& checker) {
  const std::vector<float> values = floats_of_all_sizes();
  const int n = int(values.size());
  const Array<float> in(checker.stream, values);
  Array<Conversions> out(checker.stream, values.size());
  launch<convert_kernel>({checker.stream, "convert", {writes(out.data(), out.size()), reads(in.data(), in.size())}},
                         blocks_for(values.size(), 256), 256, 0, out.data(), in.data(), n);
  const std::vector<Conversions> got = out.download();
  int wrong[5] = {};
  for (size_t i = 0; i < values.size(); ++i) {
    wrong[0] += got[i].bf16_bits != bf16_bits(values[i]);
    wrong[1] += got[i].e4m3_saturated != fp8_bits(values[i], 4, Overflow::saturate);
    wrong[2] += got[i].e4m3_special != fp8_bits(values[i], 4, Overflow::special);
    wrong[3] += got[i].e5m2_saturated != fp8_bits(values[i], 5, Overflow::saturate);
    wrong[4] += got[i].e5m2_special != fp8_bits(values[i], 5, Overflow::special);
  }
  const char* names[] = {"bf16", "e4m3 saturated", "e4m3 special", "e5m2 saturated", "e5m2 special"};
  for (int k = 0; k < 5; ++k)
    checker.that(format("%s on the device as on the host", names[k]), wrong[k] == 0,
                 format("%d of %d numbers differ", wrong[k], n));

  const int patterns = 65536 + 512;
  Array<float> decoded(checker.stream, size_t(patterns));
  launch<decode_kernel>({checker.stream, "decode", {writes(decoded.data(), decoded.size())}}, blocks_for(patterns, 256),
                        256, 0, decoded.data());
  const std::vector<float> numbers = decoded.download();
  int different = 0;
  for (int i = 0; i < patterns; ++i) {
    const float want = i < 65536         ? std::bit_cast<float>(uint32_t(i) << 16)
                       : i < 65536 + 256 ? fp8_value(uint8_t(i), 4)
                                         : fp8_value(uint8_t(i), 5);
    const float have = numbers[size_t(i)];
    different += !(std::isnan(want) ? std::isnan(have) : float_to_bits(have) == float_to_bits(want));
  }
  checker.that("every pattern of bf16, e4m3 and e5m2 as a float", different == 0, format("%d differ", different));
}

__device__ float exp_of(float x) { return exp_f32(x); }
__device__ float exp2_of(float x) { return exp2_f32(x); }
__device__ float rsqrt_of(float x) { return rsqrt_f32(x); }
__device__ float reciprocal_of(float x) { return reciprocal_f32(x); }

template <auto function>
__global__ void function_kernel(float* out, const float* in, int n) {
  const int i = int(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < n) out[i] = function(in[i]);
}

template <auto function>
void apply(Stream& stream, const char* name, Array<float>& out, const Array<float>& in) {
  const size_t n = in.size();
  launch<function_kernel<function>>({stream, name, {writes(out.data(), n), reads(in.data(), n)}}, blocks_for(n, 256),
                                    256, 0, out.data(), in.data(), int(n));
}

// The distance in units of the last place of `want` as fp32, normal numbers only.
double ulps(float got, double want) {
  int exponent;
  std::frexp(want, &exponent);
  return std::fabs(double(got) - want) / std::ldexp(1.0, exponent - 24);
}

// Numbers of low <= |x| < high are compared with `want`, in units of the last place; of others `right` says what is.
template <auto function>
void check_function(Checker& checker, const char* name, const std::vector<float>& values, double most_ulps,
                    const std::function<bool(float)>& compared, const std::function<double(double)>& want,
                    const std::function<bool(float, float)>& right) {
  const Array<float> in(checker.stream, values);
  Array<float> out(checker.stream, values.size());
  apply<function>(checker.stream, name, out, in);
  const std::vector<float> got = out.download();
  double worst = 0;
  float worst_at = 0, wrong_at = 0;
  int wrong = 0, count = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    const float x = values[i];
    if (std::isnan(x)) wrong += !std::isnan(got[i]);
    else if (!compared(x)) wrong += !right(x, got[i]), wrong_at = right(x, got[i]) ? wrong_at : x;
    else if (const double error = ulps(got[i], want(x)); ++count && error > worst) worst = error, worst_at = x;
  }
  checker.that(name, worst <= most_ulps && wrong == 0 && count > 1000,
               format("within %.3f units in the last place (at %g) over %d numbers, %d special ones are wrong (%g)",
                      worst, double(worst_at), count, wrong, double(wrong_at)));
}

void check_functions(Checker& checker) {
  std::vector<float> values;
  for (uint64_t bits = 0; bits < uint64_t(1) << 32; bits += 1009)
    values.push_back(std::bit_cast<float>(uint32_t(bits)));
  for (const float x : {0.0f, -0.0f, INFINITY, -INFINITY, NAN, 88.7f, -87.2f, 100.0f, -104.0f, 3e38f, -3e38f, 128.0f})
    values.push_back(x);
  for (int i = -130000; i < 130000; ++i) values.push_back(float(i) * 1e-3f);
  // Below, 0 or (on a GPU) a subnormal number; above infinity, or nearly so.
  check_function<exp_of>(
      checker, "exp_f32", values, 2, [](float x) { return x >= -87.3f && x <= 88.71f; },
      [](double x) { return std::exp(x); },
      [](float x, float y) { return x < 0        ? y >= 0 && y <= 1.3e-38f
                                    : x > 88.73f ? y == INFINITY
                                                 : y > 3.3e38f; });
  check_function<exp2_of>(
      checker, "exp2_f32", values, 4, [](float x) { return x >= -125.9f && x < 127.99f; },  // 2^-22
      [](double x) { return std::exp2(x); },
      [](float x, float y) { return x < 0      ? y >= 0 && y <= 1.3e-38f
                                    : x >= 128 ? y == INFINITY
                                               : y > 3.3e38f; });
  check_function<rsqrt_of>(
      checker, "rsqrt_f32", values, 2, [](float x) { return x >= 1.2e-38f && x < INFINITY; },
      [](double x) { return 1 / std::sqrt(x); },
      [](float x, float y) {
        if (x == 0) return std::isinf(y);
        return x == INFINITY ? y == 0 : x > 0 ? y > 1e18f : std::isnan(y);
      });
  // The reciprocal of a subnormal number, or a subnormal reciprocal, may be taken for infinity, or for 0.
  check_function<reciprocal_of>(
      checker, "reciprocal_f32", values, 2, [](float x) { return std::fabs(x) >= 1.2e-38f && std::fabs(x) <= 8.5e37f; },
      [](double x) { return 1 / x; },
      [](float x, float y) { return std::fabs(x) > 1 ? std::fabs(y) < 1.2e-38f : std::fabs(y) > 8e37f; });
}

__global__ void greater_kernel(float* out, const float* a, const float* b, int n) {
  const int i = int(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < n) out[i] = max_f32(a[i], b[i]);
}

void check_max(Checker& checker) {
  std::vector<float> a, b, want;
  for (const float x : {0.0f, 1.5f, -1.5f, 3e38f, -3e38f, 1e-40f, INFINITY, -INFINITY})
    for (const float y : {1.0f, -1.0f, 1.5f, 2e-40f, INFINITY, -INFINITY}) {
      a.push_back(x), b.push_back(y);
      want.push_back(std::max(x, y));
    }
  const size_t n = a.size();
  const Array<float> left(checker.stream, a), right(checker.stream, b);
  Array<float> out(checker.stream, n);
  launch<greater_kernel>(
      {checker.stream, "greater", {writes(out.data(), n), reads(left.data(), n), reads(right.data(), n)}},
      blocks_for(n, 32), 32, 0, out.data(), left.data(), right.data(), int(n));
  checker.same_bits("max_f32", out.download(), want);
}

// Eight numbers at once: through bf16 and back, and copied as fp32.
__global__ void vectors_kernel(bf16* narrow, float* from_bf16, float* copied, const float* in) {
  const size_t first = (size_t(blockIdx.x) * blockDim.x + threadIdx.x) * 8;
  float x[8];
  load_vector(x, in + first);
  store_vector(copied + first, x);
  store_vector(narrow + first, x);
  load_vector(x, narrow + first);
  store_vector(from_bf16 + first, x);
}

void check_vectors(Checker& checker) {
  std::vector<float> values = floats_of_all_sizes();
  values.resize((values.size() + 255) / 256 * 256);
  const size_t n = values.size();
  const Array<float> in(checker.stream, values);
  Array<bf16> narrow(checker.stream, n);
  Array<float> from_bf16(checker.stream, n), copied(checker.stream, n);
  launch<vectors_kernel>(
      {checker.stream,
       "vectors",
       {updates(narrow.data(), n), writes(from_bf16.data(), n), writes(copied.data(), n), reads(in.data(), n)}},
      unsigned(n / 256), 32, 0, narrow.data(), from_bf16.data(), copied.data(), in.data());
  std::vector<bf16> rounded;
  std::vector<float> widened;
  for (float value : values) {
    rounded.push_back(bf16{bf16_bits(value)});
    widened.push_back(std::bit_cast<float>(uint32_t(bf16_bits(value)) << 16));
  }
  checker.same_bits("vectors of fp32 copied", copied.download(), values);
  checker.same_bits("vectors of fp32 to bf16", narrow.download(), rounded);
  checker.same_bits("vectors of bf16 to fp32", from_bf16.download(), widened);
}

}  // namespace

void check(Checker& checker) {
  check_conversions(checker);
  check_functions(checker);
  check_max(checker);
  check_vectors(checker);
}

void bench(Bencher& bencher) {
  const size_t n = bencher.gpu_sizes() ? size_t(1) << 28 : size_t(1) << 20;
  const Array<float> in(bencher.stream, std::vector<float>(n, 0.75f));
  Array<float> out(bencher.stream, n);
  const auto time = [&]<auto function>(const char* name) {
    bencher.time(format("%s of %zu numbers", name, n), double(n) * 8, 0,
                 [&] { apply<function>(bencher.stream, name, out, in); });
  };
  time.template operator()<exp_of>("exp_f32");
  time.template operator()<exp2_of>("exp2_f32");
  time.template operator()<rsqrt_of>("rsqrt_f32");
  time.template operator()<reciprocal_of>("reciprocal_f32");
}

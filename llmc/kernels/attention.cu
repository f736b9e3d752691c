// Chooses the attention kernel for a call and checks the arguments on which all kernels rely. The kernels themselves
// are in attention_plain_*.cu, attention_mma_*.cu and attention_hopper_*.cu.
#include "llmc/kernels/attention.h"

#include <algorithm>
#include <climits>

#include "llmc/kernels/attention_hopper.cuh"
#include "llmc/kernels/attention_mma.cuh"
#include "llmc/kernels/attention_plain.cuh"

AttentionShape packed_attention_shape(int B, int T, int NH, int NKV, int HD) {
  const int64_t width = (int64_t(NH) + 2 * int64_t(NKV)) * HD, out_width = int64_t(NH) * HD;
  const AttentionStrides packed{width, width * T};
  return {B, T, T, NH, NKV, HD, packed, packed, packed, {out_width, out_width * T}};
}

AttentionShape separate_attention_shape(int B, int Tq, int Tk, int NH, int NKV, int HD) {
  const int64_t query_width = int64_t(NH) * HD, key_width = int64_t(NKV) * HD;
  const AttentionStrides queries{query_width, query_width * Tq}, keys{key_width, key_width * Tk};
  return {B, Tq, Tk, NH, NKV, HD, queries, keys, keys, queries};
}

double attention_pairs(const AttentionShape& shape) {
  // Query t sees clamp(ahead + t, 0, Tk) keys: none for t < t0, all Tk for t >= t1.
  const int64_t ahead = int64_t(shape.query_offset) - shape.key_offset + 1, Tq = shape.Tq, Tk = shape.Tk;
  const int64_t t0 = std::clamp<int64_t>(-ahead, 0, Tq), t1 = std::clamp<int64_t>(Tk - ahead, t0, Tq);
  return double(t1 - t0) * (2 * ahead + t0 + t1 - 1) / 2 + double(Tq - t1) * Tk;
}

// ---------------------------------------------------------------------------------------------- the choice

constexpr AttentionKernel kNamed[] = {AttentionKernel::automatic, AttentionKernel::plain, AttentionKernel::mma,
                                      AttentionKernel::hopper};
constexpr const char* kNames[] = {"auto", "plain", "mma", "hopper"};

const char* attention_kernel_name(AttentionKernel kernel) { return kNames[int(kernel)]; }

AttentionKernel attention_kernel_named(const std::string& name) {
  for (AttentionKernel kernel : kNamed)
    if (name == attention_kernel_name(kernel)) return kernel;
  fail("there is no attention kernel '%s': expected auto, plain, mma or hopper", name.c_str());
}

namespace {

// Returns why a tensor-core kernel cannot take this device, type or head size; empty if it can.
std::string tensor_cores_refuse(const DeviceInfo& device, DType dtype, int HD, size_t shared_bytes) {
  if (dtype != DType::bf16) return "it multiplies bf16";
  if (HD != 64 && HD != 128) return "it takes head sizes 64 and 128";
  if (device.shared_bytes_per_block < shared_bytes)
    return format("it needs %zu KiB of shared memory a block, here are %zu", shared_bytes >> 10,
                  device.shared_bytes_per_block >> 10);
  return "";
}
std::string mma_refuses(const DeviceInfo& device, DType dtype, int HD) {
  if (device.gpu && device.compute_capability < 80) return "it needs a GPU of compute capability 8.0 or more";
  return tensor_cores_refuse(device, dtype, HD, 99 << 10);  // per block on its smallest devices, sm_86 and sm_89
}
std::string hopper_refuses(const DeviceInfo& device, DType dtype, int HD) {
  if (device.gpu && device.compute_capability != 90) return "it needs a GPU of compute capability 9.0 (Hopper)";
  if (!hopper_attention_is_built()) return "this build has no code for it: make ARCH=90a";
  return tensor_cores_refuse(device, dtype, HD, 227 << 10);
}

}  // namespace

AttentionChoice choose_attention_kernel(AttentionKernel asked, const DeviceInfo& device, DType dtype, int HD) {
  using enum AttentionKernel;
  REQUIRE(HD >= 16 && HD <= 256 && HD % 8 == 0,
          "attention: no kernel takes head size %d%s\n  expected 16 to 256, a multiple of 8", HD,
          asked == automatic ? "" : ", not even the one that was asked for");
  const std::string what = format("head size %d in %s on %s", HD, dtype_name(dtype), device.name.c_str());
  const std::string no_hopper = hopper_refuses(device, dtype, HD), no_mma = mma_refuses(device, dtype, HD);
  if (asked == hopper || asked == mma) {
    const std::string& refusal = asked == hopper ? no_hopper : no_mma;
    REQUIRE(refusal.empty(), "attention: the kernel %s does not take %s: %s\n  --attention %s does",
            attention_kernel_name(asked), what.c_str(), refusal.c_str(),
            asked == hopper && no_mma.empty() ? "mma" : "plain");
    return {asked, "asked for; takes " + what};
  }
  const std::string by =
      HD == 64 || HD == 128 ? ", compiled for that size" : ", by the code that all sizes but 64 and 128 share";
  if (asked == plain) return {plain, "asked for; takes " + what + by};
  if (!no_mma.empty()) return {plain, "the only one that takes " + what + by};
  if (!device.gpu) return {plain, "the fastest that takes " + what + by};  // a CPU has no tensor cores
  if (no_hopper.empty()) return {hopper, "Hopper's own, the fastest that takes " + what};
  return {mma, "tensor cores, the fastest that takes " + what + "; not hopper: " + no_hopper};
}

size_t plain_attention_stack(int HD) { return HD == 64 ? 1552 : HD == 128 ? 3072 : 5120; }

// ---------------------------------------------------------------------------------------------- checks

namespace {

struct Operand {
  const char* name;
  const void* data;
  const AttentionStrides& strides;
  int T, heads;
};

void require_sizes(const char* who, const AttentionShape& s) {
  REQUIRE(s.B >= 1 && s.Tq >= 1 && s.Tk >= 1, "%s: B = %d, Tq = %d, Tk = %d: expected at least 1 of each", who, s.B,
          s.Tq, s.Tk);
  REQUIRE(s.NH >= 1 && s.NKV >= 1 && s.NH % s.NKV == 0,
          "%s: NH = %d query heads are not a multiple of NKV = %d key/value heads", who, s.NH, s.NKV);
  REQUIRE(
      s.query_offset >= 0 && s.key_offset >= 0 && s.query_offset <= INT_MAX - s.Tq && s.key_offset <= INT_MAX - s.Tk,
      "%s: query_offset = %d with Tq = %d, key_offset = %d with Tk = %d: expected positions 0 to 2^31-1", who,
      s.query_offset, s.Tq, s.key_offset, s.Tk);
  const int64_t rows = int64_t(s.Tq) * (s.NH / s.NKV), most = std::max<int64_t>(rows, s.Tk);
  REQUIRE(most <= INT_MAX - kMostRows && (most / 32 + 1) * s.B * s.NKV <= INT_MAX,
          "%s: B = %d, Tq = %d, Tk = %d, NH = %d, NKV = %d is too large for one call: split it by sequences or queries",
          who, s.B, s.Tq, s.Tk, s.NH, s.NKV);
}

void require_operand(const char* who, const Operand& operand, const AttentionShape& shape) {
  const int B = shape.B, T = operand.T;
  const int64_t row = operand.strides.row, batch = operand.strides.batch, width = int64_t(operand.heads) * shape.HD;
  REQUIRE(operand.data && reinterpret_cast<uintptr_t>(operand.data) % 16 == 0,
          "%s: %s is at %p: expected an address that is a multiple of 16 bytes", who, operand.name, operand.data);
  REQUIRE(row % 8 == 0 && batch % 8 == 0, "%s: %s has strides %lld (row) and %lld (batch): expected multiples of 8",
          who, operand.name, (long long)row, (long long)batch);
  const bool batch_outside = (T == 1 || row >= width) && (B == 1 || batch >= (T - 1) * row + width);
  const bool row_outside = (B == 1 || batch >= width) && (T == 1 || row >= (B - 1) * batch + width);
  REQUIRE(batch_outside || row_outside,
          "%s: %s (B = %d, T = %d, %d heads of %d) has strides %lld (row) and %lld (batch): positions overlap", who,
          operand.name, B, T, operand.heads, shape.HD, (long long)row, (long long)batch);
}

template <class T>
size_t bytes_of(const Operand& operand, const AttentionShape& shape) {
  return span_of(operand.strides, shape.B, operand.T, operand.heads, shape.HD) * sizeof(T);
}

template <class T>
void require_apart(const char* who, const Operand& result, const Operand& input, const AttentionShape& shape) {
  REQUIRE(!overlap(result.data, bytes_of<T>(result, shape), input.data, bytes_of<T>(input, shape)),
          "%s: %s overlaps %s, which is read after it is begun", who, result.name, input.name);
}

void require_floats(const char* who, const char* name, const float* data) {
  REQUIRE(data, "%s: %s is null: expected (B,NH,Tq) floats", who, name);
}

}  // namespace

// ---------------------------------------------------------------------------------------------- launchers

template <class T>
void attention_forward(Stream& stream, T* out, float* lse, const T* q, const T* k, const T* v, const AttentionShape& s,
                       AttentionKernel kernel, float* amax) {
  const char* who = "attention_forward";
  require_sizes(who, s);
  const auto choice = choose_attention_kernel(kernel, stream.device().info(), kDType<T>, s.HD);
  const Operand result{"out", out, s.out, s.Tq, s.NH};
  require_operand(who, result, s);
  for (const Operand& input :
       {Operand{"q", q, s.q, s.Tq, s.NH}, Operand{"k", k, s.k, s.Tk, s.NKV}, Operand{"v", v, s.v, s.Tk, s.NKV}}) {
    require_operand(who, input, s);
    require_apart<T>(who, result, input, s);
  }
  require_floats(who, "lse", lse);
  if constexpr (std::is_same_v<T, bf16>) {
    if (choice.kernel == AttentionKernel::hopper) return hopper_attention_forward(stream, out, lse, q, k, v, s, amax);
    if (choice.kernel == AttentionKernel::mma) return mma_attention_forward(stream, out, lse, q, k, v, s, amax);
  }
  plain_attention_forward(stream, out, lse, q, k, v, s, amax);
}

template <class T>
void attention_backward(Stream& stream, T* dq, T* dk, T* dv, float* delta, const T* dout, const T* out,
                        const float* lse, const T* q, const T* k, const T* v, const AttentionShape& s,
                        AttentionKernel kernel, AttentionAccumulate accumulate) {
  const char* who = "attention_backward";
  require_sizes(who, s);
  const auto choice = choose_attention_kernel(kernel, stream.device().info(), kDType<T>, s.HD);
  const Operand results[] = {{"dq", dq, s.q, s.Tq, s.NH}, {"dk", dk, s.k, s.Tk, s.NKV}, {"dv", dv, s.v, s.Tk, s.NKV}};
  for (const Operand& input :
       {Operand{"dout", dout, s.out, s.Tq, s.NH}, Operand{"out", out, s.out, s.Tq, s.NH},
        Operand{"q", q, s.q, s.Tq, s.NH}, Operand{"k", k, s.k, s.Tk, s.NKV}, Operand{"v", v, s.v, s.Tk, s.NKV}}) {
    require_operand(who, input, s);
    for (const Operand& result : results) {
      require_operand(who, result, s);
      require_apart<T>(who, result, input, s);
    }
  }
  require_floats(who, "delta", delta);
  require_floats(who, "lse", lse);
  if constexpr (std::is_same_v<T, bf16>) {
    if (choice.kernel == AttentionKernel::hopper) {
      hopper_attention_dq(stream, dq, delta, dout, out, lse, q, k, v, s, accumulate.dq);
      return hopper_attention_dkv(stream, dk, dv, delta, dout, lse, q, k, v, s, accumulate.dkv);
    }
    if (choice.kernel == AttentionKernel::mma) {
      mma_attention_dq(stream, dq, delta, dout, out, lse, q, k, v, s, accumulate.dq);
      return mma_attention_dkv(stream, dk, dv, delta, dout, lse, q, k, v, s, accumulate.dkv);
    }
  }
  plain_attention_dq(stream, dq, delta, dout, out, lse, q, k, v, s, accumulate.dq);
  plain_attention_dkv(stream, dk, dv, delta, dout, lse, q, k, v, s, accumulate.dkv);
}

#define INSTANTIATE(T)                                                                                                \
  template void attention_forward(Stream&, T*, float*, const T*, const T*, const T*, const AttentionShape&,           \
                                  AttentionKernel, float*);                                                           \
  template void attention_backward(Stream&, T*, T*, T*, float*, const T*, const T*, const float*, const T*, const T*, \
                                   const T*, const AttentionShape&, AttentionKernel, AttentionAccumulate);
INSTANTIATE(float)
INSTANTIATE(bf16)

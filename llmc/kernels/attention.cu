// Chooses the attention kernel for a call and checks the arguments on which all kernels rely. The kernels themselves
// are in attention_plain_*.cu, attention_mma_*.cu and attention_hopper_*.cu.
#include "llmc/kernels/attention.h"

#include <algorithm>
#include <climits>
#include <utility>

#include "llmc/kernels/attention_hopper.cuh"
#include "llmc/kernels/attention_mma.cuh"
#include "llmc/kernels/attention_plain.cuh"

double attention_pairs(int64_t Tq, int64_t Tk, int64_t ahead, int64_t window) {
  // Without the window, those that it hides: what a query `window` positions earlier sees.
  if (window > 0) return attention_pairs(Tq, Tk, ahead) - attention_pairs(Tq, Tk, ahead - window);
  // Query t sees clamp(ahead + 1 + t, 0, Tk) keys: none for t < t0, all Tk for t >= t1.
  const int64_t first = ahead + 1;
  const int64_t t0 = std::clamp<int64_t>(-first, 0, Tq), t1 = std::clamp<int64_t>(Tk - first, t0, Tq);
  return double(t1 - t0) * (2 * first + t0 + t1 - 1) / 2 + double(Tq - t1) * Tk;
}

namespace {

double imbalance(double most, int64_t rows, double pairs, int64_t all_rows) {
  return pairs > 0 ? most / double(rows) / (pairs / double(all_rows)) : 1;
}

}  // namespace

// The last queries see the most keys; in a window, the last ones that no key lies behind.
double attention_imbalance_queries(int64_t Tq, int64_t Tk, int64_t ahead, int64_t window, int64_t rows) {
  rows = std::min(rows, Tq);
  const int64_t end = window > 0 ? std::clamp<int64_t>(Tk - ahead, rows, Tq) : Tq;
  const double most = attention_pairs(rows, Tk, ahead + end - rows, window);
  return imbalance(most, rows, attention_pairs(Tq, Tk, ahead, window), Tq);
}

// The first keys are seen by the most queries; in a window, the first ones that a query lies at.
double attention_imbalance_keys(int64_t Tq, int64_t Tk, int64_t ahead, int64_t window, int64_t rows) {
  rows = std::min(rows, Tk);
  const int64_t first = window > 0 ? std::clamp<int64_t>(ahead, 0, Tk - rows) : 0;
  const double most = attention_pairs(Tq, rows, ahead - first, window);
  return imbalance(most, rows, attention_pairs(Tq, Tk, ahead, window), Tk);
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

size_t plain_attention_stack(int HD) { return HD == 64 ? 1616 : HD == 128 ? 3104 : 5120; }

// ---------------------------------------------------------------------------------------------- checks

namespace {

void require_sizes(const char* who, const Tensor& q, const Tensor& k, const AttentionOptions& options) {
  REQUIRE(q.axes == 4 && k.axes == 4, "%s: q is %s, and k is %s\n  expected (B, Tq, NH, HD) and (B, Tk, NKV, HD)", who,
          q.text().c_str(), k.text().c_str());
  const long long B = q.shape[0], Tq = q.shape[1], NH = q.shape[2], HD = q.shape[3], Tk = k.shape[1], NKV = k.shape[2];
  for (const long long extent : {B, Tq, Tk, NH, NKV, HD})
    REQUIRE(extent >= 1 && extent <= INT_MAX,
            "%s: B = %lld, Tq = %lld, Tk = %lld, NH = %lld, NKV = %lld, HD = %lld: expected 1 to 2^31-1 of each", who,
            B, Tq, Tk, NH, NKV, HD);
  REQUIRE(NH % NKV == 0, "%s: NH = %lld query heads are not a multiple of NKV = %lld key/value heads", who, NH, NKV);
  REQUIRE(options.query_offset >= 0 && options.key_offset >= 0 && options.query_offset <= INT_MAX - Tq &&
              options.key_offset <= INT_MAX - Tk,
          "%s: query_offset = %d with Tq = %lld, key_offset = %d with Tk = %lld: expected positions 0 to 2^31-1", who,
          options.query_offset, Tq, options.key_offset, Tk);
  const long long most = std::max(Tq * (NH / NKV), Tk);
  REQUIRE(most <= INT_MAX - kMostRows && (most / 32 + 1) * B * NKV <= INT_MAX,
          "%s: B = %lld, Tq = %lld, Tk = %lld, NH = %lld, NKV = %lld is too large for one call: split it by sequences "
          "or queries",
          who, B, Tq, Tk, NH, NKV);
}

// Checks one of q, k, v, out and their gradients, which has the shape and the type of another.
void require_heads(const char* who, const char* name, const Tensor& t, const Tensor& like) {
  REQUIRE(t.axes == 4 && std::equal(t.shape, t.shape + 4, like.shape) && t.type == like.type,
          "%s: %s is %s%s%s\n  expected %s of %s", who, name, t.text().c_str(), t ? " of " : "",
          t ? dtype_name(t.type) : "", like.text().c_str(), dtype_name(like.type));
  const int64_t B = t.shape[0], T = t.shape[1], heads = t.shape[2], HD = t.shape[3], width = heads * HD;
  const int64_t batch = t.stride[0], row = t.stride[1];
  REQUIRE(heads == 1 || t.stride[2] == HD, "%s: the heads of %s %s are %lld elements apart, not %lld", who, name,
          t.text().c_str(), (long long)t.stride[2], (long long)HD);
  REQUIRE(t.data && reinterpret_cast<uintptr_t>(t.data) % 16 == 0,
          "%s: %s is at %p: expected an address that is a multiple of 16 bytes", who, name, t.data);
  REQUIRE(row % 8 == 0 && batch % 8 == 0, "%s: %s has strides %lld (row) and %lld (batch): expected multiples of 8",
          who, name, (long long)row, (long long)batch);
  const bool batch_outside = (T == 1 || row >= width) && (B == 1 || batch >= (T - 1) * row + width);
  const bool row_outside = (B == 1 || batch >= width) && (T == 1 || row >= (B - 1) * batch + width);
  REQUIRE(batch_outside || row_outside, "%s: %s %s has strides %lld (row) and %lld (batch): positions overlap", who,
          name, t.text().c_str(), (long long)row, (long long)batch);
}

// The kernels know the strides of q, k, v and out alone.
void require_strides(const char* who, const char* name, const Tensor& t, const char* like_name, const Tensor& like) {
  for (const int axis : {0, 1})
    REQUIRE(t.shape[axis] == 1 || t.stride[axis] == like.stride[axis],
            "%s: %s has strides %lld (row) and %lld (batch), %s has %lld and %lld: expected the same", who, name,
            (long long)t.stride[1], (long long)t.stride[0], like_name, (long long)like.stride[1],
            (long long)like.stride[0]);
}

AttentionStrides strides_of(const Tensor& t) { return {t.stride[1], t.stride[0]}; }

// Checks what forward and backward have in common, and chooses the kernel.
AttentionCall checked_call(const char* who, Stream& stream, const Tensor& out, const Tensor& lse, const Tensor& q,
                           const Tensor& k, const Tensor& v, const AttentionOptions& options) {
  require_sizes(who, q, k, options);
  const int B = int(q.shape[0]), Tq = int(q.shape[1]), NH = int(q.shape[2]), HD = int(q.shape[3]);
  const int Tk = int(k.shape[1]), NKV = int(k.shape[2]);
  const AttentionChoice choice = choose_attention_kernel(options.kernel, stream.device().info(), q.type, HD);
  const Tensor keys(nullptr, q.type, {B, Tk, NKV, HD});
  require_heads(who, "out", out, q);
  require_heads(who, "q", q, q);
  require_heads(who, "k", k, keys);
  require_heads(who, "v", v, keys);
  require_tensor(who, "lse", lse, DType::fp32, {B, NH, Tq});
  require_tensor(who, "document_start", options.document_start, DType::int32, {B, Tq}, true);
  return {choice.kernel,
          {B, Tq, Tk, NH, NKV, HD, strides_of(q), strides_of(k), strides_of(v), strides_of(out), options.query_offset,
           options.key_offset, options.document_start.as<int>()},
          out,
          lse,
          q,
          k,
          v,
          options.document_start,
          options.window_for_flops};
}

}  // namespace

// ---------------------------------------------------------------------------------------------- launchers

void attention_forward(Stream& stream, const Tensor& out, const Tensor& lse, const Tensor& q, const Tensor& k,
                       const Tensor& v, const AttentionOptions& options, float* amax) {
  const char* who = "attention_forward";
  AttentionCall call = checked_call(who, stream, out, lse, q, k, v, options);
  require_apart(who, "out", out, "q", q);
  require_apart(who, "out", out, "k", k);
  require_apart(who, "out", out, "v", v);
  call.amax = amax;
  if (call.kernel == AttentionKernel::hopper) return hopper_attention_forward(stream, call);
  if (call.kernel == AttentionKernel::mma) return mma_attention_forward(stream, call);
  plain_attention_forward(stream, call);
}

void attention_backward(Stream& stream, const Tensor& dq, const Tensor& dk, const Tensor& dv, const Tensor& rowsum_dO_O,
                        const Tensor& dout, const Tensor& out, const Tensor& lse, const Tensor& q, const Tensor& k,
                        const Tensor& v, const AttentionOptions& options, AttentionAccumulate accumulate) {
  const char* who = "attention_backward";
  AttentionCall call = checked_call(who, stream, out, lse, q, k, v, options);
  struct Pair {
    const char* name;
    const Tensor& gradient;
    const char* of_name;
    const Tensor& of;
  };
  for (const Pair& p : {Pair{"dout", dout, "out", out}, {"dq", dq, "q", q}, {"dk", dk, "k", k}, {"dv", dv, "v", v}}) {
    require_heads(who, p.name, p.gradient, p.of);
    require_strides(who, p.name, p.gradient, p.of_name, p.of);
  }
  for (const auto& [name, result] : {std::pair{"dq", dq}, {"dk", dk}, {"dv", dv}}) {
    require_apart(who, name, result, "dout", dout);
    require_apart(who, name, result, "out", out);
    require_apart(who, name, result, "q", q);
    require_apart(who, name, result, "k", k);
    require_apart(who, name, result, "v", v);
  }
  require_tensor(who, "rowsum_dO_O", rowsum_dO_O, DType::fp32, {q.shape[0], q.shape[2], q.shape[1]});
  call.dq = dq, call.dk = dk, call.dv = dv, call.rowsum_dO_O = rowsum_dO_O, call.dout = dout,
  call.accumulate = accumulate;
  switch (call.kernel) {
    case AttentionKernel::hopper:
      hopper_attention_dq(stream, call);
      return hopper_attention_dkv(stream, call);
    case AttentionKernel::mma:
      mma_attention_dq(stream, call);
      return mma_attention_dkv(stream, call);
    default:
      plain_attention_dq(stream, call);
      return plain_attention_dkv(stream, call);
  }
}

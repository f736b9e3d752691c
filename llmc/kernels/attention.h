// Causal attention with grouped queries (Vaswani et al. 2017; Ainslie et al. 2023), forward and backward. The kernels
// work tile by tile, so that the Tq x Tk scores are never stored (Dao 2023, FlashAttention-2):
//
//   s[t,j] = softmax_scale * q[t] . k[j]      softmax_scale = 1 / sqrt(HD)
//   lse[t] = log sum_j exp(s[t,j])    p[t,j] = exp(s[t,j] - lse[t])
//   out[t] = sum_j p[t,j] v[j]
//
// The sums run over the keys j that query t sees. Query t of a sequence has position query_offset + t, and key j has
// position key_offset + j. Query t sees key j if document_start[t] <= position of j <= position of t; document_start
// never decreases with t. So one launcher serves training (both offsets 0), packed documents, sliding windows of W keys
// (document_start[t] is at least the position of t, minus W - 1), sampling from a KV cache (Tq = 1, query_offset =
// Tk - 1), and queries or keys that come in chunks.
// A query that sees no key has out = 0, lse = -infinity and dq = 0, and adds nothing to dk and dv.
//
// Head h of q attends to head h / (NH / NKV) of k and v. Scores, softmax, sums and accumulators are fp32 and are
// rounded once. Deterministic: a sum is never split among blocks or added with atomics, and its order depends on the
// shape and the kernel alone. Even keys that a query does not see must be finite, because the kernels multiply them by
// zero.
#pragma once

#include <cstdint>
#include <string>

#include "llmc/device/device.h"
#include "llmc/device/number.h"
#include "llmc/device/tensor.h"

// Returns the number of pairs of a query and a key that the offsets and the window allow for one head of one sequence.
// `ahead` is the position of the first query minus that of the first key; a query sees at most `window` keys; 0: any
// number. Document starts are ignored. Forward needs 4 HD FLOPs per pair and head. Backward needs 10 HD; our two
// backward kernels execute 14 HD, because both compute the scores and dout.v.
double attention_pairs(int64_t Tq, int64_t Tk, int64_t ahead, int64_t window = 0);

// Returns how many more pairs the block of `rows` queries with the most pairs has than a block of this size has on
// average, or the same of blocks of keys. It is 2 for many blocks of causal attention, and 1 for one block. The other
// arguments are those of attention_pairs.
double attention_imbalance_queries(int64_t Tq, int64_t Tk, int64_t ahead, int64_t window, int64_t rows);
double attention_imbalance_keys(int64_t Tq, int64_t Tk, int64_t ahead, int64_t window, int64_t rows);

// plain: one thread per row (query or key), on any device. mma: tensor cores (sm_80 and newer), bf16, head sizes 64 and
// 128. hopper: the same types and head sizes on sm_90 only, with TMA and wgmma.
enum class AttentionKernel { automatic, plain, mma, hopper };

// Parses the value of --attention: "auto", "plain", "mma" or "hopper". Throws on any other name.
AttentionKernel attention_kernel_named(const std::string& name);
const char* attention_kernel_name(AttentionKernel kernel);

// Returns the kernel for this head size, type and device: the one that was asked for or, for `automatic`, the fastest.
// `why` is the reason, for the banner. Throws if the kernel asked for cannot take them, or if no kernel can.
struct AttentionChoice {
  AttentionKernel kernel;
  std::string why;
};
AttentionChoice choose_attention_kernel(AttentionKernel asked, const DeviceInfo& device, DType dtype, int HD);

// Returns the bytes of local memory that one thread of plain attention uses on a GPU: the largest stack frame of its
// kernels in dev/test/cuda_baseline.tsv. The stack frames of all other kernels are 64 bytes or less.
size_t plain_attention_stack(int HD);

struct AttentionOptions {
  int query_offset = 0, key_offset = 0;  // the position of the first query and of the first key
  Tensor document_start = {};            // (B, Tq) int32: position of the first key that is seen; absent: all 0
  int window_for_flops = 0;              // the most keys that a query sees; 0: any number. document_start says which
  AttentionKernel kernel = AttentionKernel::automatic;
};

// q and out are (B, Tq, NH, HD), k and v (B, Tk, NKV, HD); HD is 16 to 256 in steps of 8. They are all fp32 or all
// bf16. The heads of one position are contiguous. The strides of B and T are multiples of 8, and data is 16-byte
// aligned. So these tensors can be columns of packed rows: Tensor::heads() cuts them. lse and rowsum_dO_O are (B, NH,
// Tq) fp32.

// Writes out (=) and lse (=). If `amax` (on the device) is not null, the kernel raises it to the largest |out|, as it
// is rounded. Throws if a type, shape, stride or address is invalid, if out overlaps an input, or if
// choose_attention_kernel throws.
void attention_forward(Stream& stream, const Tensor& out, const Tensor& lse, const Tensor& q, const Tensor& k,
                       const Tensor& v, const AttentionOptions& options, float* amax = nullptr);

// Selects the gradients that backward adds to (+=) instead of setting (=). The sum over all queries of the call and all
// query heads of the group is complete in fp32 before it is added once. So in bf16 each call costs one rounding, not
// each query.
struct AttentionAccumulate {
  bool dq = false;   // if keys come in chunks: each call adds what its keys contribute
  bool dkv = false;  // if queries come in chunks: each call adds what its queries contribute
};

// Writes dq, dk and dv (= or +=, see above) from dout, forward's out and lse, and q, k, v. A gradient has the shape and
// the strides of its tensor. If the keys come in chunks, out and lse must be those over all keys. rowsum_dO_O is
// scratch: the sum over a head of dout * out. Gradients must not overlap an input. Throws as attention_forward does.
void attention_backward(Stream& stream, const Tensor& dq, const Tensor& dk, const Tensor& dv, const Tensor& rowsum_dO_O,
                        const Tensor& dout, const Tensor& out, const Tensor& lse, const Tensor& q, const Tensor& k,
                        const Tensor& v, const AttentionOptions& options, AttentionAccumulate accumulate = {});

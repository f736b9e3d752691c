// Causal attention with grouped queries (Vaswani et al. 2017; Ainslie et al. 2023), forward and backward, in tiles, so
// that the Tq x Tk scores are never stored (Dao 2023, FlashAttention-2):
//
//   s[t,j] = scale * q[t] . k[j]      scale = 1 / sqrt(HD)
//   lse[t] = log sum_j exp(s[t,j])    p[t,j] = exp(s[t,j] - lse[t])
//   out[t] = sum_j p[t,j] v[j]
//
// over the keys j that query t sees. Query t of a sequence stands at position query_offset + t, key j at key_offset +
// j, and t sees j if document_start[t] <= position of j <= position of t; document_start never decreases with t. So one
// launcher serves training (both offsets 0), packed documents, sampling from a cache (Tq = 1, query_offset = Tk - 1),
// and queries or keys that come in pieces.
// A query that sees no key has out = 0, lse = -infinity and no gradient, and gives none.
//
// Head h of q attends to head h / (NH / NKV) of k and v. T is float or bf16; scores, softmax, sums and accumulators are
// fp32 and rounded to T once. Deterministic: every sum is added by one thread in an order that depends on the shape
// alone. Keys that a query does not see must be finite all the same (they are multiplied by zero).
#pragma once

#include <cstdint>
#include <string>

#include "llmc/device/device.h"
#include "llmc/device/number.h"

// Where the heads of a position lie: elements from one position of a sequence to the next, and from one sequence to the
// next. Multiples of 8; the heads of one position are contiguous.
struct AttentionStrides {
  int64_t row = 0, batch = 0;
};

struct AttentionShape {
  int B = 0, Tq = 0, Tk = 0, NH = 0, NKV = 0, HD = 0;  // HD: 16 to 256 in steps of 8
  // Of q (B,Tq,NH,HD), k and v (B,Tk,NKV,HD), out (B,Tq,NH,HD). Gradients lie as what they are the gradients of.
  AttentionStrides q, k, v, out;
  int query_offset = 0, key_offset = 0;
  const int* document_start = nullptr;  // (B,Tq) on the device: position of the document's first key; null: all 0
};

// q, k and v are columns of packed rows (B*T, (NH + 2 NKV) HD), out is (B*T, NH HD).
AttentionShape packed_attention_shape(int B, int T, int NH, int NKV, int HD);
// q, k, v and out are buffers of their own without gaps.
AttentionShape separate_attention_shape(int B, int Tq, int Tk, int NH, int NKV, int HD);

// How many pairs of a query and a key the offsets leave, over one head of one sequence (documents are not looked at).
// Forward needs 4 HD FLOPs a pair and head, backward 10 HD.
double attention_pairs(const AttentionShape& shape);

// plain: a thread a row, on any device. mma: tensor cores (sm_80 and newer), bf16, head sizes 64 and 128. hopper: the
// same for sm_90 alone, in its own ways (TMA, wgmma).
enum class AttentionKernel { automatic, plain, mma, hopper };

// "auto", "plain", "mma" or "hopper", as --attention has it; throws on another name.
AttentionKernel attention_kernel_named(const std::string& name);
const char* attention_kernel_name(AttentionKernel kernel);

// The kernel for this head size in this type on this device: the one that was asked for, or the fastest. `why` is for
// the banner. Throws if the one that was asked for cannot take it, or none can.
struct AttentionChoice {
  AttentionKernel kernel;
  std::string why;
};
AttentionChoice choose_attention_kernel(AttentionKernel asked, const DeviceInfo& device, DType dtype, int HD);

// Bytes of local memory that a thread of plain attention has on a GPU: the largest of its kernels' stack frames, as
// dev/test/cuda_baseline.tsv has them. Those of all other kernels are 64 bytes or less.
size_t plain_attention_stack(int HD);

// out =, lse (B,NH,Tq) =.  Pointers of T are 16-byte aligned. With `amax` the largest |out|, as rounded to T, goes into
// it if it is larger than what is there.
template <class T>
void attention_forward(Stream& stream, T* out, float* lse, const T* q, const T* k, const T* v,
                       const AttentionShape& shape, AttentionKernel kernel = AttentionKernel::automatic,
                       float* amax = nullptr);

// What backward adds to (+=) instead of setting (=). The sum over all queries of the call, and all query heads of the
// group, is complete in fp32 before it is added to T once: in bf16 each call loses one rounding, not each query.
struct AttentionAccumulate {
  bool dq = false;   // for keys that come in pieces: each call adds its keys' part
  bool dkv = false;  // for queries that come in pieces
};

// dq, dk, dv = (or +=, see above), from dout, and forward's out, lse, q, k, v. Where the keys come in pieces, out and
// lse are those over all keys. delta (B,NH,Tq) = sum over a head of dout * out is scratch. Gradients overlap no input.
template <class T>
void attention_backward(Stream& stream, T* dq, T* dk, T* dv, float* delta, const T* dout, const T* out,
                        const float* lse, const T* q, const T* k, const T* v, const AttentionShape& shape,
                        AttentionKernel kernel = AttentionKernel::automatic, AttentionAccumulate accumulate = {});

// The values that all layers of a forward or backward pass share.
#pragma once

#include <functional>

#include "llmc/config/config.h"
#include "llmc/config/fp8.h"
#include "llmc/device/tensor.h"
#include "llmc/kernels/attention.h"
#include "llmc/kernels/matmul.h"
#include "llmc/kernels/quantize.h"
#include "llmc/kernels/rope.h"
#include "llmc/memory/fp8_scales.h"
#include "llmc/memory/fp8_scratch.h"
#include "llmc/model/context_parallel.h"
#include "llmc/model/tensor_parallel.h"

struct ObservedProduct;

// A tensor that a pass has just computed, in work that was enqueued on the compute stream; for checks of each.
struct ObservedTensor {
  int layer;         // -1: of the embedding; L: of the head
  const char* name;  // "the output of qkv"; null: `tensor` holds the gradients of a whole unit of the model
  Tensor tensor;     // fp32 or bf16
};
using TensorObserver = std::function<void(const ObservedTensor&)>;

// The state that all FP8 products of a pass share, and scratch that they use one after the other.
struct Fp8Pass {
  const Fp8Settings& settings;
  Fp8ScratchTensors scratch = {};
  Fp8ScaleRefs scales = {};
  uint32_t* not_finite = nullptr;  // see nonfinite_code()
  // Takes the maximum of the tensor's amax over the ranks. Ranks that share delayed scales need this while a scale is
  // still missing. Null: not needed.
  const std::function<void(int tensor_id)>* share_amax = nullptr;
  const std::function<void(const ObservedProduct&)>* observer = nullptr;
};

// The tokens of a pass on the device: B sequences of T tokens, of which this rank has N, in the order of
// ContextPart::place().
struct MicroBatch {
  Tensor inputs, labels, positions;  // (N) int32
  Tensor order;                      // (N) the indices 0 .. N-1, sorted by token
  Tensor document_start;  // (N) where in its sequence each token's document begins; absent if rows are not packed
  Tensor window_start;    // (N) the first position that the token sees within the window; absent if there is none
  Tensor sources;         // (N) the source of each token; absent if the data is no mixture
  int B, T;
};

struct Pass {
  Stream& stream;
  Matmul& matmul;
  const ModelConfig& config;  // of this rank's part of the model
  int B, T;                   // sequences, and tokens of each
  int N, R;                   // tokens, B T; rows of the residual stream: this rank's part of the tokens
  RopeAngles rope;
  AttentionKernel attention = AttentionKernel::automatic;
  // (B, T) int32: the first key of its row that each token sees, in layers without a window and in those with one;
  // absent: 0.
  Tensor document_start = {}, window_start = {};
  const Fp8Pass* fp8 = nullptr;  // null: all products are in the model's type
  bool accumulate = false;       // weight gradients of matrices are added to (+=) instead of set (=)
  // True while backward recomputes a forward. Every amax is known already, and history and statistics have been
  // updated, so neither is done again.
  bool recomputing = false;
  bool training = false;                     // a backward pass follows, or this is one
  float z_loss = 0;                          // coefficient of the z-loss in backward
  const TensorObserver* observer = nullptr;  // called for each tensor, in the order of the work; null: not called
  // Number of tokens that precede these in the sequence; forward only, with B = 1. Their keys and values lie before
  // those of the new tokens in the saved qkv.
  int past = 0;

  TensorParallel* tensor_parallel = nullptr;  // null: this rank computes all of each product, and R = N
  // Scratch of tensor parallelism. `gathered` holds all ranks' rows, in the model's type or as FP8 bytes. `sums`
  // (padded N, C) holds partial sums of all tokens (TensorParallel::sum_type).
  Tensor gathered = {}, sums = {};

  // Null: this rank has the whole of each sequence. Otherwise B counts two chunks for each sequence, T is the length of
  // a chunk, and a whole sequence has T * context_parallel->part().multiple() tokens (context_part.h).
  ContextParallel* context_parallel = nullptr;
  ContextBuffers context_buffers = {};

  // The ranks among which the query heads of a token are shared, each with as many.
  int ranks_of_heads() const { return tensor_parallel ? tensor_parallel->degree() : 1; }
  // Shows the observer a tensor; one that is absent, or that backward computes again, is not shown.
  void show(int layer, const char* name, const Tensor& tensor) const {
    if (observer && tensor && !recomputing) (*observer)({layer, name, tensor});
  }
  float eps() const { return float(config.norm_eps); }
};

// A model in training on this rank: weights, gradients, moments and activations in one planned arena, and the step.
//
//   auto trainer = Trainer::create(device, communicator, config, settings);   // plans, allocates nothing
//   trainer->allocate();
//   trainer->initialize(init, seed);                                          // or trainer->load(weights)
//   trainer->enqueue_step(input);                                             // returns before the device is done
//   StepResult result = trainer->wait_for_step();                             // of the oldest step not yet asked for
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "llmc/base/safetensors.h"
#include "llmc/comm/communicator.h"
#include "llmc/comm/mesh.h"
#include "llmc/device/device.h"
#include "llmc/device/number.h"
#include "llmc/kernels/attention.h"
#include "llmc/memory/activation_policy.h"
#include "llmc/memory/plan.h"
#include "llmc/memory/snapshot.h"
#include "llmc/model/config.h"
#include "llmc/model/projection.h"
#include "llmc/model/tensors.h"
#include "llmc/train/checkpoint.h"

class Matmul;
class Tuning;

struct TrainerSettings {
  DType dtype = DType::fp32;  // of weights and activations in the products
  int B = 1, T = 1;           // micro-batch: sequences, tokens a sequence
  int head_chunk = 128;
  bool tf32 = false;
  AttentionKernel attention = AttentionKernel::automatic;
  float beta1 = 0.9f, beta2 = 0.95f, eps = 1e-8f, weight_decay = 0.1f;
  float grad_clip = 1.0f;            // 0: none
  bool training = true;              // false: forward passes only, no memory for gradients and moments
  int zero_stage = 0;                // what the ranks that shard keep a part of only: see Sharding
  DType reduce_dtype = DType::fp32;  // in which gradients travel between the ranks that shard
  int prefetch = 1;                  // units whose weights are gathered ahead of their use
  bool snapshot = false;             // memory of the host for take_snapshot()
  Fp8Settings fp8;                   // of the blocks' products; with bf16 only
  int64_t fp8_stats = 0;             // of each so many-th step, from 0 on; 0: never
  ActivationPolicy activations;      // what training keeps of a forward pass
  StateSettings state;               // of master weights and moments
  uint64_t seed = 0;                 // of stochastic rounding
  int micro_steps = 1;               // the most micro-batches of a step
  int tensor_chunks = 1;             // in which tensor-parallel rows travel beside their products
  DType tensor_sums = DType::fp32;   // of tensor-parallel ranks' parts of a product
  bool graphs = false;               // steps are captured once, and then launched as a whole
};

enum class Init { normal, depth_scaled };

// What the ranks tell each other at the begin of a step, summed over them.
struct Votes {
  int64_t stop = 0;                  // asked to stop
  int64_t saved = 0, not_saved = 0;  // done with its part of a checkpoint; failed to write it
};

// One optimizer step of this rank: k micro-batches of B sequences of T tokens, one after the other.
struct StepInput {
  int64_t step;  // from 0
  double learning_rate;
  const std::vector<int32_t>& inputs;       // (k, B, T), the same on all ranks that compute the same sequences
  const std::vector<int32_t>& labels;       // (k, B, T), -100 = ignored
  Votes votes = {};                         // this rank's
  std::span<const int32_t> positions = {};  // (k, B, T) of packed documents: see BatchFeed; none: 0 .. T-1 in each row
  bool piecewise = false;                   // never launched as a whole, on all ranks, as one of them records it
};

struct StepResult {
  int64_t step;
  double loss;  // mean over the global batch's labels, nats; NaN if all are ignored
  float grad_norm;
  int64_t label_count;
  Votes votes;     // of all ranks
  Fp8Counts fp8;   // with delayed scales
  double seconds;  // from the end of the step before to this one's, if both were enqueued without a wait; else its own
};

// A sum of losses over labels that were not ignored; mean() is the loss, NaN of none.
struct LossSum {
  double nats = 0;
  int64_t labels = 0;
  double mean() const { return nats / double(labels); }
};

class Trainer {
 public:
  // `communicator` spans the ranks that `mesh` arranges; all outlive the trainer. All ranks call.
  static std::unique_ptr<Trainer> create(Device& device, Communicator& communicator, const LlamaConfig& config,
                                         const TrainerSettings& settings, const Mesh& mesh = {});
  virtual ~Trainer() = default;

  virtual const MemoryPlan& plan() const = 0;
  virtual void allocate() = 0;
  virtual const Arena& arena() const = 0;  // for checks that look at every byte

  // Random weights, N(0, init_std²) of the config and ones for norms; with depth_scaled, projections into the residual
  // stream by 1/sqrt(2L) (Radford et al. 2019). Bits depend on the seed, the tensor's name and the place in the tensor
  // alone.
  virtual void initialize(Init init, uint64_t seed) = 0;
  // Weights from safetensors under their Hugging Face names, F32, BF16 or F16. Throws on a missing tensor or another
  // shape, naming both.
  virtual void load(const Safetensors& weights) = 0;
  // Writes config.json and the fp32 weights as safetensors: a directory that from_pretrained reads. All ranks call; one
  // for which the directory is empty writes nothing.
  virtual void save(const std::string& directory) = 0;

  // Goes on where the checkpoint was taken: weights and moments, of which this rank reads what it keeps. Throws on
  // tensors that it lacks.
  virtual void restore(const Checkpoint& checkpoint) = 0;
  // What this rank saves of each unit: the shares of all ranks are all of the model, and no element twice.
  virtual std::vector<UnitShare> shares() const = 0;
  // Of a share, elements first .. first+count-1 of the unit, when the host has waited for the last step.
  virtual void read_state(StateKind kind, int unit, size_t first, size_t count, float* to) = 0;
  // What else a training goes on from, as it is, or as it was with the last snapshot.
  virtual std::vector<NamedNumbers> other_state(bool of_snapshot) = 0;
  // The share as it is after the last step that was enqueued, on its way to the host while steps go on.
  virtual void take_snapshot() = 0;
  virtual const Snapshot& wait_for_snapshot() = 0;

  // The step's work is enqueued in several streams, which fork from that of compute and join it again. With `graphs` it
  // is captured behind the first step, and the later ones launch that: all but those that differ, which are enqueued as
  // the first was: those behind a snapshot, with FP8 statistics, observed or piecewise, and with delayed FP8 scales
  // until the host knows that each tensor has one: the third step at the soonest. All ranks do the same, as NCCL
  // asks for: collectives of a graph meet those of a graph.
  virtual void enqueue_step(const StepInput& input) = 0;
  virtual size_t graph_pieces() const = 0;  // of what is launched as a whole; 0 if nothing was captured
  virtual StepResult wait_for_step() = 0;
  // The votes of all ranks, beside steps: all call.
  virtual Votes count_votes(const Votes& own) = 0;

  // Adds up the losses of sequences (B, seq_len) over this rank, seq_len <= T, 0 for T; the caller sums over ranks.
  virtual LossSum evaluate(const std::vector<int32_t>& inputs, const std::vector<int32_t>& labels,
                           std::span<const int32_t> positions = {}, int seq_len = 0) = 0;
  // The losses (B, T) themselves, in nats; 0 where a label is ignored.
  virtual std::vector<float> losses(const std::vector<int32_t>& inputs, const std::vector<int32_t>& labels) = 0;
  virtual LossSum sum_over_ranks(LossSum sum) = 0;
  // Of the ranks that compute the same sequences one speaks for all.
  virtual bool speaks() const = 0;
  // Logits (B * seq_len, V) in fp32 of sequences inputs (B, seq_len), seq_len <= T; with `only_row` just those of
  // that row.
  virtual std::vector<float> logits(const std::vector<int32_t>& inputs, int B, int seq_len,
                                    std::optional<int> only_row = {}, std::span<const int32_t> positions = {}) = 0;
  // Logits (V) of the token that follows: `tokens` continue a sequence of which the first `past` went through the last
  // calls of this, and nothing else was computed since. At most T tokens in all.
  virtual std::vector<float> next_logits(std::span<const int32_t> tokens, int past) = 0;

  // For comparisons: a tensor of the current weights (fp32 masters), or of the gradients of the last step before
  // clipping.
  virtual std::vector<float> weights(const std::string& name) = 0;
  virtual std::vector<float> gradients(const std::string& name) = 0;
  virtual const TensorLayout& layout() const = 0;  // of what this rank holds
  // FP8: what was quantized for a step that fp8_stats chose, on this rank, by fp8_number(). After wait_for_step() of
  // it, and before the step after the next is enqueued.
  virtual std::vector<QuantizeStatistics> fp8_statistics(int64_t step) = 0;
  // What computes the products, from allocate() on.
  virtual Matmul& products() = 0;
  // The step, in which each product's candidates are timed (Matmul::begin_timing): what was found. Weights, state and
  // scales are spoilt: initialize, load or restore follows.
  virtual Tuning time_products(const StepInput& input) = 0;
  // FP8: is told each product that is enqueued. All ranks call, or none does.
  virtual void observe(std::function<void(const ObservedProduct&)> observer) = 0;
};

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
#include "llmc/model/linear.h"
#include "llmc/model/parameters.h"
#include "llmc/train/checkpoint.h"

class Matmul;
class Tuning;

struct TrainerSettings {
  DType dtype = DType::fp32;  // of weights and activations in the products
  int B = 1, T = 1;           // micro-batch: sequences, tokens per sequence
  int head_chunk = 128;
  bool tf32 = false;
  AttentionKernel attention = AttentionKernel::automatic;
  float beta1 = 0.9f, beta2 = 0.95f, eps = 1e-8f, weight_decay = 0.1f;
  float grad_clip = 1.0f;            // 0: no clipping
  bool training = true;              // false: forward passes only, no memory for gradients and moments
  int zero_stage = 0;                // which state is sharded: see Sharding
  DType reduce_dtype = DType::fp32;  // of gradients on their way between the ranks that shard
  int prefetch = 1;                  // units whose weights are gathered ahead of their use
  bool snapshot = false;             // plans host memory for take_snapshot()
  Fp8Settings fp8;                   // for the blocks' products; with bf16 only
  int64_t fp8_stats = 0;             // statistics every so many steps, from 0 on; 0: never
  ActivationPolicy activations;      // what training keeps of a forward pass
  StateSettings state;               // types and memory of master weights and moments
  uint64_t seed = 0;                 // for stochastic rounding
  int micro_steps = 1;               // most micro-batches per step
  int tensor_chunks = 1;             // pieces in which tensor parallelism sends rows, beside the products
  DType tensor_sums = DType::fp32;   // of partial sums between tensor-parallel ranks
  bool graphs = false;               // captures a step once as a CUDA graph, and then launches the graph
};

enum class Init { normal, depth_scaled };

// Flags that the ranks exchange at the beginning of a step, summed over them.
struct StepFlags {
  int64_t stop = 0;                  // was asked to stop
  int64_t saved = 0, not_saved = 0;  // has written its part of a checkpoint; has failed to write it
};

// One optimizer step of this rank: k micro-batches of B sequences of T tokens, one after the other.
struct StepInput {
  int64_t step;  // from 0
  double learning_rate;
  const std::vector<int32_t>& inputs;  // (k, B, T), the same on all ranks that compute the same sequences
  const std::vector<int32_t>& labels;  // (k, B, T), -100 = ignored
  StepFlags votes = {};                // this rank's
  std::span<const int32_t> positions =
      {};                 // (k, B, T) for packed documents (see BatchUploader); empty: 0 .. T-1 in each row
  bool no_graph = false;  // not launched as a graph; set on all ranks when one of them records the step
};

struct StepResult {
  int64_t step;
  double loss;  // mean over the global batch's labels, nats; NaN if all are ignored
  float grad_norm;
  int64_t label_count;
  StepFlags votes;  // summed over all ranks
  Fp8Counts fp8;    // with delayed scales only
  double seconds;   // since the previous step's end, if both were enqueued without a wait; else of this step alone
};

// A sum of losses over the labels that are not ignored. mean() is the loss; it is NaN if there are none.
struct LossSum {
  double nats = 0;
  int64_t labels = 0;
  double mean() const { return nats / double(labels); }
};

class Trainer {
 public:
  // `communicator` spans the ranks that `mesh` arranges. It and `device` must outlive the trainer. All ranks call.
  // Throws on settings that are not possible.
  static std::unique_ptr<Trainer> create(Device& device, Communicator& communicator, const LlamaConfig& config,
                                         const TrainerSettings& settings, const Mesh& mesh = {});
  virtual ~Trainer() = default;

  virtual const MemoryPlan& plan() const = 0;
  virtual void allocate() = 0;
  virtual const Arena& arena() const = 0;  // for checks that read every byte

  // Sets random weights: N(0, init_std²) of the config, and ones for norms. With depth_scaled, init_std is divided by
  // sqrt(2L) for projections into the residual stream (Radford et al. 2019). The bits depend only on the seed, the
  // tensor's name and the place in the tensor.
  virtual void initialize(Init init, uint64_t seed) = 0;
  // Loads weights from safetensors under their Hugging Face names, F32, BF16 or F16. Throws on a missing tensor or
  // another shape, naming both.
  virtual void load(const Safetensors& weights) = 0;
  // Writes config.json, generation_config.json and the fp32 weights as safetensors: a directory that from_pretrained
  // reads. All ranks call; a rank with an empty `directory` writes nothing.
  virtual void save(const std::string& directory) = 0;

  // Restores weights, moments and FP8 scales from a checkpoint; this rank reads the parts that it keeps. Throws if the
  // checkpoint lacks a tensor.
  virtual void restore(const Checkpoint& checkpoint) = 0;
  // Returns what this rank saves of each unit. The shares of all ranks together are the whole model, without overlap.
  virtual std::vector<UnitShare> shares() const = 0;
  // Reads elements first .. first+count-1 of the unit, which must be in this rank's share. The host must have waited
  // for the last step.
  virtual void read_state(StateKind kind, int unit, size_t first, size_t count, float* to) = 0;
  // Returns training state other than weights and moments (FP8 scales and their history), either current or from the
  // last snapshot.
  virtual std::vector<NamedNumbers> other_state(bool of_snapshot) = 0;
  // Copies the share to the host, as it is after the last step that was enqueued, while further steps run. Throws
  // unless settings.snapshot was set.
  virtual void take_snapshot() = 0;
  virtual const Snapshot& wait_for_snapshot() = 0;

  // Enqueues the step's work in several streams, which fork from the compute stream and join it again. With `graphs`,
  // the work is captured after the first step, and later steps launch the graph. Some steps differ and are enqueued
  // like the first one: a step that follows a snapshot, one with FP8 statistics, one that is observed, and one with
  // no_graph. With delayed FP8 scales, so are all steps until the host knows that each tensor has a scale, so that the
  // third step is the first that can be launched. All ranks make the same choice, because NCCL requires that
  // collectives of a graph meet those of a graph.
  virtual void enqueue_step(const StepInput& input) = 0;
  virtual size_t graph_pieces() const = 0;  // kernels, copies and so on in the graph; 0 if nothing was captured
  virtual StepResult wait_for_step() = 0;
  // Sums the votes of all ranks outside of a step. All ranks call.
  virtual StepFlags count_votes(const StepFlags& own) = 0;

  // Sums the losses of sequences (B, seq_len) on this rank; seq_len <= T, and 0 means T. The caller sums over the
  // ranks.
  virtual LossSum evaluate(const std::vector<int32_t>& inputs, const std::vector<int32_t>& labels,
                           std::span<const int32_t> positions = {}, int seq_len = 0) = 0;
  // Returns the losses (B, T) themselves, in nats; 0 where a label is ignored.
  virtual std::vector<float> losses(const std::vector<int32_t>& inputs, const std::vector<int32_t>& labels) = 0;
  virtual LossSum sum_over_ranks(LossSum sum) = 0;
  // True on exactly one of the ranks that process the same sequences. Only that rank counts labels and scores.
  virtual bool is_leader() const = 0;
  // Returns the logits (B * seq_len, V) in fp32 of sequences inputs (B, seq_len), seq_len <= T; with `only_row`, those
  // of that row alone.
  virtual std::vector<float> logits(const std::vector<int32_t>& inputs, int B, int seq_len,
                                    std::optional<int> only_row = {}, std::span<const int32_t> positions = {}) = 0;
  // Returns the logits (V) of the next token. `tokens` continue a sequence whose first `past` tokens went through the
  // last calls of this function, with no other computation since. At most T tokens in all.
  virtual std::vector<float> next_logits(std::span<const int32_t> tokens, int past) = 0;

  // For comparisons: return a tensor of the current weights (the master, in fp32), or of the gradients of the last step
  // before clipping.
  virtual std::vector<float> weights(const std::string& name) = 0;
  virtual std::vector<float> gradients(const std::string& name) = 0;
  virtual const ParameterLayout& layout() const = 0;  // of what this rank holds
  // FP8: returns the statistics of what this rank quantized in a step that fp8_stats chose, by fp8_tensor_id(). Must be
  // called after wait_for_step() of that step, and before the step after the next is enqueued.
  virtual std::vector<QuantizeStatistics> fp8_statistics(int64_t step) = 0;
  // Computes the products. It exists from allocate() on.
  virtual Matmul& products() = 0;
  // Runs the step and times each product's candidates in it (Matmul::begin_timing). Returns the choices. Weights, state
  // and scales are then invalid, and initialize, load or restore must follow.
  virtual Tuning time_products(const StepInput& input) = 0;
  // FP8: calls `observer` for each product that is enqueued. Either all ranks set an observer, or none does.
  virtual void observe(std::function<void(const ObservedProduct&)> observer) = 0;
};

// A model in training on this rank: its weights, gradients, moments and activations in planned memory, and the step.
// Steps and forward passes are in trainer.cpp. State is set and saved in trainer_state.cpp. What ranks hold and compute
// is verified in trainer_verify.cpp.
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
#include "llmc/comm/mesh.h"
#include "llmc/device/gpu_sensors.h"
#include "llmc/device/graph.h"
#include "llmc/memory/snapshot.h"
#include "llmc/model/transformer.h"
#include "llmc/train/batch_uploader.h"
#include "llmc/train/bit_hashes.h"
#include "llmc/train/checkpoint.h"
#include "llmc/train/full_tensors.h"
#include "llmc/train/muon.h"
#include "llmc/train/not_finite.h"
#include "llmc/train/optimizer.h"
#include "llmc/train/process_groups.h"
#include "llmc/train/spikes.h"
#include "llmc/train/step_state_queue.h"
#include "llmc/train/trainer_settings.h"
#include "llmc/train/verdict.h"

class Tuning;

// Flags that the ranks exchange at the beginning of a step, summed over them.
struct StepFlags {
  int64_t stop = 0;                  // was asked to stop
  int64_t saved = 0, not_saved = 0;  // has written its part of a checkpoint; has failed to write it
  int64_t due = 0;                   // its clock says that it is time for a checkpoint
};

// One optimizer step of this rank: k micro-batches of B sequences of T tokens, one after the other.
struct StepInput {
  int64_t step;  // from 0
  double learning_rate;
  std::span<const int32_t> inputs;  // (k, B, T), the same on all ranks that compute the same sequences
  std::span<const int32_t> labels;  // (k, B, T), -100 = ignored
  StepFlags flags = {};             // this rank's
  // (k, B, T) for packed documents (see BatchUploader); empty: 0 .. T-1 in each row.
  std::span<const int32_t> positions = {};
  bool no_graph = false;                  // not launched as a graph; set on all ranks when one of them records the step
  std::span<const int32_t> sources = {};  // (k, B) the source of each sequence; empty: all are from the first
};

// A sum of losses over the labels that are not ignored. mean() is the loss; it is NaN if there are none.
struct LossSum {
  double nats = 0;
  int64_t labels = 0;
  double mean() const { return nats / double(labels); }
};

struct StepResult {
  int64_t step;
  double loss;    // cross-entropy without z-loss: mean over the global batch's labels, nats; NaN if all are ignored
  double z_loss;  // likewise; 0 without z-loss
  float grad_norm;
  int64_t label_count;
  StepFlags flags;              // summed over all ranks
  Fp8Counts fp8;                // with delayed scales only
  uint32_t fp8_not_finite;      // see step_state.h
  bool finite;                  // the loss and the norm are, and FP8 could hold all tensors
  bool held;                    // its update was not made: weights and state are as they were before it
  bool halted;                  // nor are those of later steps: it is not finite, or one spike too many in a row
  bool loss_spike, norm_spike;  // its loss, its norm is a spike (spike_window.h)
  double seconds;  // since the previous step's end, if both were enqueued without a wait; else of this step alone
  std::vector<LossSum> sources;  // of the labels of each source; empty if there is one source
};

// The measurement of a rank in a step (--gpu-every). Ranks send this struct to each other as it is.
struct RankTime {
  double seconds = 0;  // of computing
  GpuSensors::Reading sensors = {};
};

// Ranks that hold or compute other bits than they must.
struct WrongBits {
  enum class Kind {
    copies,       // their copies of numbers differ from those of other ranks
    computation,  // they compute other bits than other ranks, from the same weights and tokens
    repetition,   // they compute other bits the next time
  };
  Kind kind;
  Suspects suspects;
  std::string what;  // differs first: "the gradient of lm_head.weight"
};

class Trainer {
 public:
  // `communicator` spans the ranks that `mesh` arranges. It and `device` must outlive the trainer. All ranks call.
  // Throws on settings that are not possible.
  static std::unique_ptr<Trainer> create(Device& device, Communicator& communicator, const ModelConfig& config,
                                         const TrainerSettings& settings, const Mesh& mesh = {});
  const MemoryPlan& plan() const { return plan_; }
  void allocate();
  const Arena& arena() const { return arena_; }  // for checks that read every byte

  // Sets random weights: N(0, init_std²) of the config, and ones for norms. With depth_scaled, init_std is divided by
  // sqrt(2L) for projections into the residual stream (Radford et al. 2019). The bits depend only on the seed, the
  // tensor's name and the place in the tensor.
  void initialize(Init init, uint64_t seed);
  // Loads weights from safetensors under their Hugging Face names, F32, BF16 or F16. Throws on a missing tensor or
  // another shape, naming both.
  void load(const Safetensors& weights);
  // Writes config.json, generation_config.json and the fp32 weights as safetensors: a directory that from_pretrained
  // reads. All ranks call; a rank with an empty `directory` writes nothing. Returns the first tensor among those
  // written that has an infinity or NaN; "" if there is none.
  std::string save(const std::string& directory);

  // Restores weights, moments, FP8 scales and the window of spikes from a checkpoint; this rank reads the parts that it
  // keeps. Throws if the checkpoint lacks a tensor.
  void restore(const Checkpoint& checkpoint);
  // Empties the window of spikes: the losses and norms to come are of other data.
  void forget_losses();
  // Returns what this rank saves. The shards of all ranks together are the whole model, without overlap, except for
  // tensors of which tensor-parallel ranks have copies: a checkpoint takes copy 0 (ParameterInfo::copy).
  const PerKind<FlatShards>& saved() const { return optimizer_state_.saved(); }
  // Reads a shard of what this rank saves. The host must have waited for the last step.
  void read_state(StateKind kind, int unit, const Shard& shard, float* to) {
    optimizer_state_.read(kind, unit, shard, to);
  }
  // Returns training state other than weights and moments (FP8 scales and their history, the window of spikes), either
  // current or from the last snapshot, whose steps the host must have waited for.
  std::vector<NamedNumbers> other_state(bool of_snapshot);
  // Copies what this rank saves to the host, as it is after the last step that was enqueued. Further steps may run
  // meanwhile. Throws unless settings.snapshot was set.
  void take_snapshot();
  const Snapshot& wait_for_snapshot();

  // Enqueues the step's work in several streams, which join the compute stream at the end. With `graphs`,
  // the work is captured after the first step, and later steps launch the graph. Some steps differ and are enqueued
  // like the first one: a step that follows a snapshot, one with FP8 statistics, one that is observed, and one with
  // no_graph. With delayed FP8 scales, so are all steps until the host knows that each tensor has a scale, so that the
  // third step is the first that can be launched. All ranks make the same choice, because NCCL requires that
  // collectives of a graph meet those of a graph.
  void enqueue_step(const StepInput& input);
  // Returns the kernels, copies and so on in the graph; 0 if nothing was captured.
  size_t graph_pieces() const { return graph_ ? graph_->pieces() : 0; }
  // A step whose loss or gradient norm is not finite, or that met a number that FP8 cannot hold, makes no update, nor
  // does any step after it. A spike makes none, but the steps after it do, unless it is one too many in a row. The host
  // learns it here, while the next step may be under way.
  StepResult wait_for_step();
  // Runs the step that halted the training again, with a look at each tensor. No other step may be under way. All ranks
  // call.
  struct Search {
    std::optional<NotFinite> found;  // on this rank
    StepResult result;               // of the step run again
  };
  Search search_not_finite(const StepInput& input);
  // Compares the copies that ranks have of weights and state, and what ranks compute of the same micro-batch: each
  // group of ranks that compute the same sequences computes that of its own data rank and that of the one before it.
  // `micro_batch` returns one micro-batch of a data rank, valid until the next call. Returns what differs, the same on
  // all ranks; nothing if all is as it must be. Leaves weights, state and everything that a step reads as they are. No
  // step may be under way; settings.verifies must be set. All ranks call.
  using MicroBatchOf = std::function<StepInput(int data_rank)>;
  std::optional<WrongBits> verify(const MicroBatchOf& micro_batch);
  // Returns how many updates were made, those of the steps that the host has waited for.
  int64_t updates() const { return updates_; }
  // Sums the flags of all ranks outside of a step. All ranks call.
  StepFlags sum_flags(const StepFlags& own);
  // Returns what each rank measured. No step may be under way; settings.looks must be set. All ranks call.
  std::vector<RankTime> exchange(const RankTime& own);

  // Sums the losses of sequences (B, seq_len) on this rank; seq_len <= T, and 0 means T. The caller sums over the
  // ranks.
  LossSum evaluate(const std::vector<int32_t>& inputs, const std::vector<int32_t>& labels,
                   std::span<const int32_t> positions = {}, int seq_len = 0);
  // Returns the losses (B, T) themselves, in nats; 0 where a label is ignored.
  std::vector<float> losses(const std::vector<int32_t>& inputs, const std::vector<int32_t>& labels);
  LossSum sum_over_ranks(LossSum sum);
  // True on exactly one of the ranks that process the same sequences. Only that rank counts labels and scores.
  bool is_leader() const { return !groups_.sequence_group || groups_.sequence_group->rank() == 0; }
  // Returns the logits (B * seq_len, V) in fp32 of sequences inputs (B, seq_len), seq_len <= T; with `only_row`, those
  // of that row alone.
  std::vector<float> logits(const std::vector<int32_t>& inputs, int B, int seq_len, std::optional<int> only_row = {},
                            std::span<const int32_t> positions = {});
  // Returns the logits (V) of the next token. `tokens` continue a sequence whose first `past` tokens went through the
  // last calls of this function, with no other computation since. At most T tokens in all.
  std::vector<float> next_logits(std::span<const int32_t> tokens, int past);

  // For comparisons: return a tensor of the current weights (the master, in fp32), or of the gradients of the last step
  // before clipping. weights() and save() may use the memory of gradients, so gradients() must be called before them.
  std::vector<float> weights(const std::string& name);
  std::vector<float> gradients(const std::string& name);
  const ParameterLayout& layout() const { return layout_; }  // of what this rank holds
  // FP8: returns the statistics of what this rank quantized in a step that fp8_stats chose, by LayerProjection::id().
  // Must be called after wait_for_step() of that step, and before the step after the next is enqueued.
  std::vector<QuantizeStatistics> fp8_statistics(int64_t step);
  // Computes the products. It exists from allocate() on.
  Matmul& matmul() { return *matmul_; }
  // Runs the step and times each product's candidates in it (Matmul::begin_timing). Returns the choices. Weights, state
  // and scales are then invalid, and initialize, load or restore must follow.
  Tuning time_products(const StepInput& input);
  // FP8: calls `observer` for each product that is enqueued. Either all ranks set an observer, or none does.
  void observe(std::function<void(const ObservedProduct&)> observer);

 private:
  Trainer(Device& device, Communicator& communicator, const Mesh& mesh, const ModelConfig& config,
          const TrainerSettings& settings);
  class Verification;
  // The properties of a step that decide, with the settings, which work it enqueues.
  struct StepForm {
    int micro_batches;
    bool packed;
    bool operator==(const StepForm&) const = default;
  };
  std::vector<Snapshot::Other> others_of_snapshot() const;
  RankPart rank_part() const;

  void send_state(const StepInput& input);
  void sum_by_source(const MicroBatch& batch, bool first);
  void enqueue_work(StepForm form, bool capturing);
  bool can_launch(int64_t step) const;
  static void set_flags(StepState& state, const StepFlags& flags);
  static StepFlags flags_of(const StepState& state);
  void start_sum_over_ranks(const Tensor& numbers);
  void sum_over_ranks_on_device(const Tensor& numbers);
  std::vector<Stream*> side_streams();
  void join();
  void reset_graph();
  void capture_work(StepForm form);
  void launch_work(StepForm form);

  template <class F>
  void set_slices(StateKind kind, F&& f);
  void begin_training();
  void reset_state(int64_t updates = 0);
  Tensor whole_weights(int unit);
  Tensor whole_unit(int unit, const Tensor& own);
  std::vector<float> download(const Tensor& unit, const ParameterInfo& t);
  size_t first_tensor(int unit) const { return size_t(layout_.units[size_t(unit)].first_tensor); }

  Device& device_;
  Communicator& communicator_;
  const Mesh mesh_;
  const ProcessGroups groups_;
  const ModelConfig whole_config_;
  const TensorSplit split_;
  const ModelConfig config_;  // the part that this rank computes
  const TrainerSettings settings_;
  const ShardGroup shard_group_;
  const ParameterLayout layout_;
  const Placement placement_;
  MemoryPlan plan_;
  Stream compute_, gather_stream_, reduce_stream_;
  const std::unique_ptr<TensorStream> tensor_;    // with tensor parallelism
  const std::unique_ptr<ContextStream> context_;  // with context parallelism
  std::optional<FullTensors> full_tensors_;
  const std::unique_ptr<HostStreams> host_;  // if something is offloaded
  const std::unique_ptr<Fp8Scales> scales_;  // with FP8 products
  ParameterStore parameters_;
  OptimizerState optimizer_state_;
  std::optional<GradientStore> gradients_;  // this and the optimizer: only in training
  std::optional<Optimizer> optimizer_;
  std::optional<Muon> muon_;
  std::optional<Spikes> spikes_;       // with skip_spikes
  std::optional<BitHashes> hashes_;    // if verifications were planned
  PlannedArray<RankTime> rank_times_;  // of all ranks; with settings.looks, if there are several
  std::optional<Snapshot> snapshot_;   // if snapshots were planned
  int64_t snapshot_recorded_ = 0;      // Fp8Scales::recorded() at the snapshot, without steps that are known to be held
  int64_t snapshot_waits_ = 0;         // steps that were under way at the snapshot, and still are
  Transformer transformer_;
  std::vector<int32_t> sequence_;  // of next_logits
  BatchUploader batches_;
  StepStateQueue step_states_;
  PlannedTensor workspace_;
  Event to_reduce_, to_compute_, forked_;
  std::vector<Event> joined_;  // one per side stream
  Arena arena_;
  std::optional<Matmul> matmul_;
  std::optional<Graph> graph_;  // of a step of the form captured_form_; empty until one was captured
  StepForm captured_form_{};
  int64_t updates_ = 0;
  bool stepped_ = false, observed_ = false;  // a step was enqueued; an observer is set
};

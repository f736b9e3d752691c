// The state that a training keeps for the optimizer alone, for the weights that this rank updates: AdamW's moments and,
// if the products take bf16, an fp32 master copy. Without that copy the weights of the products are the master.
//
// The state lies on the device or, if it is offloaded, in pinned memory of the host. From there an update streams it
// chunk by chunk through two slots on the device: while one chunk is computed, another is copied in or out. An update
// streams the products' weights in the same way, if they lie on the host. Numbers in bf16 are rounded to nearest when
// they are set from fp32, and stochastically by updates (adamw.h).
#pragma once

#include <functional>
#include <optional>

#include "llmc/device/number.h"
#include "llmc/memory/parameter_store.h"
#include "llmc/memory/placement.h"
#include "llmc/memory/plan.h"
#include "llmc/memory/sweep.h"

// The kinds of numbers that a training keeps for weights.
enum class StateKind { master, first_moment, second_moment };
inline constexpr StateKind kStateKinds[] = {StateKind::master, StateKind::first_moment, StateKind::second_moment};
const char* checkpoint_name(StateKind kind);

// A value for each kind.
template <class T>
struct PerKind {
  T of[3];
  T& operator[](StateKind kind) { return of[int(kind)]; }
  const T& operator[](StateKind kind) const { return of[int(kind)]; }
};

struct StateSettings {
  DType master = DType::fp32, moments = DType::fp32;
  bool on_host = false, gradients_on_host = false;
  size_t chunk = size_t(1) << 23;  // of what is offloaded: elements in each of the two slots; a multiple of 128
  bool weights_on_host = false;    // those of the products
  // Says which moments a tensor has. All tensors of an operand must have the same ones. With AdamW every tensor has
  // both. The master needs no answer: every tensor has one.
  bool (*has_moment)(const ParameterInfo& tensor, StateKind moment) = [](const ParameterInfo&, StateKind) {
    return true;
  };
  bool in_chunks() const { return on_host || gradients_on_host || weights_on_host; }
};

class OptimizerState {
 public:
  // `parameters` hold the products' weights. `moments`: false if nothing is trained. `host`: needed if something is
  // offloaded.
  OptimizerState(MemoryPlan& plan, const ParameterLayout& layout, const Placement& placement,
                 const StateSettings& settings, const ParameterStore& parameters, bool moments, Stream& compute,
                 HostStreams* host);

  // shards() is what this rank keeps of a kind: the tensors of UnitPlacement::state that have it. saved() is what it
  // writes to a checkpoint, of each kind: those of UnitPlacement::saved. A shard that is passed to the functions below
  // must lie in one of shards(kind).
  const FlatShards& shards(StateKind kind) const { return shards_[kind]; }
  const PerKind<FlatShards>& saved() const { return saved_; }
  bool has_master() const { return bool(kept_[StateKind::master]); }  // of its own
  DType type(StateKind kind) const { return kind == StateKind::master ? master_type_ : settings_.moments; }
  // True if the numbers are fp32 and on the device.
  bool is_plain(StateKind kind) const { return type(kind) == DType::fp32 && !on_host(kind); }
  // Compute may read the numbers between steps: each step ends when all copies to the host have joined the compute
  // stream.
  Tensor view(StateKind kind, int unit, const Shard& shard) const;

  // Sets a shard. `fill` must enqueue work that writes to.size() elements of the shard, beginning with number `first`,
  // into `to` (fp32, on the device).
  using Fill = std::function<void(const Tensor& to, size_t first)>;
  void set(StateKind kind, int unit, const Shard& shard, const Fill& fill);
  // Calls `use` with a shard as fp32 numbers on the device, one chunk after the other.
  using Use = std::function<void(const Tensor& from, size_t first)>;
  void get(StateKind kind, int unit, const Shard& shard, const Use& use);
  // Sets the products' weights from a master copy of their own, if there is one.
  void set_weights();
  // Copies a shard to the host as fp32, and waits for it.
  void read(StateKind kind, int unit, const Shard& shard, float* to);

  // sweep_array() returns elements of this kind for a sweep, from the unit on, in consecutive units. It is absent if
  // the kind has no memory of its own. `gradients` are those of the same elements, on the device or the host.
  SweepArray sweep_array(StateKind kind, int unit, const Shard& elements) const;
  SweepArray gradient_array(const Tensor& gradients) const { return {gradients, gradient_slots_, false}; }
  // The products' weights of these elements. They are loaded, too, because a step that is held does not write them.
  SweepArray weights_array(int unit, const Shard& elements) const {
    return {parameters_.kept_from(unit, elements), weight_slots_};
  }
  Sweep& sweep() { return *sweep_; }
  // Call this after the last sweep of an update: compute waits until the products' weights are where they are kept.
  void finish_update() {
    if (weight_slots_) sweep_->finish();
  }

 private:
  // Returns true if the numbers lie on the host. Without a master of its own the products' weights are the master.
  bool on_host(StateKind kind) const {
    return kind == StateKind::master && !has_master() ? parameters_.on_host() : bool(slots_[kind]);
  }
  size_t longest_run(bool contiguous) const;
  // widen() converts numbers of the state, on the device or the host, to fp32 on the device; narrow() converts back.
  void widen(const Tensor& to, const Tensor& from, bool from_host);
  void narrow(const Tensor& to, const Tensor& from, bool to_host);

  static constexpr size_t kStaged = size_t(1) << 18;  // elements
  const StateSettings settings_;
  const DType master_type_;
  Stream& compute_;
  const ParameterStore& parameters_;
  PerKind<FlatShards> shards_, saved_;
  PerKind<PlannedTensor> kept_, slots_;  // slots: two on the device for each kind that is offloaded
  PlannedTensor gradient_slots_;         // two, for gradients from the host
  PlannedTensor weight_slots_;           // two, for weights on the host
  PlannedTensor staged_, narrow_;        // a chunk between the state and what set() and get() see: in fp32, in bf16
  std::optional<Sweep> sweep_;
};

// The state that a training keeps for the optimizer alone, for the weights that this rank updates: AdamW's moments and,
// if the products take bf16, an fp32 master copy. Without that copy the weights of the products are the master.
//
// The state lies on the device or, if it is offloaded, in pinned memory of the host. From there an update streams it
// chunk by chunk through two slots on the device: while one chunk is computed, another is copied in or out. Numbers in
// bf16 are rounded to nearest when they are set from fp32, and stochastically by updates (adamw.h).
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "llmc/device/number.h"
#include "llmc/memory/parameter_store.h"
#include "llmc/memory/placement.h"
#include "llmc/memory/plan.h"
#include "llmc/memory/slots.h"

// The numbers that a training keeps for each weight.
enum class StateKind { weights, first_moments, second_moments };
inline constexpr StateKind kStateKinds[] = {StateKind::weights, StateKind::first_moments, StateKind::second_moments};
const char* name_of(StateKind kind);

struct StateSettings {
  DType master = DType::fp32, moments = DType::fp32;
  bool on_host = false, gradients_on_host = false;
  size_t chunk = size_t(1) << 23;  // offloaded: elements in each of the two slots; a multiple of 128
  bool in_chunks() const { return on_host || gradients_on_host; }
};

class OptimizerState {
 public:
  // `parameters` hold the products' weights. `moments`: false if nothing is trained. `host`: needed if something is
  // offloaded.
  OptimizerState(MemoryPlan& plan, const ParameterLayout& layout, const Placement& placement,
                 const StateSettings& settings, const ParameterStore& parameters, bool moments, Device& device,
                 Stream& compute, HostStreams* host);

  bool has_master() const { return bool(kept(StateKind::weights)); }
  DType type(StateKind kind) const { return kind == StateKind::weights ? master_type_ : settings_.moments; }
  bool rounds() const { return type(StateKind::weights) == DType::bf16 || settings_.moments == DType::bf16; }
  // True if numbers of this kind lie in memory of the host.
  bool on_host(StateKind kind) const { return bool(slots_[int(kind)]); }
  // Returns the unit's elements that this rank updates, UnitPlacement::state, or a shard of them. Compute may read them
  // between steps: each step ends when all copies to the host have joined the compute stream.
  Tensor view(StateKind kind, int unit) const { return view(kind, unit, placement_[size_t(unit)].state); }
  Tensor view(StateKind kind, int unit, const Shard& shard) const;

  // Sets a shard of what this rank updates. `fill` must enqueue work that writes to.size() elements of the shard,
  // beginning with number `first`, into `to` (fp32, on the device).
  using Fill = std::function<void(const Tensor& to, size_t first)>;
  void set(StateKind kind, int unit, const Shard& shard, const Fill& fill);
  // Calls `use` with all that this rank updates as fp32 numbers on the device, one chunk after the other.
  using Use = std::function<void(const Tensor& from, size_t first)>;
  void get(StateKind kind, int unit, const Use& use);
  // Copies a shard to the host as fp32, and waits for it.
  void read(StateKind kind, int unit, const Shard& shard, float* to);

  // operand() returns `count` elements of this kind for a sweep, from the first element of `first_unit` that this rank
  // updates; absent if the kind is not kept. `gradients` are those of the same elements, on the device or the host.
  SweepOperand operand(StateKind kind, int first_unit, size_t count) const;
  SweepOperand gradient_operand(const Tensor& gradients) const { return {gradients, gradient_slots_, false}; }
  Sweep& sweep() { return *sweep_; }

 private:
  const Tensor& kept(StateKind kind) const { return kept_[int(kind)]; }
  // widen() converts numbers of the state, on the device or the host, to fp32 on the device; narrow() converts back.
  void widen(const Tensor& to, const Tensor& from, bool from_host);
  void narrow(const Tensor& to, const Tensor& from, bool to_host);
  bool is_plain(StateKind kind) const { return type(kind) == DType::fp32 && !on_host(kind); }

  static constexpr size_t kStaged = size_t(1) << 18;  // elements
  const Placement& placement_;
  const FlatShards shards_;
  const StateSettings settings_;
  const DType master_type_;
  Stream& compute_;
  HostStreams* host_;
  const ParameterStore& parameters_;
  PlannedTensor kept_[3], slots_[3];  // master, first and second moments; of what is offloaded, two slots on the device
  PlannedTensor gradient_slots_;      // two slots for gradients from the host
  PlannedTensor staged_, narrow_;     // numbers on their way: as fp32, and as bf16
  std::optional<Sweep> sweep_;
};

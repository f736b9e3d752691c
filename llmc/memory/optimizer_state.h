// The state that a training keeps for the optimizer alone, for the weights that this rank updates: AdamW's moments and,
// if the products take bf16, an fp32 master copy. Without that copy the weights of the products are the master.
//
// The state lies on the device or, if it is offloaded, in pinned memory of the host. From there an update streams it
// piece by piece through two slots on the device: while one piece is computed, another is copied in or out. Numbers in
// bf16 are rounded to nearest when they are set from fp32, and stochastically by updates (adamw.h).
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "llmc/device/tensor.h"
#include "llmc/memory/host_streams.h"
#include "llmc/memory/plan.h"
#include "llmc/memory/sharding.h"

// The numbers that a training keeps for each weight.
enum class StateKind { weights, first_moments, second_moments };
inline constexpr StateKind kStateKinds[] = {StateKind::weights, StateKind::first_moments, StateKind::second_moments};
const char* name_of(StateKind kind);

struct StateSettings {
  DType master = DType::fp32, moments = DType::fp32;
  bool on_host = false, gradients_on_host = false;
  size_t piece = size_t(1) << 23;  // offloaded: elements in each of the two slots; a multiple of 128
  bool in_pieces() const { return on_host || gradients_on_host; }
};

struct StateView {
  std::byte* data;
  DType type;
  bool on_host;
  size_t bytes(size_t count) const { return count * bytes_of(type); }
  StateView from(size_t element) const { return {data + bytes(element), type, on_host}; }
};

class OptimizerState {
 public:
  // `weights`: the products' type. `moments`: false if nothing is trained. `host`: needed if something is offloaded.
  OptimizerState(MemoryPlan& plan, const ParameterLayout& layout, const Sharding& sharding,
                 const StateSettings& settings, DType weights, bool moments, Device& device, Stream& compute,
                 HostStreams* host);
  // `weights` returns the address of those weights of a unit that this rank updates.
  void bind(const Arena& arena, std::function<std::byte*(int unit)> weights);

  bool has_master() const { return planned_[0].count > 0; }
  DType type(StateKind kind) const { return kind == StateKind::weights ? master_type_ : settings_.moments; }
  bool rounds() const { return type(StateKind::weights) == DType::bf16 || settings_.moments == DType::bf16; }
  // Returns the unit's elements that this rank updates. Compute may read them between steps: each step ends when all
  // copies to the host have joined the compute stream.
  StateView view(StateKind kind, int unit) const;

  // Sets elements at .. at+count-1 of the unit's part that this rank updates. `fill` must enqueue work that writes
  // elements first .. first+n-1 of these, in fp32, to the device address `to`.
  using Fill = std::function<void(float* to, size_t first, size_t n)>;
  void set(StateKind kind, int unit, size_t at, size_t count, const Fill& fill);
  // Calls `use` with all of that part as fp32 numbers on the device, one stretch after the other.
  using Use = std::function<void(const float* from, size_t first, size_t n)>;
  void get(StateKind kind, int unit, const Use& use);
  // Copies elements at .. at+count-1 to the host as fp32, and waits for them.
  void read(StateKind kind, int unit, size_t at, size_t count, float* to);

  // Call this before an update of all the state.
  void begin_update();
  // Calls `f` with stretches of the elements of the state from `at` on (Sharding::at), as many as `gradients` (count)
  // has. A stretch has n elements from at+first on. They and their gradients, all (n), are on the device while the work
  // that f enqueues on compute reads and writes them. `master` is absent if there is no master copy.
  struct Stretch {
    Tensor master, m, v, gradients;
    int64_t first, n;
  };
  using Update = std::function<void(const Stretch&)>;
  void update(size_t at, const Tensor& gradients, const Update& f);

 private:
  void update_in_pieces(size_t at, const Tensor& gradients, const Update& f);
  // widen() converts n numbers of the state, on the device or the host, to fp32 on the device; narrow() converts back.
  void widen(float* to, const StateView& from, size_t n);
  void narrow(const StateView& to, const float* from, size_t n);
  bool is_plain(const StateView& view) const { return view.type == DType::fp32 && !view.on_host; }

  static constexpr size_t kStaged = size_t(1) << 18;  // elements
  const ParameterLayout& layout_;
  const Sharding sharding_;
  const StateSettings settings_;
  const DType master_type_;
  Stream& compute_;
  HostStreams* host_;
  Planned<std::byte> planned_[3], planned_slots_[3];  // master, first and second moments
  Planned<float> planned_gradients_;
  Planned<float> planned_staged_;
  Planned<bf16> planned_narrow_;
  Tensor state_[3], slots_[3];  // flat
  Tensor gradients_;            // slots for gradients from the host
  float* staged_ = nullptr;
  bf16* narrow_ = nullptr;
  size_t staged_size_ = 0, piece_ = 0;
  std::function<std::byte*(int unit)> weights_;
  std::vector<Event> came_, computed_, left_;  // one per slot
  int slot_ = 0;
};

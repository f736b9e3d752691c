// What a training keeps of the weights that this rank updates, for the optimizer alone: AdamW's moments, and an fp32
// master copy where the products take bf16. Without a copy of its own the master is what the products take.
//
// It lies on the device; or, offloaded, in pinned memory of the host, from which an update streams it piece by piece
// through two slots on the device: one piece comes, one is computed, one leaves. Numbers in bf16 are rounded to nearest
// as they are set from fp32, and stochastically by updates (adamw.h).
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "llmc/device/number.h"
#include "llmc/memory/host_streams.h"
#include "llmc/memory/plan.h"
#include "llmc/memory/sharding.h"

// What a training keeps of each weight.
enum class StateKind { weights, first_moments, second_moments };
inline constexpr StateKind kStateKinds[] = {StateKind::weights, StateKind::first_moments, StateKind::second_moments};
const char* name_of(StateKind kind);

struct StateSettings {
  DType master = DType::fp32, moments = DType::fp32;
  bool on_host = false, gradients_on_host = false;
  size_t piece = size_t(1) << 23;  // offloaded: elements that are on the device at once, twice; a multiple of 128
  bool in_pieces() const { return on_host || gradients_on_host; }
};

struct StateView {
  std::byte* data;
  DType type;
  bool on_host;
  static size_t bytes_of(DType type, size_t count) { return count * (type == DType::fp32 ? 4 : 2); }
  size_t bytes(size_t count) const { return bytes_of(type, count); }
  StateView from(size_t element) const { return {data + bytes(element), type, on_host}; }
};

class StateStore {
 public:
  // `weights`: the products' type. `moments`: false where nothing is trained. `host`: needed if something is offloaded.
  StateStore(MemoryPlan& plan, const TensorLayout& layout, const Sharding& sharding, const StateSettings& settings,
             DType weights, bool moments, Device& device, Stream& compute, HostStreams* host);
  // `weights`: where a unit's weights lie of which this rank updates the first elements.
  void bind(const Arena& arena, std::function<std::byte*(int unit)> weights);

  bool has_master() const { return planned_[0].count > 0; }
  DType type(StateKind kind) const { return kind == StateKind::weights ? master_type_ : settings_.moments; }
  bool rounds() const { return type(StateKind::weights) == DType::bf16 || settings_.moments == DType::bf16; }
  // Of what this rank updates of a unit, for copies behind settle().
  StateView view(StateKind kind, int unit) const;
  // Compute waits for what the last update sent to the host.
  void settle();

  // Sets elements at .. at+count-1 of the unit's: `fill` enqueues that fp32 numbers first .. first+n-1 of them come
  // `to` a place on the device.
  using Fill = std::function<void(float* to, size_t first, size_t n)>;
  void set(StateKind kind, int unit, size_t at, size_t count, const Fill& fill);
  // Gives `use` all of the unit's as fp32 numbers on the device, stretch by stretch.
  using Use = std::function<void(const float* from, size_t first, size_t n)>;
  void get(StateKind kind, int unit, const Use& use);
  // To the host, which waits.
  void read(StateKind kind, int unit, size_t at, size_t count, float* to);

  // An update of all of it begins.
  void begin_update();
  // Calls `f` with stretches of elements at .. at+count-1 of the state (Sharding::at), which are on the device with
  // their gradients while what f enqueues on compute reads and writes them. `master` is null without a copy of its own.
  struct Stretch {
    std::byte *master, *m, *v;
    const float* gradients;
    size_t first, n;
  };
  using Update = std::function<void(const Stretch&)>;
  void update(size_t at, size_t count, const float* gradients, const Update& f);

 private:
  void update_in_pieces(size_t at, size_t count, const float* gradients, const Update& f);
  // Numbers on the device as fp32 ones, and back.
  void widen(float* to, const StateView& from, size_t n);
  void narrow(const StateView& to, const float* from, size_t n);
  bool is_plain(const StateView& view) const { return view.type == DType::fp32 && !view.on_host; }

  static constexpr size_t kStaged = size_t(1) << 18;  // elements
  const TensorLayout& layout_;
  const Sharding sharding_;
  const StateSettings settings_;
  const DType master_type_;
  Stream& compute_;
  HostStreams* host_;
  Planned<std::byte> planned_[3], planned_slots_[3];  // master, first and second moments
  Planned<float> planned_gradients_;
  Planned<float> planned_staged_;
  Planned<bf16> planned_narrow_;
  std::byte *state_[3] = {}, *slots_[3] = {};
  float* gradients_ = nullptr;  // their slots
  float* staged_ = nullptr;
  bf16* narrow_ = nullptr;
  size_t staged_size_ = 0, piece_ = 0;
  std::function<std::byte*(int unit)> weights_;
  std::vector<Event> came_, computed_, left_;  // a slot
  int slot_ = 0;
};

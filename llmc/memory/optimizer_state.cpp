#include "llmc/memory/optimizer_state.h"

#include <algorithm>

#include "llmc/base/error.h"
#include "llmc/kernels/accumulate.h"
#include "llmc/kernels/initialize.h"

const char* name_of(StateKind kind) {
  const char* const names[] = {"weights", "first_moments", "second_moments"};
  return names[int(kind)];
}

namespace {

constexpr const char* kNames[] = {"master weights", "first moments", "second moments"};

}  // namespace

OptimizerState::OptimizerState(MemoryPlan& plan, const ParameterLayout& layout, const Sharding& sharding,
                               const StateSettings& settings, DType weights, bool moments, Device& device,
                               Stream& compute, HostStreams* host)
    : layout_(layout),
      sharding_(sharding),
      settings_(settings),
      master_type_(weights == DType::fp32 ? DType::fp32 : settings.master),
      compute_(compute),
      host_(host) {
  REQUIRE(!settings.in_pieces() || host, "an offloaded state needs streams on which it travels");
  REQUIRE(settings.piece > 0 && settings.piece % 128 == 0, "pieces of %zu elements: expected a multiple of 128",
          settings.piece);
  const size_t total = sharding.total(layout);
  size_t largest_unit = 0, largest_piece = 0;
  for (int unit = 0; unit < int(layout.units.size()); ++unit) {
    largest_unit = std::max(largest_unit, sharding.count(layout, unit));
    for (const ParameterSlice& piece : layout.slices(unit, sharding.first(layout, unit), sharding.count(layout, unit)))
      largest_piece = std::max(largest_piece, piece.count);
  }
  // A call of update() covers all of the state, or one unit: see Optimizer.
  piece_ = std::min(settings.piece, sharding.stage == 0 || sharding.stage == 3 ? total : largest_unit);
  bool stages = false, narrows = false;
  for (const StateKind kind : kStateKinds) {
    const bool kept = kind == StateKind::weights ? weights == DType::bf16 && settings.master == DType::fp32 : moments;
    const bool on_host = kept && settings.on_host && moments;
    stages = stages || on_host || (type(kind) == DType::bf16 && (kept || kind == StateKind::weights));
    narrows = narrows || (on_host && type(kind) == DType::bf16);
    if (!kept) continue;
    const size_t element_bytes = bytes_of(type(kind));
    planned_[int(kind)] = plan.add_elements(on_host ? Segment::pinned : Segment::device, "optimizer", kNames[int(kind)],
                                            total, element_bytes);
    if (on_host)
      planned_slots_[int(kind)] =
          plan.add_elements(Segment::device, "update slots", kNames[int(kind)], 2 * piece_, element_bytes);
  }
  if (settings.gradients_on_host && moments)
    planned_gradients_ = plan.add<float>(Segment::device, "update slots", "gradients", 2 * piece_);
  if (settings.in_pieces())
    for (int slot = 0; slot < 2; ++slot)
      came_.emplace_back(device), computed_.emplace_back(device), left_.emplace_back(device);
  if (!stages) return;
  staged_size_ = std::max<size_t>(128, std::min(kStaged, largest_piece) / 128 * 128);
  planned_staged_ = plan.add<float>(Segment::device, "scratch", "optimizer state as fp32", staged_size_);
  if (narrows) planned_narrow_ = plan.add<bf16>(Segment::device, "scratch", "optimizer state as bf16", staged_size_);
}

void OptimizerState::bind(const Arena& arena, std::function<std::byte*(int)> weights) {
  weights_ = std::move(weights);
  for (int kind = 0; kind < 3; ++kind) {
    if (planned_[kind].count) state_[kind] = arena[planned_[kind]];
    if (planned_slots_[kind].count) slots_[kind] = arena[planned_slots_[kind]];
  }
  if (planned_gradients_.count) gradients_ = arena[planned_gradients_];
  if (staged_size_) staged_ = arena[planned_staged_];
  if (planned_narrow_.count) narrow_ = arena[planned_narrow_];
}

StateView OptimizerState::view(StateKind kind, int unit) const {
  if (kind == StateKind::weights && !has_master()) return {weights_(unit), master_type_, false};
  const StateView all{state_[int(kind)], type(kind), slots_[int(kind)] != nullptr};
  return all.from(sharding_.at(layout_, unit));
}

void OptimizerState::widen(float* to, const StateView& from, size_t n) {
  if (from.type == DType::fp32) return copy(compute_, to, reinterpret_cast<const float*>(from.data), n);
  const bf16* source = reinterpret_cast<const bf16*>(from.data);
  if (from.on_host) copy(compute_, narrow_, source, n), source = narrow_;
  accumulate(compute_, Tensor(to, {int64_t(n)}), Tensor(source, {int64_t(n)}), false);
}

void OptimizerState::narrow(const StateView& to, const float* from, size_t n) {
  if (to.type == DType::fp32) return copy(compute_, reinterpret_cast<float*>(to.data), from, n);
  bf16* target = reinterpret_cast<bf16*>(to.data);
  cast(compute_, Tensor(to.on_host ? narrow_ : target, {int64_t(n)}), Tensor(from, {int64_t(n)}));
  if (to.on_host) copy(compute_, target, narrow_, n);
}

void OptimizerState::set(StateKind kind, int unit, size_t at, size_t count, const Fill& fill) {
  const StateView target = view(kind, unit).from(at);
  if (is_plain(target)) return fill(reinterpret_cast<float*>(target.data), 0, count);
  for (size_t done = 0; done < count; done += staged_size_) {
    const size_t n = std::min(staged_size_, count - done);
    fill(staged_, done, n);
    narrow(target.from(done), staged_, n);
  }
}

void OptimizerState::get(StateKind kind, int unit, const Use& use) {
  const StateView source = view(kind, unit);
  const size_t count = sharding_.count(layout_, unit);
  if (is_plain(source)) return use(reinterpret_cast<const float*>(source.data), 0, count);
  for (size_t done = 0; done < count; done += staged_size_) {
    const size_t n = std::min(staged_size_, count - done);
    widen(staged_, source.from(done), n);
    use(staged_, done, n);
  }
}

void OptimizerState::read(StateKind kind, int unit, size_t at, size_t count, float* to) {
  const StateView source = view(kind, unit).from(at);
  std::vector<bf16> narrow(source.type == DType::bf16 ? count : 0);
  if (narrow.empty()) copy(compute_, to, reinterpret_cast<const float*>(source.data), count);
  else copy(compute_, narrow.data(), reinterpret_cast<const bf16*>(source.data), count);
  compute_.synchronize();
  for (size_t i = 0; i < narrow.size(); ++i) to[i] = to_float(narrow[i]);
}

// The first pieces that an update fetches may be the last that the former update sent.
void OptimizerState::begin_update() {
  for (const Event& left : left_) host_->in.wait(left);
}

void OptimizerState::update(size_t at, size_t count, const float* gradients, const Update& f) {
  if (settings_.in_pieces()) return update_in_pieces(at, count, gradients, f);
  const auto part = [&](StateKind kind) {
    return state_[int(kind)] ? StateView{state_[int(kind)], type(kind), false}.from(at).data : nullptr;
  };
  f({part(StateKind::weights), part(StateKind::first_moments), part(StateKind::second_moments), gradients, 0, count});
}

void OptimizerState::update_in_pieces(size_t at, size_t count, const float* gradients, const Update& f) {
  for (size_t done = 0; done < count; done += piece_, slot_ ^= 1) {
    const size_t n = std::min(piece_, count - done), slot = size_t(slot_);
    std::byte* here[3] = {};  // of the kinds that are kept
    const auto for_each = [&](auto&& move) {
      for (const StateKind kind : kStateKinds) {
        if (!state_[int(kind)]) continue;
        const StateView kept = StateView{state_[int(kind)], type(kind), false}.from(at + done);
        here[int(kind)] =
            slots_[int(kind)] ? StateView{slots_[int(kind)], type(kind), false}.from(slot * piece_).data : kept.data;
        if (slots_[int(kind)]) move(kept.data, here[int(kind)], kept.bytes(n));
      }
    };
    host_->in.wait(left_[slot]);
    for_each([&](std::byte* kept, std::byte* device, size_t bytes) { copy_bytes(host_->in, device, kept, bytes); });
    if (gradients_) copy(host_->in, gradients_ + slot * piece_, gradients + done, n);
    came_[slot].record(host_->in);
    compute_.wait(came_[slot]);
    f({here[0], here[1], here[2], gradients_ ? gradients_ + slot * piece_ : gradients + done, done, n});
    computed_[slot].record(compute_);
    host_->out.wait(computed_[slot]);
    for_each([&](std::byte* kept, std::byte* device, size_t bytes) { copy_bytes(host_->out, kept, device, bytes); });
    left_[slot].record(host_->out);
  }
}

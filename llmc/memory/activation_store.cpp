#include "llmc/memory/activation_store.h"

#include <map>
#include <tuple>

#include "llmc/base/text.h"
#include "llmc/device/number.h"

namespace {

constexpr unsigned char kPoison = 0xff;
constexpr Saved kInputs[kProducts] = {Saved::qkv_input, Saved::attention, Saved::gate_up_input, Saved::down_input};

}  // namespace

template <class T>
ActivationStore<T>::ActivationStore(MemoryPlan& plan, const LlamaConfig& config, const Fp8Settings& fp8,
                                    const std::optional<ActivationPolicy>& policy, SavedTokens tokens, Device& device,
                                    HostStreams* host)
    : config_(config), fp8_(fp8), policy_(policy), blocks_(size_t(config.L)), host_(host) {
  plan_places(plan, tokens);
  if (!travels()) return;
  computed_.emplace(device), released_.emplace(device);
  for (int slot = 0; slot < policy_->horizon; ++slot) left_.emplace_back(device), back_.emplace_back(device);
}

template <class T>
void ActivationStore<T>::plan_places(MemoryPlan& plan, SavedTokens tokens) {
  const auto for_each = [&](auto&& f) {
    for (int layer = 0; layer < config_.L; ++layer)
      for (int s = 0; s < kSaved; ++s) {
        const Saved saved = Saved(s);
        const SavedSize size = size_of(saved, layer, config_, fp8_, sizeof(T), tokens, policy_.has_value());
        if (size.count) f(layer, saved, std::tuple(storage(saved, layer), index_of(saved, layer), saved), size);
      }
  };
  std::map<std::tuple<Storage, int, Saved>, SavedSize> largest;  // the largest of the tensors that share a place
  for_each([&](int, Saved, const auto& place, SavedSize size) {
    SavedSize& most = largest[place];
    if (size.bytes() > most.bytes()) most = size;
  });
  std::map<std::tuple<Storage, int, Saved>, Planned<std::byte>> planned;
  for_each([&](int layer, Saved saved, const auto& place, SavedSize size) {
    const auto [storage, index, _] = place;
    Planned<std::byte>& there = planned[place];
    if (there.buffer < 0) {
      const char* const categories[] = {"activations", "recompute", "offload slots"};
      const char* const owners[] = {"block %d %s", "workspace %d %s", "slot %d %s"};
      const SavedSize most = largest[place];
      there = plan.add_elements(Segment::device, categories[int(storage)],
                                format(owners[int(storage)], index, name_of(saved)), most.count, most.element_bytes);
    }
    Block& block = blocks_[size_t(layer)];
    block.device[int(saved)] = {there, nullptr, size.bytes()};
    if (storage == Storage::offloaded && leaves(layer))
      block.host[int(saved)] = {
          plan.add_elements(Segment::pinned, "activations", format("block %d %s", layer, name_of(saved)), size.count,
                            size.element_bytes),
          nullptr, size.bytes()};
  });
}

template <class T>
Storage ActivationStore<T>::storage(Saved saved, int layer) const {
  return policy_ ? storage_of(saved, layer, *policy_, config_) : Storage::kept;
}

template <class T>
int ActivationStore<T>::index_of(Saved saved, int layer) const {
  if (!policy_) return saved == Saved::qkv ? layer : layer % 2;
  switch (storage(saved, layer)) {
    case Storage::kept:
      return layer;
    case Storage::recomputed:
      return 0;
    case Storage::offloaded:
      return int(slot_of(layer));
  }
  return layer;
}

template <class T>
void ActivationStore<T>::bind(const Arena& arena, Stream& compute) {
  compute_ = &compute;
  for (Block& block : blocks_) {
    for (auto* places : {block.device, block.host})
      for (int s = 0; s < kSaved; ++s)
        if (places[s].bytes) places[s].data = arena[places[s].planned];
    const auto at = [&]<class U>(U*& pointer, Saved saved) {
      pointer = reinterpret_cast<U*>(block.device[int(saved)].data);
    };
    BlockActivations<T>& a = block.activations;
    at(a.x, Saved::x), at(a.rstd1, Saved::rstd1), at(a.norm1, Saved::norm1), at(a.qkv, Saved::qkv);
    at(a.attention, Saved::attention), at(a.lse, Saved::lse), at(a.middle, Saved::middle);
    at(a.rstd2, Saved::rstd2), at(a.norm2, Saved::norm2), at(a.gate_up, Saved::gate_up), at(a.swiglu, Saved::swiglu);
  }
}

template <class T>
OperandMemory ActivationStore<T>::saved_fp8_input(int layer, Product product, bool backward) const {
  const Saved input = kInputs[int(product)];
  if (product == Product::o) return {};  // attention's output is kept anyway
  if (!backward && storage(input, layer) == Storage::recomputed && recompute(layer) != Recompute::none) return {};
  const Place* places = blocks_[size_t(layer)].device;
  return {reinterpret_cast<uint8_t*>(places[int(input)].data), reinterpret_cast<float*>(places[int(input) + 1].data)};
}

template <class T>
Recompute ActivationStore<T>::recompute(int layer) const {
  return policy_ && policy_->recomputes(layer) && layer + 1 < config_.L ? policy_->recompute : Recompute::none;
}

template <class T>
bool ActivationStore<T>::keeps_keys() const {
  for (int layer = 0; layer < config_.L; ++layer)
    if (storage(Saved::qkv, layer) != Storage::kept) return false;
  return true;
}

template <class T>
void ActivationStore<T>::begin_forward(int layer, bool training) {
  if (training && travels() && layer >= policy_->horizon) compute_->wait(left_[slot_of(layer)]);
}

template <class T>
void ActivationStore<T>::end_forward(int layer, bool training) {
  if (training && leaves(layer)) send(layer);
}

template <class T>
void ActivationStore<T>::send(int layer) {
  const Block& block = blocks_[size_t(layer)];
  computed_->record(*compute_);
  host_->out.wait(*computed_);
  for (int s = 0; s < kSaved; ++s)
    if (block.host[s].bytes) copy_bytes(host_->out, block.host[s].data, block.device[s].data, block.host[s].bytes);
  // All but `middle` is overwritten: the next block still reads `middle`, and a later block writes its own over it.
  for (int s = 0; policy_->poison && s < kSaved; ++s)
    if (block.host[s].bytes && Saved(s) != Saved::middle)
      fill_bytes(host_->out, block.device[s].data, kPoison, block.host[s].bytes);
  left_[slot_of(layer)].record(host_->out);
}

template <class T>
void ActivationStore<T>::begin_backward(int layer) {
  if (leaves(layer)) compute_->wait(back_[slot_of(layer)]);
}

template <class T>
void ActivationStore<T>::end_backward(int layer) {
  if (travels() && layer >= policy_->horizon) fetch(layer - policy_->horizon);
}

// Copies a block's tensors back into the slot that compute no longer uses.
template <class T>
void ActivationStore<T>::fetch(int layer) {
  const Block& block = blocks_[size_t(layer)];
  released_->record(*compute_);
  host_->in.wait(*released_);
  for (int s = 0; s < kSaved; ++s)
    if (block.host[s].bytes) copy_bytes(host_->in, block.device[s].data, block.host[s].data, block.host[s].bytes);
  back_[slot_of(layer)].record(host_->in);
}

template class ActivationStore<float>;
template class ActivationStore<bf16>;

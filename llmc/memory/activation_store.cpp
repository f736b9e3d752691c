#include "llmc/memory/activation_store.h"

#include <algorithm>

#include "llmc/base/error.h"
#include "llmc/device/number.h"

template <class T>
ActivationStore<T>::ActivationStore(MemoryPlan& plan, const LlamaConfig& config, size_t N, bool backward) {
  const size_t C = size_t(config.C), FF = size_t(config.FF);
  const int sets = backward ? config.L : std::min(config.L, 2);
  for (int layer = 0; layer < sets; ++layer) {
    const auto add = [&]<class U>(Planned<U>& planned, const char* name, size_t width) {
      planned = plan.add<U>(Segment::device, "activations", format("block %d %s", layer, name), N * width);
    };
    PlannedBlock b;
    add(b.x, "x", C);
    add(b.rstd1, "rstd1", 1);
    add(b.norm1, "norm1", C);
    add(b.attention, "attention", size_t(config.q_width()));
    add(b.lse, "lse", size_t(config.NH));
    add(b.middle, "middle", C);
    add(b.rstd2, "rstd2", 1);
    add(b.norm2, "norm2", C);
    add(b.gate_up, "gate_up", 2 * FF);
    add(b.swiglu, "swiglu", FF);
    planned_.push_back(b);
  }
  for (int layer = 0; layer < config.L; ++layer)
    planned_qkv_.push_back(
        plan.add<T>(Segment::device, "activations", format("block %d qkv", layer), N * size_t(config.qkv_width())));
}

template <class T>
void ActivationStore<T>::bind(const Arena& arena) {
  for (size_t layer = 0; layer < planned_qkv_.size(); ++layer) {
    const PlannedBlock& b = planned_[layer % planned_.size()];
    blocks_.push_back({arena[b.x], arena[b.rstd1], arena[b.norm1], arena[planned_qkv_[layer]], arena[b.attention],
                       arena[b.lse], arena[b.middle], arena[b.rstd2], arena[b.norm2], arena[b.gate_up],
                       arena[b.swiglu]});
  }
}

template class ActivationStore<float>;
template class ActivationStore<bf16>;

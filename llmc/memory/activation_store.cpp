#include "llmc/memory/activation_store.h"

#include <algorithm>

#include "llmc/base/error.h"
#include "llmc/device/number.h"

template <class T>
ActivationStore<T>::ActivationStore(MemoryPlan& plan, const LlamaConfig& config, const Fp8Settings& fp8, size_t N,
                                    bool backward) {
  const size_t C = size_t(config.C), FF = size_t(config.FF);
  const int sets = backward ? config.L : std::min(config.L, 2);
  for (int layer = 0; layer < sets; ++layer) {
    const auto add = [&]<class U>(Planned<U>& planned, const char* name, size_t width) {
      planned = plan.add<U>(Segment::device, "activations", format("block %d %s", layer, name), N * width);
    };
    // An input is wide where some product of the blocks that take turns here wants it so.
    const auto wide = [&](Product product) {
      bool any = false;
      for (int l = layer; l < config.L; l += sets) any = any || !fp8.quantizes(l, product) || fp8.wide_wgrad();
      return any;
    };
    PlannedBlock b;
    add(b.x, "x", C);
    add(b.rstd1, "rstd1", 1);
    if (wide(Product::qkv)) add(b.norm1, "norm1", C);
    add(b.attention, "attention", size_t(config.q_width()));
    add(b.lse, "lse", size_t(config.NH));
    add(b.middle, "middle", C);
    add(b.rstd2, "rstd2", 1);
    if (wide(Product::gate_up)) add(b.norm2, "norm2", C);
    add(b.gate_up, "gate_up", 2 * FF);
    if (wide(Product::down)) add(b.swiglu, "swiglu", FF);
    planned_.push_back(b);
  }
  for (int layer = 0; layer < config.L; ++layer)
    planned_qkv_.push_back(
        plan.add<T>(Segment::device, "activations", format("block %d qkv", layer), N * size_t(config.qkv_width())));
  if (fp8.on() && !fp8.wide_wgrad() && backward) plan_quantized(plan, config, fp8, int(N));
}

template <class T>
void ActivationStore<T>::plan_quantized(MemoryPlan& plan, const LlamaConfig& config, const Fp8Settings& fp8,
                                        int tokens) {
  quantized_.resize(size_t(config.L));
  for (int layer = 0; layer < config.L; ++layer)
    for (const Product product : kEachProduct) {
      if (product == Product::o || !fp8.quantizes(layer, product)) continue;  // attention's output is there anyway
      const QuantizedTensor t = fp8.operand(Role::input, true, tokens, product_shape(config, product).IC);
      const std::string name = format("block %d input of %s", layer, product_name(product));
      QuantizedInputs& block = quantized_[size_t(layer)];
      block.planned_data[int(product)] = plan.add<uint8_t>(Segment::device, "activations", name, t.bytes());
      block.planned_factors[int(product)] =
          plan.add<float>(Segment::device, "activations", name + ", factors", t.factor_count());
    }
}

template <class T>
void ActivationStore<T>::bind(const Arena& arena) {
  const auto wide = [&](const Planned<T>& planned) { return planned.count ? arena[planned] : nullptr; };
  for (size_t layer = 0; layer < planned_qkv_.size(); ++layer) {
    const PlannedBlock& b = planned_[layer % planned_.size()];
    blocks_.push_back({arena[b.x], arena[b.rstd1], wide(b.norm1), arena[planned_qkv_[layer]], arena[b.attention],
                       arena[b.lse], arena[b.middle], arena[b.rstd2], wide(b.norm2), arena[b.gate_up], wide(b.swiglu)});
  }
  for (QuantizedInputs& block : quantized_)
    for (int p = 0; p < kProducts; ++p)
      if (block.planned_data[p].count)
        block.memory[p] = {arena[block.planned_data[p]], arena[block.planned_factors[p]]};
}

template class ActivationStore<float>;
template class ActivationStore<bf16>;

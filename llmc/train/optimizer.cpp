#include "llmc/train/optimizer.h"

#include "llmc/device/number.h"

namespace {

// Neighbours with the same decay are one range; padding between them goes with it.
std::vector<AdamWRange> ranges_of(const TensorLayout& layout, float weight_decay) {
  std::vector<AdamWRange> ranges;
  for (const Tensor& tensor : layout.tensors) {
    const float decay = tensor.is_matrix() ? weight_decay : 0.0f;
    if (ranges.empty() || ranges.back().weight_decay != decay) ranges.push_back({tensor.offset, 0, decay});
    ranges.back().count = tensor.offset + tensor.size() - ranges.back().begin;
  }
  require_ranges(ranges, layout.size);
  return ranges;
}

}  // namespace

Optimizer::Optimizer(MemoryPlan& plan, const TensorLayout& layout, AdamWConstants constants, float weight_decay)
    : layout_(layout),
      constants_(constants),
      ranges_(ranges_of(layout, weight_decay)),
      planned_m_(plan.add<float>(Segment::device, "optimizer", "first moments", layout.size)),
      planned_v_(plan.add<float>(Segment::device, "optimizer", "second moments", layout.size)),
      planned_ranges_(plan.add<AdamWRange>(Segment::device, "optimizer", "weight decay of each range", ranges_.size())),
      planned_partials_(
          plan.add<double>(Segment::device, "scratch", "partial norms", global_norm_partials(layout.size))) {}

void Optimizer::bind(const Arena& arena) {
  m_ = arena[planned_m_];
  v_ = arena[planned_v_];
  ranges_on_device_ = arena[planned_ranges_];
  partials_ = arena[planned_partials_];
}

void Optimizer::reset(Stream& stream) {
  clear(stream, m_, layout_.size);
  clear(stream, v_, layout_.size);
  copy(stream, ranges_on_device_, ranges_.data(), ranges_.size());
}

template <class T>
void Optimizer::step(Stream& stream, const float* gradients, ParameterStore<T>& parameters, StepState* state) {
  global_norm_squares(stream, partials_, gradients, layout_.size);
  global_norm_finish(stream, state, partials_, global_norm_partials(layout_.size));
  adamw(stream, parameters.master(), m_, v_, parameters.weights_to_update(), gradients, state, ranges_on_device_,
        int(ranges_.size()), layout_.size, constants_);
}

template void Optimizer::step(Stream&, const float*, ParameterStore<float>&, StepState*);
template void Optimizer::step(Stream&, const float*, ParameterStore<bf16>&, StepState*);

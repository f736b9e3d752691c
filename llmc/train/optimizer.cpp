#include "llmc/train/optimizer.h"

#include "llmc/device/number.h"

Optimizer::Optimizer(MemoryPlan& plan, const TensorLayout& layout, AdamWConstants constants)
    : layout_(layout),
      constants_(constants),
      planned_m_(plan.add<float>(Segment::device, "optimizer", "first moments", layout.size)),
      planned_v_(plan.add<float>(Segment::device, "optimizer", "second moments", layout.size)),
      planned_partials_(
          plan.add<double>(Segment::device, "scratch", "partial norms", global_norm_partials(layout.size))) {
  // Neighbours with the same decay are one piece; padding goes with what stands before it.
  for (const Tensor& tensor : layout.tensors) {
    const float decay = tensor.is_matrix() ? constants.weight_decay : 0.0f;
    if (pieces_.empty() || pieces_.back().weight_decay != decay) pieces_.push_back({tensor.offset, 0, decay});
    pieces_.back().count = tensor.offset + tensor.size() - pieces_.back().offset;
  }
}

void Optimizer::bind(const Arena& arena) {
  m_ = arena[planned_m_];
  v_ = arena[planned_v_];
  partials_ = arena[planned_partials_];
}

void Optimizer::reset(Stream& stream) {
  clear(stream, m_, layout_.size);
  clear(stream, v_, layout_.size);
}

template <class T>
void Optimizer::step(Stream& stream, const float* gradients, ParameterStore<T>& parameters, StepState* state) {
  global_norm_squares(stream, partials_, gradients, layout_.size);
  global_norm_finish(stream, state, partials_, global_norm_partials(layout_.size));
  T* weights = parameters.weights_to_update();
  for (const Piece& piece : pieces_) {
    AdamWConstants constants = constants_;
    constants.weight_decay = piece.weight_decay;
    const size_t at = piece.offset;
    adamw(stream, parameters.master() + at, m_ + at, v_ + at, weights ? weights + at : nullptr, gradients + at, state,
          piece.count, constants);
  }
}

template void Optimizer::step(Stream&, const float*, ParameterStore<float>&, StepState*);
template void Optimizer::step(Stream&, const float*, ParameterStore<bf16>&, StepState*);

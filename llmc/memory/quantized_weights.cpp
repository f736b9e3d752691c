#include "llmc/memory/quantized_weights.h"

#include <algorithm>

QuantizedWeights::QuantizedWeights(MemoryPlan& plan, const Fp8Settings& settings, const ModelConfig& config,
                                   const ParameterLayout& layout, Fp8Scales& scales, int slots,
                                   const std::function<bool(int)>& gathered)
    : settings_(settings), config_(config), layout_(layout), scales_(scales), slots_(size_t(slots)) {
  bool made_anywhere[kProjectionCount] = {};
  for (int slot = 0; slot < slots; ++slot)
    for (const Projection projection : kEachProjection) {
      const auto [OC, IC] = projection_shape(config, projection);
      bool wanted = false, made_here = false;  // by a block that uses this slot
      for (int layer = slot; layer < config.L; layer += slots) {
        if (!settings.quantizes(layer, projection)) continue;
        wanted = true;
        made_here = made_here || !gathered(layer);
      }
      if (made_here) made_anywhere[int(projection)] = true;
      for (const bool columnwise : {false, true}) {
        if (!wanted) continue;
        const QuantizedTensor t = settings.operand(Role::weight, columnwise, OC, IC);
        const bool as_gathered = !columnwise && !made_here && t.bytes() == size_t(OC) * size_t(IC);
        const std::string name =
            format("%s of slot %d%s", projection_name(projection), slot, columnwise ? ", transposed" : "");
        if (!as_gathered)
          slots_[size_t(slot)].data[int(projection)][columnwise] =
              plan.add(Segment::device, "FP8 weights", name, DType::uint8, {t.bytes()});
        slots_[size_t(slot)].scale_inv[int(projection)][columnwise] =
            plan.add(Segment::device, "FP8 weights", name + ", factors", DType::fp32, {t.scale_inv_count()});
      }
    }
  size_t maxima = 0;
  for (const Projection projection : kEachProjection) {
    if (!made_anywhere[int(projection)]) continue;
    const auto [OC, IC] = projection_shape(config, projection);
    const QuantizedTensor w = settings.operand(Role::weight, false, OC, IC),
                          t = settings.operand(Role::weight, true, OC, IC);
    const size_t counts[] = {
        !settings.per_tensor_scale() && (w.per_tensor_scale() || t.per_tensor_scale()) ? size_t(1) : 0,
        w.has_row_scales() ? size_t(OC) : 0, t.has_row_scales() ? size_t(IC) : 0};
    for (int kind = 0; kind < 3; ++kind) maxima_at_[kind][int(projection)] = maxima, maxima += counts[kind];
  }
  if (maxima) maxima_ = plan.add(Segment::device, "FP8 scales", "largest weights of a block", DType::fp32, {maxima});
  size_t matrices = 0;
  for (int layer = 0; layer < config.L; ++layer)
    for (const Projection projection : kEachProjection) matrices += settings.quantizes(layer, projection);
  if (matrices)
    matrices_on_device_ = plan.add_array<WeightMatrix>(Segment::device, "FP8 weights", "table of products", matrices);
}

WeightMatrix QuantizedWeights::matrix(int layer, Projection projection, const Tensor& source) const {
  const auto [OC, IC] = projection_shape(config_, projection);
  const Slot& slot = slots_[size_t(layer) % slots_.size()];
  const size_t at = layout_.offset(layout_.block_unit(layer), projection_name(projection));
  WeightMatrix m{};
  if (source.type == DType::uint8) m.q = source.as<uint8_t>() + at;
  else m.x = source.as<bf16>() + at;
  for (const bool columnwise : {false, true}) {
    QuantizedTensor& t = columnwise ? m.columnwise : m.rowwise;
    t = settings_.operand(Role::weight, columnwise, OC, IC);
    const Tensor& data = slot.data[int(projection)][columnwise];
    t.data = data ? data.as<uint8_t>() : source.as<uint8_t>() + at;
    t.scale_inv = slot.scale_inv[int(projection)][columnwise]->as<float>();
  }
  const auto maxima = [&](int kind, bool wanted) {
    return wanted ? maxima_->as<float>() + maxima_at_[kind][int(projection)] : nullptr;
  };
  m.amax = weight_amax_ ? weight_amax_.at(layer).as<float>() + int(projection)
                        : maxima(0, m.rowwise.per_tensor_scale() || m.columnwise.per_tensor_scale());
  m.row_amax = maxima(1, m.rowwise.has_row_scales());
  m.column_amax = maxima(2, m.columnwise.has_row_scales());
  m.tensor = fp8_tensor_id(layer, projection, Role::weight);
  m.number = nonfinite_code(m.tensor);
  return m;
}

void QuantizedWeights::prepare(Stream& stream, const Tensor& weight_amax, const std::function<Tensor(int)>& source) {
  weight_amax_ = weight_amax;
  for (int layer = 0; layer < config_.L; ++layer)
    for (const Projection projection : kEachProjection) {
      const bool here = settings_.quantizes(layer, projection);
      matrix_of_.push_back(here ? int(matrices_.size()) : -1);
      if (here) matrices_.push_back(matrix(layer, projection, source(layer)));
    }
  if (matrices_.empty()) return;
  place(matrices_);
  table_ = {matrices_.data(), matrices_on_device_, int(matrices_.size())};
  copy(stream, matrices_on_device_.get(), matrices_.data(), matrices_.size());
}

QuantizedWeight QuantizedWeights::get(int layer, Projection projection) const {
  const int i = matrix_of_[size_t(layer * kProjectionCount + int(projection))];
  if (i < 0) return {};
  return {matrices_[size_t(i)].rowwise, matrices_[size_t(i)].columnwise};
}

void QuantizedWeights::make(Stream& stream, int layer, bool amax_ready, const AllReduceMax& all_reduce_max) {
  const auto begin = matrix_of_.begin() + layer * kProjectionCount;
  const int count = int(std::count_if(begin, begin + kProjectionCount, [](int i) { return i >= 0; }));
  if (count == 0) return;
  const WeightMatrices block =
      table_.part(*std::find_if(begin, begin + kProjectionCount, [](int i) { return i >= 0; }), count);
  const Fp8ScaleRefs refs = scales_.weight_refs();
  const WeightScaleRefs common{refs.scale,           refs.amax_step,         refs.statistics,
                               scales_.not_finite(), settings_.power_of_two, refs.may_lack_scale};
  if (block.on_host[0].q) return transpose_gathered_weights(stream, block, common);
  if (!amax_ready && needs_amax(block, common)) {
    const Tensor maxima = weight_amax_ ? weight_amax_.at(layer) : *maxima_;
    clear(stream, maxima);
    quantize_amax(stream, block);
    if (weight_amax_) all_reduce_max(maxima);
  }
  ::quantize(stream, block, common);
}

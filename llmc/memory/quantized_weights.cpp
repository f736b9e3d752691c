#include "llmc/memory/quantized_weights.h"

#include <algorithm>

QuantizedWeights::QuantizedWeights(MemoryPlan& plan, const Fp8Settings& settings, const ModelConfig& config,
                                   const ParameterLayout& layout, Fp8Scales& scales, int slots,
                                   const std::function<bool(int)>& gathered)
    : settings_(settings), layout_(layout), scales_(scales), slots_(size_t(slots)) {
  const LayerProjection* made[kProjectionCount] = {};  // one that some block makes
  for (int slot = 0; slot < slots; ++slot)
    for (int which = 0; which < kProjectionCount; ++which) {
      const LayerProjection* wanted = nullptr;  // by a block that uses this slot
      bool made_here = false;
      for (int layer = slot; layer < config.L; layer += slots) {
        const LayerProjection* p = layout.projections.find(layer, Projection(which));
        if (!p || !settings.quantizes(*p)) continue;
        wanted = p;
        made_here = made_here || !gathered(layer);
      }
      if (made_here) made[which] = wanted;
      for (const bool columnwise : {false, true}) {
        if (!wanted) continue;
        const QuantizedTensor t = settings.operand(Role::weight, columnwise, wanted->OC, wanted->IC);
        const bool as_gathered = !columnwise && !made_here && t.bytes() == size_t(wanted->OC) * size_t(wanted->IC);
        const std::string name = format("%s of slot %d%s", wanted->name(), slot, columnwise ? ", transposed" : "");
        if (!as_gathered)
          slots_[size_t(slot)].data[which][columnwise] =
              plan.add(Segment::device, "FP8 weights", name, DType::uint8, {t.bytes()});
        slots_[size_t(slot)].scale_inv[which][columnwise] =
            plan.add(Segment::device, "FP8 weights", name + ", factors", DType::fp32, {t.scale_inv_count()});
      }
    }
  size_t maxima = 0;
  for (int which = 0; which < kProjectionCount; ++which) {
    if (!made[which]) continue;
    const auto [OC, IC] = std::pair(made[which]->OC, made[which]->IC);
    const QuantizedTensor w = settings.operand(Role::weight, false, OC, IC),
                          t = settings.operand(Role::weight, true, OC, IC);
    const size_t counts[] = {
        !settings.per_tensor_scale() && (w.per_tensor_scale() || t.per_tensor_scale()) ? size_t(1) : 0,
        w.has_row_scales() ? size_t(OC) : 0, t.has_row_scales() ? size_t(IC) : 0};
    for (int kind = 0; kind < 3; ++kind) maxima_at_[kind][which] = maxima, maxima += counts[kind];
  }
  if (maxima) maxima_ = plan.add(Segment::device, "FP8 scales", "largest weights of a block", DType::fp32, {maxima});
  size_t matrices = 0;
  for (const LayerProjection& p : layout.projections.all()) matrices += settings.quantizes(p);
  if (matrices)
    matrices_on_device_ = plan.add_array<WeightMatrix>(Segment::device, "FP8 weights", "table of products", matrices);
}

WeightMatrix QuantizedWeights::matrix(const LayerProjection& p, const Tensor& source) const {
  const Slot& slot = slots_[size_t(p.layer) % slots_.size()];
  const size_t at = layout_.offset(layout_.block_unit(p.layer), p.name());
  WeightMatrix m{};
  if (source.type == DType::uint8) m.q = source.as<uint8_t>() + at;
  else m.x = source.as<bf16>() + at;
  for (const bool columnwise : {false, true}) {
    QuantizedTensor& t = columnwise ? m.columnwise : m.rowwise;
    t = settings_.operand(Role::weight, columnwise, p.OC, p.IC);
    const Tensor& data = slot.data[int(p.which)][columnwise];
    t.data = data ? data.as<uint8_t>() : source.as<uint8_t>() + at;
    t.scale_inv = slot.scale_inv[int(p.which)][columnwise]->as<float>();
  }
  const auto maxima = [&](int kind, bool wanted) {
    return wanted ? maxima_->as<float>() + maxima_at_[kind][int(p.which)] : nullptr;
  };
  m.amax = weight_amax_ ? weight_amax_.as<float>() + p.index
                        : maxima(0, m.rowwise.per_tensor_scale() || m.columnwise.per_tensor_scale());
  m.row_amax = maxima(1, m.rowwise.has_row_scales());
  m.column_amax = maxima(2, m.columnwise.has_row_scales());
  m.tensor = p.id(Role::weight);
  m.number = nonfinite_code(p, Role::weight);
  return m;
}

void QuantizedWeights::prepare(Stream& stream, const Tensor& weight_amax, const std::function<Tensor(int)>& source) {
  weight_amax_ = weight_amax;
  for (const LayerProjection& p : layout_.projections.all()) {
    const bool here = settings_.quantizes(p);
    matrix_of_.push_back(here ? int(matrices_.size()) : -1);
    if (here) matrices_.push_back(matrix(p, source(p.layer)));
  }
  if (matrices_.empty()) return;
  place(matrices_);
  table_ = {matrices_.data(), matrices_on_device_, int(matrices_.size())};
  copy(stream, matrices_on_device_.get(), matrices_.data(), matrices_.size());
}

QuantizedWeight QuantizedWeights::get(const LayerProjection& p) const {
  const int i = matrix_of_[size_t(p.index)];
  if (i < 0) return {};
  return {matrices_[size_t(i)].rowwise, matrices_[size_t(i)].columnwise};
}

void QuantizedWeights::make(Stream& stream, int layer, bool amax_ready, const AllReduceMax& all_reduce_max) {
  const std::span<const LayerProjection> products = layout_.projections.of(layer);
  const auto begin = matrix_of_.begin() + products[0].index, end = begin + int(products.size());
  const int count = int(std::count_if(begin, end, [](int i) { return i >= 0; }));
  if (count == 0) return;
  const WeightMatrices block = table_.part(*std::find_if(begin, end, [](int i) { return i >= 0; }), count);
  const Fp8ScaleRefs refs = scales_.weight_refs();
  const WeightScaleRefs common{refs.scale,           refs.amax_step,         refs.statistics,
                               scales_.not_finite(), settings_.power_of_two, refs.may_lack_scale};
  if (block.on_host[0].q) return transpose_gathered_weights(stream, block, common);
  if (!amax_ready && needs_amax(block, common)) {
    const Tensor maxima = weight_amax_ ? weight_amax_.elements(products[0].index, int64_t(products.size())) : *maxima_;
    clear(stream, maxima);
    quantize_amax(stream, block);
    if (weight_amax_) all_reduce_max(maxima);
  }
  ::quantize(stream, block, common);
}

#include "llmc/memory/fp8_gather.h"

#include <algorithm>

#include "llmc/base/error.h"
#include "llmc/kernels/initialize.h"

Fp8Gather::Fp8Gather(MemoryPlan& plan, const Fp8Settings& settings, const ModelConfig& config,
                     const ParameterLayout& layout, const Placement& placement, Fp8Scales& scales, int slots,
                     Stream& gather_stream)
    : settings_(settings),
      config_(config),
      layout_(layout),
      placement_(placement),
      scales_(scales),
      gather_stream_(gather_stream),
      slots_(slots),
      part_size_(layout.part_size(layout.block_unit(0))),
      quantized_(size_t(config.L), false) {
  const Unit& block = layout.units[size_t(layout.block_unit(0))];
  size_t vectors = 0, widest = 0;
  for (const ParameterInfo& t : layout.tensors_of(layout.block_unit(0)))
    if (t.unquantized_index >= 0) ++vectors, widest = std::max(widest, t.size());
  widest = (widest + ParameterLayout::kAlignment - 1) / ParameterLayout::kAlignment * ParameterLayout::kAlignment;
  bytes_ = plan.add(Segment::symmetric, "gathered", "FP8 weights of blocks", DType::uint8, {slots, block.size});
  if (placement.front().needs_slot())
    own_ =
        plan.add(Segment::symmetric, "weights", "FP8 weights of blocks, a part", DType::uint8, {config.L, part_size_});
  spread_ = plan.add(Segment::symmetric, "gathered", "norms and biases on their way", DType::fp32,
                     {config.L, vectors, widest});
  vectors_ = plan.add(Segment::device, "gathered", "norms and biases", DType::bf16, {config.L, vectors, widest});
  size_t count = 0;
  for (int layer = 0; layer < config.L; ++layer)
    if (placed(layer).in_bytes) for_projection_slices(layer, [&](const LayerProjection&, size_t, size_t) { ++count; });
  if (count)
    stretches_on_device_ = plan.add_array<WeightSlice>(Segment::device, "FP8 weights", "table of stretches", count);
  rows_on_device_ =
      plan.add_array<RowRange>(Segment::device, "FP8 weights", "table of norms and biases", size_t(config.L) * vectors);
}

void Fp8Gather::prepare(const Tensor& weight_amax, const std::function<Tensor(int)>& own) {
  weight_amax_ = weight_amax;
  rows_.assign(rows_on_device_.count(), {nullptr, 0, 0});
  for (int layer = 0; layer < config_.L; ++layer) {
    first_stretch_.push_back(int(stretches_.size()));
    if (!placed(layer).in_bytes) continue;
    const bf16* weights = own(layer).as<bf16>();
    uint8_t* bytes = own_bytes(layer).as<uint8_t>();
    for_projection_slices(layer, [&](const LayerProjection& p, size_t at, size_t count) {
      stretches_.push_back({weights + at, bytes + at, count, weight_amax_.as<float>() + p.index, p.id(Role::weight),
                            nonfinite_code(p, Role::weight)});
    });
    const int unit = layout_.block_unit(layer);
    for (const Slice& piece : layout_.slices(unit, placed(layer).own.first, part_size_))
      if (const int index = piece.tensor->unquantized_index; index >= 0)
        rows_[size_t(layer) * size_t(vectors_->shape[2]) + size_t(index)] = {weights + piece.at, piece.first,
                                                                             piece.count};
  }
  first_stretch_.push_back(int(stretches_.size()));
  place(stretches_);
  row_table_ = {rows_.data(), rows_on_device_, int(rows_.size())};
  copy(gather_stream_, rows_on_device_.get(), rows_.data(), rows_.size());
  if (!stretches_.empty()) {  // else this rank's parts hold only norms and padding
    table_ = {stretches_.data(), stretches_on_device_, int(stretches_.size())};
    copy(gather_stream_, stretches_on_device_.get(), stretches_.data(), stretches_.size());
  }
  // Norms and padding are not quantized, but their bytes travel too.
  clear(gather_stream_, bytes_);
  if (own_) clear(gather_stream_, own_);
}

// Returns where this rank's part of a block lies before it is gathered. Stage 3 has a buffer for the parts; stages 1
// and 2 keep whole blocks, so the part lies in its place there.
Tensor Fp8Gather::own_bytes(int layer) const {
  if (own_) return own_->at(layer);
  return gathered(layer).elements(placed(layer).own.first, part_size_);
}

// Tensors of one product lie one behind the other, and only the first is sure to be aligned. So they form one range.
template <class F>
void Fp8Gather::for_projection_slices(int layer, F&& f) const {
  const int unit = layout_.block_unit(layer);
  const std::vector<Slice> pieces = layout_.slices(unit, placed(layer).own.first, part_size_);
  for (const LayerProjection& p : layout_.projections.of(layer)) {
    size_t begin = 0, end = 0;
    for (const Slice& piece : pieces) {
      if (piece.tensor->projection != &p) continue;
      if (end == 0) begin = piece.at;
      end = piece.at + piece.count;
    }
    if (end > begin) f(p, begin, end - begin);
  }
}

WeightSlices Fp8Gather::slices(int first, int count) const {
  const int begin = first_stretch_[size_t(first)], end = first_stretch_[size_t(first + count)];
  return table_.part(begin, end - begin);
}

// Computes the amaxes of the blocks' products over all ranks, unless the scales are known beforehand.
void Fp8Gather::find_scales(int first, int count) {
  if (!scales_.weight_refs().needs_amax()) return;
  const std::span<const LayerProjection> products = layout_.projections.of(first, count);
  const Tensor amax = weight_amax_.elements(products[0].index, int64_t(products.size()));
  if (!amax_ready_) {
    clear(gather_stream_, amax);
    if (slices(first, count).count) weight_amax(gather_stream_, slices(first, count));
  }
  placement_.front().group->all_reduce_max(gather_stream_, amax);
}

void Fp8Gather::quantize(int first, int count) {
  const Fp8ScaleRefs refs = scales_.weight_refs();
  if (slices(first, count).count)
    ::quantize(gather_stream_, slices(first, count),
               {refs.scale, refs.amax_step, refs.statistics, scales_.weights_not_finite(), settings_.power_of_two,
                refs.may_lack_scale});
  std::fill_n(quantized_.begin() + first, count, true);
}

void Fp8Gather::changed() {
  quantized_.assign(quantized_.size(), settings_.precompute_scales);
  vectors_gathered_ = false;
}

void Fp8Gather::updated(bool amax_ready) {
  amax_ready_ = amax_ready;
  changed();
  if (!settings_.precompute_scales) return;
  find_scales(0, config_.L);
  quantize(0, config_.L);
}

void Fp8Gather::gather(int layer) {
  if (!quantized_[size_t(layer)]) {
    find_scales(layer, 1);
    quantize(layer, 1);
  }
  if (!vectors_gathered_) gather_vectors();
  placed(layer).group->gather.all_gather(gather_stream_, gathered(layer), own_bytes(layer));
}

void Fp8Gather::gather_vectors() {
  scatter_rows(gather_stream_, spread_->first({row_table_.count, spread_->columns()}), row_table_);
  placement_.front().group->gather.all_reduce_sum(gather_stream_, spread_);
  cast(gather_stream_, vectors_, spread_);
  vectors_gathered_ = true;
}

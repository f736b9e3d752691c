#include "llmc/memory/fp8_gather.h"

#include <algorithm>
#include <cstring>

#include "llmc/base/error.h"
#include "llmc/kernels/initialize.h"

Fp8Gather::Fp8Gather(MemoryPlan& plan, const Fp8Settings& settings, const LlamaConfig& config,
                     const ParameterLayout& layout, const Sharding& sharding, Fp8Scales& scales, int slots,
                     Stream& communication)
    : settings_(settings),
      config_(config),
      layout_(layout),
      sharding_(sharding),
      scales_(scales),
      communication_(communication),
      slots_(slots),
      block_size_(layout.units[size_t(layout.block_unit(0))].size),
      part_size_(layout.part_size(layout.block_unit(0))),
      norm_stride_((size_t(config.C) + ParameterLayout::kAlignment - 1) / ParameterLayout::kAlignment *
                   ParameterLayout::kAlignment),
      quantized_(size_t(config.L), false) {
  const size_t L = size_t(config.L);
  planned_bytes_ =
      plan.add<uint8_t>(Segment::symmetric, "gathered", "FP8 weights of blocks", size_t(slots) * block_size_);
  if (sharding.stage == 3)
    planned_own_ = plan.add<uint8_t>(Segment::symmetric, "weights", "FP8 weights of blocks, a part", L * part_size_);
  planned_spread_ = plan.add<float>(Segment::symmetric, "gathered", "norms on their way", L * 2 * norm_stride_);
  planned_norms_ = plan.add<bf16>(Segment::device, "gathered", "norms", L * 2 * norm_stride_);
  size_t count = 0;
  for (int layer = 0; layer < config.L; ++layer)
    if (takes(layer)) for_product_stretches(layer, [&](Product, size_t, size_t) { ++count; });
  if (count) planned_stretches_ = plan.add<WeightRange>(Segment::device, "FP8 weights", "table of stretches", count);
  planned_rows_ = plan.add<RowStretch>(Segment::device, "FP8 weights", "table of norms", L * 2);
}

void Fp8Gather::bind(const Arena& arena, float* largest, const std::function<const bf16*(int)>& own) {
  largest_ = largest;
  bytes_ = arena[planned_bytes_];
  if (planned_own_.count) own_ = arena[planned_own_];
  spread_ = arena[planned_spread_];
  norms_ = arena[planned_norms_];
  rows_.assign(size_t(config_.L) * 2, {nullptr, 0, 0});
  for (int layer = 0; layer < config_.L; ++layer) {
    first_stretch_.push_back(int(stretches_.size()));
    if (!takes(layer)) continue;
    for_product_stretches(layer, [&](Product product, size_t at, size_t count) {
      const int number = fp8_tensor_id(layer, product, Role::weight);
      stretches_.push_back({own(layer) + at, own_bytes(layer) + at, count, largest_ + layer * kProducts + int(product),
                            number, nonfinite_code(number)});
    });
    const int unit = layout_.block_unit(layer);
    for (const ParameterSlice& piece : layout_.slices(unit, sharding_.part(layout_, unit), part_size_))
      if (!piece.tensor->row->fp8) {
        const bool second = strcmp(piece.tensor->row->product, "norm2") == 0;
        rows_[size_t(2 * layer + second)] = {own(layer) + piece.at, piece.first, piece.count};
      }
  }
  first_stretch_.push_back(int(stretches_.size()));
  place(stretches_);
  row_table_ = {rows_.data(), arena[planned_rows_], int(rows_.size())};
  copy(communication_, arena[planned_rows_], rows_.data(), rows_.size());
  if (!stretches_.empty()) {  // else this rank's parts hold only norms and padding
    table_ = {stretches_.data(), arena[planned_stretches_], int(stretches_.size())};
    copy(communication_, arena[planned_stretches_], stretches_.data(), stretches_.size());
  }
  // Norms and padding are not quantized, but their bytes travel too.
  clear(communication_, bytes_, planned_bytes_.count);
  if (own_) clear(communication_, own_, planned_own_.count);
}

// Returns where this rank's part of a block lies before it is gathered. Stage 3 has a buffer for the parts; stages 1
// and 2 keep whole blocks, so the part lies in its place there.
uint8_t* Fp8Gather::own_bytes(int layer) const {
  return own_ ? own_ + size_t(layer) * part_size_ : bytes(layer) + sharding_.part(layout_, layout_.block_unit(layer));
}

// Tensors of one product lie one behind the other, and only the first is sure to be aligned. So they form one range.
template <class F>
void Fp8Gather::for_product_stretches(int layer, F&& f) const {
  const int unit = layout_.block_unit(layer);
  const std::vector<ParameterSlice> pieces = layout_.slices(unit, sharding_.part(layout_, unit), part_size_);
  for (const Product product : kEachProduct) {
    size_t begin = 0, end = 0;
    for (const ParameterSlice& piece : pieces) {
      if (strcmp(piece.tensor->row->product, product_name(product)) != 0) continue;
      if (end == 0) begin = piece.at;
      end = piece.at + piece.count;
    }
    if (end > begin) f(product, begin, end - begin);
  }
}

WeightStretches Fp8Gather::stretches(int first, int count) const {
  const int begin = first_stretch_[size_t(first)], end = first_stretch_[size_t(first + count)];
  return table_.part(begin, end - begin);
}

// Computes the amaxes of the blocks' products over all ranks, unless the scales are known beforehand.
void Fp8Gather::find_scales(int first, int count) {
  if (!scales_.weight_words().needs_amax()) return;
  float* largest = largest_ + first * kProducts;
  if (!found_) {
    clear(communication_, largest, size_t(count * kProducts));
    if (stretches(first, count).count) weight_amax(communication_, stretches(first, count));
  }
  sharding_.all_reduce_max(communication_, largest, size_t(count * kProducts));
}

void Fp8Gather::quantize(int first, int count) {
  const Fp8ScaleRefs words = scales_.weight_words();
  if (stretches(first, count).count)
    ::quantize(communication_, stretches(first, count),
               {words.scale, words.seen, words.statistics, scales_.weights_not_finite(), settings_.power_of_two,
                words.may_lack_scale});
  std::fill_n(quantized_.begin() + first, count, true);
}

void Fp8Gather::changed() {
  quantized_.assign(quantized_.size(), settings_.precompute_scales);
  norms_gathered_ = false;
}

void Fp8Gather::updated(bool found) {
  found_ = found;
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
  if (!norms_gathered_) gather_norms();
  sharding_.gather.all_gather(communication_, bytes(layer), own_bytes(layer), part_size_);
}

void Fp8Gather::gather_norms() {
  scatter_rows(communication_, spread_, norm_stride_, row_table_);
  sharding_.gather.all_reduce_sum(communication_, spread_, planned_spread_.count);
  const int64_t count = int64_t(planned_spread_.count);
  cast(communication_, Tensor(norms_, {count}), Tensor(spread_, {count}));
  norms_gathered_ = true;
}

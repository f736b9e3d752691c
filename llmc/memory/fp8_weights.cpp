#include "llmc/memory/fp8_weights.h"

#include <algorithm>

#include "llmc/base/error.h"
#include "llmc/kernels/initialize.h"

// ---------------------------------------------------------------------------------------------- memory

Fp8Weights::Fp8Weights(MemoryPlan& plan, const ParameterLayout& layout, const Placement& placement, Fp8Scales& scales,
                       int slots, size_t chunk, Stream& compute, Stream& gather_stream)
    : settings_(scales.settings()),
      layout_(layout),
      placement_(placement),
      scales_(scales),
      layers_(layout.layers()),
      slots_(slots ? slots : layout.layers()),
      in_turn_(slots > 0),
      on_host_(placement.front().weights_on_host),
      chunk_(on_host_ ? chunk : SIZE_MAX),
      compute_(compute),
      gather_stream_(gather_stream),
      computed_(compute.device()),
      agreed_(compute.device()),
      quantized_(size_t(layers_), false) {
  for (int layer = 0; layer < layers_; ++layer) {
    matrices_.begin_block();
    for (const LayerProjection& p : layout.projections.of(layer))
      if (settings_.quantizes(p)) add_matrix(p);
  }
  matrices_.begin_block();
  plan_operands(plan);
  if (settings_.per_tensor_scale())
    weight_amax_ =
        plan.add(Segment::symmetric, "FP8 scales", "largest weights", DType::fp32, {layout.projections.count()});
  plan_gathers(plan);
}

// Adds a matrix to the table, without its memory. The tensors that form it are contiguous, and only the first one is
// sure to be aligned.
void Fp8Weights::add_matrix(const LayerProjection& p) {
  const bool in_bytes = placed(p.layer).in_bytes;
  WeightMatrix m{};
  m.rowwise = settings_.operand(Role::weight, false, p.OC, p.IC);
  m.columnwise = settings_.operand(Role::weight, true, p.OC, p.IC);
  m.tensor_id = p.id(Role::weight);
  m.nonfinite_code = nonfinite_code(p.id(Role::weight), Role::weight);
  matrices_.entries.push_back(m);
  const Shard all{layout_.offset(layout_.block_unit(p.layer), p.name()), size_t(p.OC) * size_t(p.IC)},
      &part = placed(p.layer).weights;
  const size_t first = std::max(all.first, part.first), end = std::min(all.end(), part.end());
  locations_.push_back({&p, all.first, {first, end > first ? end - first : 0}});

  for (const bool columnwise : {false, true}) {
    const QuantizedTensor& t = columnwise ? m.columnwise : m.rowwise;
    SlotOperand& o = operands_[{operand_slot(p.layer), p.which, columnwise}];
    o.most_scale_inv = std::max(o.most_scale_inv, t.scale_inv_count());
    // Gathered bytes are the operand themselves, unless it is padded.
    if (columnwise || !in_bytes || t.bytes() != all.count) o.most_bytes = std::max(o.most_bytes, t.bytes());
  }
  any_whole_ = any_whole_ || !in_bytes;
}

// Returns how many amaxes of a matrix block_amax_ holds.
size_t Fp8Weights::amax_count(const WeightMatrix& m) const {
  const bool one_scale = m.rowwise.per_tensor_scale() || m.columnwise.per_tensor_scale();
  return size_t(one_scale && !settings_.per_tensor_scale()) + size_t(m.rowwise.has_row_scales() ? m.rowwise.rows : 0) +
         size_t(m.columnwise.has_row_scales() ? m.columnwise.rows : 0);
}

void Fp8Weights::plan_operands(MemoryPlan& plan) {
  for (auto& [key, o] : operands_) {
    const auto [slot, projection, columnwise] = key;
    const std::string name =
        format("%s of slot %d%s", kProjections[int(projection)].name, slot, columnwise ? ", transposed" : "");
    if (o.most_bytes) o.data = plan.add(Segment::device, "FP8 weights", name, DType::uint8, {o.most_bytes});
    o.scale_inv = plan.add(Segment::device, "FP8 weights", name + ", factors", DType::fp32, {o.most_scale_inv});
  }
  size_t amaxes = 0;
  for (int which = 0; which < kProjectionCount; ++which) {
    size_t most = 0;
    for (size_t i = 0; i < locations_.size(); ++i)
      if (int(locations_[i].projection->which) == which) most = std::max(most, amax_count(matrices_.entries[i]));
    block_amax_at_[which] = amaxes, amaxes += most;
  }
  if (amaxes)
    block_amax_ = plan.add(Segment::device, "FP8 scales", "largest weights of a block", DType::fp32, {amaxes});
  matrices_.plan(plan, "table of products", matrices_.entries.size());
}

void Fp8Weights::plan_gathers(MemoryPlan& plan) {
  size_t largest = 0, largest_part = 0, unquantized = 0, widest = 0, slices = 0, longest = 0;
  for (int layer = 0; layer < layers_; ++layer) {
    if (!placed(layer).in_bytes) continue;
    largest = std::max(largest, placed(layer).whole.count);
    largest_part = std::max(largest_part, placed(layer).weights.count);
    for (const ParameterInfo& t : layout_.tensors_of(layout_.block_unit(layer)))
      if (const int index = t.unquantized_index; index >= 0)
        unquantized = std::max(unquantized, size_t(index) + 1), widest = std::max(widest, t.size());
  }
  if (largest == 0) return;
  for (const MatrixLocation& at : locations_) {
    if (!placed(at.projection->layer).in_bytes || !at.own.count) continue;
    slices += (at.own.count - 1) / chunk_ + 1;
    longest = std::max(longest, std::min(at.own.count, chunk_));
  }
  widest = (widest + ParameterLayout::kAlignment - 1) / ParameterLayout::kAlignment * ParameterLayout::kAlignment;
  const TensorShape shape{layers_, unquantized, widest};
  bytes_ = plan.add(Segment::symmetric, "gathered", "FP8 weights of blocks", DType::uint8, {slots_, largest});
  if (in_turn_)
    own_ = plan.add(on_host_ ? Segment::pinned : Segment::symmetric, "weights", "FP8 weights of blocks, a part",
                    DType::uint8, {layers_, largest_part});
  if (on_host_) {
    staged_ = plan.add(Segment::device, "gathered", "weights on their way to FP8", DType::bf16, {longest});
    staged_unquantized_ = plan.add(Segment::device, "gathered", "norms and biases, a part", DType::bf16, shape);
  }
  unquantized_sums_ = plan.add(Segment::symmetric, "gathered", "norms and biases on their way", DType::fp32, shape);
  unquantized_ = plan.add(Segment::device, "gathered", "norms and biases", DType::bf16, shape);
  slices_.plan(plan, "table of stretches", slices);
  unquantized_slices_.plan(plan, "table of norms and biases", size_t(layers_) * unquantized);
}

void Fp8Weights::prepare(const std::function<Tensor(int)>& weights) {
  if (weight_amax_)
    clear(compute_, weight_amax_);  // an all-reduce also reads those of products in bf16, which nobody writes
  unquantized_slices_.entries.resize(unquantized_slices_.on_device.count());
  for (int layer = 0; layer < layers_; ++layer) {
    slices_.begin_block();
    for (size_t i = size_t(matrices_.first[size_t(layer)]); i < size_t(matrices_.first[size_t(layer) + 1]); ++i)
      fill(matrices_.entries[i], locations_[i], weights(layer));
    if (placed(layer).in_bytes) fill_unquantized(layer, weights(layer));
  }
  slices_.begin_block();
  assign_tiles(matrices_.entries);
  assign_blocks(slices_.entries);
  unquantized_slices_.send(gather_stream_);
  slices_.send(gather_stream_);
  // Norms and padding are not quantized, but their bytes are gathered, too.
  if (bytes_) clear(gather_stream_, bytes_);
  if (own_ && !on_host_) clear(gather_stream_, own_);
  if (staged_unquantized_) clear(gather_stream_, staged_unquantized_);  // a rank sets its elements alone
  matrices_.send(compute_);
}

// Enters the memory of a matrix into the table, and its slice in this rank's part of the block.
void Fp8Weights::fill(WeightMatrix& m, const MatrixLocation& at, const Tensor& weights) {
  const LayerProjection& p = *at.projection;
  const bool in_bytes = placed(p.layer).in_bytes;
  uint8_t* const gathered = in_bytes ? this->gathered(p.layer).as<uint8_t>() + at.first : nullptr;
  m.q = gathered;
  m.x = in_bytes ? nullptr : weights.as<bf16>() + at.first;
  for (const bool columnwise : {false, true}) {
    const OperandMemory memory = operands_.at({operand_slot(p.layer), p.which, columnwise}).memory();
    QuantizedTensor& t = columnwise ? m.columnwise : m.rowwise;
    t.data = memory.data ? memory.data : gathered, t.scale_inv = memory.scale_inv;
  }
  float* amax = block_amax_->as<float>() + block_amax_at_[int(p.which)];
  if (weight_amax_) m.amax = weight_amax_->as<float>() + p.index;
  else if (m.rowwise.per_tensor_scale() || m.columnwise.per_tensor_scale()) m.amax = amax++;
  if (m.rowwise.has_row_scales()) m.row_amax = amax, amax += m.rowwise.rows;
  if (m.columnwise.has_row_scales()) m.column_amax = amax;
  if (!in_bytes || !at.own.count) return;
  const size_t begin = at.own.first - placed(p.layer).weights.first;
  for (size_t done = 0, n; done < at.own.count; done += n) {
    n = std::min(chunk_, at.own.count - done);
    const bf16* const from = weights.as<bf16>() + begin + done;
    slices_.entries.push_back({on_host_ ? staged_->as<bf16>() : from, own_bytes(p.layer).as<uint8_t>() + begin + done,
                               n, m.amax, m.tensor_id, m.nonfinite_code});
    if (on_host_) slice_sources_.push_back(from);
  }
}

// Enters this rank's elements of the weights that are not quantized.
void Fp8Weights::fill_unquantized(int layer, const Tensor& own) {
  const Shard& part = placed(layer).weights;
  RowRange* const rows = unquantized_slices_.entries.data() + size_t(layer) * size_t(unquantized_->at(0).rows());
  for (const Slice& slice : layout_.slices(layout_.block_unit(layer), part.first, part.count))
    if (const int index = slice.tensor->unquantized_index; index >= 0) {
      rows[index] = {own.as<bf16>() + slice.at, slice.first, slice.count};
      if (!on_host_) continue;
      const Tensor staged = staged_unquantized_->at(layer).at(index).elements(0, int64_t(slice.count));
      unquantized_sources_.push_back({staged, own.elements(int64_t(slice.at), int64_t(slice.count))});
      rows[index].x = staged.as<bf16>();
    }
}

Tensor Fp8Weights::gathered(int layer) const {
  return bytes_->at(layer % slots_).elements(0, int64_t(placed(layer).whole.count));
}

// Returns where this rank's part of a block lies on the device before it is gathered.
Tensor Fp8Weights::own_bytes(int layer) const {
  const Shard& own = placed(layer).weights;
  return own_ && !on_host_ ? own_->at(layer).elements(0, own.count) : gathered(layer).elements(own.first, own.count);
}

QuantizedWeight Fp8Weights::get(const LayerProjection& p) const {
  const WeightMatrices block = matrices_.blocks(p.layer, 1);
  for (const WeightMatrix* m = block.on_host; m < block.on_host + block.count; ++m)
    if (m->tensor_id == p.id(Role::weight)) return {m->rowwise, m->columnwise};
  return {};
}

// ---------------------------------------------------------------------------------------------- quantization

// Returns the amaxes of the matrices of blocks first .. first+count-1, if a tensor has one scale.
Tensor Fp8Weights::amax_of(int first, int count) const {
  const std::span<const LayerProjection> products = layout_.projections.of(first, count);
  return weight_amax_->elements(products.empty() ? 0 : products[0].index, int64_t(products.size()));
}

bool Fp8Weights::gather_stream_reads_update(bool amax_ready) const {
  bool any_part = false;
  for (int layer = 0; layer < layers_; ++layer) any_part = any_part || placed(layer).updates_part();
  return any_part && ((amax_ready && any_whole_) || bytes_);
}

void Fp8Weights::updated(bool amax_ready) {
  amax_ready_ = amax_ready;
  changed();
  // A rank that updates the whole unit has the amaxes of all that it holds, so only the tensor-parallel ranks compare
  // theirs. Otherwise a rank has the amaxes of its own part, and the ranks that shard compare, too.
  for_groups(0, layers_, [&](int first, int count, const UnitPlacement& p) {
    if (amax_ready && !p.updates_part()) all_reduce_max_over_tensor_ranks(p, amax_of(first, count));
    else if (amax_ready && any_whole_) p.group->all_reduce_max_over_parts(gather_stream_, amax_of(first, count));
  });
  if (bytes_ && precomputes()) quantize_own(0, layers_);
}

void Fp8Weights::changed() {
  // If updated(), or the graph that repeats it, quantizes all blocks at once, no gather has to.
  quantized_.assign(quantized_.size(), precomputes());
  unquantized_gathered_ = false;
}

void Fp8Weights::make_operands(int layer) {
  const WeightMatrices block = matrices_.blocks(layer, 1);
  if (block.count == 0) return;
  const WeightScaleRefs refs = scales_.weight_refs(scales_.not_finite());
  if (placed(layer).in_bytes) return transpose_gathered_weights(compute_, block, refs);
  if (!amax_ready_ && needs_amax(block, refs)) {
    const Tensor amax = weight_amax_ ? amax_of(layer, 1) : *block_amax_;
    clear(compute_, amax);
    quantize_amax(compute_, block);
    if (weight_amax_) all_reduce_max_over_tensor_ranks(placed(layer), amax);
  }
  quantize(compute_, block, refs);
}

// amax = the maximum over the ranks of a tensor-parallel group, each of which has a part of each matrix. Compute waits
// for it.
void Fp8Weights::all_reduce_max_over_tensor_ranks(const UnitPlacement& p, const Tensor& amax) {
  Communicator* const ranks = p.group->tp_gather;
  if (!ranks) return;
  computed_.record(compute_);
  gather_stream_.wait(computed_);
  ranks->all_reduce_max(gather_stream_, amax);
  agreed_.record(gather_stream_);
  compute_.wait(agreed_);
}

// ---------------------------------------------------------------------------------------------- gathers of bytes

// Quantizes this rank's parts of blocks first .. first+count-1. Unless the scales are known beforehand, the ranks agree
// on the amaxes of the matrices.
void Fp8Weights::quantize_own(int first, int count) {
  const WeightScaleRefs refs = scales_.weight_refs(scales_.weights_not_finite());
  const WeightSlices slices = slices_.blocks(first, count);
  if (refs.needs_amax()) {
    const auto for_parts = [&](auto&& f) {
      for_groups(first, count, [&](int from, int n, const UnitPlacement& p) {
        if (p.updates_part() || p.in_bytes) f(*p.group, amax_of(from, n));
      });
    };
    if (!amax_ready_) {
      for_parts([&](const ShardGroup&, const Tensor& amax) { clear(gather_stream_, amax); });
      for_slices(slices, [&](const WeightSlices& some) { find_weight_amax(gather_stream_, some); });
    }
    for_parts(
        [&](const ShardGroup& group, const Tensor& amax) { group.all_reduce_max_over_parts(gather_stream_, amax); });
  }
  for_slices(slices, [&](const WeightSlices& some) { quantize(gather_stream_, some, refs); });
  std::fill_n(quantized_.begin() + first, count, true);
}

// Calls f with slices whose weights are on the device: with all of them at once, or, of weights on the host, with one
// after the other.
template <class F>
void Fp8Weights::for_slices(const WeightSlices& slices, F&& f) {
  if (!slices.count) return;
  if (!on_host_) return f(slices);
  const bf16* const* const from = slice_sources_.data() + (slices.on_host - slices_.entries.data());
  for (int i = 0; i < slices.count; ++i) {
    copy(gather_stream_, staged_->as<bf16>(), from[i], slices.on_host[i].count);
    f(slices.part(i, 1));
  }
}

void Fp8Weights::gather(int layer) {
  const UnitPlacement& p = placed(layer);
  const Tensor own = own_bytes(layer);
  const bool quantized = quantized_[size_t(layer)];
  if (!quantized) quantize_own(layer, 1);
  if (on_host_) {
    const Tensor kept = own_->at(layer).elements(0, own.size());
    if (quantized) copy(gather_stream_, own, kept);
    else copy(gather_stream_, kept, own);
  }
  if (!unquantized_gathered_) gather_unquantized();
  if (p.weights != p.whole) p.group->gather.all_gather(gather_stream_, gathered(layer), own);
}

void Fp8Weights::gather_unquantized() {
  const std::vector<RowRange>& rows = unquantized_slices_.entries;
  const DeviceTable<RowRange> table{rows.data(), unquantized_slices_.on_device, int(rows.size())};
  for (const auto& [to, from] : unquantized_sources_) copy(gather_stream_, to, from);
  scatter_rows(gather_stream_, unquantized_sums_->first({table.count, unquantized_sums_->columns()}), table);
  for_groups(0, layers_, [&](int first, int count, const UnitPlacement& p) {
    const int64_t each = unquantized_sums_->size() / layers_;
    if (p.weights != p.whole)
      p.group->gather.all_reduce_sum(gather_stream_, unquantized_sums_->elements(first * each, count * each));
  });
  cast(gather_stream_, unquantized_, unquantized_sums_);
  unquantized_gathered_ = true;
}

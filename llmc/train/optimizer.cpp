#include "llmc/train/optimizer.h"

#include "llmc/base/philox.h"
#include "llmc/device/number.h"

namespace {

AdamWAmax words_of(const Tensor& amax) { return {amax.as<float>(), size_t(amax.size())}; }

}  // namespace

Optimizer::Optimizer(MemoryPlan& plan, const ParameterLayout& layout, const Placement& placement, OptimizerState& state,
                     AdamWConstants constants, float weight_decay, uint64_t seed, const Fp8Settings& fp8,
                     Device& device, Stream& compute, Stream& reduce_stream)
    : layout_(layout),
      placement_(placement),
      state_(state),
      constants_(constants),
      seed_(seed),
      compute_(compute),
      reduce_stream_(reduce_stream),
      squared_(device),
      summed_(device) {
  const int units = int(layout.units.size());
  if (updates_contiguous(placement)) add_span(0, units, weight_decay, fp8);
  else
    for (int unit = 0; unit < units; ++unit) add_span(unit, unit + 1, weight_decay, fp8);
  for (int unit = 0; unit < units; ++unit) plan_squares(unit);
  ranges_on_device_ =
      plan.add_array<AdamWRange>(Segment::device, "optimizer", "weight decay of each range", ranges_.size());
  progress_ = plan.add_array<UpdateProgress>(Segment::device, "state", "updates made", 1);
  partials_ = plan.add(Segment::device, "scratch", "partial norms", DType::fp64, {partials_count_});
}

// Lists the stretches of this rank's part whose squares it adds to the gradient norm. Tensors replicated over the
// tensor-parallel group are counted by one rank only.
void Optimizer::plan_squares(int unit) {
  const Shard& own = placement_[size_t(unit)].own;
  std::vector<Squared>& stretches = squared_stretches_.emplace_back();
  const auto add = [&](size_t begin, size_t end) {
    if (begin >= end) return;
    stretches.push_back({begin, end - begin, partials_count_});
    partials_count_ += global_norm_partials(end - begin);
  };
  size_t begin = 0;
  for (const Slice& piece : layout_.slices(unit, own.first, own.count)) {
    if (piece.tensor->copy == 0) continue;
    add(begin, piece.at);
    // Such a tensor is followed by another one or by padding of zeros, so the next stretch can begin 16-byte aligned.
    begin = (piece.at + piece.count + 3) / 4 * 4;
  }
  add(begin, own.count);
}

// Adjacent tensors with the same decay, whose amax goes to the same word, form one range together with the padding
// between them. With stochastic rounding each piece of a tensor is a range of its own, because each tensor has its own
// random numbers.
void Optimizer::add_span(int first_unit, int end_unit, float weight_decay, const Fp8Settings& fp8) {
  Span span{first_unit, end_unit - first_unit, 0, int(ranges_.size()), 0};
  std::vector<AdamWRange> ranges;
  for (int unit = first_unit; unit < end_unit; ++unit) {
    const Shard& shard = placement_[size_t(unit)].state;
    for (const Slice& piece : layout_.slices(unit, shard.first, shard.count)) {
      const float decay = piece.tensor->is_matrix() ? weight_decay : 0.0f;
      const int amax = fp8.weight_amax_index(piece.tensor->projection);
      const size_t begin = span.count + piece.at;
      if (state_.rounds())
        ranges.push_back({begin, 0, decay, philox_key(piece.tensor->name, seed_), piece.window(), amax});
      else if (ranges.empty() || ranges.back().weight_decay != decay || ranges.back().amax != amax)
        ranges.push_back({begin, 0, decay, 0, {}, amax});
      ranges.back().count = begin + piece.count - ranges.back().begin;
    }
    span.count += shard.count;
  }
  if (ranges.empty()) return;  // nothing but padding
  require_ranges(ranges, span.count);
  span.ranges = int(ranges.size());
  ranges_.insert(ranges_.end(), ranges.begin(), ranges.end());
  spans_.push_back(span);
}

void Optimizer::reset(int64_t updates) {
  for (const StateKind kind : {StateKind::first_moments, StateKind::second_moments})
    for (int unit = 0; unit < int(layout_.units.size()); ++unit)
      state_.set(kind, unit, placement_[size_t(unit)].state, [&](const Tensor& to, size_t) { clear(compute_, to); });
  copy(compute_, ranges_on_device_.get(), ranges_.data(), ranges_.size());
  const UpdateProgress progress{updates, 0};
  copy(compute_, progress_.get(), &progress, 1);
  compute_.synchronize();
}

// Each rank squares its own part of the units in every ZeRO stage, so that all stages give the same bits.
void Optimizer::square_gradients(Stream& stream, int unit, const Tensor& part) {
  for (const Squared& s : squared_stretches_[size_t(unit)])
    global_norm_squares(stream, partials_->elements(s.partials, global_norm_partials(s.count)),
                        part.elements(s.at, s.count));
}

void Optimizer::square_sum(StepState* state) {
  global_norm_sum(compute_, Tensor(&state->square_sum, {1}), partials_);
  const ShardGroup& group = *placement_.front().group;
  if (group.degree() == 1 && !group.tp_reduce) return;
  squared_.record(compute_);
  reduce_stream_.wait(squared_);
  if (group.degree() > 1) group.reduce.all_reduce_sum(reduce_stream_, &state->square_sum, 1);
  if (group.tp_reduce) group.tp_reduce->all_reduce_sum(reduce_stream_, &state->square_sum, 1);
  summed_.record(reduce_stream_);
  compute_.wait(summed_);
}

void Optimizer::update(const Span& span, const Tensor& gradients, const Tensor& weights, const StepState* state,
                       AdamWAmax amax) {
  std::vector<SweepOperand> operands;
  for (const StateKind kind : kStateKinds)
    operands.push_back(state_.operand(kind, span.first_unit, size_t(gradients.size())));
  operands.push_back(state_.gradient_operand(gradients));
  state_.sweep().run(operands, [&](std::span<const Tensor> here, size_t first) {
    const Tensor &master = here[0], &m = here[1], &v = here[2], &g = here[3], own = weights.elements(first, g.size());
    adamw(compute_, master ? master : own, m, v, master ? own : Tensor(), g, state,
          ranges_on_device_ + span.first_range, span.ranges, first, constants_, amax);
  });
}

void Optimizer::begin_step(const ParameterStore& parameters, StepState* state) {
  square_sum(state);
  global_norm_finish(compute_, state, Tensor(&state->square_sum, {1}),
                     {progress_, constants_, words_of(parameters.weight_amax())});
}

void Optimizer::step(const GradientStore& gradients, ParameterStore& parameters, StepState* state) {
  const Tensor amax = parameters.weight_amax();
  state_.sweep().begin();
  for (const Span& span : spans_)
    update(span, gradients.reduced_shard(span.first_unit, span.units),
           parameters.local_shard(span.first_unit, span.units), state, words_of(amax));
  parameters.updated(bool(amax));
}

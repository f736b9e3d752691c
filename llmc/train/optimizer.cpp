#include "llmc/train/optimizer.h"

#include "llmc/base/philox.h"
#include "llmc/device/number.h"

namespace {

AdamWAmax words_of(const Tensor& amax) { return {amax.as<float>(), size_t(amax.size())}; }

}  // namespace

Optimizer::Optimizer(MemoryPlan& plan, const ParameterLayout& layout, const Placement& placement, OptimizerState& state,
                     const OptimizerSettings& settings, const Fp8Settings& fp8, Stream& compute, Stream& reduce_stream)
    : layout_(layout),
      placement_(placement),
      state_(state),
      constants_{settings.beta1, settings.beta2, settings.eps},
      compute_(compute),
      reduce_stream_(reduce_stream),
      partials_done_(compute.device()),
      summed_(compute.device()) {
  add_runs(settings, fp8);
  for (int unit = 0; unit < int(layout.units.size()); ++unit) plan_squares(unit);
  ranges_on_device_ =
      plan.add_array<AdamWRange>(Segment::device, "optimizer", "weight decay of each range", ranges_.size());
  progress_ = plan.add_array<UpdateProgress>(Segment::device, "state", "updates made", 1);
  partials_ = plan.add(Segment::device, "scratch", "partial norms", DType::fp64, {partials_count_});
}

// Lists the elements of this rank's part whose squares it adds to the gradient norm. Tensors replicated over the
// tensor-parallel group are counted by one rank only.
void Optimizer::plan_squares(int unit) {
  const Shard& own = placement_[size_t(unit)].own;
  std::vector<Squared>& squared = squared_.emplace_back();
  const auto add = [&](size_t begin, size_t end) {
    if (begin >= end) return;
    squared.push_back({begin, end - begin, partials_count_});
    partials_count_ += global_norm_partials(end - begin);
  };
  size_t begin = 0;
  for (const Slice& slice : layout_.slices(unit, own.first, own.count)) {
    if (slice.tensor->copy == 0) continue;
    add(begin, slice.at);
    // The squares of another copy are left out. What follows is another such tensor or padding of zeros, so the next
    // interval can begin 16-byte aligned.
    begin = (slice.at + slice.count + 3) / 4 * 4;
  }
  add(begin, own.count);
}

// AdamW updates the tensors that have a second moment.
void Optimizer::add_runs(const OptimizerSettings& settings, const Fp8Settings& fp8) {
  const bool contiguous = updates_contiguous(placement_);
  size_t end = 0;  // of the last run, in a buffer of all elements that this rank updates
  for (const auto& [unit, shard, _] : state_.shards(StateKind::second_moment).entries()) {
    const size_t at = state_.shards(StateKind::master).at(unit, shard);
    if (runs_.empty() || !contiguous || at != end) runs_.push_back({unit, {shard.first, 0}, int(ranges_.size()), 0});
    Run& run = runs_.back();
    add_ranges(run, unit, shard, settings, fp8);
    run.elements.count += shard.count, run.ranges = int(ranges_.size()) - run.first_range;
    end = at + shard.count;
  }
  std::erase_if(runs_, [](const Run& run) { return run.ranges == 0; });  // nothing but padding
  for (const Run& run : runs_)
    require_ranges({ranges_.begin() + run.first_range, ranges_.begin() + run.first_range + run.ranges},
                   run.elements.count);
}

// Adds a shard to the ranges of a run. The weight decay applies to matrices; norms have none. Adjacent tensors with the
// same decay, whose amax goes to the same word, form one range together with the padding between them. With stochastic
// rounding each slice of a tensor is a range of its own, because each tensor has its own random numbers.
void Optimizer::add_ranges(const Run& run, int unit, const Shard& shard, const OptimizerSettings& settings,
                           const Fp8Settings& fp8) {
  const bool rounds =
      state_.type(StateKind::master) == DType::bf16 || state_.type(StateKind::first_moment) == DType::bf16;
  for (const Slice& slice : layout_.slices(unit, shard.first, shard.count)) {
    const float decay = slice.tensor->is_matrix() ? settings.weight_decay : 0.0f;
    const int amax = fp8.weight_amax_index(slice.tensor->projection);
    const size_t begin = run.elements.count + slice.at;
    if (rounds)
      ranges_.push_back({begin, 0, decay, philox_key(slice.tensor->name, settings.seed), slice.window(), amax});
    else if (ranges_.size() == size_t(run.first_range) || ranges_.back().weight_decay != decay ||
             ranges_.back().amax != amax)
      ranges_.push_back({begin, 0, decay, 0, {}, amax});
    ranges_.back().count = begin + slice.count - ranges_.back().begin;
  }
}

void Optimizer::reset(int64_t updates) {
  for (const StateKind kind : {StateKind::first_moment, StateKind::second_moment})
    for (const auto& [unit, shard, _] : state_.shards(kind).entries())
      state_.set(kind, unit, shard, [&](const Tensor& to, size_t) { clear(compute_, to); });
  copy(compute_, ranges_on_device_.get(), ranges_.data(), ranges_.size());
  const UpdateProgress progress{updates, 0};
  copy(compute_, progress_.get(), &progress, 1);
  compute_.synchronize();
}

// Each rank squares its own part of the units in every ZeRO stage, so that all stages give the same bits.
void Optimizer::square_gradients(Stream& stream, int unit, const Tensor& own) {
  for (const Squared& s : squared_[size_t(unit)])
    global_norm_squares(stream, partials_->elements(s.partials, global_norm_partials(s.count)),
                        own.elements(s.at, s.count));
}

void Optimizer::square_sum(StepState* state) {
  const Tensor sum(&state->square_sum, {1});
  global_norm_sum(compute_, sum, partials_);
  const ShardGroup& group = *placement_.front().group;
  if (group.degree() == 1 && !group.tp_reduce) return;
  partials_done_.record(compute_);
  reduce_stream_.wait(partials_done_);
  if (group.degree() > 1) group.reduce.all_reduce_sum(reduce_stream_, sum);
  if (group.tp_reduce) group.tp_reduce->all_reduce_sum(reduce_stream_, sum);
  summed_.record(reduce_stream_);
  compute_.wait(summed_);
}

void Optimizer::update_run(const Run& run, const Tensor& gradients, const StepState* state, AdamWAmax amax) {
  std::vector<SweepArray> arrays;
  for (const StateKind kind : kStateKinds) arrays.push_back(state_.sweep_array(kind, run.unit, run.elements));
  arrays.push_back(state_.gradient_array(gradients));
  arrays.push_back(state_.weights_array(run.unit, run.elements));
  state_.sweep().run(arrays, [&](std::span<const Tensor> here, size_t first) {
    const Tensor &master = here[0], &m = here[1], &v = here[2], &g = here[3], &weights = here[4];
    adamw(compute_, master ? master : weights, m, v, master ? weights : Tensor(), g, state,
          ranges_on_device_ + run.first_range, run.ranges, first, constants_, amax);
  });
}

void Optimizer::decide_update(const ParameterStore& parameters, StepState* state, const SpikeRule& spikes) {
  square_sum(state);
  global_norm_finish(compute_, state, Tensor(&state->square_sum, {1}),
                     {progress_, constants_, words_of(parameters.weight_amax()), spikes});
}

void Optimizer::update(const GradientStore& gradients, ParameterStore& parameters, StepState* state) {
  const Tensor amax = parameters.weight_amax();
  for (const Run& run : runs_) update_run(run, gradients.sums_from(run.unit, run.elements), state, words_of(amax));
  state_.finish_update();
  parameters.updated(bool(amax));
}

#include "llmc/train/trainer.h"

#include <algorithm>
#include <cmath>

#include "llmc/base/error.h"
#include "llmc/device/range.h"
#include "llmc/kernels/classifier.h"
#include "llmc/kernels/tuning.h"
#include "llmc/memory/reserve.h"
#include "llmc/train/logits.h"

std::unique_ptr<Trainer> Trainer::create(Device& device, Communicator& communicator, const ModelConfig& config,
                                         const TrainerSettings& settings, const Mesh& mesh) {
  config.check();
  REQUIRE(settings.B > 0 && settings.T > 0 && int64_t(settings.B) * settings.T < (int64_t(1) << 31),
          "a micro-batch of %d sequences of %d tokens: both must be positive, and less than 2^31 tokens", settings.B,
          settings.T);
  REQUIRE(mesh.world_size == communicator.size() && mesh.rank == communicator.rank(),
          "%s, and the communicator has %d ranks, of which this is number %d", mesh.description().c_str(),
          communicator.size(), communicator.rank());
  (void)config.tensor_part(mesh.tensor_degree, mesh.tensor_rank);  // throws on a degree that is not possible
  require_shareable_sequences(settings.T, mesh);
  return std::unique_ptr<Trainer>(new Trainer(device, communicator, mesh, config, settings));
}

namespace {

// Muon's matrices have one moment.
TrainerSettings with_moments(TrainerSettings settings) {
  if (settings.muon)
    settings.state.has_moment = [](const ParameterInfo& tensor, StateKind moment) {
      return moment == StateKind::first_moment || !is_block_matrix(tensor);
    };
  return settings;
}

}  // namespace

Trainer::Trainer(Device& device, Communicator& communicator, const Mesh& mesh, const ModelConfig& config,
                 const TrainerSettings& settings)
    : device_(device),
      communicator_(communicator),
      mesh_(mesh),
      groups_(communicator, mesh, config, settings.training && settings.muon),
      whole_config_(config),
      split_{mesh.tensor_degree, mesh.tensor_rank},
      config_(config.tensor_part(split_.degree, split_.rank)),
      settings_(with_moments(settings)),
      shard_group_(groups_.shard_group()),
      layout_(whole_config_, shard_group_.degree(), split_),
      placement_(place_units(
          layout_, mesh.effective_stage(settings.zero_stage), shard_group_,
          [&](int unit) {
            return settings.fp8.gathers_bytes(layout_.projections.of(layout_.units[size_t(unit)].layer));
          },
          settings.state.weights_on_host)),
      compute_(device, "compute"),
      gather_stream_(device, "gather", StreamPriority::highest),
      reduce_stream_(device, "reduce", StreamPriority::highest),
      tensor_(groups_.tp_reduce
                  ? std::make_unique<TensorStream>(device, groups_, settings.tensor_chunks, settings.tensor_sums)
                  : nullptr),
      context_(groups_.ascending ? std::make_unique<ContextStream>(device, groups_) : nullptr),
      host_(settings.state.in_chunks() || (settings.training && settings.activations.offloads(config_))
                ? std::make_unique<HostStreams>(device)
                : nullptr),
      scales_(settings.fp8.on()
                  ? std::make_unique<Fp8Scales>(plan_, settings_.fp8, layout_.projections, settings_.fp8_stats,
                                                communicator, device, compute_, reduce_stream_)
                  : nullptr),
      parameters_(plan_, {settings.dtype, std::min(settings.prefetch + 1, config_.L), settings.state.chunk}, layout_,
                  placement_, scales_.get(), compute_, gather_stream_),
      optimizer_state_(plan_, layout_, placement_, settings_.state, parameters_, settings.training, compute_,
                       host_.get()),
      transformer_(plan_, rank_part(), settings_, parameters_, scales_.get(), compute_, host_.get()),
      batches_(plan_, device, settings.micro_batches,
               size_t(settings.B) * size_t(settings.T) / size_t(mesh.context_degree), config_.window, settings.sources,
               transformer_.context_part()),
      step_states_(plan_, device, settings.sources),
      workspace_(
          plan_.add(Segment::device, "workspace", "products", DType::uint8, {Matmul::workspace_bytes(device.info())})),
      to_reduce_(device),
      to_compute_(device),
      forked_(device) {
  add_reserve(plan_, device.info(), groups_.communicators(communicator),
              {settings.attention, settings.dtype, config_.HD});
  for (size_t i = 0; i < side_streams().size(); ++i) joined_.emplace_back(device);
  if (tensor_) full_tensors_.emplace(whole_config_, shard_group_.degree(), *groups_.tp_compute, compute_);
  if (!settings.training) return;
  reset_graph();
  if (settings.skip_spikes > 0) spikes_.emplace(plan_, settings.skip_spikes, settings.bad_steps_limit, compute_);
  if (settings.verifies) hashes_.emplace(plan_, layout_.tensors.size(), communicator.size(), device);
  if (settings.snapshot) snapshot_.emplace(plan_, optimizer_state_, others_of_snapshot(), device);
  gradients_.emplace(plan_, layout_, placement_, settings.reduce_dtype, compute_, reduce_stream_,
                     settings.state.gradients_on_host ? host_.get() : nullptr);
  optimizer_.emplace(plan_, layout_, placement_, optimizer_state_, settings, settings_.fp8, compute_, reduce_stream_);
  if (settings.muon)
    muon_.emplace(plan_, share_matrices(whole_config_, layout_, placement_, split_), optimizer_state_, settings_,
                  groups_.matrix_owners(), compute_, reduce_stream_);
  if (settings.looks && communicator.size() > 1)
    rank_times_ = plan_.add_array<RankTime>(Segment::device, "state", "times of ranks", size_t(communicator.size()));
}

std::vector<Snapshot::Other> Trainer::others_of_snapshot() const {
  std::vector<Snapshot::Other> others;
  if (scales_ && settings_.fp8.delayed()) others.push_back({"FP8 scales", scales_->state()});
  if (spikes_) others.push_back({"losses and norms of the last steps", spikes_->state()});
  return others;
}

RankPart Trainer::rank_part() const {
  const int each = whole_config_.vocabulary_part(split_.degree);
  return {.config = config_,
          .layout = layout_,
          .vocabulary = {split_.rank * each, config_.V, whole_config_.V, each},
          .tensor_parallel = tensor_ ? &tensor_->parallel : nullptr,
          .context_parallel = context_ ? &context_->parallel : nullptr,
          .sequence_group = groups_.sequence_group.get()};
}

void Trainer::allocate() {
  arena_ = Arena(device_, plan_, &communicator_);
  matmul_.emplace(compute_, static_cast<std::byte*>(workspace_->data), Matmul::Options{settings_.tf32});
  parameters_.prepare();
  if (gradients_)
    gradients_->on_reduced(
        [this](Stream& stream, int unit, const Tensor& own) { optimizer_->square_gradients(stream, unit, own); });
  if (scales_) {
    scales_->prepare(step_states_.on_device());
    require_recipe_runs(settings_.fp8, device_.info(),
                        [&](auto&&... product) { return matmul_->unsupported_reason(product...); });
  }
  transformer_.prepare(*matmul_);
}

// ---------------------------------------------------------------------------------------------- a step

void Trainer::enqueue_step(const StepInput& input) {
  REQUIRE(settings_.training, "a step was asked for, and only forward passes were planned");
  const size_t micro_tokens = size_t(settings_.B) * size_t(settings_.T);
  REQUIRE(!input.inputs.empty() && input.inputs.size() % micro_tokens == 0 &&
              input.labels.size() == input.inputs.size() &&
              (input.positions.empty() || input.positions.size() == input.inputs.size()),
          "a step of %zu tokens, %zu labels and %zu positions is not a whole number of micro-batches of %d x %d tokens",
          input.inputs.size(), input.labels.size(), input.positions.size(), settings_.B, settings_.T);
  REQUIRE(!graph_ || input.no_graph || !device_.records(),
          "step %lld is recorded here, and other ranks may launch theirs as a whole: all must enqueue it no_graph",
          (long long)input.step + 1);
  REQUIRE(input.sources.empty() || input.sources.size() * size_t(settings_.T) == input.inputs.size(),
          "a step of %zu sequences of %d tokens, and %zu sources\n  expected one for each sequence",
          input.inputs.size() / size_t(settings_.T), settings_.T, input.sources.size());
  const Range range("step %lld", input.step + 1);
  const StepForm form{int(input.inputs.size() / micro_tokens), !input.positions.empty()};
  device_.begin_step();
  send_state(input);
  batches_.send(compute_, form.micro_batches, input.inputs.data(), input.labels.data(),
                form.packed ? input.positions.data() : nullptr, settings_.B, settings_.T, whole_config_.V, 0,
                input.sources.empty() ? nullptr : input.sources.data());
  if (scales_) scales_->begin_step(input.step);
  if (graph_ && stepped_ && !input.no_graph && can_launch(input.step)) launch_work(form);
  else enqueue_work(form, false);
  step_states_.fetch(compute_);
  stepped_ = true;
  if (graph_ && graph_->empty() && !input.no_graph && can_launch(input.step + 1)) capture_work(form);
}

// The ranks sum the numbers of labels and the flags before the forward pass: the head divides by all labels.
void Trainer::send_state(const StepInput& input) {
  StepState state{};
  state.learning_rate = float(input.learning_rate);
  state.grad_clip = settings_.grad_clip;
  state.step = input.step;
  const auto ignored = std::count(input.labels.begin(), input.labels.end(), kIgnoredLabel);
  // All ranks of a sequence group have the same labels, so one of them counts them.
  state.label_count = is_leader() ? int64_t(input.labels.size()) - int64_t(ignored) : 0;
  set_flags(state, input.flags);
  step_states_.send(compute_, state);
  sum_over_ranks_on_device({&step_states_.on_device()->label_count, {kSummedAtBegin}});
}

void Trainer::set_flags(StepState& state, const StepFlags& flags) {
  state.stop_requests = flags.stop, state.saved = flags.saved, state.not_saved = flags.not_saved;
  state.checkpoints_due = flags.due;
}

StepFlags Trainer::flags_of(const StepState& state) {
  return {state.stop_requests, state.saved, state.not_saved, state.checkpoints_due};
}

// Enqueues the work from the batches and the state on the device to the updated weights.
//
// Loss, amaxes and gradients are summed on the reduce stream. start_sum_over_ranks() makes it wait for compute, and
// start_all_reduce() relies on that. wait_for_sums() makes compute wait for the reduce stream, so from there on all
// three are global. Only then is it known whether the step is held, which the scales and the weights obey.
void Trainer::enqueue_work(StepForm form, bool capturing) {
  for (int k = 0; k < form.micro_batches; ++k) {
    const MicroBatch batch = batches_.micro_batch(k);
    transformer_.forward(batch, true);
    transformer_.backward(batch, step_states_.on_device(), *gradients_, k == 0, k + 1 == form.micro_batches);
    if (batch.sources) sum_by_source(batch, k == 0);
  }
  const Range range("optimizer");
  if (scales_) scales_->count_not_finite();
  start_sum_over_ranks({&step_states_.on_device()->loss_sum, {int64_t(kSummedAtEnd) + (settings_.z_loss > 0)}});
  if (step_states_.source_sums()) start_sum_over_ranks(step_states_.source_sums());
  if (scales_) scales_->start_all_reduce();
  gradients_->wait_for_sums();
  if (snapshot_) snapshot_->before_update(compute_);
  optimizer_->decide_update(parameters_, step_states_.on_device(), spikes_ ? spikes_->rule() : SpikeRule{});
  if (scales_) scales_->update_scales();
  if (scales_ && !capturing) scales_->count_step();  // launch_work() counts each launch
  optimizer_state_.sweep().begin();
  if (muon_) muon_->update(*matmul_, *gradients_, parameters_, step_states_.on_device());
  optimizer_->update(*gradients_, parameters_, step_states_.on_device());
  join();
}

// Adds the losses of the micro-batch, which the head has left, to those of their sources. In a tensor-parallel group
// all ranks have the same losses, and one of them counts.
void Trainer::sum_by_source(const MicroBatch& batch, bool first) {
  if (first) clear(compute_, step_states_.source_sums());
  if (split_.rank == 0)
    sum_losses_by_source(compute_, step_states_.source_sums(), transformer_.losses(), batch.labels, batch.sources);
}

bool Trainer::can_launch(int64_t step) const {
  return !observed_ && !(snapshot_ && snapshot_->on_its_way()) && (!scales_ || scales_->is_regular(step));
}

// Sums numbers of the step's state over all ranks, at the same time as work on compute.
void Trainer::start_sum_over_ranks(const Tensor& numbers) {
  if (communicator_.size() == 1) return;
  to_reduce_.record(compute_);
  reduce_stream_.wait(to_reduce_);
  communicator_.all_reduce_sum(reduce_stream_, numbers);
}

// Sums numbers of the step's state over all ranks. Compute waits for the sum.
void Trainer::sum_over_ranks_on_device(const Tensor& numbers) {
  if (communicator_.size() == 1) return;
  start_sum_over_ranks(numbers);
  to_compute_.record(reduce_stream_);
  compute_.wait(to_compute_);
}

StepResult Trainer::wait_for_step() {
  const auto [s, source_sums, seconds] = step_states_.wait_for_oldest(communicator_);
  if (scales_) scales_->read_result(s);
  if (snapshot_waits_ > 0) --snapshot_waits_, snapshot_recorded_ -= s.held != 0;
  updates_ = s.updates;
  StepResult result{};
  result.step = s.step;
  result.loss = LossSum{s.loss_sum, s.label_count}.mean(), result.label_count = s.label_count;
  result.z_loss = LossSum{s.z_loss_sum, s.label_count}.mean();
  result.grad_norm = s.grad_norm;
  result.flags = flags_of(s);
  result.fp8 = s.fp8, result.fp8_not_finite = s.fp8_not_finite;
  result.finite = std::isfinite(s.loss_sum) && std::isfinite(s.grad_norm) && s.not_finite_ranks == 0;
  result.held = s.held != 0, result.halted = s.held & kHalted;
  result.loss_spike = s.held & kLossSpike, result.norm_spike = s.held & kNormSpike;
  result.seconds = seconds;
  for (size_t i = 0; i < source_sums.size(); i += 2)
    result.sources.push_back({source_sums[i], int64_t(source_sums[i + 1])});
  return result;
}

Trainer::Search Trainer::search_not_finite(const StepInput& input) {
  const bool all_rows = !tensor_ && !context_;
  NotFiniteSearch search(communicator_, compute_, layout_, all_rows ? int64_t(settings_.B) * settings_.T : 0,
                         scales_ ? scales_->not_finite() : nullptr);
  transformer_.observe_tensors([&](const ObservedTensor& seen) { search.look_at(seen); });
  StepInput again = input;
  again.no_graph = true;
  enqueue_step(again);
  transformer_.observe_tensors({});
  Search all{search.found(), wait_for_step()};
  // Weights that are sent in FP8 are quantized before the first micro-batch, and reported at the end of the step.
  if (const uint32_t word = all.result.fp8_not_finite; !all.found && !is_finite_word(word))
    all.found = {0, 0, layout_.projections.name(not_finite_id(word)) + ", which FP8 cannot hold"};
  return all;
}

// Uses the queue's slot and the state on the device as memory for the flags.
StepFlags Trainer::sum_flags(const StepFlags& own) {
  StepState state{};
  set_flags(state, own);
  step_states_.send(compute_, state);
  sum_over_ranks_on_device({&step_states_.on_device()->label_count, {kSummedAtBegin}});
  step_states_.fetch(compute_);
  return flags_of(step_states_.wait_for_oldest(communicator_).state);
}

std::vector<RankTime> Trainer::exchange(const RankTime& own) {
  std::vector<RankTime> all(size_t(communicator_.size()), own);
  if (communicator_.size() == 1) return all;
  RankTime* const here = rank_times_ + communicator_.rank();
  copy(reduce_stream_, here, &own, 1);
  communicator_.all_gather(reduce_stream_, rank_times_.get(), here, sizeof own);
  copy(reduce_stream_, all.data(), rank_times_.get(), all.size());
  communicator_.wait_for(reduce_stream_);
  host_accesses(device_, "the times of the ranks", {reads(all.data(), all.size())});
  return all;
}

// ---------------------------------------------------------------------------------------------- streams and graphs

std::vector<Stream*> Trainer::side_streams() {
  std::vector<Stream*> streams = {&gather_stream_, &reduce_stream_};
  if (tensor_) streams.push_back(&tensor_->stream);
  if (context_) streams.push_back(&context_->stream);
  if (host_) streams.insert(streams.end(), {&host_->out, &host_->in});
  return streams;
}

// At the end of a step, makes compute wait for all other streams, so that later work has to follow compute only.
void Trainer::join() {
  size_t i = 0;
  for (Stream* stream : side_streams()) {
    joined_[i].record(*stream);
    compute_.wait(joined_[i++]);
  }
}

// With `graphs`: drops the graph. The next step is enqueued without one, and its work is captured afterwards.
void Trainer::reset_graph() {
  if (settings_.graphs && device_.executes()) graph_.emplace(device_);
  stepped_ = false;
}

// A capture executes nothing, but gather() and get() mark what they enqueue as current. So the weights are marked as
// changed before it, which puts all gathers into the graph, and after it, because none of them was executed.
void Trainer::capture_work(StepForm form) {
  parameters_.changed();
  graph_->capture(compute_, [&] {
    forked_.record(compute_);
    for (Stream* stream : side_streams()) stream->wait(forked_);
    enqueue_work(form, true);
  });
  parameters_.changed();
  captured_form_ = form;
}

void Trainer::launch_work(StepForm form) {
  if (graph_->empty() || captured_form_ != form) capture_work(form);
  graph_->launch(compute_);
  communicator_.graph_launched(compute_);
  parameters_.changed();
  if (scales_) scales_->count_step();
}

// Between the candidates the host waits for the other streams, too, because their work would distort the times.
Tuning Trainer::time_products(const StepInput& input) {
  const auto wait_for = [this](Stream& stream) { communicator_.wait_for(stream); };
  graph_.reset();  // its work has the previous choices
  matmul_->begin_timing([&] {
    wait_for(compute_);
    for (Stream* stream : side_streams()) wait_for(*stream);
  });
  enqueue_step(input);
  step_states_.wait_for_oldest(communicator_);
  reset_graph();
  return matmul_->end_timing();
}

// ---------------------------------------------------------------------------------------------- forward passes

LossSum Trainer::evaluate(const std::vector<int32_t>& inputs, const std::vector<int32_t>& labels,
                          std::span<const int32_t> positions, int seq_len) {
  if (seq_len == 0) seq_len = settings_.T;
  REQUIRE(!inputs.empty() && inputs.size() % size_t(seq_len) == 0 && labels.size() == inputs.size() &&
              (positions.empty() || positions.size() == inputs.size()),
          "%zu tokens, %zu labels and %zu positions are not sequences of %d tokens", inputs.size(), labels.size(),
          positions.size(), seq_len);
  const int B = int(inputs.size()) / seq_len;
  StepState state{};
  step_states_.send(compute_, state);
  batches_.send(compute_, 1, inputs.data(), labels.data(), positions.empty() ? nullptr : positions.data(), B, seq_len,
                whole_config_.V);
  transformer_.forward_loss(batches_.micro_batch(), step_states_.on_device());
  step_states_.fetch(compute_);
  const auto ignored = std::count(labels.begin(), labels.end(), kIgnoredLabel);
  const StepState end = step_states_.wait_for_oldest(communicator_).state;
  if (!is_finite_word(end.fp8_not_finite))
    fail_as(ExitCode::not_finite,
            "%s has an infinity or NaN, which FP8 cannot hold\n  --fp8 off shows whether bf16 holds it",
            layout_.projections.name(not_finite_id(end.fp8_not_finite)).c_str());
  return {end.loss_sum, is_leader() ? int64_t(labels.size()) - int64_t(ignored) : 0};
}

std::vector<float> Trainer::losses(const std::vector<int32_t>& inputs, const std::vector<int32_t>& labels) {
  evaluate(inputs, labels, {}, 0);
  return read_losses(transformer_, compute_, groups_.sequence_group.get(), int(inputs.size()) / settings_.T,
                     settings_.T);
}

// Uses the queue's slot and the state on the device as memory for the sums.
LossSum Trainer::sum_over_ranks(LossSum sum) {
  StepState state{};
  state.loss_sum = sum.nats, state.label_count = sum.labels;
  step_states_.send(compute_, state);
  sum_over_ranks_on_device({&step_states_.on_device()->loss_sum, {1}});
  sum_over_ranks_on_device({&step_states_.on_device()->label_count, {1}});
  step_states_.fetch(compute_);
  state = step_states_.wait_for_oldest(communicator_).state;
  return {state.loss_sum, state.label_count};
}

std::vector<float> Trainer::next_logits(std::span<const int32_t> tokens, int past) {
  const int count = int(tokens.size());
  REQUIRE(count > 0 && past + count <= settings_.T, "%d tokens after %d of a sequence of at most %d", count, past,
          settings_.T);
  sequence_.resize(std::min(size_t(past), sequence_.size()));
  sequence_.insert(sequence_.end(), tokens.begin(), tokens.end());
  if (!transformer_.keeps_keys()) {  // computes the whole sequence again
    REQUIRE(sequence_.size() == size_t(past + count), "%d tokens after %d of a sequence: %zu are known", count, past,
            sequence_.size() - size_t(count));
    return logits(sequence_, 1, past + count, past + count - 1, {});
  }
  batches_.send(compute_, 1, tokens.data(), nullptr, nullptr, 1, count, whole_config_.V, past);
  transformer_.forward_cached(batches_.micro_batch(), past);
  return read_logits(transformer_, compute_, 1, count, count - 1, count);
}

std::vector<float> Trainer::logits(const std::vector<int32_t>& inputs, int B, int seq_len, std::optional<int> only_row,
                                   std::span<const int32_t> positions) {
  return compute_logits(transformer_, batches_, compute_, inputs, positions, B, seq_len, only_row);
}

std::vector<QuantizeStatistics> Trainer::fp8_statistics(int64_t step) {
  REQUIRE(scales_, "FP8 statistics were asked for, and nothing is in FP8");
  return scales_->statistics(step);
}

void Trainer::observe(std::function<void(const ObservedProduct&)> observer) {
  observed_ = bool(observer);
  transformer_.observe(std::move(observer));
}

#include "llmc/train/trainer.h"

#include <algorithm>
#include <cmath>
#include <deque>

#include "llmc/base/error.h"
#include "llmc/base/philox.h"
#include "llmc/device/graph.h"
#include "llmc/kernels/classifier.h"
#include "llmc/kernels/initialize.h"
#include "llmc/kernels/step_state.h"
#include "llmc/kernels/tuning.h"
#include "llmc/memory/reserve.h"
#include "llmc/train/batch_uploader.h"
#include "llmc/train/full_tensors.h"
#include "llmc/train/logits.h"
#include "llmc/train/optimizer.h"
#include "llmc/train/process_groups.h"
#include "llmc/train/step_state_queue.h"
#include "llmc/train/transformer.h"
#include "llmc/train/weights_io.h"

namespace {

class LlamaTrainer : public Trainer {
 public:
  LlamaTrainer(Device& device, Communicator& communicator, const Mesh& mesh, const LlamaConfig& config,
               const TrainerSettings& settings)
      : device_(device),
        communicator_(communicator),
        groups_(communicator, mesh, config),
        whole_config_(config),
        split_{mesh.tensor_degree, mesh.tensor_rank},
        config_(config.tensor_part(split_.degree, split_.rank)),
        settings_(settings),
        sharding_(groups_.sharding(settings.zero_stage)),
        layout_(whole_config_, sharding_.degree(), split_),
        compute_(device, "compute"),
        gather_(device, "gather"),
        reduce_(device, "reduce"),
        tensor_(groups_.tensor
                    ? std::make_unique<TensorStream>(device, groups_, settings.tensor_chunks, settings.tensor_sums)
                    : nullptr),
        context_(groups_.ascending ? std::make_unique<ContextStream>(device, groups_) : nullptr),
        host_(settings.training && (settings.state.in_pieces() || settings.activations.offloads(config_))
                  ? std::make_unique<HostStreams>(device)
                  : nullptr),
        scales_(settings.fp8.on() ? std::make_unique<Fp8Scales>(plan_, settings_.fp8, config_, settings_.fp8_stats,
                                                                communicator, device, compute_, reduce_)
                                  : nullptr),
        parameters_(plan_, settings.dtype, config_, layout_, sharding_, settings_.fp8, scales_.get(),
                    std::min(settings.prefetch + 1, config_.L), device, compute_, gather_),
        state_(plan_, layout_, sharding_, settings.state, parameters_, settings.training, device, compute_,
               host_.get()),
        transformer_(plan_, config_, layout_, transformer_settings(), settings_.fp8, parameters_, scales_.get(), device,
                     compute_, host_.get()),
        batches_(plan_, device, settings.micro_steps,
                 size_t(settings.B) * size_t(settings.T) / size_t(mesh.context_degree), transformer_.part()),
        states_(plan_, device),
        workspace_(plan_.add(Segment::device, "workspace", "products", DType::uint8,
                             {Matmul::workspace_bytes(device.info())})),
        to_communication_(device),
        to_compute_(device),
        forked_(device) {
    add_reserve(plan_, device.info(), groups_.communicators(communicator),
                {settings.attention, settings.dtype, config_.HD});
    for (size_t i = 0; i < side_streams().size(); ++i) joined_.emplace_back(device);
    if (tensor_) full_tensors_.emplace(whole_config_, sharding_.degree(), *groups_.products, compute_);
    if (!settings.training) return;
    prepare_graph();
    if (settings.snapshot) snapshot_.emplace(plan_, shares(), state_, scales_ ? scales_->state_size() : 0, device);
    gradients_.emplace(plan_, layout_, sharding_, config_.tied, settings.reduce_dtype, device, compute_, reduce_,
                       settings.state.gradients_on_host ? host_.get() : nullptr);
    optimizer_.emplace(plan_, layout_, sharding_, state_, AdamWConstants{settings.beta1, settings.beta2, settings.eps},
                       settings.weight_decay, settings.seed, settings_.fp8, device, compute_, reduce_);
  }

  TransformerSettings transformer_settings() const {
    TransformerSettings s{settings_.dtype, settings_.attention,  settings_.B,
                          settings_.T,     settings_.head_chunk, settings_.prefetch};
    if (settings_.training) s.policy = settings_.activations;
    if (tensor_) s.tensor = &tensor_->parallel;
    const int each = whole_config_.vocabulary_part(split_.degree);
    s.vocabulary = {split_.rank * each, config_.V, whole_config_.V, each};
    if (context_) s.sequences = &context_->parallel;
    s.computing = groups_.computing.get();
    return s;
  }

  const MemoryPlan& plan() const override { return plan_; }
  const ParameterLayout& layout() const override { return layout_; }

  const Arena& arena() const override { return arena_; }

  void allocate() override {
    arena_ = Arena(device_, plan_, &communicator_);
    matmul_.emplace(compute_, static_cast<std::byte*>(workspace_->data), Matmul::Options{settings_.tf32});
    parameters_.prepare();
    if (gradients_)
      gradients_->on_reduced(
          [this](Stream& stream, int unit, const Tensor& part) { optimizer_->add_squares(stream, unit, part); });
    if (scales_) {
      scales_->prepare(states_.on_device());
      require_recipe_runs(settings_.fp8, device_.info(),
                          [&](auto&&... product) { return matmul_->unsupported_reason(product...); });
    }
    transformer_.prepare(*matmul_);
  }

  void initialize(Init init, uint64_t seed) override {
    const float normal_std = float(config_.init_std);
    const float residual_std =
        init == Init::depth_scaled ? normal_std / std::sqrt(2.0f * float(config_.L)) : normal_std;
    set_own_pieces(StateKind::weights, [&](const ParameterSlice& piece, const Tensor& to) {
      const ParameterInfo& t = *piece.tensor;
      if (t.row->init == InitRule::ones) initialize_constant(compute_, to, 1.0f);
      else
        initialize_normal(compute_, to, philox_key(t.name, seed), piece.window(),
                          t.row->init == InitRule::residual ? residual_std : normal_std);
    });
    reset_state();
    begin_training();
  }

  void load(const Safetensors& weights) override {
    require_weights_fit(layout_, weights, true);
    set_own_pieces(StateKind::weights, [&](const ParameterSlice& piece, const Tensor& to) {
      load_piece(compute_, to.as<float>(), piece, weights);
    });
    reset_state();
    begin_training();
  }

  void restore(const Checkpoint& checkpoint) override {
    reset_state();
    std::vector<float> numbers;
    for (const StateKind kind : kStateKinds) {
      if (kind != StateKind::weights && !optimizer_) break;
      set_own_pieces(kind, [&](const ParameterSlice& piece, const Tensor& to) {
        for (size_t done = 0; done < piece.count; done += numbers.size()) {
          numbers.resize(std::min(kCheckpointPiece, piece.count - done));
          piece.window().from(done).for_runs(numbers.size(), [&](size_t at, uint64_t first, size_t count) {
            checkpoint.read(kind, piece.tensor->name, first, count, numbers.data() + at);
          });
          copy(compute_, to.as<float>() + done, numbers.data(), numbers.size());
          compute_.synchronize();
        }
      });
    }
    if (scales_ && settings_.fp8.delayed()) {
      const Fp8Scales::History history{checkpoint.other("fp8_scales"), checkpoint.other("fp8_amax_history"),
                                       checkpoint.other("fp8_settings")};
      if (!history.scales.empty()) scales_->restore(history);  // else the checkpoint had another recipe
    }
    begin_training();
  }

  std::vector<NamedNumbers> other_state(bool of_snapshot) override {
    if (!scales_ || !settings_.fp8.delayed()) return {};
    const Fp8Scales::History history =
        of_snapshot ? scales_->history(snapshot_->others(), snapshot_recorded_) : scales_->history();
    std::vector<NamedNumbers> state = {{"fp8_scales", history.scales}, {"fp8_settings", history.settings}};
    if (!history.amax.empty()) state.push_back({"fp8_amax_history", history.amax});
    return state;
  }

  std::vector<UnitShare> shares() const override {
    std::vector<UnitShare> shares;
    for (int unit = 0; unit < int(layout_.units.size()); ++unit) shares.push_back(sharding_.saved(layout_, unit));
    return shares;
  }

  void read_state(StateKind kind, int unit, size_t first, size_t count, float* to) override {
    state_.read(kind, unit, first - sharding_.first(layout_, unit), count, to);
  }

  void take_snapshot() override {
    REQUIRE(snapshot_, "a snapshot was asked for, and none was planned");
    snapshot_recorded_ = scales_ ? scales_->recorded() : 0;
    snapshot_->take(
        compute_,
        [&](StateKind kind, int unit) {
          const UnitShare saved = sharding_.saved(layout_, unit);
          return state_.view(kind, unit).elements(saved.first - sharding_.first(layout_, unit), saved.count);
        },
        scales_ ? scales_->state() : Tensor());
  }
  const Snapshot& wait_for_snapshot() override {
    snapshot_->finish(communicator_);
    return *snapshot_;
  }

  void save(const std::string& directory) override {
    std::optional<WeightsWriter> writer;
    const ParameterLayout layout(whole_config_);
    if (!directory.empty()) writer.emplace(directory, layout, whole_config_);
    for (int unit = 0; unit < int(layout.units.size()); ++unit) {
      const float* here = whole_weights(unit).as<float>();
      std::vector<std::vector<float>> joined;
      if (tensor_) joined = full_tensors_->of(unit, here);
      if (writer)
        writer->write_unit(unit, [&](const ParameterInfo& t, size_t first, size_t count, float* out) {
          const size_t number = size_t(&t - &layout.tensors[size_t(layout.units[size_t(unit)].first_tensor)]);
          if (tensor_) std::copy_n(joined[number].data() + first, count, out);
          else copy(compute_, out, here + t.offset + first, count), compute_.synchronize();
        });
    }
    if (writer) writer->finish();
  }

  void enqueue_step(const StepInput& input) override {
    REQUIRE(settings_.training, "a step was asked for, and only forward passes were planned");
    const size_t micro_tokens = size_t(settings_.B) * size_t(settings_.T);
    REQUIRE(
        !input.inputs.empty() && input.inputs.size() % micro_tokens == 0 &&
            input.labels.size() == input.inputs.size() &&
            (input.positions.empty() || input.positions.size() == input.inputs.size()),
        "a step of %zu tokens, %zu labels and %zu positions is not a whole number of micro-batches of %d x %d tokens",
        input.inputs.size(), input.labels.size(), input.positions.size(), settings_.B, settings_.T);
    REQUIRE(!graph_ || input.no_graph || !device_.records(),
            "step %lld is recorded here, and other ranks may launch theirs as a whole: all must enqueue it no_graph",
            (long long)input.step + 1);
    const StepForm form{int(input.inputs.size() / micro_tokens), !input.positions.empty()};
    device_.begin_step();
    begin_step(input);
    batches_.send(compute_, form.micro_steps, input.inputs.data(), input.labels.data(),
                  form.packed ? input.positions.data() : nullptr, settings_.B, settings_.T, whole_config_.V);
    if (scales_) scales_->begin_step(input.step);
    if (graph_ && stepped_ && !input.no_graph && is_regular(input.step)) launch_work(form);
    else enqueue_work(form, false);
    states_.fetch(compute_);
    stepped_ = true;
    if (graph_ && graph_->empty() && !input.no_graph && is_regular(input.step + 1)) capture_work(form);
  }

  size_t graph_pieces() const override { return graph_ ? graph_->pieces() : 0; }

  StepResult wait_for_step() override {
    const auto [s, seconds] = states_.wait_for_oldest(communicator_);
    require_finite(s);
    if (scales_) scales_->learn(s.fp8);
    return {s.step, LossSum{s.loss_sum, s.label_count}.mean(), s.grad_norm, s.label_count, votes_of(s), s.fp8, seconds};
  }

  StepFlags count_votes(const StepFlags& own) override {
    StepState state{};
    set_votes(state, own);
    states_.send(compute_, state);
    sum_over_ranks_on_device(&states_.on_device()->label_count, kSummedAtBegin);
    states_.fetch(compute_);
    return votes_of(states_.wait_for_oldest(communicator_).state);
  }

  LossSum evaluate(const std::vector<int32_t>& inputs, const std::vector<int32_t>& labels,
                   std::span<const int32_t> positions, int seq_len) override {
    if (seq_len == 0) seq_len = settings_.T;
    const int B = int(inputs.size()) / seq_len;
    StepState state{};
    states_.send(compute_, state);
    REQUIRE(positions.empty() || positions.size() == inputs.size(), "%zu positions of %zu tokens", positions.size(),
            inputs.size());
    batches_.send(compute_, 1, inputs.data(), labels.data(), positions.empty() ? nullptr : positions.data(), B, seq_len,
                  whole_config_.V);
    transformer_.forward_loss(batches_.device_batch(), B, seq_len, states_.on_device());
    states_.fetch(compute_);
    const auto ignored = std::count(labels.begin(), labels.end(), kIgnoredLabel);
    const StepState end = states_.wait_for_oldest(communicator_).state;
    require_finite(end);
    return {end.loss_sum, is_leader() ? int64_t(labels.size()) - int64_t(ignored) : 0};
  }

  std::vector<float> losses(const std::vector<int32_t>& inputs, const std::vector<int32_t>& labels) override {
    evaluate(inputs, labels, {}, 0);
    return read_losses(transformer_, compute_, groups_.computing.get(), int(inputs.size()) / settings_.T, settings_.T);
  }

  bool is_leader() const override { return !groups_.computing || groups_.computing->rank() == 0; }
  LossSum sum_over_ranks(LossSum sum) override {
    StepState state{};
    state.loss_sum = sum.nats, state.label_count = sum.labels;
    states_.send(compute_, state);
    sum_over_ranks_on_device(&states_.on_device()->loss_sum, 1);
    sum_over_ranks_on_device(&states_.on_device()->label_count, 1);
    states_.fetch(compute_);
    state = states_.wait_for_oldest(communicator_).state;
    return {state.loss_sum, state.label_count};
  }

  std::vector<float> logits(const std::vector<int32_t>& inputs, int B, int seq_len, std::optional<int> only_row,
                            std::span<const int32_t> positions) override;
  std::vector<float> next_logits(std::span<const int32_t> tokens, int past) override;

  std::vector<float> weights(const std::string& name) override {
    const ParameterInfo& t = layout_.tensor(name);
    return download(whole_weights(t.unit), t);
  }
  std::vector<QuantizeStatistics> fp8_statistics(int64_t step) override {
    REQUIRE(scales_, "FP8 statistics were asked for, and nothing is in FP8");
    return scales_->statistics(step);
  }
  Matmul& products() override { return *matmul_; }
  // Between the candidates the host waits for the other streams, too, because their work would distort the times.
  Tuning time_products(const StepInput& input) override {
    const auto wait_for = [this](Stream& stream) { communicator_.wait_for(stream); };
    graph_.reset();  // its work has the previous choices
    matmul_->begin_timing([&] {
      wait_for(compute_);
      for (Stream* stream : side_streams()) wait_for(*stream);
    });
    enqueue_step(input);
    states_.wait_for_oldest(communicator_);
    prepare_graph();
    return matmul_->end_timing();
  }
  void observe(std::function<void(const ObservedProduct&)> observer) override {
    observed_ = bool(observer);
    transformer_.observe(std::move(observer));
  }
  std::vector<float> gradients(const std::string& name) override {
    const ParameterInfo& t = layout_.tensor(name);
    Tensor own = gradients_->reduced_shard(t.unit);
    if (settings_.state.gradients_on_host && sharding_.stage.shards_state()) {
      const Tensor part = gradients_->borrow_buffer(t.unit).elements(sharding_.first(layout_, t.unit), own.size());
      copy(compute_, part, own);
      compute_.synchronize();
      own = part;
    }
    return download(whole_unit(t.unit, own), t);
  }

 private:
  // Must be called when the weights are new: updates the products' copy from the master.
  void begin_training() {
    for (int unit = 0; state_.has_master() && unit < int(layout_.units.size()); ++unit)
      state_.get(StateKind::weights, unit, [&](const Tensor& from, size_t first) {
        cast(compute_, parameters_.local_shard(unit).elements(first, from.size()), from);
      });
    parameters_.updated();
    prepare_graph();
    compute_.synchronize();
  }

  // Resets everything but the weights to its state before the first step.
  void reset_state() {
    if (optimizer_) optimizer_->reset();
    if (scales_) scales_->reset();
  }

  static void require_finite(const StepState& state) {
    const uint32_t word = std::min(state.fp8_not_finite, state.fp8_weights_not_finite);
    REQUIRE(is_finite_word(word),
            "%s has an infinity or NaN, which FP8 cannot hold\n"
            "  a lower --lr or a longer --warmup-steps may help; --fp8 off shows whether bf16 holds it",
            fp8_tensor_name(not_finite_number(word)).c_str());
  }

  // Calls f for each piece of a tensor that this rank updates, cut further if the state requires it, with the address
  // on the device to which f must write the piece's fp32 numbers. Sets the padding to 0.
  template <class F>
  void set_own_pieces(StateKind kind, F&& f) {
    for (int unit = 0; unit < int(layout_.units.size()); ++unit) {
      const size_t count = sharding_.count(layout_, unit);
      const auto clear_between = [&](size_t begin, size_t end) {
        if (end > begin)
          state_.set(kind, unit, begin, end - begin, [&](const Tensor& to, size_t) { clear(compute_, to); });
      };
      size_t end = 0;
      for (const ParameterSlice& piece : layout_.slices(unit, sharding_.first(layout_, unit), count)) {
        clear_between(end, piece.at);
        state_.set(kind, unit, piece.at, piece.count, [&](const Tensor& to, size_t first) {
          f(ParameterSlice{piece.tensor, piece.first + first, size_t(to.size()), piece.at + first}, to);
        });
        end = piece.at + piece.count;
      }
      clear_between(end, count);
    }
  }

  // Returns the unit's master weights as fp32, on the device. The conditions are those of whole_unit().
  Tensor whole_weights(int unit) {
    const Tensor own = state_.view(StateKind::weights, unit);
    if (own.type == DType::fp32 && !state_.on_host(StateKind::weights)) return whole_unit(unit, own);
    REQUIRE(gradients_, "whole weights were asked for, and only forward passes were planned");
    const Tensor part = gradients_->borrow_buffer(unit).elements(sharding_.first(layout_, unit), own.size());
    state_.get(StateKind::weights, unit,
               [&](const Tensor& from, size_t first) { copy(compute_, part.elements(first, from.size()), from); });
    compute_.synchronize();
    return whole_unit(unit, part);
  }

  // Gathers a whole unit; each rank has the part that it updates in `own`. All ranks call, between steps, when the host
  // has waited for earlier work. The result is valid until the next call.
  Tensor whole_unit(int unit, const Tensor& own) {
    if (!sharding_.stage.shards_state()) return own;
    REQUIRE(gradients_, "a whole unit was asked for, and only forward passes were planned");
    const Tensor whole = gradients_->borrow_buffer(unit);
    sharding_.reduce.all_gather(reduce_, whole, own);
    to_compute_.record(reduce_);
    compute_.wait(to_compute_);
    return whole;
  }

  void begin_step(const StepInput& input) {
    StepState state{};
    state.learning_rate = float(input.learning_rate);
    const double t = double(input.step) + 1;
    state.bias_correction1 = float(1 - std::pow(double(settings_.beta1), t));
    state.bias_correction2 = float(1 - std::pow(double(settings_.beta2), t));
    state.grad_clip = settings_.grad_clip;
    state.step = input.step;
    const auto ignored = std::count(input.labels.begin(), input.labels.end(), kIgnoredLabel);
    state.label_count = is_leader() ? int64_t(input.labels.size()) - int64_t(ignored) : 0;
    set_votes(state, input.votes);
    states_.send(compute_, state);
    sum_over_ranks_on_device(&states_.on_device()->label_count, kSummedAtBegin);
  }

  // The properties of a step that decide, with the settings, which work it enqueues.
  struct StepForm {
    int micro_steps;
    bool packed;
    bool operator==(const StepForm&) const = default;
  };

  bool is_regular(int64_t step) const {
    return !observed_ && !(snapshot_ && snapshot_->on_its_way()) && (!scales_ || scales_->is_regular(step));
  }

  // Enqueues the work from the batches and the state on the device to the updated weights.
  void enqueue_work(StepForm form, bool captured) {
    for (int k = 0; k < form.micro_steps; ++k)
      transformer_.forward_backward(batches_.device_batch(k), settings_.B, settings_.T, states_.on_device(),
                                    *gradients_, k == 0, k + 1 == form.micro_steps);
    start_sum_over_ranks(&states_.on_device()->loss_sum, 1);
    if (scales_) scales_->start_all_reduce();  // after the sum, which waits for compute
    gradients_->finish_step();                 // waits for all that was started on the reduce stream
    if (snapshot_) snapshot_->before_update(compute_);
    if (scales_) scales_->finish_step();
    if (scales_ && !captured) scales_->end_step();
    optimizer_->step(*gradients_, parameters_, states_.on_device());
    join();
  }

  // With `graphs`: makes the next step run without a graph. Its work is captured afterwards.
  void prepare_graph() {
    if (settings_.graphs && device_.executes()) graph_.emplace(device_);
    stepped_ = false;
  }

  void capture_work(StepForm form) {
    parameters_.changed();
    graph_->capture(compute_, [&] {
      forked_.record(compute_);
      for (Stream* stream : side_streams()) stream->wait(forked_);
      enqueue_work(form, true);
    });
    parameters_.changed();
    captured_ = form;
  }

  void launch_work(StepForm form) {
    if (graph_->empty() || captured_ != form) capture_work(form);
    graph_->launch(compute_);
    parameters_.changed();
    if (scales_) scales_->end_step();
  }

  std::vector<Stream*> side_streams() {
    std::vector<Stream*> streams = {&gather_, &reduce_};
    if (tensor_) streams.push_back(&tensor_->stream);
    if (context_) streams.push_back(&context_->stream);
    if (host_) streams.insert(streams.end(), {&host_->out, &host_->in});
    return streams;
  }
  // At the end of a step, makes compute wait for all other streams, so that later work has to follow compute only.
  void join() {
    size_t i = 0;
    for (Stream* stream : side_streams()) {
      joined_[i].record(*stream);
      compute_.wait(joined_[i++]);
    }
  }

  static constexpr size_t kSummedAtBegin = 4;  // label_count and the votes behind it
  static void set_votes(StepState& state, const StepFlags& votes) {
    state.stop_requests = votes.stop, state.saved = votes.saved, state.not_saved = votes.not_saved;
  }
  static StepFlags votes_of(const StepState& state) { return {state.stop_requests, state.saved, state.not_saved}; }

  // Sums numbers of the step's state over all ranks, beside compute.
  template <class Number>
  void start_sum_over_ranks(Number* numbers, size_t count) {
    if (communicator_.size() == 1) return;
    to_communication_.record(compute_);
    reduce_.wait(to_communication_);
    communicator_.all_reduce_sum(reduce_, numbers, count);
  }

  // The same, but compute waits for the sum.
  template <class Number>
  void sum_over_ranks_on_device(Number* numbers, size_t count) {
    if (communicator_.size() == 1) return;
    start_sum_over_ranks(numbers, count);
    to_compute_.record(reduce_);
    compute_.wait(to_compute_);
  }

  size_t first_tensor(int unit) const { return size_t(layout_.units[size_t(unit)].first_tensor); }
  std::vector<float> download(const Tensor& unit, const ParameterInfo& t) {
    if (tensor_)
      return full_tensors_->of(t.unit, unit.as<float>())[size_t(&t - &layout_.tensors[0]) - first_tensor(t.unit)];
    std::vector<float> values(t.size());
    copy(compute_, values.data(), unit.as<float>() + t.offset, t.size());
    compute_.synchronize();
    return values;
  }

  Device& device_;
  Communicator& communicator_;
  const ProcessGroups groups_;
  const LlamaConfig whole_config_;
  const TensorSplit split_;
  const LlamaConfig config_;  // the part that this rank computes
  const TrainerSettings settings_;
  const Sharding sharding_;
  const ParameterLayout layout_;
  MemoryPlan plan_;
  Stream compute_, gather_, reduce_;
  const std::unique_ptr<TensorStream> tensor_;    // with tensor parallelism
  const std::unique_ptr<ContextStream> context_;  // with context parallelism
  std::optional<FullTensors> full_tensors_;
  const std::unique_ptr<HostStreams> host_;  // if something is offloaded
  const std::unique_ptr<Fp8Scales> scales_;  // with FP8 products
  ParameterStore parameters_;
  OptimizerState state_;
  std::optional<GradientStore> gradients_;  // this and the optimizer: only in training
  std::optional<Optimizer> optimizer_;
  std::optional<Snapshot> snapshot_;  // if snapshots were planned
  int64_t snapshot_recorded_ = 0;     // Fp8Scales::recorded() at the snapshot
  Transformer transformer_;
  std::vector<int32_t> sequence_;  // of next_logits
  BatchUploader batches_;
  StepStateQueue states_;
  PlannedTensor workspace_;
  Event to_communication_, to_compute_, forked_;
  std::vector<Event> joined_;  // one per side stream
  Arena arena_;
  std::optional<Matmul> matmul_;
  std::optional<Graph> graph_;  // of a step of the form captured_
  StepForm captured_{};
  bool stepped_ = false, observed_ = false;  // a step was enqueued; an observer is set
};

std::vector<float> LlamaTrainer::next_logits(std::span<const int32_t> tokens, int past) {
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
  transformer_.forward_cached(batches_.device_batch(), count, past);
  return read_logits(transformer_, compute_, 1, count, count - 1, count);
}

std::vector<float> LlamaTrainer::logits(const std::vector<int32_t>& inputs, int B, int seq_len,
                                        std::optional<int> only_row, std::span<const int32_t> positions) {
  return compute_logits(transformer_, batches_, compute_, inputs, positions, B, seq_len, only_row);
}

}  // namespace

std::unique_ptr<Trainer> Trainer::create(Device& device, Communicator& communicator, const LlamaConfig& config,
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
  REQUIRE(settings.micro_steps > 0, "%d micro-batches of a step: expected at least one", settings.micro_steps);
  REQUIRE(settings.head_chunk > 0 && settings.head_chunk % 128 == 0, "head chunk %d is not a multiple of 128",
          settings.head_chunk);
  REQUIRE(!settings.fp8.on() || settings.dtype == DType::bf16,
          "--fp8 %s with --dtype fp32: FP8 products have bf16 around them\n  use --dtype bf16, or --fp8 off",
          recipe_name(settings.fp8.recipe));
  return std::make_unique<LlamaTrainer>(device, communicator, mesh, config, settings);
}

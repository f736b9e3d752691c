// train_llama: trains Llama-3-class models. `./train_llama --help` lists the options.
//
// The program reads like a recipe: options, ranks, device, model, data, settings, trainer, the loop, the export.
#include <cmath>
#include <csignal>
#include <cstdio>
#include <optional>
#include <span>

#include "llmc/base/error.h"
#include "llmc/base/options.h"
#include "llmc/base/text.h"
#include "llmc/comm/communicator.h"
#include "llmc/comm/mesh.h"
#include "llmc/comm/ranks.h"
#include "llmc/device/device.h"
#include "llmc/device/replay.h"
#include "llmc/kernels/matmul.h"
#include "llmc/memory/activation_policy.h"
#include "llmc/memory/reserve.h"
#include "llmc/train/checkpointer.h"
#include "llmc/train/consolidate.h"
#include "llmc/train/context.h"
#include "llmc/train/data_check.h"
#include "llmc/train/data_identity.h"
#include "llmc/train/description.h"
#include "llmc/train/documents.h"
#include "llmc/train/evaluation.h"
#include "llmc/train/export_folder.h"
#include "llmc/train/fp8_report.h"
#include "llmc/train/idle_options.h"
#include "llmc/train/interrupt.h"
#include "llmc/train/model_source.h"
#include "llmc/train/planner.h"
#include "llmc/train/report.h"
#include "llmc/train/resume.h"
#include "llmc/train/run_data.h"
#include "llmc/train/run_folder.h"
#include "llmc/train/sampler.h"
#include "llmc/train/sampling.h"
#include "llmc/train/settings.h"
#include "llmc/train/simulation.h"
#include "llmc/train/text_codec.h"
#include "llmc/train/token_dataset.h"
#include "llmc/train/trainer.h"
#include "llmc/train/tuner.h"
#include "llmc/train/weights_io.h"

namespace {

constexpr const char* kVersion = "0.1.0";
constexpr int64_t kTracedStep = 2;  // the steps before it still warm up

// Everything that a run consists of, in the order in which it is built.
struct Run {
  const Options given;  // from the command line and its --config
  const Options asked;  // and from the checkpoint
  Options options;      // and with the choices of --plan
  const Ranks& ranks;
  Console console;
  Mesh mesh;
  Device device;
  std::unique_ptr<Communicator> communicator;
  ModelSource model;
  TextCodec codec;
  std::optional<TokenDataset> data, held_out;
  std::optional<Planner> planner;
  RunSettings settings;
  std::unique_ptr<Trainer> trainer;
  std::optional<Checkpoint> start;  // the checkpoint that it goes on from
  std::optional<RunFolder> folder;  // on the first rank only

  Run(const Options& given, const Options& asked, const Ranks& ranks, const ResumePoint* resume);
  void banner();
  bool trains() const { return !options.sample_only && !options.eval_only; }
  void open_folder(const ResumePoint* resume);
  void choose_algorithms();
  void set_weights();
  int64_t train();  // returns the number of steps done
  void report_evaluation(int64_t step);
  void write_sample(const std::string& when, int64_t step);
  void end(int64_t steps);
  void give_up();  // on an error; any rank calls it

 private:
  void go_on_from_start();
  void prepare_evaluation(WindowRule rule, bool asked_length);
  void enqueue_step(int64_t step);
  void finish_step();
  bool saves_at(int64_t step) const;
  Json state_after(int64_t step);
  void report_checkpoints();
  std::span<const int32_t> cut_rows();
  std::string about_data() const;
  int64_t first_step() const { return start ? start->step() : 0; }
  bool counts_fp8(int64_t step) const {
    return settings.fp8.on() && options.fp8_stats && step % options.fp8_stats == 0;
  }
  // True if this rank was asked to stop and may act on it alone. Several ranks may not: they sample and validate
  // together.
  bool stop_now() const { return ranks.size == 1 && stop_requests_ && stop_requests_->any(); }

  std::optional<Sampler> sampler_;
  std::optional<DataIdentity> identity_;
  std::optional<Evaluation> evaluation_;
  std::vector<int32_t> prompt_;
  std::optional<StopRequests> stop_requests_;  // set from the first step on
  std::optional<Checkpointer> checkpointer_;
  bool stop_voted_ = false;                                     // a rank has asked to stop, with a step that has ended
  std::optional<DocumentRule> documents_, held_out_documents_;  // if rows are packed with several documents
  std::optional<TokenizerFiles> tokenizer_files_;
  std::vector<int32_t> inputs_, labels_, positions_;
  std::optional<Unigram> unigram_;              // loss of a model that knows only how often each token occurs
  std::vector<std::string> about_text_;         // how text was cut into tokens
  std::string started_;                         // folder of a run that has not finished a step
  bool made_folder_ = true;                     // the folder was not there before
  std::vector<std::string> changes_, refused_;  // changes since `start`; refused checkpoints newer than it
  std::vector<std::string> data_remarks_;
  Tuning tuning_;  // for the products
  double training_seconds_ = 0;
  Json last_step_, last_score_;  // as they were logged
};

Run::Run(const Options& given, const Options& asked, const Ranks& ranks, const ResumePoint* resume)
    : given(given),
      asked(asked),
      options(asked),
      ranks(ranks),
      console(ranks.rank == 0, asked.quiet),
      mesh(Mesh::create(ranks.size, ranks.rank, int(options.tensor_parallel_degree),
                        int(options.context_parallel_degree), int(options.hybrid_shard_degree))),
      device(ranks.local_rank, CpuBackend::from_environment(ranks.local_size)),
      communicator(make_communicator(device, ranks, options.rendezvous, options.comm_timeout)),
      model(open_model(options)),
      codec(TextCodec::open(options.tokenizer, model.directory,
                            options.train_data.empty() ? options.val_data : options.train_data, model.config)) {
  {
    Stream stream(device, "resume");
    require_same_on_all_ranks(resume, *communicator, stream);
  }
  if (!options.sample_only) {
    RunData opened = open_run_data(options, model, codec, *communicator, device, console);
    if (options.check_data) check_data(opened, *communicator, device, console);
    data = std::move(opened.train), held_out = std::move(opened.held_out);
    documents_ = opened.documents, held_out_documents_ = opened.held_out_documents;
    data_remarks_ = std::move(opened.remarks);
    about_text_ = std::move(opened.about_text);
  }
  const int64_t data_tokens = data ? data->size() : 0;
  const MemoryLimits limits = MemoryLimits::here(options, device.info(), ranks.local_size);
  if (!limits.warning.empty()) console.warning(limits.warning);
  planner.emplace(options, model.config, device.info(), mesh, data_tokens, limits);
  if (trains() && options.plan == "auto") options = planner->choose(*communicator, device, console);
  settings =
      resolve_settings(options, model.config, device.info(), mesh.data_ranks(), data_tokens, model.weights.has_value());
  prompt_ = codec.prompt(options.prompt);
  if (resume && !options.dry_run) {
    Stream stream(device, "resume");
    start = resume->open(*communicator, stream, refused_);
    if (start) require_same_model(*start, model.config);
  }
  const WindowRule rule = trains() && start ? window_rule_of(*start) : WindowRule::concatenation;
  if (trains()) {
    sampler_.emplace(*data, settings.T, uint64_t(options.seed), rule);
    identity_.emplace(*data, sampler_->samples_per_epoch(), held_out ? &*held_out : nullptr);
    if (start) go_on_from_start();
  }
  prepare_evaluation(rule, resume ? resume->own_length : !is_auto(options.seq_len));
  if (!options.dry_run) tuning_ = open_tuning(options, start ? &*start : nullptr, *communicator, device);
  REQUIRE(options.trace.empty() || (trains() && settings.steps - first_step() > kTracedStep),
          "--trace %s: it is written of the third step that a run trains, or with --dry-run --nodes",
          options.trace.c_str());
  trainer = Trainer::create(device, *communicator, model.config, trainer_settings(options, settings), mesh);
  if (model.weights && !start) require_weights_fit(trainer->layout(), *model.weights, !is_auto(options.layers));
}

// Takes up the run where `start` saved it. Throws if its data is not what it was.
void Run::go_on_from_start() {
  REQUIRE(start->step() <= settings.steps,
          "--resume: after %s %s are done, and the run has %lld\n  make it longer: --steps N", start->path().c_str(),
          counted(start->step(), "step").c_str(), (long long)settings.steps);
  changes_ = require_same_run(*start, asked, data->size());
  Stream stream(device, "resume");
  require_same_data(*start, *identity_, *communicator, stream, changes_);
  training_seconds_ = start->state().get_double("seconds");
  last_step_ = start->state().at("last_step"), last_score_ = start->state().at("last_score");
}

std::string Run::about_data() const {
  const std::string about = describe_data(*data, documents_, options);
  return held_out ? about + "; " + describe_held_out(*held_out, evaluation_->measured_text(), options) : about;
}

void Run::banner() {
  const DeviceInfo& info = device.info();
  console.heading(format("train_llama %s", kVersion));
  console.item("device", info.gpu ? info.name : info.name + ": a GPU's kernels, executed by the CPU");
  if (const std::string gpu = Device::unused_gpu(); !gpu.empty())
    console.warning("this build does not use the " + gpu + " of this machine: make DEVICE=cuda");
  console.item("products", describe_products(tuning_));
  for (const std::string& line : settings.products) console.item("", line);
  const AttentionChoice attention = choose_attention_kernel(settings.attention, info, settings.dtype, model.config.HD);
  console.item("attention", format("%s: %s", attention_kernel_name(attention.kernel), attention.why.c_str()));
  console.item("ranks", format("%d (%s); %s", ranks.size, ranks.how.c_str(), communicator->description().c_str()));
  if (ranks.size > 1) console.item("", describe_sharing(mesh, options, model.config));
  console.item("model", describe_model(model, trains()));
  if (const std::string text = nothing_to_resume(options, start); !text.empty()) console.warning(text);
  if (start) console.item("goes on", format("after step %lld of %s", (long long)start->step(), start->path().c_str()));
  for (const std::string& change : changes_) console.item("", change);
  if (data) console.item("data", describe_data(*data, documents_, options));
  if (held_out) console.item(data ? "" : "data", describe_held_out(*held_out, evaluation_->measured_text(), options));
  else if (data) console.item("", "nothing is held out: name files with --val-data to see a held-out loss");
  for (const std::string& how : about_text_) console.item("", how);
  if (sampler_) console.item("", describe_epochs(sampler_->windows(), settings.steps * settings.G));
  for (const std::string& remark : data_remarks_) console.warning(remark);
  if (data && data->is_text() && model.config.V > 256) console.warning(describe_bytes(model));
  console.item("tokenizer", codec.description());
  if (trains())
    console.item("step", format("%s; %s, %s tokens", describe_step(settings, mesh).c_str(),
                                counted(settings.steps, "step").c_str(),
                                human_count(double(settings.steps) * double(settings.step_tokens())).c_str()));
  if (!settings.precision.empty()) console.item(trains() ? "" : "precision", settings.precision);
  for (const std::string& reason : trains() ? settings.reasons : std::vector<std::string>()) console.item("", reason);
  if (trains())
    console.item("activations",
                 describe_activations(settings.activations, model.config, settings.fp8, mesh.tensor_degree));
  console.item("memory", trainer->plan().table());
  for (const std::string& option : changed_options(trains() ? options : given)) console.item("option", "--" + option);
  const bool measures = held_out || !options.eval_choices.empty(), loads = model.weights.has_value();
  for (const std::string& remark : idle_options(given, {options, settings, model.config, info, mesh, loads, measures}))
    console.item("", remark);
}

// Every rank takes the tokens that the first rank draws. The first rank prints and keeps them.
void Run::write_sample(const std::string& when, int64_t step) {
  console.heading(format("sample %s:", when.c_str()));
  std::string text;
  TextCodec::Writer writer(codec);
  const bool shown = options.sample_only || !options.quiet;
  const auto add = [&](const std::string& piece) {
    if (shown) console.piece(piece);
    text += piece;
  };
  for (int32_t token : prompt_) add(writer.take(token));
  SamplingSettings s{int(options.sample_tokens), options.temperature, options.top_p, uint64_t(options.seed),
                     std::min(settings.context, model.config.max_positions)};
  Stream stream(device, "sample");
  if (mesh.tensor_degree * mesh.context_degree > 1)
    s.broadcast_token = [&](int32_t token) { return int32_t(broadcast_number(*communicator, stream, token)); };
  sample(*trainer, model.config, prompt_, s, [&](int32_t token) {
    add(writer.take(token));
    return !stop_now();
  });
  add(writer.finish());
  if (shown) console.piece("\n");
  if (folder) folder->log(Json::object().set("step", step).set("sample", PrintableText().take(text)));
}

void Run::prepare_evaluation(WindowRule rule, bool asked_length) {
  std::vector<ChoiceItem> choices = choose_context(settings, asked_length, prompt_.size(), options, model.config, codec,
                                                   mesh, *planner, *communicator, device, console);
  evaluation_.emplace(mesh.data_rank(), mesh.data_ranks(), settings.B, settings.T, settings.context);
  if (held_out && (settings.val_every || options.eval_only)) {
    REQUIRE(!options.val_data.empty() || held_out->size() > settings.T,
            "the last tenth of the training data is held out: %lld tokens, too few for a sequence of %d and a label\n"
            "  lower --seq-len to %lld or less, name held-out data by --val-data, or measure none: --val-every 0",
            (long long)held_out->size(), settings.T, (long long)std::max<int64_t>(1, held_out->size() - 1));
    evaluation_->measure_loss(ValidationWindows(*held_out, settings.T, windows_to_measure(options, settings.T), rule),
                              held_out_documents_, codec);
    // The unigram loss covers all tokens. Beside a loss of only those tokens that masks choose, it would mislead. Only
    // the first rank prints it.
    if (ranks.rank == 0 && data && !held_out->has_masks()) unigram_ = unigram_cross_entropy(*data, *held_out);
  }
  evaluation_->ask_choices(std::move(choices));
  REQUIRE(!options.eval_only || !evaluation_->empty(),
          "--eval-only: nothing to measure\n  name held-out data with --val-data, or questions with --eval-choices");
}

void Run::report_evaluation(int64_t step) {
  const EvaluationResult result = evaluation_->run(*trainer, options.eval_only ? progress_lines(console) : nullptr);
  const std::string text = evaluation_text(result, model.config.V, unigram_);
  if (options.eval_only) console.result(text);
  else console.line(format("step %lld/%lld | ", (long long)step, (long long)settings.steps) + text);
  if (folder) folder->log(last_score_ = evaluation_json(step, result));
}

// If rows are packed with documents, cuts the filled rows and returns their positions; else returns nothing.
std::span<const int32_t> Run::cut_rows() {
  if (!documents_) return {};
  positions_.resize(inputs_.size());
  for (size_t row = 0; row < inputs_.size(); row += size_t(settings.T))
    cut_documents(*documents_, &inputs_[row], &labels_[row], &positions_[row], settings.T);
  return positions_;
}

void Run::enqueue_step(int64_t step) {
  const BatchLayout layout{settings.G, mesh.data_ranks(), settings.B};
  const size_t micro_tokens = size_t(settings.B) * size_t(settings.T);
  inputs_.resize(micro_tokens * size_t(settings.micro_steps));
  labels_.resize(inputs_.size());
  for (int64_t k = 0; k < settings.micro_steps; ++k)
    sampler_->fill(layout, step, k, mesh.data_rank(), inputs_.data() + size_t(k) * micro_tokens,
                   labels_.data() + size_t(k) * micro_tokens);
  const std::span<const int32_t> positions = cut_rows();
  StepFlags votes = checkpointer_->votes();
  votes.stop = stop_requests_->any();
  const bool traced = !options.trace.empty() && step == first_step() + kTracedStep;  // the first rank records it
  Record record;
  if (traced && folder) device.record_to(&record);
  trainer->enqueue_step({step, settings.learning_rate_at(step), inputs_, labels_, votes, positions, traced});
  if (!traced || !folder) return;
  device.record_to(nullptr);
  write_trace(options.trace, record, record.spans);
  console.line(format("wrote the streams of step %lld to %s: open it in ui.perfetto.dev", (long long)step + 1,
                      options.trace.c_str()));
}

// Waits for the oldest step that is under way, and reports it.
void Run::finish_step() {
  const StepResult result = trainer->wait_for_step();
  checkpointer_->count(result.votes);
  stop_voted_ = stop_voted_ || result.votes.stop > 0;
  training_seconds_ += result.seconds;
  const int64_t done = result.step + 1;
  StepReport r{};
  r.step = done, r.steps = settings.steps;
  r.loss = result.loss, r.labels = result.label_count, r.grad_norm = result.grad_norm;
  r.learning_rate = settings.learning_rate_at(result.step);
  r.seconds = result.seconds;
  r.tokens = double(settings.step_tokens());
  if (device.info().bf16_flops > 0 && settings.dtype == DType::bf16)
    r.mfu = model.config.flops_per_token(settings.T, false) * r.tokens / result.seconds /
            (device.info().bf16_flops * ranks.size);
  r.memory_bytes = trainer->plan().device_bytes();
  if (settings.fp8.delayed()) r.fp8_overflows = result.fp8.overflows, r.fp8_underflows = result.fp8.underflows;
  r.eta_seconds = training_seconds_ / double(done) * double(settings.steps - done);
  report_checkpoints();
  console.progress(step_line(r), double(done) / double(settings.steps));
  if (folder) folder->log(last_step_ = step_json(r));
  if (result.step == first_step()) {
    started_.clear();
    if (folder) folder->become_latest();
    const std::string taken = describe_taken(trainer->plan(), device.info(), device.taken_bytes());
    if (folder) folder->write_memory(trainer->plan().table() + "\n" + taken);
    if (device.info().gpu) console.line(taken);
    if (const std::string unneeded = unneeded_choices(trainer->products(), tuning_); !unneeded.empty())
      console.warning(unneeded);
  }
  if (folder && counts_fp8(result.step)) folder->log(fp8_json(done, trainer->fp8_statistics(result.step)));
  REQUIRE((std::isfinite(result.loss) || r.labels == 0) && std::isfinite(result.grad_norm),
          "step %lld has the loss %s and the gradients' norm %s\n  a lower --lr or a longer --warmup-steps may help",
          (long long)done, plain_number(result.loss).c_str(), plain_number(result.grad_norm).c_str());
}

bool Run::saves_at(int64_t step) const {
  return options.checkpoint_every && (step % options.checkpoint_every == 0 || step == settings.steps);
}

Json Run::state_after(int64_t step) {
  Json state = resume_state(step, ranks.size, asked, settings, model.config, data->size());
  return state.set("data", about_data())
      .set("data_identity", ranks.rank == 0 ? identity_->json() : Json())
      .set("windows", name_of(sampler_->windows().rule()))
      .set("seconds", training_seconds_)
      .set("tuning", tuning_.empty() ? Json() : tuning_.to_json())
      .set("last_step", last_step_)
      .set("last_score", last_score_);
}

void Run::report_checkpoints() {
  for (const Checkpointer::Saved& saved : checkpointer_->news())
    console.line(format("saved %s in %s", saved.path.c_str(), human_duration(saved.seconds).c_str()));
}

// One step is always under way while the host prepares the next one. Its result is read one step late.
int64_t Run::train() {
  stop_requests_.emplace();
  int64_t enqueued = first_step(), finished = enqueued;
  bool stop = false;
  const auto finish = [&] { finish_step(), ++finished; };
  while (!stop && enqueued < settings.steps) {
    const bool validates = !evaluation_->empty() && settings.validates_at(enqueued),
               samples = settings.samples_at(enqueued);
    if (validates || samples) {
      while (finished < enqueued) finish();
      if (validates) report_evaluation(enqueued);
      if (samples)
        write_sample(enqueued == 0 ? "before training" : format("after step %lld", (long long)enqueued), enqueued);
    }
    enqueue_step(enqueued++);
    if (finished + 1 < enqueued) finish();
    if (checkpointer_->waits_for_state()) checkpointer_->write(state_after(finished));
    stop = stop_voted_ || stop_now();
    if (stop || !saves_at(enqueued)) continue;
    const bool late = checkpointer_->under_way();
    if (late) console.line("the checkpoint before is not written yet: training waits for it");
    if (late || !options.checkpoint_async)
      while (finished < enqueued) finish();
    checkpointer_->finish();
    if (options.checkpoint_async) checkpointer_->begin(enqueued);
    else checkpointer_->save(finished, state_after(finished));
  }
  while (finished < enqueued) finish();
  if (checkpointer_->waits_for_state()) checkpointer_->write(state_after(finished));
  checkpointer_->finish();
  if (stop) {
    console.line(
        format("asked to stop: ending after step %lld of %lld", (long long)finished, (long long)settings.steps));
    if (options.checkpoint_on_signal)
      REQUIRE(checkpointer_->save(finished, state_after(finished)),
              "asked to stop after step %lld, and its state could not be saved: %s", (long long)finished,
              checkpointer_->what_remains().c_str());
  }
  report_checkpoints();
  if (!stop && !evaluation_->empty()) report_evaluation(finished);
  return finished;
}

// Only the first rank writes here. If it cannot write, all ranks end.
void Run::open_folder(const ResumePoint* resume) {
  Stream stream(device, "folder");
  const int64_t nodes = sum_number(*communicator, stream, ranks.local_rank == 0);
  if (ranks.rank == 0) {
    if (options.export_) tokenizer_files_.emplace(codec, model.config);
    if (resume && !resume->run_folder.empty()) folder = RunFolder::reopen(resume->run_folder, first_step());
    else folder.emplace(options.out, model.config.name), started_ = folder->path(), made_folder_ = folder->was_made();
    for (const std::string& what : folder->moved()) console.line(what);
    folder->write_about(
        options_json(asked),
        run_facts(first_step(), nodes, ranks.size, device.info(), settings, options.fp8, model.config, codec, *data),
        trainer->plan().table());
    if (options.export_)
      folder->require_room(sizeof(float) * uint64_t(model.config.parameters()), "the exported weights");
  }
  started_ = broadcast_text(*communicator, stream, started_);
  made_folder_ = broadcast_number(*communicator, stream, folder && folder->was_made());
  const std::string checkpoints = broadcast_text(*communicator, stream, folder ? folder->file("checkpoints") : "");
  if (folder && resume && !resume->run_folder.empty())
    if (const std::string left = make_room(checkpoints, refused_); !left.empty()) console.warning(left);
  checkpointer_.emplace(checkpoints, options.keep_checkpoints, *trainer, ranks);
}

void Run::choose_algorithms() {
  if (options.tune_products && trains() && tuning_.empty()) {
    console.line("timing the algorithms for each product of a step …");
    set_weights();
    tuning_ = find_tuning(*trainer, *sampler_, {settings.G, mesh.data_ranks(), settings.B}, mesh.data_rank(),
                          first_step(), *communicator, device);
  }
  trainer->products().use(tuning_);
  if (folder) keep_tuning(tuning_, *folder);
  const std::string change = start ? changed_tuning(tuning_, *start) : "";
  if (trains() && !change.empty()) changes_.push_back(change);
}

void Run::set_weights() {
  if (start) trainer->restore(*start);
  else if (model.weights) trainer->load(*model.weights);
  else trainer->initialize(options.init == "normal" ? Init::normal : Init::depth_scaled, uint64_t(options.seed));
}

void Run::end(int64_t steps) {
  // A run that was stopped and can be resumed exports when it is done.
  const bool exports = options.export_ && (steps == settings.steps || !options.checkpoint_on_signal);
  if (exports) trainer->save(folder ? folder->file("export") : "");
  if (exports && folder) {
    tokenizer_files_->write(folder->file("export"));
    export_model_card(
        {about_data(), steps, steps * settings.step_tokens(), last_step_, last_score_, changed_options_line(options)},
        model.config, folder->file("export"));
    console.line(format("exported the weights to %s", folder->file("export").c_str()));
  }
  if (settings.sample_every && steps == settings.steps) write_sample("after training", steps);
  if (steps > 0)
    console.line(format("trained %s in %s, %s tokens/s", counted(steps, "step").c_str(),
                        human_duration(training_seconds_).c_str(),
                        human_count(double(steps) * double(settings.step_tokens()) / training_seconds_).c_str()));
  if (folder) console.line("the run is in " + folder->path());
  if (folder && steps < settings.steps && !checkpointer_->newest().empty())
    console.result("to go on: " + resume_command(ranks, folder->path()));
  REQUIRE(!checkpointer_->all_failed(), "no checkpoint could be saved: %s", checkpointer_->what_remains().c_str());
}

// A start that failed leaves no files of its own. Each rank tidies up, since the first one may be ended before it can.
void Run::give_up() {
  console.end_line();
  if (!started_.empty()) RunFolder::remove_start(started_, made_folder_);
}

// Returns the program's exit code.
int run(Run& run, const ResumePoint* resume) {
  if (run.options.dry_run) {
    run.banner();
    run.console.result(run.planner->verdict(run.trainer->plan()));
    Stream stream(run.device, "verdict");
    const bool fits = sum_number(*run.communicator, stream, !run.planner->fits(run.trainer->plan())) == 0;
    return fits ? 0 : DoesNotFit::kExitCode;
  }
  run.planner->require_fits(run.trainer->plan());
  run.trainer->allocate();
  if (run.trains()) run.open_folder(resume);
  run.choose_algorithms();
  run.banner();
  run.set_weights();
  if (run.start) run.start->close();
  if (run.options.sample_only) run.write_sample("of the model", 0);
  else if (run.options.eval_only) run.report_evaluation(0);
  else run.end(run.train());
  return 0;
}

std::string help() {
  std::string presets;
  for (const std::string& preset : LlamaConfig::presets()) presets += " " + preset;
  return options_help("train_llama") + "\nPresets of --model:" + presets + "\n" +
         "\nWhat is computed again and what travels to the host and back, of what backward needs of a block; what is\n"
         "neither is kept on the device, and what is computed again does not travel\n\n" +
         activation_table();
}

}  // namespace

int main(int argc, char** argv) {
  Ranks ranks;
  int code = 0;
  std::signal(SIGXFSZ, SIG_IGN);  // a write beyond the limit of a file's size then is an error that names the path
  try {
    ranks = Ranks::start(&argc, &argv);
    const Options given = parse_options(argc, argv);
    if (given.help || given.version) {
      if (ranks.rank == 0) printf("%s", given.help ? help().c_str() : format("train_llama %s\n", kVersion).c_str());
    } else {
      const std::optional<ResumePoint> resume = ResumePoint::find(given);
      const Options options = resume ? parse_options(argc, argv, resume->saved_options(ranks.size)) : given;
      if (!options.consolidate.empty()) {
        REQUIRE(resume && ranks.size == 1,
                "--consolidate %s: name a run or a checkpoint with --resume, and start one process",
                options.consolidate.c_str());
        consolidate(options, *resume);
        return 0;
      }
      if (options.nodes) {
        REQUIRE(options.dry_run && ranks.size == 1, "--nodes %lld: it is for --dry-run, by one process",
                (long long)options.nodes);
        Console console(true);
        return simulate(options, console) ? 0 : DoesNotFit::kExitCode;
      }
      const ResumePoint* from = resume ? &*resume : nullptr;
      Run whole(given, options, ranks, from);
      try {
        code = run(whole, from);
      } catch (const std::exception& error) {
        whole.give_up();
        end_all_ranks(ranks, error, exit_code(error));  // before the destructor of `whole` waits for a save
      }
    }
  } catch (const std::exception& error) {
    end_all_ranks(ranks, error, exit_code(error));
  }
  ranks.finish();
  return code;
}

#include "llmc/run/training_loop.h"

#include <algorithm>
#include <filesystem>

#include "llmc/base/clock.h"
#include "llmc/base/error.h"
#include "llmc/base/new_file.h"
#include "llmc/base/text.h"
#include "llmc/device/replay.h"
#include "llmc/memory/reserve.h"
#include "llmc/run/description.h"
#include "llmc/run/fp8_report.h"
#include "llmc/run/not_finite_report.h"
#include "llmc/run/sampling.h"
#include "llmc/run/spike_report.h"
#include "llmc/run/start_record.h"
#include "llmc/run/tuner.h"
#include "llmc/train/run_state.h"

// Returns the files that a checkpoint has besides the state.
static SmallFiles small_files(const TokenizerFiles& tokenizer, const ModelConfig& config) {
  SmallFiles files = tokenizer.sources();
  if (!config.generation.is_null()) files.emplace_back("generation_config.json", config.generation.dump(2) + "\n");
  return files;
}

TrainingLoop::TrainingLoop(Setup& setup, Trainer& trainer, const StopRequests& stop_requests)
    : setup_(setup),
      trainer_(trainer),
      stop_requests_(stop_requests),
      options_(setup.options),
      settings_(setup.settings),
      console_(setup.console),
      enqueued_(setup.first_step()),
      finished_(setup.first_step()) {
  if (!setup.options.trains() || !setup.resumed_from) return;
  const Json& state = setup.resumed_from->state();
  training_seconds_ = state.get_double("seconds");
  last_step_ = state.at("last_step"), last_score_ = state.at("last_score");
  skipped_ = skipped_steps(state);
}

bool TrainingLoop::is_done() {
  if (!setup_.options.trains() || options_.dry_run || !setup_.resume || setup_.resume->run_folder.empty()) return false;
  const std::string& run = setup_.resume->run_folder;
  std::error_code error;
  const bool exported = std::filesystem::exists(run + "/export/README.md", error);  // its last file
  // A run that saves checkpoints and lost its last one trains the last steps again. The log of a run without
  // checkpoints tells how many steps it has trained.
  const bool saves = settings_.saves(options_);
  const bool has_state = finished_ == settings_.steps, asks_the_log = !saves || !setup_.resumed_from;
  const bool trained =
      has_state || (asks_the_log && setup_.refused.empty() && RunFolder::logged_steps(run) == settings_.steps);
  const bool saved = options_.export_ ? exported : has_state || !saves;
  Stream stream(setup_.device, "done");
  const bool done = broadcast_number(*setup_.communicator, stream, trained && saved && !setup_.resume->wrong_gpu);
  REQUIRE(
      done || setup_.resumed_from || !broadcast_number(*setup_.communicator, stream, exported),
      "--resume auto: the run in %s has ended, and has no checkpoint to go on from\n"
      "  train its weights in a new folder: --model %s --out DIR, without --resume; or begin it again, longer, with "
      "--checkpoint-every N, which leaves a checkpoint at the end",
      run.c_str(), run.c_str());
  if (done) {
    const char* longer = setup_.stages.size() > 1 ? "--steps N, counted from the first step of its stage" : "--steps N";
    console_.result(format("the run in %s is done: %s; nothing is changed\n  a longer one: %s", run.c_str(),
                           counted(settings_.steps, "step").c_str(),
                           setup_.resumed_from
                               ? longer
                               : "begin it again with --steps N, for it has no checkpoint to go on from; "
                                 "--checkpoint-every N leaves one at the end"));
  }
  return done;
}

void TrainingLoop::open_folder() {
  Communicator& communicator = *setup_.communicator;
  Stream stream(setup_.device, "folder");
  const Ranks& ranks = setup_.ranks;
  const ModelConfig& config = setup_.model.config;
  const bool reopens = setup_.resume && !setup_.resume->run_folder.empty();
  const int64_t nodes = sum_number(communicator, stream, ranks.local_rank == 0);
  // A run that goes on in its own folder, in its own stage, needs no memory of where it began.
  const bool began_elsewhere =
      setup_.resumed_from && (!reopens || setup_.begins_stage() || setup_.resume->begins_again);
  const std::string from = began_elsewhere ? std::filesystem::absolute(setup_.resumed_from->path()).string() : "";
  const Json start =
      start_record(setup_.first_step(), from, setup_.stage_name(), ranks, setup_.device.info(), communicator, stream);
  if (ranks.rank == 0) {
    if (reopens) {
      folder_ = RunFolder::reopen(setup_.resume->run_folder, std::move(setup_.lock));
      setup_.resume->require_newest();
      folder_->roll_back(setup_.first_step());
    } else {
      folder_.emplace(options_.out, config.name, std::move(setup_.lock));
      unfinished_folder_ = folder_->path(), made_folder_ = folder_->was_made();
    }
    for (const std::string& what : folder_->moved()) console_.line(what);
    Json facts = run_facts(setup_.first_step(), nodes, ranks.size, setup_.device.info(), settings_, options_.fp8,
                           config, setup_.codec, tokens_of(setup_.data.train), setup_.stages);
    facts.set("left_out", to_json(setup_.left_out));
    folder_->write_about(options_json(setup_.requested, Scope::machine), facts, start, memory_text());
    if (options_.export_) folder_->require_room(sizeof(float) * uint64_t(config.parameters()), "the exported weights");
  }
  run_path_ = broadcast_text(communicator, stream, folder_ ? folder_->path() : "");
  if (!reopens) unfinished_folder_ = run_path_;
  made_folder_ = broadcast_number(communicator, stream, folder_ && folder_->was_made());
  const std::string checkpoints = run_path_ + "/checkpoints";
  if (folder_ && reopens) {
    std::vector<std::string> aside = setup_.refused;
    aside.insert(aside.end(), setup_.resume->unverified.begin(), setup_.resume->unverified.end());
    if (const std::string left = make_room(checkpoints, aside); !left.empty()) console_.warning(left);
    if (const std::string found = take_over_wrong_gpu(run_path_); !found.empty()) console_.line(found);
  }
  checkpointer_.emplace(checkpoints, options_.keep_checkpoints, trainer_, ranks,
                        options_.checkpoint_verify ? Disk::verified() : Disk::real());
  if (folder_) checkpointer_->add_files(small_files(*setup_.tokenizer_files, config));
  answer_stop_requests();
}

// One step is always under way while the host prepares the next one. Its result is read one step late.
int64_t TrainingLoop::run() {
  last_checkpoint_time_ = seconds();
  if (options_.gpu_every && enqueued_ < settings_.steps && (setup_.ranks.size > 1 || setup_.device.info().gpu)) {
    rank_times_.emplace(trainer_, *setup_.communicator, setup_.device);
    if (const std::string why = rank_times_->missing_sensors(); !why.empty())
      console_.line("no clocks and temperatures of the GPUs: " + why);
  }
  bool stop = false;
  while (!stop && enqueued_ < settings_.steps) {
    measure_before(enqueued_);
    enqueue_step();
    if (finished_ + 1 < enqueued_) wait_for_oldest_step();
    write_checkpoint();
    if (looks_at_gpus(enqueued_ - 1)) report_gpus();
    if (options_.verify_every && enqueued_ % options_.verify_every == 0) verify();
    stop = stop_requested_ || stop_now();
    const bool due = due_ && !checkpointer_->under_way();  // training need not wait for the one before
    if (!stop && (due || saves_at(enqueued_))) begin_checkpoint();
  }
  wait_for_all_steps();
  write_checkpoint();
  checkpointer_->finish();
  if (stop) save_at_stop();
  report_checkpoints();
  if (!stop && !setup_.evaluation->empty()) report_evaluation(finished_);
  return finished_;
}

// True if this rank was asked to stop and may act on it alone. Several ranks may not: they sample and validate
// together.
bool TrainingLoop::stop_now() const { return setup_.ranks.size == 1 && stop_requests_.any(); }

// Makes the first signal print what will happen. A rank of several learns of a request a step later.
void TrainingLoop::answer_stop_requests() const {
  if (setup_.ranks.rank != 0 || options_.quiet) return;
  const bool several = setup_.ranks.size > 1;
  const char* first = several ? "the step under way and up to two more end" : "the step under way ends";
  const std::string asked =
      options_.checkpoint_on_signal
          ? format("asked to stop: %s, then a checkpoint is saved; a second Ctrl-C ends at once, without it", first)
          : format("asked to stop: %s; a second Ctrl-C ends at once", first);
  const std::string terminated =
      format("SIGTERM: if all ranks are alive, %s%s; a launcher also sends it after a rank was lost", first,
             options_.checkpoint_on_signal ? ", then a checkpoint is saved" : "");
  stop_requests_.announce(asked, several ? terminated : asked);
}

// ---- measuring and sampling

// Measures and samples, if it is time, the model that this step will train. All steps before it then end first.
void TrainingLoop::measure_before(int64_t step) {
  const bool validates = !setup_.evaluation->empty() && settings_.validates_at(step);
  const bool samples = settings_.samples_at(step);
  if (validates || samples) wait_for_all_steps();
  if (validates) report_evaluation(step);
  if (samples) report_sample(step == 0 ? "before training" : format("after step %lld", (long long)step), step);
}

void TrainingLoop::report_evaluation(int64_t step) {
  const EvaluationResult result = setup_.evaluation->run(trainer_);
  const std::string text = evaluation_text(result, setup_.model.config.V, setup_.unigram);
  console_.line(format("step %lld/%lld | ", (long long)step, (long long)settings_.steps) + text);
  if (folder_) folder_->log(last_score_ = evaluation_json(step, result));
}

void TrainingLoop::report_sample(const std::string& when, int64_t step) {
  const std::string text = print_sample(setup_, trainer_, when, [this] { return stop_now(); });
  if (folder_) folder_->log(Json::object().set("step", step).set("sample", PrintableText().take(text)));
}

// ---- steps

void TrainingLoop::enqueue_step() {
  const int64_t step = enqueued_++;
  fill_batch(step);
  StepFlags flags = checkpointer_->flags();
  flags.stop = stop_requests_.any(), flags.due = is_due();
  const bool traced = !options_.trace.empty() && step == setup_.traced_step();  // the first rank records it
  const bool looks = looks_at_gpus(step), timed = looks && rank_times_->records();
  const bool recorded = timed || (traced && folder_);
  Record record;
  if (!traced) record.most = RankTimes::kRecorded;
  if (recorded) setup_.device.record_to(&record);
  trainer_.enqueue_step({.step = step,
                         .learning_rate = settings_.learning_rate_at(step),
                         .inputs = inputs_,
                         .labels = labels_,
                         .flags = flags,
                         .positions = positions_,
                         .no_graph = traced || timed,
                         .sources = sources_});
  if (looks) rank_times_->read_sensors();
  if (recorded) setup_.device.record_to(nullptr);
  if (timed) rank_times_->take(record);
  if (!traced || !folder_) return;
  write_trace(options_.trace, record, record.spans);
  console_.line(format("wrote the streams of step %lld to %s: open it in ui.perfetto.dev", (long long)step + 1,
                       options_.trace.c_str()));
}

bool TrainingLoop::looks_at_gpus(int64_t step) const { return rank_times_ && (step + 1) % options_.gpu_every == 0; }

// Reports the look at the step that was enqueued last, after the step itself.
void TrainingLoop::report_gpus() {
  wait_for_all_steps();
  rank_times_->exchange();
  for (const std::string& text : rank_times_->news())
    console_.warning(format("step %lld: ", (long long)enqueued_) + text);
  if (const Json line = rank_times_->line(enqueued_); folder_ && !line.is_null()) folder_->log(line);
}

// Fills this rank's micro-batches of the step, whose rows are split if they are packed with documents.
void TrainingLoop::fill_batch(int64_t step) {
  const Mesh& mesh = setup_.mesh;
  const BatchLayout layout{settings_.G, mesh.data_degree(), settings_.B};
  const size_t B = size_t(settings_.B), rows = B * size_t(settings_.micro_batches), T = size_t(settings_.T);
  inputs_.resize(rows * T), labels_.resize(rows * T), sources_.resize(rows);
  positions_.resize(setup_.sampler->packs() ? rows * T : 0);
  for (size_t row = 0; row < rows; row += B)
    setup_.sampler->fill(layout, setup_.step_of_stage(step), int64_t(row / B), mesh.data_rank(), &inputs_[row * T],
                         &labels_[row * T], positions_.empty() ? nullptr : &positions_[row * T], &sources_[row]);
}

// Waits for the oldest step that was enqueued and not reported, and reports it.
void TrainingLoop::wait_for_oldest_step() {
  const StepResult result = trainer_.wait_for_step();
  checkpointer_->take_flags(result.flags);
  stop_requested_ = stop_requested_ || result.flags.stop > 0;
  // A request that was made before the last checkpoint began has been answered by it.
  due_ = due_ || (result.flags.due > 0 && result.step >= last_checkpoint_step_);
  const bool ends = result.halted && !result.finite;
  if (!ends) training_seconds_ += result.seconds;
  const StepReport report = report_of(result);
  report_checkpoints();
  console_.progress(step_line(report), double(report.step) / double(settings_.steps));
  const Json line = step_json(report);
  const bool leaves_nothing = ends && !unfinished_folder_.empty();  // the first step: give_up() removes the folder
  if (folder_ && !leaves_nothing) folder_->log(line);
  if (ends) end_not_finite(result, report);
  if (!report.skipped.empty()) skipped_.push_back(report.step);
  if (folder_) last_step_ = line;
  if (result.step == setup_.first_step()) report_first_step();
  const bool counts_fp8 = settings_.fp8.on() && options_.fp8_stats && result.step % options_.fp8_stats == 0;
  if (folder_ && counts_fp8)
    folder_->log(fp8_json(report.step, trainer_.fp8_statistics(result.step), trainer_.layout().projections));
  ++finished_;
  if (result.halted) end_bad_steps(result);
}

void TrainingLoop::wait_for_all_steps() {
  while (finished_ < enqueued_) wait_for_oldest_step();
}

// Fills the step's micro-batch number `number` of any data rank.
StepInput TrainingLoop::micro_batch_of(int64_t step, int64_t number, int data_rank) {
  const BatchLayout layout{settings_.G, setup_.mesh.data_degree(), settings_.B};
  const size_t B = size_t(settings_.B), tokens = B * size_t(settings_.T);
  inputs_.resize(tokens), labels_.resize(tokens), sources_.resize(B);
  positions_.resize(setup_.sampler->packs() ? tokens : 0);
  setup_.sampler->fill(layout, setup_.step_of_stage(step), number, data_rank, inputs_.data(), labels_.data(),
                       positions_.empty() ? nullptr : positions_.data(), sources_.data());
  return {.step = step,
          .learning_rate = 0,
          .inputs = inputs_,
          .labels = labels_,
          .positions = positions_,
          .sources = sources_};
}

// Verifies what the ranks hold after the steps so far, and what they compute of the last one's first micro-batch.
void TrainingLoop::verify() {
  wait_for_all_steps();
  const double begun = seconds();
  const auto wrong = trainer_.verify([&](int data_rank) { return micro_batch_of(finished_ - 1, 0, data_rank); });
  if (wrong) end_wrong_bits(wrong_gpu(finished_, *wrong));
  checkpointer_->verified(finished_);
  console_.line(format("step %lld/%lld | verified in %s: the same bits on all ranks | %s", (long long)finished_,
                       (long long)settings_.steps, human_duration(seconds() - begun).c_str(),
                       checkpointer_->what_remains().c_str()));
  if (folder_) folder_->log(Json::object().set("step", finished_).set("verified", true));
}

// The state is not saved: it may be wrong.
void TrainingLoop::end_wrong_bits(const WrongGpu& found) {
  if (checkpointer_->waits_for_state()) checkpointer_->forget();
  checkpointer_->finish();
  report_checkpoints();
  end_wrong_gpu(setup_, found, folder(), checkpointer_->newest_verified(), checkpointer_->what_remains());
}

// A step that would end the run was run again. Unless it gave the same bits, a rank is wrong and not the data: it is
// looked for, if verifications were planned.
void TrainingLoop::require_same_result(const StepResult& first, const StepResult& again) {
  const auto same = [](double a, double b) { return a == b || (a != a && b != b); };
  if (same(first.loss, again.loss) && same(first.grad_norm, again.grad_norm)) return;
  const std::string what =
      format("other bits the second time: step %lld had the loss %s and the norm %s, and run again it has %s and %s",
             (long long)first.step + 1, plain_number(first.loss).c_str(), plain_number(first.grad_norm).c_str(),
             plain_number(again.loss).c_str(), plain_number(again.grad_norm).c_str());
  Suspects suspects;
  for (int64_t k = 0; options_.verify_every && k < settings_.micro_batches && !suspects.any(); ++k)
    if (const auto wrong = trainer_.verify([&](int data_rank) { return micro_batch_of(first.step, k, data_rank); }))
      suspects = wrong->suspects;
  end_wrong_bits({first.step, suspects, what});
}

// Saves the state after the steps that are done, unless it was saved already, or if this start has made no update: the
// last one was made in step `learnt`. The steps that are under way are held.
void TrainingLoop::save_at_halt(int64_t under_way, int64_t learnt) {
  for (; under_way > 0; --under_way) checkpointer_->take_flags(trainer_.wait_for_step().flags);
  if (checkpointer_->waits_for_state()) checkpointer_->forget();
  checkpointer_->finish();
  const bool is_new = learnt > setup_.first_step() && finished_ > checkpointer_->saved_step();
  // What halted the run may be met again from there, so that an earlier checkpoint is worth more.
  if (is_new && options_.checkpoint_on_signal) checkpointer_->save(finished_, checkpoint_state(), false);
  report_checkpoints();
}

// Writes into the run's folder which samples the steps first+1 to `end` have trained on, for a start that leaves them
// out. Returns how such a start is made. A run whose first step fails leaves nothing.
std::string TrainingLoop::record_bad_steps(int64_t first, int64_t end, const std::string& why) {
  if (!unfinished_folder_.empty()) return "";
  std::vector<BadStep> steps = setup_.left_out;
  for (int64_t step = first; step < end; ++step)
    steps.push_back({setup_.stages.back().name, step + 1, why,
                     setup_.sampler->numbers_of(setup_.step_of_stage(step) * settings_.G, settings_.G)});
  try {
    if (folder_)
      write_file(folder_->file("bad_samples.json"), Json::object().set("steps", to_json(steps)).dump(2) + "\n");
  } catch (const Error& error) {
    console_.warning(error.what());
  }
  return format(", unless --skip-bad-samples leaves out %s samples", end - first == 1 ? "its" : "their");
}

// Ends the run at a step that is not finite. Saves the state before it, and runs the step again to say where it went
// wrong.
void TrainingLoop::end_not_finite(const StepResult& result, const StepReport& report) {
  save_at_halt(enqueued_ - finished_ - 1, finished_);
  console_.line(
      format("step %lld is not finite: running it again, with a look at each tensor", (long long)report.step));
  fill_batch(finished_);
  const NotFiniteReport found = find_not_finite(setup_, trainer_,
                                                {.step = finished_,
                                                 .learning_rate = settings_.learning_rate_at(finished_),
                                                 .inputs = inputs_,
                                                 .labels = labels_,
                                                 .positions = positions_,
                                                 .no_graph = true,
                                                 .sources = sources_});
  require_same_result(result, found.again);
  const std::string loss = plain_number(report.loss), norm = plain_number(report.grad_norm);
  const std::string way_round = record_bad_steps(
      finished_, finished_ + 1, format("not finite: loss %s, gradient norm %s", loss.c_str(), norm.c_str()));
  fail_as(ExitCode::not_finite,
          "step %lld has the loss %s and the gradients' norm %s: its update was not made, so the weights are "
          "those after step %lld\n  %s%s\n  %s",
          (long long)report.step, loss.c_str(), norm.c_str(), (long long)finished_,
          checkpointer_->what_remains().c_str(),
          checkpointer_->newest().empty() ? "" : (": from there the run meets this step again" + way_round).c_str(),
          found.text.c_str());
}

// Ends the run after --bad-steps-limit spikes in a row. Saves the state after them, and says which sequence of the last
// one stands out.
void TrainingLoop::end_bad_steps(const StepResult& result) {
  int64_t first = finished_;
  for (size_t i = skipped_.size(); i > 0 && skipped_[i - 1] == first; --i) --first;
  save_at_halt(enqueued_ - finished_, first);
  console_.line(
      format("running step %lld again, with fewer and fewer of its sequences, to find the one that stands out",
             (long long)finished_));
  fill_batch(finished_ - 1);
  const StepInput input{.step = finished_ - 1,
                        .learning_rate = 0,
                        .inputs = inputs_,
                        .labels = labels_,
                        .positions = positions_,
                        .no_graph = true,
                        .sources = sources_};
  trainer_.enqueue_step(input);
  require_same_result(result, trainer_.wait_for_step());
  const std::string way_round =
      record_bad_steps(first, finished_, format("one of %lld spikes in a row", (long long)(finished_ - first)));
  const std::string found = find_spike(setup_, trainer_, input, result.loss_spike);
  fail_as(
      ExitCode::bad_steps,
      "skipped steps in a row: %lld, up to step %lld (--bad-steps-limit %lld). Their losses or gradient norms are more "
      "than %g standard deviations above those of the steps before; the weights are those after step %lld\n  %s%s\n"
      "  %s",
      (long long)(finished_ - first), (long long)finished_, (long long)options_.bad_steps_limit, options_.skip_spikes,
      (long long)first, checkpointer_->what_remains().c_str(),
      checkpointer_->newest().empty()            ? ""
      : checkpointer_->saved_step() == finished_ ? ": from there the run goes on with the next step"
                                                 : (": from there the run meets these steps again" + way_round).c_str(),
      found.c_str());
}

StepReport TrainingLoop::report_of(const StepResult& result) const {
  const DeviceInfo& device = setup_.device.info();
  StepReport r{};
  r.step = result.step + 1, r.steps = settings_.steps;
  r.loss = result.loss, r.labels = result.label_count, r.grad_norm = result.grad_norm;
  if (options_.z_loss > 0) r.z_loss = result.z_loss;
  for (size_t i = 0; i < result.sources.size(); ++i)
    if (result.sources[i].labels) r.sources.emplace_back(setup_.source_name(int(i)), result.sources[i].mean());
  r.learning_rate = settings_.learning_rate_at(result.step);
  r.seconds = result.seconds;
  r.gpus = device.gpu ? setup_.ranks.size : 0;
  r.tokens = double(settings_.step_tokens()), r.all_tokens = settings_.tokens_after(r.step);
  if (device.bf16_flops > 0 && settings_.dtype == DType::bf16) {
    const double tokens_per_peak_flop = r.tokens / result.seconds / (device.bf16_flops * setup_.ranks.size);
    r.mfu = setup_.model.config.flops_per_token(settings_.T, true) * tokens_per_peak_flop;
    r.mfu_full = setup_.model.config.flops_per_token(settings_.T, false) * tokens_per_peak_flop;
  }
  r.memory_bytes = trainer_.plan().device_bytes();
  if (settings_.fp8.delayed()) r.fp8_overflows = result.fp8.overflows, r.fp8_underflows = result.fp8.underflows;
  for (const auto& [is_spike, what] : {std::pair(result.loss_spike, "loss"), std::pair(result.norm_spike, "norm")})
    if (is_spike) r.skipped += (r.skipped.empty() ? "" : ", ") + std::string(what);
  const TrainingStage& stage = setup_.stages.back();
  r.eta_seconds = (training_seconds_ - stage.seconds) / double(r.step - stage.first_step) * double(r.steps - r.step);
  return r;
}

// Returns the text of memory.txt: the banner's table, what else is known, an empty line, and every planned tensor.
std::string TrainingLoop::memory_text(const std::string& known) const {
  return trainer_.plan().table() + known + "\n\n" + trainer_.plan().tensors();
}

// The start has succeeded: its files stay from now on, and it is known how much memory a step takes.
void TrainingLoop::report_first_step() {
  unfinished_folder_.clear();
  if (folder_) {
    folder_->become_latest();
    if (const std::string moved = folder_->set_export_aside(setup_.first_step()); !moved.empty()) console_.line(moved);
  }
  const DeviceInfo& device = setup_.device.info();
  const std::string taken = describe_taken(trainer_.plan(), device, setup_.device.taken_bytes());
  if (folder_) folder_->write_memory(memory_text("\n" + taken));
  if (device.gpu) console_.line(taken);
  if (const std::string unneeded = unneeded_choices(trainer_.matmul(), setup_.tuning); !unneeded.empty())
    console_.warning(unneeded);
}

// ---- checkpoints

bool TrainingLoop::saves_at(int64_t step) const {
  if (step == settings_.steps) return settings_.saves(options_);
  return options_.checkpoint_every && step % options_.checkpoint_every == 0;
}

// True if --checkpoint-minutes are over, by the first rank's clock. The others learn it with the step's flags, so that
// all begin the checkpoint after the same step.
bool TrainingLoop::is_due() const {
  return setup_.ranks.rank == 0 && settings_.checkpoint_minutes > 0 &&
         seconds() - last_checkpoint_time_ >= 60 * settings_.checkpoint_minutes;
}

// Begins to save the state after all enqueued steps. Waits for the checkpoint before; without a copy to write from, it
// waits for this one, too.
void TrainingLoop::begin_checkpoint() {
  due_ = false, last_checkpoint_step_ = enqueued_, last_checkpoint_time_ = seconds();
  const bool late = checkpointer_->under_way();
  if (late) console_.line("the checkpoint before is not written yet: training waits for it");
  if (late || !settings_.snapshot) wait_for_all_steps();
  checkpointer_->finish();
  if (settings_.snapshot) checkpointer_->begin(enqueued_);
  else checkpointer_->save(finished_, checkpoint_state());
}

// Writes the checkpoint that was begun, if there is one whose step has just ended.
void TrainingLoop::write_checkpoint() {
  if (checkpointer_->waits_for_state()) checkpointer_->write(checkpoint_state());
}

void TrainingLoop::save_at_stop() {
  const std::string why =
      stop_requests_.is_late() ? format("the time of --stop-after %g is over", options_.stop_after) : "asked to stop";
  console_.line(
      format("%s: ending after step %lld of %lld", why.c_str(), (long long)finished_, (long long)settings_.steps));
  if (!options_.checkpoint_on_signal) return;
  if (!checkpointer_->save(finished_, checkpoint_state()))
    fail_as(ExitCode::not_saved, "asked to stop after step %lld, and its state could not be saved; %s",
            (long long)finished_, what_remains().c_str());
}

void TrainingLoop::report_checkpoints() {
  for (const Checkpointer::Saved& saved : checkpointer_->news())
    console_.line(format("saved %s in %s%s", saved.path.c_str(), human_duration(saved.seconds).c_str(),
                         saved.verified ? ", verified" : ""));
}

// Returns what a checkpoint stores in addition to weights and moments, after the steps that have ended.
Json TrainingLoop::checkpoint_state() const {
  Json saved = run_state(finished_, setup_.ranks.size, setup_.requested, settings_, setup_.model.config,
                         tokens_of(setup_.data.train));
  return saved.set("data", setup_.data_description())
      .set("data_identity", setup_.ranks.rank == 0 ? setup_.identity->json() : Json())
      .set("weights_loaded", setup_.model.loaded)
      .set("tokenizer", setup_.tokenizer)
      .set("windows",
           std::string(setup_.source_name(0).empty() ? kWindows : kMixture) + (setup_.left_out.empty() ? "" : kLeftOut))
      .set("left_out", to_json(setup_.left_out))
      .set("optimizer_steps", trainer_.updates())
      .set("stages", to_json(setup_.stages))
      .set("skipped_steps", Json::Array(skipped_.begin(), skipped_.end()))
      .set("seconds", training_seconds_)
      .set("tuning", setup_.tuning.empty() ? Json() : setup_.tuning.to_json())
      .set("last_step", last_step_)
      .set("last_score", last_score_);
}

// ---- the end

// "trained 160 steps in 17s, 19.6k tokens/s", on several GPUs also of each.
std::string TrainingLoop::speed_of(int64_t steps) const {
  const double speed = double(settings_.tokens_after(steps)) / training_seconds_;
  const int gpus = setup_.device.info().gpu ? setup_.ranks.size : 1;
  return format("trained %s in %s, %s tokens/s%s", counted(steps, "step").c_str(),
                human_duration(training_seconds_).c_str(), human_count(speed).c_str(),
                gpus > 1 ? format(", %s a GPU", human_count(speed / gpus).c_str()).c_str() : "");
}

void TrainingLoop::report_end(int64_t steps, bool exported) {
  if (settings_.sample_every && steps == settings_.steps) report_sample("after training", steps);
  if (steps > 0) console_.line(speed_of(steps));
  if (!skipped_.empty()) console_.line(describe_skipped(skipped_));
  if (!setup_.left_out.empty()) console_.line("left out: " + describe_bad_steps(setup_.left_out));
  if (folder_) console_.line("the run is in " + folder_->path());
  if (folder_ && exported && setup_.data.chat)
    console_.line(format("talk to it: ./train_llama --model %s --sample-only --quiet --chat --prompt 'Who are you?'",
                         shell_quoted(folder_->path()).c_str()));
  if (folder_ && steps < settings_.steps && !checkpointer_->newest().empty())
    console_.result("to go on: " + resume_command(setup_.ranks, folder_->path(), setup_.command_line));
  if (folder_) folder_->require_there();
  if (checkpointer_->failed())
    fail_as(ExitCode::not_saved, "the last checkpoint could not be saved%s; %s",
            exported ? ", though the weights are exported" : "", what_remains().c_str());
}

std::string TrainingLoop::what_remains() const {
  const std::string remains = checkpointer_->what_remains() + "\n  make room on the disk, ";
  if (checkpointer_->newest().empty()) return remains + "or name another place, and start again";
  return remains + "and go on from there: " + resume_command(setup_.ranks, run_path_, setup_.command_line);
}

void TrainingLoop::give_up() {
  if (!unfinished_folder_.empty()) RunFolder::remove_start(unfinished_folder_, made_folder_);
}

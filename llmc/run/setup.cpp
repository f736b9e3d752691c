#include "llmc/run/setup.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <thread>
#include <utility>

#include "llmc/base/clock.h"
#include "llmc/base/error.h"
#include "llmc/base/text.h"
#include "llmc/data/chat_prompt.h"
#include "llmc/data/data_folder.h"
#include "llmc/kernels/classifier.h"
#include "llmc/predict/simulation.h"
#include "llmc/run/context.h"
#include "llmc/run/data_check.h"
#include "llmc/run/description.h"
#include "llmc/run/run_folder.h"
#include "llmc/run/tuner.h"

// The checkpoint is opened first, because it completes the options: they must be those of a checkpoint that is intact.
Setup::Setup(const Options& command_line, const std::vector<std::string>& arguments, const Ranks& ranks,
             std::optional<ResumePoint> resume_point, const StopRequests* stop_requests)
    : command_line(command_line),
      ranks(ranks),
      resume(std::move(resume_point)),
      console(ranks.rank == 0, command_line.quiet),
      device(ranks.local_rank, CpuBackend::from_environment(ranks.local_size)),
      communicator(make_communicator(device, ranks,
                                     ranks.rendezvous.empty() ? command_line.rendezvous : ranks.rendezvous,
                                     {command_line.comm_timeout, command_line.silent_timeout})),
      lock(take_lock(stop_requests)),
      resumed_from(open_checkpoint()),
      stages(open_stages()),
      requested(complete_options(arguments)),
      options(requested),
      mesh(mesh_of(options, ranks.size, ranks.rank)),
      model(resumed_from ? model_of(*resumed_from, options, begins_stage()) : open_model(options)),
      codec(resumed_from
                ? codec_of(*resumed_from, options, model.config)
                : TextCodec::open(options.tokenizer, model.directory,
                                  options.train_data.empty() ? options.val_data : options.train_data, model.config)) {
  if (!options.sample_only) open_data();
  if (data.chat) end_at_turns(*data.chat, model.config);
  end_at_documents(data.delimiter, model.config);
  if (options.trains() && ranks.rank == 0)
    tokenizer_files.emplace(codec, model.config, data.chat ? &*data.chat : nullptr);
  if (tokenizer_files)
    tokenizer = tokenizer_state(codec, !data.about_text.empty(), resumed_from ? &*resumed_from : nullptr);
  choose_settings();
  choose_prompt();
  ends = model.config.end_tokens();
  for (const int token : {data.delimiter.before, data.delimiter.after})
    if (token >= 0 && std::ranges::find(ends, token) == ends.end()) ends.push_back(token);
  if (options.trains()) open_sampler();
  prepare_evaluation();
  if (!options.dry_run) tuning = open_tuning(options, resumed_from ? &*resumed_from : nullptr, *communicator, device);
  REQUIRE(options.trace.empty() || (options.trains() && settings.steps > traced_step()),
          "--trace %s: it is written of the third step that a run trains, or with --dry-run --nodes",
          options.trace.c_str());
}

// A run that goes on, or begins where one has only started, waits until nobody else writes in its folder. The process
// that wrote there until now may have saved a checkpoint meanwhile.
RunLock Setup::take_lock(const StopRequests* stop_requests) {
  RunLock lock;
  const bool reopens = resume && !resume->run_folder.empty();
  const std::string folder = reopens ? resume->run_folder : command_line.out;
  if (!command_line.trains() || command_line.dry_run || folder.empty()) return lock;
  Stream stream(device, "lock");
  const auto is_first_to_come = [&] {
    return ranks.rank != 0 || (!reopens && !RunFolder::holds_only_a_start(folder)) || lock.take(folder);
  };
  if (broadcast_number(*communicator, stream, is_first_to_come())) return lock;
  const double begin = seconds(), end = begin + command_line.lock_timeout;
  const std::string holder = ranks.rank == 0 ? last_process(folder) : "";
  if (ranks.rank == 0 && command_line.lock_timeout > 0)
    print_error(format("another process writes %s/train.jsonl: waiting up to %s for it (--lock-timeout)%s%s",
                       folder.c_str(), human_duration(command_line.lock_timeout).c_str(), holder.empty() ? "" : "\n  ",
                       holder.c_str()));
  bool stopped = false, taken = false;
  work_with_heartbeats(*communicator, stream, [&] {
    while (ranks.rank == 0 && !taken && !stopped && seconds() < end) {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      stopped = stop_requests && stop_requests->any();
      taken = !stopped && lock.take(folder);
    }
  });
  if (broadcast_number(*communicator, stream, stopped))
    throw Stopped(format("asked to stop, while another process wrote %s: nothing was trained", folder.c_str()));
  if (!broadcast_number(*communicator, stream, taken))
    fail_as(ExitCode::lost, "another process writes %s/train.jsonl: its run has not ended\n  wait for it or end it%s",
            folder.c_str(), broadcast_text(*communicator, stream, holder.empty() ? "" : "; " + holder).c_str());
  console.line(
      format("%s is free after %s: going on there", folder.c_str(), human_duration(seconds() - begin).c_str()));
  if (reopens) resume = ResumePoint::find(command_line);
  return lock;
}

std::optional<Checkpoint> Setup::open_checkpoint() {
  Stream stream(device, "resume");
  require_same_on_all_ranks(resume, *communicator, stream);
  if (!resume) return {};
  return resume->open(*communicator, stream, command_line.dry_run, refused);
}

// The stages of the checkpoint, and the one that this run begins.
std::vector<TrainingStage> Setup::open_stages() {
  const std::string& name = stage_name();
  REQUIRE(command_line.stage.empty() || resumed_from,
          "--stage %s begins at a checkpoint\n  name it, or its run: --resume DIR", command_line.stage.c_str());
  if (!resumed_from) return {TrainingStage{}};
  const Json& state = resumed_from->state();
  std::vector<TrainingStage> stages = stages_of(state);
  if (begins_stage()) {
    for (const TrainingStage& stage : stages)
      REQUIRE(stage.name != name,
              "--stage %s: the training has had a stage of this name, from step %lld on\n  take another name, or go on "
              "in that stage: --resume auto",
              name.c_str(), (long long)stage.first_step + 1);
    const int64_t tokens = state.get_int("tokens", state.get_int("sequences") * state.at("options").get_int("seq_len"));
    stages.push_back({name, resumed_from->step(), tokens, state.get_double("seconds")});
  }
  REQUIRE(command_line.stage.empty() || stages.back().name == command_line.stage,
          "--resume auto --stage %s: the run in %s is in its stage \"%s\"\n  to begin a stage name where: --resume DIR",
          command_line.stage.c_str(), resume->run_folder.c_str(), stages.back().name.c_str());
  return stages;
}

Options Setup::complete_options(const std::vector<std::string>& arguments) {
  if (!resume) return with_files_of_folders(command_line);
  const bool has_own = resumed_from && !resume->begins_again;
  const Json saved = has_own ? saved_options(*resumed_from, ranks.size) : saved_options(*resume, ranks.size);
  Stream stream(device, "resume");
  require_same_on_all_ranks(saved.dump() + (resumed_from ? resumed_from->state().dump() : ""), *communicator, stream);
  Options options = with_files_of_folders(parse_options(arguments, &saved));
  if (resume->begins_again) return options;
  if (begins_stage()) plan_stage(options, command_line, *resumed_from);
  else if (resumed_from && resume->run_folder.empty()) plan_cooldown(options, command_line, *resumed_from);
  return options;
}

void Setup::open_data() {
  // Data of a new stage may be others, with rules of their own.
  const Checkpoint* const rules = resumed_from && !begins_stage() ? &*resumed_from : nullptr;
  data = open_run_data(options, model, codec, rules, *communicator, device, console);
  data.about_folders = describe_folders(command_line, options);
  if (options.check_data) check_data(data, *communicator, device, console);
}

// Decides how samples begin: with --prompt; without one, if the data has masks, with the beginning of a conversation of
// the held-out data, else of the training data.
void Setup::choose_prompt() {
  const bool samples = settings.takes_samples(options);
  if (options.chat && samples) {
    prompt = prompt_of_chat();
    return;
  }
  if (options.trains() && samples && options.prompt.empty() && have_masks(data.train)) {
    const bool held_out = have_masks(data.held_out);
    const auto has_masks = [](const DataSource& source) { return source.tokens.has_masks(); };
    const DataSource& from = *std::ranges::find_if(held_out ? data.held_out : data.train, has_masks);
    prompt = beginning_of_conversation(from.tokens, from.documents, settings.T);
    if (!prompt.empty()) prompt_from = held_out ? "held-out" : "training";
  }
  if (prompt.empty()) prompt = codec.prompt(options.prompt, data.delimiter.begins_text());
}

// Returns the tokens that the first rank renders: a template may ask for the time.
std::vector<int32_t> Setup::prompt_of_chat() {
  std::vector<int32_t> tokens = chat_prompt(options, codec, data.chat ? &*data.chat : nullptr);
  Stream stream(device, "prompt");
  const std::string bytes =
      broadcast_text(*communicator, stream,
                     std::string(reinterpret_cast<const char*>(tokens.data()), tokens.size() * sizeof(int32_t)));
  tokens.resize(bytes.size() / sizeof(int32_t));
  std::memcpy(tokens.data(), bytes.data(), bytes.size());
  return tokens;
}

// Chooses the options of --plan auto, and the run's numbers. Prints what --plan auto compared.
void Setup::choose_settings() {
  const int64_t data_tokens = tokens_of(data.train);
  const MemoryLimits limits = MemoryLimits::here(options, device.info(), ranks.local_size);
  if (!limits.warning.empty()) console.warning(limits.warning);
  planner.emplace(options, model.config, device.info(), mesh, data_tokens, limits);
  if (options.trains() && options.plan == "auto") {
    options = planner->choose(*communicator, device, console);
    planner.emplace(options, model.config, device.info(), mesh, data_tokens, limits);  // of what was chosen
  }
  settings = resolve_settings(options, model.config, device.info(), mesh.data_degree(), data_tokens, model.loaded,
                              &command_line);
  settings.begin_at(stages.back());
  if (is_auto(requested.micro_batch) && !is_auto(options.micro_batch))
    settings.reasons.push_back(format("micro-batch %d: chosen by --plan auto", settings.B));
  if (options.trains() && settings.saves(options) && options.checkpoint_async && !settings.snapshot)
    plan_snapshot_if_it_fits();
}

// Checkpoints by default are written from a copy in the host's memory if all ranks have room for it.
void Setup::plan_snapshot_if_it_fits() {
  RunSettings with = settings;
  planner->plan_snapshot(options, with);
  Stream stream(device, "snapshot");
  settings.snapshot = sum_number(*communicator, stream, !with.snapshot) == 0;
}

// Returns a sentence if the schedule gives the last step that was trained another learning rate than it had. A longer
// run has another schedule.
static std::string changed_rate(const Checkpoint& resumed_from, const RunSettings& settings) {
  const Json& last = resumed_from.state().at("last_step");
  if (last.is_null()) return "";
  const double was = last.get_double("lr"), is = settings.learning_rate_at(last.get_int("step") - 1);
  if (resumed_from.step() >= settings.steps || std::abs(is - was) <= 1e-6 * was) return "";
  return format(
      "the learning rate does not go on as it was: step %lld had %.3g, and by the schedule of %s it has %.3g; "
      "step %lld has %.3g",
      (long long)last.get_int("step"), was, counted(settings.stage_steps(), "step").c_str(), is,
      (long long)resumed_from.step() + 1, settings.learning_rate_at(resumed_from.step()));
}

// Returns a sentence if a stage begins at a higher learning rate than that of the step before it.
static std::string raised_rate(const Checkpoint& resumed_from, const RunSettings& settings) {
  const Json& last = resumed_from.state().at("last_step");
  if (last.is_null()) return "";
  const double was = last.get_double("lr"), is = settings.learning_rate_at(resumed_from.step());
  if (is <= was * (1 + 1e-6)) return "";
  return format(
      "the stage begins at a higher learning rate than that of before: step %lld had %.3g, step %lld has %.3g; "
      "--warmup-steps N raises it in N steps, and --lr X begins lower",
      (long long)last.get_int("step"), was, (long long)resumed_from.step() + 1, is);
}

// Decides which tokens each step sees. Throws if the run goes on and its data is not what it was.
void Setup::open_sampler() {
  sampler.emplace(data.train, settings.T, seed_of_stage(uint64_t(options.seed), stages.size() - 1));
  leave_out_samples();
  std::vector<int64_t> windows;
  for (int i = 0; i < int(data.train.size()); ++i) {
    windows.push_back(sampler->sequences_per_epoch(i));
    require_labels(i);
  }
  for (const DataSource& source : data.train)
    if (ranks.rank == 0 && source.tokens.has_masks())
      about_masks.push_back(error_prefix(source) + describe_masks(count_labels(source.tokens, source.documents)));
  identity.emplace(data.train, windows, data.held_out);
  if (!resumed_from) return;
  REQUIRE(
      resumed_from->step() <= settings.steps,
      "--resume: after %s %s are done, and the run has %lld\n  make it longer: --steps N%s",
      resumed_from->path().c_str(), counted(resumed_from->step(), "step").c_str(), (long long)settings.steps,
      settings.first_step
          ? format(", which counts from step %lld, the first of its stage", (long long)settings.first_step + 1).c_str()
          : "");
  changes = require_same_run(*resumed_from, requested, tokens_of(data.train), begins_stage());
  Stream stream(device, "resume");
  if (begins_stage()) {
    for (const std::string& key : scaled_keys(*resumed_from, model.config)) changes.push_back(key);
    stages.back().changed = changes;
  } else require_same_data(*resumed_from, *identity, *communicator, stream, changes);
  if (ranks.rank == 0)
    if (const std::string change = changed_tokenizer(*resumed_from, codec, *tokenizer_files); !change.empty())
      changes.push_back(change);
  const std::string change =
      begins_stage() ? raised_rate(*resumed_from, settings) : changed_rate(*resumed_from, settings);
  if (!change.empty()) console.warning(change);
}

// The run leaves out what its checkpoint left out of this stage; --skip-bad-samples adds the samples that ended it
// since.
void Setup::leave_out_samples() {
  if (resumed_from && !begins_stage()) left_out = bad_steps_of(resumed_from->state().at("left_out"));
  if (command_line.skip_bad_samples && resume && !resume->run_folder.empty()) {
    std::string text;
    if (const std::string path = resume->run_folder + "/bad_samples.json";
        ranks.rank == 0 && std::filesystem::exists(path))
      text = Json::read(path).dump();
    Stream stream(device, "left out");
    add_bad_steps(left_out, broadcast_text(*communicator, stream, text), stages.back().name, first_step());
  }
  sampler->leave_out(left_out);
}

// Throws if no sequence of the source has a label in the run. A training usually finds one in its first sequence.
void Setup::require_labels(int source) const {
  // The sequences of two epochs include all of one. The run may have fewer.
  const int64_t two_epochs = 2 * sampler->sequences_per_epoch(source), T = settings.T;
  const double share = sampler->mixture().share(source),
               asked = double(settings.stage_steps()) * double(settings.G) * share;
  const int64_t sequences = asked > double(two_epochs) ? two_epochs : int64_t(asked);
  std::vector<int32_t> inputs(static_cast<size_t>(T)), labels(inputs.size()), positions(inputs.size());
  for (int64_t i = 0; i < sequences; ++i) {
    sampler->read(sampler->place_in(source, i), inputs.data(), labels.data(), positions.data());
    if (std::ranges::any_of(labels, [](int32_t label) { return label != kIgnoredLabel; })) return;
  }
  const DataSource& from = data.train[size_t(source)];
  REQUIRE(sequences == 0,
          "%sthe %lld sequences of %lld training tokens have no token to learn: %s\n  name other data with "
          "--train-data; dev/data/inspect says what is learnt of a shard",
          error_prefix(from).c_str(), (long long)sequences, (long long)T,
          from.tokens.has_masks() ? "their masks are 0" : "all of them tell documents apart");
}

// Chooses how much text samples and questions see, and how losses and questions are measured. Throws if there is
// nothing to measure for --eval-only.
void Setup::prepare_evaluation() {
  const bool asked_length = !is_auto((resumed_from ? command_line : options).seq_len);
  std::vector<ChoiceItem> choices = choose_context(settings, asked_length, prompt.size(), options, model.config, codec,
                                                   mesh, *planner, *communicator, device, console);
  evaluation.emplace(mesh.data_rank(), mesh.data_degree(), settings.B, settings.T, settings.context_length);
  if (!data.held_out.empty() && (settings.val_every || options.eval_only)) measure_held_out();
  evaluation->ask_choices(std::move(choices));
  REQUIRE(!options.eval_only || !evaluation->empty(),
          "--eval-only: nothing to measure\n  name held-out data with --val-data, or questions with --eval-choices");
}

void Setup::measure_held_out() {
  for (const DataSource& source : data.held_out) {
    REQUIRE(
        !options.val_data.empty() || source.tokens.size() > 1,
        "%sthe last tenth of the training data is held out: %lld token, too few for a label\n  give more data, name "
        "held-out data by --val-data, or measure none: --val-every 0",
        error_prefix(source).c_str(), (long long)source.tokens.size());
    evaluation->measure_loss(ValidationWindows(source.tokens, settings.T, settings.val_windows), source.documents,
                             codec, source.name);
  }
  const auto has_labels = [](const DataSource& source) { return source.tokens.size() > 1; };
  if (ranks.rank == 0 && !data.train.empty() && std::ranges::all_of(data.train, has_labels))
    unigram = evaluation->unigram(count_labels(data.train));  // only the first rank prints it
}

std::string Setup::data_description() const {
  std::string text;
  for (const DataSource& source : data.train) text += (text.empty() ? "" : "; ") + describe_data(source, data.train);
  for (size_t i = 0; i < data.held_out.size(); ++i)
    text += "; " + describe_held_out(data.held_out[i], evaluation->measured_text(i), options);
  return text;
}

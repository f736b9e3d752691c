#include "llmc/run/resume.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <iterator>

#include "llmc/base/checksum.h"
#include "llmc/base/error.h"
#include "llmc/base/input_file.h"
#include "llmc/base/printable.h"
#include "llmc/base/text.h"
#include "llmc/run/run_folder.h"
#include "llmc/run/wrong_gpu.h"
#include "llmc/train/run_state.h"
#include "llmc/train/schedule.h"

namespace fs = std::filesystem;

namespace {

std::vector<std::string> checkpoints_of(const std::string& run) {
  const std::string root = run + "/checkpoints";
  std::vector<std::string> paths;
  for (const int64_t step : checkpoints_in(root)) paths.push_back(checkpoint_path(root, step));
  return paths;
}

// Returns a sentence with the newest checkpoint of each run below runs/, so far as a line holds them.
std::string runs_to_resume() {
  constexpr size_t kNamed = 5;
  std::vector<std::string> newest;
  std::error_code error;
  for (const fs::directory_entry& run : fs::directory_iterator("runs", error))
    if (const auto paths = checkpoints_of(run.path().string()); !run.is_symlink() && !paths.empty())
      newest.push_back(paths[0]);
  std::ranges::sort(newest, std::greater());
  std::string names;
  for (size_t i = 0; i < newest.size() && i < kNamed; ++i) names += " " + newest[i];
  return newest.empty() ? "name a folder that has checkpoints/step-…, or begin anew and save some: --checkpoint-every N"
                        : "name a run that has some, or one of these:" + names + (newest.size() > kNamed ? " …" : "");
}

int64_t step_of(const std::string& checkpoint) { return std::stoll(checkpoint.substr(checkpoint.rfind('-') + 1)); }

bool is_empty_or_missing(const std::string& folder) {
  std::error_code error;
  return !fs::exists(folder, error) || (fs::is_directory(folder, error) && fs::is_empty(folder, error));
}

// Returns the options that a file of a run sets in one that goes on.
Json options_of_run(const Json& options, bool same_ranks) {
  Json taken = Json::object();
  for (const auto& [key, value] : options.items()) {
    const std::optional<Scope> scope = scope_of(key);  // none: the parser says that it knows no such option
    if (!scope || (*scope >= Scope::run && (same_ranks || *scope != Scope::ranks))) taken.set(key, value);
  }
  return taken;
}

// Returns the options of the checkpoint's run.
Options options_of(const Checkpoint& checkpoint) {
  Options options;
  apply_config(options, checkpoint.state().at("options"), Scope::run);
  return options;
}

}  // namespace

std::optional<ResumePoint> ResumePoint::find(const Options& command_line) {
  const Options& options = command_line;
  std::error_code error;
  ResumePoint point;
  if (options.resume == "none") return {};
  if (options.resume == "auto") {
    if (options.out.empty()) {
      const fs::path latest = fs::canonical("runs/latest", error);
      if (error) return {};
      point.run_folder = fs::proximate(latest, error).string();
    } else {
      if (is_empty_or_missing(options.out)) return {};
      REQUIRE(fs::exists(options.out + "/train.jsonl", error),
              "--resume auto: --out %s holds files, but no run (train.jsonl)\n  name the folder of a run, or a new one",
              options.out.c_str());
      point.run_folder = options.out;
    }
    point.checkpoints = checkpoints_of(point.run_folder);
    if (ended_with_wrong_gpu(point.run_folder)) point.keep_to_verified();
    point.find_beginning();
    if (options.out.empty() && point.checkpoints.empty() && fs::exists(point.run_folder + "/export", error))
      return {};  // the latest run has ended
    return point;
  }
  const bool is_checkpoint = fs::exists(options.resume + "/manifest.json", error);
  REQUIRE(!error, "--resume %s: cannot look into it: %s", options.resume.c_str(), error.message().c_str());
  if (is_checkpoint) point.checkpoints = {options.resume};
  else point.checkpoints = checkpoints_of(options.resume);
  if (point.checkpoints.empty())
    fail("--resume %s: %s\n  %s", options.resume.c_str(),
         fs::exists(options.resume, error) ? "there is no complete checkpoint" : "there is no such folder",
         runs_to_resume().c_str());
  if (!options.out.empty() && fs::equivalent(options.out, options.resume, error)) point.run_folder = options.out;
  return point;
}

// Without a verified checkpoint the run goes on from where the start began that found the wrong GPU.
void ResumePoint::keep_to_verified() {
  const Json starts = starts_in(run_folder + "/run.json");
  const int64_t began = starts.elements().empty() ? 0 : starts.elements().back().get_int("first_step");
  auto newest = std::ranges::find_if(checkpoints, is_verified);
  if (newest == checkpoints.end())
    newest = std::ranges::find_if(checkpoints, [&](const std::string& path) { return step_of(path) <= began; });
  wrong_gpu = true, unverified.assign(checkpoints.begin(), newest);
  checkpoints.erase(checkpoints.begin(), newest);
}

// The last start of the run tells where it began.
void ResumePoint::find_beginning() {
  std::error_code error;
  const Json starts = starts_in(run_folder + "/run.json");
  if (starts.elements().empty()) return;
  const Json& start = starts.elements().back();
  const std::string from = start.get_string("from", "");
  const int64_t first_step = start.get_int("first_step");
  std::vector<int64_t> saved = checkpoints_in(run_folder + "/checkpoints");
  saved.erase(saved.begin(), saved.begin() + std::min(std::ssize(saved), std::ssize(unverified)));
  const bool has_ended = saved.empty() && fs::exists(run_folder + "/export/README.md", error);  // its last file
  if (from.empty() || has_ended || (!saved.empty() && saved.front() > first_step)) return;
  REQUIRE(
      fs::exists(from + "/manifest.json", error),
      "--resume auto: the run in %s has saved no checkpoint, and began at %s, which is not there any more\n  put it "
      "back, or begin at another one, in a new folder: --resume DIR",
      run_folder.c_str(), from.c_str());
  begins_again = true, stage = start.get_string("stage", "");
  if (saved.empty()) checkpoints = {from};
}

void ResumePoint::require_newest() const {
  const auto name = [](const std::string& path) { return fs::path(path).filename(); };  // the folder has many spellings
  const auto in = [&](const std::vector<std::string>& known, const std::string& path) {
    return std::ranges::any_of(known, [&](const std::string& of) { return name(of) == name(path); });
  };
  for (const std::string& path : checkpoints_of(run_folder))
    REQUIRE(in(checkpoints, path) || in(unverified, path),
            "%s was saved while this run started: another process has gone on with the run until now\n"
            "  start again with the same command",
            path.c_str());
}

Options ResumePoint::newest_options(const std::vector<std::string>& arguments) const {
  std::optional<Checkpoint> newest;
  if (!checkpoints.empty()) newest.emplace(checkpoints[0]);
  const Json saved = newest ? saved_options(*newest, 1) : saved_options(*this, 1);
  return parse_options(arguments, &saved);
}

Json saved_options(const Checkpoint& start, int ranks) {
  return options_of_run(start.state().at("options"), start.state().get_int("ranks") == ranks);
}

Json saved_options(const ResumePoint& resume, int ranks) {
  const std::string config = resume.run_folder + "/config.json", facts = resume.run_folder + "/run.json",
                    log = resume.run_folder + "/train.jsonl";
  std::error_code error;
  if (!fs::exists(config, error)) {
    REQUIRE(fs::file_size(log, error) == 0 && !error,
            "--resume auto: %s has the log of a run and not its options, config.json\n  put that file back, or name a "
            "new folder",
            resume.run_folder.c_str());
    return Json::object();
  }
  const bool same_ranks = !fs::exists(facts, error) || Json::read(facts).get_int("ranks") == ranks;
  return options_of_run(Json::read(config), same_ranks);
}

static bool give_length(const Options& options) {
  return !is_auto(options.steps) || !is_auto(options.train_tokens) || !is_auto(options.epochs);
}

void plan_cooldown(Options& options, const Options& command_line, const Checkpoint& start) {
  const double given = command_line.cooldown_steps;
  if (is_auto(given) || give_length(command_line)) return;
  REQUIRE(
      options.schedule == "wsd" || options.schedule == "constant",
      "--cooldown-steps %g from %s: with --schedule %s the learning rate falls before a cooldown\n  go on from a run "
      "with --schedule wsd or constant, or add --schedule wsd: then the rate goes back to --lr first",
      given, start.path().c_str(), options.schedule.c_str());
  const int64_t done = start.step() - stages_of(start.state()).back().first_step,  // of its stage
      steps = cooldown_steps_after(given, done);
  options.schedule = "wsd", options.cooldown_steps = double(steps), options.steps = done + steps;
}

void plan_stage(Options& options, const Options& command_line, const Checkpoint& start) {
  const std::string& name = command_line.stage;
  const bool has_length = give_length(command_line);
  const double cooldown = command_line.cooldown_steps;
  REQUIRE(has_length || cooldown >= 1,
          "--stage %s from %s: how long is it?\n  add --steps, --train-tokens or --epochs, which count from its first "
          "step, or --cooldown-steps N for a stage that is a cooldown",
          name.c_str(), start.path().c_str());
  if (!has_length) options.schedule = "wsd", options.steps = int64_t(cooldown);
  if (is_auto(command_line.warmup_steps)) options.warmup_steps = 0;
}

ModelSource model_of(const Checkpoint& checkpoint, const Options& options, bool begins_stage) {
  const Json& state = checkpoint.state();
  const Options before = options_of(checkpoint);
  if (options.model != before.model || options.layers != before.layers || options.vocab_size != before.vocab_size) {
    ModelSource named = open_model(options);
    require_same_model(checkpoint, named.config, begins_stage);
    named.description = format("%s, with the weights of the checkpoint", options.model.c_str());
    named.loaded = state.get_bool("weights_loaded");
    return named;
  }
  ModelSource source;
  source.config = ModelConfig::from_json(state.at("model"), state.get_string("model_name"));
  std::error_code error;
  if (fs::exists(checkpoint.path() + "/generation_config.json", error))
    source.config.generation = Json::read(own_file(checkpoint.path(), "generation_config.json"));
  source.config.end_tokens();  // throws on token ids that make no sense
  source.loaded = state.get_bool("weights_loaded");
  source.description = format("%s, as its checkpoint has it", source.config.name.c_str());
  return source;
}

TextCodec codec_of(const Checkpoint& checkpoint, const Options& options, const ModelConfig& config) {
  const Json& tokenizer = checkpoint.state().at("tokenizer");
  const std::string data = options.train_data.empty() ? options.val_data : options.train_data;
  if (options.tokenizer != options_of(checkpoint).tokenizer)
    return TextCodec::open(options.tokenizer, "", data, config);
  TextCodec codec = TextCodec::open("", checkpoint.path(), "", config);
  REQUIRE(codec.checksum() == tokenizer.get_string("xxh64"),
          "checkpoint %s lacks the tokenizer.json that its state.json names, of checksum %s", checkpoint.path().c_str(),
          tokenizer.get_string("xxh64").c_str());
  if (const Json& token = tokenizer.at("document_token"); !token.is_null())
    codec.keep_document_token(token.as_int() < 0 ? std::nullopt : std::optional(int32_t(token.as_int())));
  return codec;
}

Json tokenizer_state(const TextCodec& codec, bool tokenized, const Checkpoint* start) {
  const bool own = start && fs::path(codec.file()).parent_path() == fs::path(start->path());
  return Json::object()
      .set("file", own ? start->state().at("tokenizer").get_string("file") : codec.file())
      .set("xxh64", codec.checksum())
      .set("document_token", tokenized ? Json(codec.document_token().value_or(-1)) : Json());
}

std::string changed_tokenizer(const Checkpoint& checkpoint, const TextCodec& codec, const TokenizerFiles& files) {
  const Json& before = checkpoint.state().at("tokenizer");
  if (codec.checksum() != before.get_string("xxh64"))
    return format("the tokenizer is not what it was: it is %s, and was %s", codec.file().c_str(),
                  before.get_string("file").empty() ? "none" : before.get_string("file").c_str());
  std::string changed;
  for (const std::string& path : files.changed_beside(before.get_string("file")))
    changed += (changed.empty() ? "" : ", ") + path;
  return changed.empty() ? "" : changed + " changed since the run began; this run keeps the files of its checkpoint";
}

void require_same_on_all_ranks(const std::string& read, Communicator& communicator, Stream& stream) {
  Checksum checksum;
  checksum.add(read.data(), read.size());
  const auto own = int64_t(checksum.value());
  const bool same = own == broadcast_number(communicator, stream, own);
  REQUIRE(sum_number(communicator, stream, !same) == 0,
          "--resume: the ranks do not see the same files\n  the folder must be one that all machines share");
}

void require_same_on_all_ranks(const std::optional<ResumePoint>& resume, Communicator& communicator, Stream& stream) {
  std::string found;
  for (const std::string& path : resume ? resume->checkpoints : std::vector<std::string>()) found += path + "\n";
  require_same_on_all_ranks(found + (resume ? resume->run_folder + "\n" + resume->stage : ""), communicator, stream);
}

std::optional<Checkpoint> ResumePoint::open(Communicator& communicator, Stream& stream, bool dry_run,
                                            std::vector<std::string>& refused) const {
  for (const std::string& path : checkpoints) {
    std::optional<Checkpoint> checkpoint;
    WorkError why;
    try {
      checkpoint.emplace(path);
    } catch (const LaterVersion&) {
      throw;
    } catch (const Error& error) {
      why = {error.what(), error.exit_code};
    }
    std::string contents;  // of the files that this rank looks at
    if (sum_number(communicator, stream, !checkpoint) == 0)
      why = work_with_heartbeats(communicator, stream, [&] {
        for (int file = communicator.rank(); file < checkpoint->files(); file += communicator.size()) {
          contents += checkpoint->contents(file);
          if (!dry_run) checkpoint->verify(file);
        }
      });
    if (sum_number(communicator, stream, why.any()) == 0) {
      checkpoint->set_contents(gather_texts(communicator, stream, contents));
      return checkpoint;
    }
    const std::string reason = why.any() ? ":\n  " + why.text : "";
    // A disk or its server that fails, or too little memory, says nothing of the checkpoint.
    for (const int64_t code : gather_numbers(communicator, stream, int64_t(why.code)))
      if (ExitCode(code) != ExitCode::done && ExitCode(code) != ExitCode::wrong_input)
        fail_as(ExitCode(code),
                "checkpoint %s cannot be read now%s\n  start again when it can; if it never can, rename its folder: "
                "--resume auto then takes the one before it",
                path.c_str(), reason.c_str());
    REQUIRE(path != checkpoints.back(), "no checkpoint can be gone on from; the last one tried is %s%s", path.c_str(),
            reason.c_str());
    if (why.any())
      print_error(
          format("warning: checkpoint %s is refused: %s\n  trying the one before it", path.c_str(), why.text.c_str()));
    refused.push_back(path);
  }
  return {};
}

std::string nothing_to_resume(const Options& options, const std::optional<ResumePoint>& resume,
                              const std::optional<Checkpoint>& start) {
  if (options.resume != "auto" || start || options.dry_run) return "";
  return format("--resume auto: no checkpoint in %s: %s%s", options.out.empty() ? "runs/latest" : options.out.c_str(),
                options.trains() ? "starts from the beginning" : "uses the weights of --model",
                resume ? ", with the options of its config.json" : "");
}

std::string resume_command(const Ranks& ranks, const std::string& run_folder, const Options& options) {
  const char* const restarts = getenv("LLMC_RUN_RESTARTS");  // scripts/run --restarts
  std::string run = format("scripts/run -n %d", ranks.size);
  if (!ranks.rendezvous.empty()) run = format("scripts/run --gpus %d", ranks.size);
  if (restarts) run += " --restarts " + shell_quoted(restarts);
  const std::string how = ranks.local_size != ranks.size ? "the same start, with"
                          : restarts                     ? run
                          : ranks.size == 1              ? "./train_llama"
                          : !ranks.rendezvous.empty()    ? format("./train_llama --gpus %d", ranks.size)
                                                         : run;
  std::string command = format("%s --out %s --resume auto", how.c_str(), shell_quoted(run_folder).c_str());
  for (const std::string& option : changed_options(options)) {  // "memory-limit 1GiB"
    const size_t space = option.find(' ');
    if (scope_of(option.substr(0, space)) == Scope::machine)
      command += " --" + option.substr(0, space) + " " + shell_quoted(option.substr(space + 1));
  }
  return command;
}

std::string make_room(const std::string& root, const std::vector<std::string>& refused) {
  for (const std::string& path : refused) {
    std::string aside = path + ".refused";
    std::error_code error;
    for (int i = 2; fs::exists(fs::symlink_status(aside, error)); ++i) aside = format("%s.refused-%d", path.c_str(), i);
    REQUIRE(rename(path.c_str(), aside.c_str()) == 0,
            "cannot set the refused checkpoint aside as %s: %s\n  remove or rename it", aside.c_str(), strerror(errno));
  }
  try {
    remove_partial_checkpoints(root);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

// Says whether a key of config.json changes the length of context alone, and no weight.
static bool scales(const std::string& key) {
  return key == "max_position_embeddings" || key == "rope_theta" || key == "rope_scaling" || key == "rope_parameters";
}

void require_same_model(const Checkpoint& checkpoint, const ModelConfig& model, bool may_scale) {
  const std::string& path = checkpoint.path();
  const Json now = model.to_json();
  const std::string hint = may_scale ? "; a stage may change rope_theta, rope_parameters and max_position_embeddings"
                                     : "; a stage of the training (--stage NAME) may change it";
  for (const auto& [key, value] : checkpoint.state().at("model").items())
    REQUIRE((now.contains(key) && now.at(key) == value) || (may_scale && scales(key)),
            "--resume %s is of another model: its %s is %s, here it is %s\n  name the model that it was taken of "
            "(--model), or remove --layers and --vocab-size%s",
            path.c_str(), key.c_str(), value.dump().c_str(),
            now.contains(key) ? now.at(key).dump().c_str() : "not there", may_scale || scales(key) ? hint.c_str() : "");
}

std::vector<std::string> scaled_keys(const Checkpoint& checkpoint, const ModelConfig& model) {
  const Json now = model.to_json();
  std::vector<std::string> changed;
  for (const auto& [key, was] : checkpoint.state().at("model").items())
    if (const Json is = now.contains(key) ? now.at(key) : Json(); !(is == was))
      changed.push_back(format("%s %s (was %s)", key.c_str(), is.dump().c_str(), was.dump().c_str()));
  return changed;
}

std::vector<std::string> require_same_run(const Checkpoint& checkpoint, const Options& options, int64_t data_tokens,
                                          bool begins_stage) {
  const Json& state = checkpoint.state();
  const std::string& path = checkpoint.path();
  const Options before = options_of(checkpoint);
  const std::vector<std::string> is = changed_options(options, before), was = changed_options(before, options);
  std::vector<std::string> changed;
  std::string length;  // the one that another one replaces: a checkpoint stores steps, which stand first in the table
  for (size_t i = 0; i < is.size(); ++i) {  // "epochs 3", and in the other list "epochs auto"
    const std::string name = is[i].substr(0, is[i].find(' ')), value = was[i].substr(name.size() + 1);
    if (*scope_of(name) < Scope::run) continue;
    if (name == "steps" && is_auto(options.steps)) {
      length = was[i];
      continue;
    }
    const bool replaces = !length.empty() && (name == "epochs" || name == "train-tokens");
    const std::string text = format("--%s (was %s)", is[i].c_str(), replaces ? ("--" + length).c_str() : value.c_str());
    REQUIRE(
        name != "optimizer",
        "--resume %s: %s\n  its moments mean nothing to another optimizer: remove the option, or begin a new run with "
        "its weights (scripts/consolidate, then --model)",
        path.c_str(), text.c_str());
    REQUIRE(begins_stage || scope_of(name) != Scope::order,
            "--resume %s: %s\n  the order of the data would be another one: remove the option, or begin a stage of "
            "the training (--stage NAME), or a new run with its weights (scripts/consolidate, then --model)",
            path.c_str(), text.c_str());
    changed.push_back(text);
  }
  REQUIRE(begins_stage || state.get_int("data_tokens") == data_tokens,
          "--resume %s was trained on %lld tokens of data, here there are %lld: their order would be another one\n"
          "  name the same --train-data with the same content, or begin a stage of the training (--stage NAME), or a "
          "new run with its weights (scripts/consolidate, then --model)",
          path.c_str(), (long long)state.get_int("data_tokens"), (long long)data_tokens);
  return changed;
}

void require_same_data(const Checkpoint& checkpoint, DataIdentity& identity, Communicator& communicator, Stream& stream,
                       std::vector<std::string>& changes) {
  const Json& was = checkpoint.state().at("data_identity");
  std::string text;
  const WorkError why = work_with_heartbeats(communicator, stream, [&] {
    if (communicator.rank() == 0) text = identity.json().dump();
  });
  if (const auto code = ExitCode(broadcast_number(communicator, stream, int64_t(why.code))); code != ExitCode::done)
    fail_as(code, "--resume %s: cannot read the data: %s", checkpoint.path().c_str(),
            why.any() ? why.text.c_str() : "the first rank says why");
  const Json is = Json::parse(broadcast_text(communicator, stream, text), "the data");
  std::ranges::move(changed_data(checkpoint.path(), was, is), std::back_inserter(changes));
}

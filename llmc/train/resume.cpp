#include "llmc/train/resume.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <iterator>

#include "llmc/base/error.h"

namespace fs = std::filesystem;

namespace {

// Orders to one process, its place among others, its machine: a resumed run does not take these over.
constexpr const char* kNotSaved[] = {"out",           "resume",      "rendezvous", "dry_run",      "eval_only",
                                     "sample_only",   "consolidate", "check_data", "nodes",        "gpus_per_node",
                                     "gpu",           "trace",       "nvtx",       "memory_limit", "host_memory_limit",
                                     "tune_products", "tuning",      "quiet"};
// The number of ranks decides which values these may have.
constexpr const char* kArrangesRanks[] = {"micro_batch", "hybrid_shard_degree", "tensor_parallel_degree",
                                          "tensor_parallel_overlap", "context_parallel_degree"};
// With other values of these, a run would train on other sequences than it would have had.
constexpr const char* kDecidesOrder[] = {"seed", "seq_len", "global_batch"};

std::vector<std::string> checkpoints_of(const std::string& run) {
  const std::string root = run + "/checkpoints";
  std::vector<std::string> paths;
  for (const int64_t step : checkpoints_in(root)) paths.push_back(checkpoint_path(root, step));
  return paths;
}

bool is_empty_or_missing(const std::string& folder) {
  std::error_code error;
  return !fs::exists(folder, error) || (fs::is_directory(folder, error) && fs::is_empty(folder, error));
}

template <size_t N>
bool is_one_of(const std::string& key, const char* const (&keys)[N]) {
  return std::find(std::begin(keys), std::end(keys), key) != std::end(keys);
}

// Returns the options of a checkpoint's state, with the meaning that they had for the program that wrote it. An older
// program wrote "auto" for --head-chunk. One older still had no --tensor-parallel-reduce-dtype, and added in fp32.
Json options_of(const Json& state) {
  Json options = state.at("options");
  const Json* chunk = options.find("head_chunk");
  if (chunk && *chunk == Json("auto"))
    options.set("head_chunk", state.at("model").get_int("vocab_size") > 4096 ? 1024 : 8192);
  if (!options.contains("tensor_parallel_reduce_dtype")) options.set("tensor_parallel_reduce_dtype", "fp32");
  return options;
}

std::string spelled(std::string key) {
  std::replace(key.begin(), key.end(), '_', '-');
  return key;
}

}  // namespace

std::optional<ResumePoint> ResumePoint::find(const Options& options) {
  std::error_code error;
  ResumePoint point;
  point.own_length = !is_auto(options.seq_len);
  if (options.resume == "none") return {};
  if (options.resume == "auto") {
    if (options.out.empty()) {
      const fs::path latest = fs::canonical("runs/latest", error);
      if (error) return {};
      point.run_folder = fs::proximate(latest, error).string();
      point.checkpoints = checkpoints_of(point.run_folder);
      if (point.checkpoints.empty()) return {};
      return point;
    }
    if (is_empty_or_missing(options.out)) return {};
    REQUIRE(fs::exists(options.out + "/train.jsonl", error),
            "--resume auto: --out %s holds files, but no run (train.jsonl)\n  name the folder of a run, or a new one",
            options.out.c_str());
    point.run_folder = options.out;
    point.checkpoints = checkpoints_of(options.out);
    return point;
  }
  const bool is_checkpoint = fs::exists(options.resume + "/manifest.json", error);
  REQUIRE(!error, "--resume %s: cannot look into it: %s", options.resume.c_str(), error.message().c_str());
  if (is_checkpoint) point.checkpoints = {options.resume};
  else point.checkpoints = checkpoints_of(options.resume);
  REQUIRE(!point.checkpoints.empty(),
          "--resume %s: there is no complete checkpoint\n  name a run with checkpoints/step-…, or one of these",
          options.resume.c_str());
  if (!options.out.empty() && fs::equivalent(options.out, options.resume, error)) point.run_folder = options.out;
  return point;
}

Json ResumePoint::saved_options(int ranks) const {
  for (const std::string& path : checkpoints) {
    try {
      const Json state = Json::read(path + "/state.json");
      const bool as_many = state.get_int("ranks") == ranks;
      const Json options = options_of(state);
      Json saved = Json::object();
      for (const auto& [key, value] : options.items())
        if (as_many || !is_one_of(key, kArrangesRanks)) saved.set(key, value);
      return saved;
    } catch (const Error&) {  // open() reports why it is refused
    }
  }
  return Json::object();
}

void require_same_on_all_ranks(const ResumePoint* resume, Communicator& communicator, Stream& stream) {
  Checksum found;
  for (const std::string& path : resume ? resume->checkpoints : std::vector<std::string>())
    found.add(path.data(), path.size() + 1);
  if (resume) found.add(resume->run_folder.data(), resume->run_folder.size());
  const auto own = int64_t(found.value());
  const bool same = own == broadcast_number(communicator, stream, own);
  REQUIRE(sum_number(communicator, stream, !same) == 0,
          "--resume: the ranks do not see the same checkpoints; this one sees %zu\n"
          "  the folder must be one that all machines share",
          resume ? resume->checkpoints.size() : 0);
}

std::optional<Checkpoint> ResumePoint::open(Communicator& communicator, Stream& stream,
                                            std::vector<std::string>& refused) const {
  for (const std::string& path : checkpoints) {
    std::optional<Checkpoint> checkpoint;
    std::string why;
    try {
      checkpoint.emplace(path);
    } catch (const Error& error) {
      why = error.what();
    }
    if (sum_number(communicator, stream, !checkpoint) == 0)
      why = work_beside_signs_of_life(communicator, stream, [&] {  // each rank verifies its part of the files
        for (int file = communicator.rank(); file < checkpoint->files(); file += communicator.size())
          checkpoint->verify(file);
      });
    if (checkpoint && sum_number(communicator, stream, !why.empty()) == 0) return checkpoint;
    REQUIRE(path != checkpoints.back(), "no checkpoint can be gone on from; the last one tried is %s%s%s", path.c_str(),
            why.empty() ? "" : ":\n  ", why.c_str());
    if (!why.empty())
      fputs(format("warning: checkpoint %s is refused: %s\n  trying the one before it\n", path.c_str(), why.c_str())
                .c_str(),
            stderr);
    refused.push_back(path);
  }
  return {};
}

std::string nothing_to_resume(const Options& options, const std::optional<Checkpoint>& start) {
  if (options.resume != "auto" || start || options.dry_run) return "";
  return format("--resume auto: no checkpoint in %s: %s", options.out.empty() ? "runs/latest" : options.out.c_str(),
                options.sample_only || options.eval_only ? "uses the weights of --model" : "starts from the beginning");
}

std::string resume_command(const Ranks& ranks, const std::string& run_folder) {
  const std::string how = ranks.size == 1                  ? "./train_llama"
                          : ranks.local_size == ranks.size ? format("scripts/run -n %d", ranks.size)
                                                           : "the same start, with";
  std::string folder = run_folder;  // quoted for a shell
  if (folder.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./+,:@%=") !=
      folder.npos) {
    for (size_t at = 0; (at = folder.find('\'', at)) != folder.npos; at += 4) folder.replace(at, 1, "'\\''");
    folder = "'" + folder + "'";
  }
  return format("%s --out %s --resume auto", how.c_str(), folder.c_str());
}

std::string make_room(const std::string& root, const std::vector<std::string>& refused) {
  for (const std::string& path : refused)
    REQUIRE(rename(path.c_str(), (path + ".refused").c_str()) == 0,
            "cannot set the refused checkpoint aside as %s.refused: %s\n  remove or rename it", path.c_str(),
            strerror(errno));
  try {
    remove_partial_checkpoints(root);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

Json resume_state(int64_t step, int ranks, const Options& options, const RunSettings& settings,
                  const ModelConfig& model, int64_t data_tokens) {
  const Json all = options_json(options);
  Json saved = Json::object();
  for (const auto& [key, value] : all.items())
    if (!is_one_of(key, kNotSaved)) saved.set(key, value);
  saved.set("seq_len", settings.T).set("global_batch", settings.G);
  saved.set("steps", settings.steps).set("train_tokens", "auto").set("epochs", "auto");
  saved.set("lr", settings.lr).set("warmup_steps", settings.warmup_steps);  // an automatic --min-lr follows from --lr
  saved.set("val_every", settings.val_every).set("head_chunk", settings.head_chunk);
  return Json::object()
      .set("step", step)
      .set("ranks", ranks)
      .set("sequences", step * settings.G)
      .set("data_tokens", data_tokens)
      .set("model", model.to_json())
      .set("options", saved);
}

WindowRule window_rule_of(const Checkpoint& checkpoint) {
  return window_rule_named(checkpoint.state().get_string("windows", name_of(WindowRule::per_file)));
}

void require_same_model(const Checkpoint& checkpoint, const ModelConfig& model) {
  const std::string& path = checkpoint.path();
  const Json now = model.to_json();
  for (const auto& [key, value] : checkpoint.state().at("model").items())
    REQUIRE(now.contains(key) && now.at(key) == value,
            "--resume %s is of another model: its %s is %s, here it is %s\n  name the model that it was taken of "
            "(--model), or remove --layers and --vocab-size",
            path.c_str(), key.c_str(), value.dump().c_str(),
            now.contains(key) ? now.at(key).dump().c_str() : "not there");
}

std::vector<std::string> require_same_run(const Checkpoint& checkpoint, const Options& options, int64_t data_tokens) {
  const Json& state = checkpoint.state();
  const std::string& path = checkpoint.path();
  REQUIRE(state.get_int("data_tokens") == data_tokens,
          "--resume %s was trained on %lld tokens of data, here there are %lld: their order would be another one\n"
          "  name the same --train-data with the same content, or begin a new run with its weights "
          "(scripts/consolidate, then --model)",
          path.c_str(), (long long)state.get_int("data_tokens"), (long long)data_tokens);
  std::vector<std::string> changed;
  const Json current = options_json(options), before = options_of(state);
  for (const auto& [key, was] : before.items()) {
    const Json* is = current.find(key);
    if (!is || *is == was) continue;
    const std::string text = format("--%s %s (was %s)", spelled(key).c_str(), is->dump().c_str(), was.dump().c_str());
    REQUIRE(std::find(std::begin(kDecidesOrder), std::end(kDecidesOrder), key) == std::end(kDecidesOrder),
            "--resume %s: %s\n  the order of the data would be another one: remove the option, or begin a new run with "
            "its weights (scripts/consolidate, then --model)",
            path.c_str(), text.c_str());
    changed.push_back(text);
  }
  return changed;
}

void require_same_data(const Checkpoint& checkpoint, DataIdentity& identity, Communicator& communicator, Stream& stream,
                       std::vector<std::string>& changes) {
  const Json* was = checkpoint.state().find("data_identity");
  if (!was) {
    changes.push_back(
        "this checkpoint is of an older program and stores only the number of its data's tokens: no more was compared");
    return;
  }
  std::string text;
  const std::string why = work_beside_signs_of_life(communicator, stream, [&] {
    if (communicator.rank() == 0) text = identity.json().dump();
  });
  REQUIRE(sum_number(communicator, stream, !why.empty()) == 0, "--resume %s: cannot read the data: %s",
          checkpoint.path().c_str(), why.empty() ? "the first rank says why" : why.c_str());
  const Json is = Json::parse(broadcast_text(communicator, stream, text), "the data");
  std::ranges::move(changed_data(checkpoint.path(), *was, is), std::back_inserter(changes));
}

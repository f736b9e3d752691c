#include "llmc/train/run_state.h"

#include <string_view>

#include "llmc/data/bad_samples.h"

Json run_state(int64_t step, int ranks, const Options& options, const RunSettings& settings, const ModelConfig& model,
               int64_t data_tokens) {
  Json saved = options_json(options, Scope::run);
  saved.set("seq_len", settings.T).set("global_batch", settings.G);
  saved.set("steps", settings.stage_steps()).set("train_tokens", "auto").set("epochs", "auto");
  saved.set("lr", settings.lr).set("warmup_steps", settings.warmup_steps);  // an automatic --min-lr follows from --lr
  if (options.plan == "auto") saved.set("micro_batch", settings.B);         // a choice that changes the bits stays
  saved.set("val_every", settings.val_every).set("head_chunk", settings.head_chunk);
  if (is_auto(options.val_tokens)) saved.set("val_tokens", settings.val_windows * settings.T);  // also of a longer run
  return Json::object()
      .set("version", kStateVersion)
      .set("step", step)
      .set("ranks", ranks)
      .set("tokens", settings.tokens_after(step))
      .set("sequences", settings.tokens_after(step) / settings.T)
      .set("data_tokens", data_tokens)
      .set("model", model.to_json())
      .set("model_name", model.name)
      .set("options", saved);
}

Json known_state(Json state) {
  const int64_t version = state.get_int("version", 0);
  if (version > kStateVersion)
    throw LaterVersion(
        format("%s is of version %lld, and this program knows the versions up to %lld\n  a later train_llama wrote "
               "this checkpoint: go on with that one",
               state.where().c_str(), (long long)version, (long long)kStateVersion));
  REQUIRE(version == kStateVersion,
          "%s is of version %lld, and this program reads version %lld alone\n  an earlier train_llama wrote this "
          "checkpoint: go on with that one",
          state.where().c_str(), (long long)version, (long long)kStateVersion);
  if (!state.contains("left_out")) state.set("left_out", Json::array());
  std::string windows = state.get_string("windows");
  const bool leaves_out = !bad_steps_of(state.at("left_out")).empty();
  if (leaves_out && windows.ends_with(kLeftOut)) windows.resize(windows.size() - std::string_view(kLeftOut).size());
  REQUIRE(
      windows == kWindows || windows == kMixture,
      "%s: the data is cut into sequences by the rule \"%s\"\n  this program knows \"%s\" and \"%s\": go on with the "
      "train_llama that wrote the checkpoint",
      state.where().c_str(), windows.c_str(), kWindows, kMixture);
  const int64_t step = state.get_int("step"), updates = state.get_int("optimizer_steps");
  REQUIRE(updates >= 0 && updates <= step, "%s: %lld updates (optimizer_steps) in %lld steps", state.where().c_str(),
          (long long)updates, (long long)step);
  if (!state.contains("skipped_steps")) state.set("skipped_steps", Json::array());
  int64_t before = 0;
  for (const int64_t skipped : skipped_steps(state)) {
    REQUIRE(skipped > before && skipped <= step, "%s: step %lld was skipped (skipped_steps) after step %lld, of %lld",
            state.where().c_str(), (long long)skipped, (long long)before, (long long)step);
    before = skipped;
  }
  for (const char* key : {"last_step", "last_score"})
    if (const Json& line = state.at(key); !line.is_null()) line.items();  // throws if it is no object
  return state;
}

std::vector<int64_t> skipped_steps(const Json& state) {
  std::vector<int64_t> steps;
  for (const Json& step : state.at("skipped_steps").elements()) steps.push_back(step.as_int());
  return steps;
}

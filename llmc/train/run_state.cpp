#include "llmc/train/run_state.h"

#include <utility>

Json run_state(int64_t step, int ranks, const Options& options, const RunSettings& settings, const ModelConfig& model,
               int64_t data_tokens) {
  Json saved = options_json(options, Scope::run);
  saved.set("seq_len", settings.T).set("global_batch", settings.G);
  saved.set("steps", settings.steps).set("train_tokens", "auto").set("epochs", "auto");
  saved.set("lr", settings.lr).set("warmup_steps", settings.warmup_steps);  // an automatic --min-lr follows from --lr
  if (options.plan == "auto") saved.set("micro_batch", settings.B);         // a choice that changes the bits stays
  saved.set("val_every", settings.val_every).set("head_chunk", settings.head_chunk);
  if (is_auto(options.val_tokens)) saved.set("val_tokens", settings.val_windows * settings.T);  // also of a longer run
  return Json::object()
      .set("version", kStateVersion)
      .set("step", step)
      .set("ranks", ranks)
      .set("sequences", step * settings.G)
      .set("data_tokens", data_tokens)
      .set("model", model.to_json())
      .set("model_name", model.name)
      .set("options", saved);
}

namespace {

// Sets a key that is not there.
void set_missing(Json& object, const char* key, Json value) {
  if (!object.contains(key)) object.set(key, std::move(value));
}

// An older program wrote "auto" for --head-chunk, whose default was another one.
void complete_options(Json& options, const Json& model) {
  if (const Json* chunk = options.find("head_chunk"); chunk && *chunk == Json("auto"))
    options.set("head_chunk", model.get_int("vocab_size") > 4096 ? 1024 : 8192);
  set_missing(options, "tensor_parallel_reduce_dtype", "fp32");
}

void complete_identity(Json& identity) {
  for (const char* part : {"train", "held_out"})
    if (Json data = identity.at(part); !data.is_null()) {
      set_missing(data, "documents", nullptr);  // their rule follows from the data's folder, as when a run begins
      identity.set(part, data);
    }
}

}  // namespace

Json known_state(Json state) {
  const int64_t version = state.get_int("version", 0);
  if (version > kStateVersion)
    throw LaterVersion(
        format("%s is of version %lld, and this program knows the versions up to %lld\n  a later train_llama wrote "
               "this checkpoint: go on with that one",
               state.where().c_str(), (long long)version, (long long)kStateVersion));
  if (const Json* options = state.find("options")) {
    Json completed = *options;
    complete_options(completed, state.at("model"));
    set_missing(state, "model_name", completed.get_string("model", ""));
    state.set("options", completed);
  }
  if (state.contains("step")) {
    const int64_t step = state.get_int("step");
    set_missing(state, "optimizer_steps", step);  // each made an update
    const int64_t updates = state.get_int("optimizer_steps");
    REQUIRE(updates >= 0 && updates <= step, "%s: %lld updates (optimizer_steps) in %lld steps", state.where().c_str(),
            (long long)updates, (long long)step);
  }
  set_missing(state, "weights_loaded", false);
  const std::string windows = state.get_string("windows", "");
  REQUIRE(windows == kWindows,
          "%s: the data is cut into sequences by the rule \"%s\"\n  this program knows \"%s\" alone: go on with the "
          "train_llama that wrote the checkpoint",
          state.where().c_str(), windows.c_str(), kWindows);
  set_missing(state, "data", "");
  set_missing(state, "data_identity", nullptr);  // no more than the number of tokens is compared
  if (Json identity = state.at("data_identity"); !identity.is_null()) {
    complete_identity(identity);
    state.set("data_identity", identity);
  }
  if (version == 0) set_missing(state, "tokenizer", nullptr);  // it is looked for again, as when a run begins
  for (const char* key : {"tuning", "last_step", "last_score"}) set_missing(state, key, nullptr);
  for (const char* key : {"last_step", "last_score"})
    if (const Json& line = state.at(key); !line.is_null()) line.items();  // throws if it is no object
  set_missing(state, "seconds", 0.0);
  return state;
}

// Covers: settings that the program chooses: the learning rate, a tenth of it where weights are loaded; the global
// batch; the head's chunk and the type of tensor parallelism's sums, also of a run that an older program began
#include <algorithm>

#include "dev/test/test.h"
#include "dev/test/token_files.h"
#include "llmc/train/resume.h"
#include "llmc/train/run_state.h"
#include "llmc/train/settings.h"

namespace {

RunSettings settings(const char* model, bool loaded, double lr = kAuto) {
  Options options;
  options.lr = lr;
  return resolve_settings(options, ModelConfig::preset(model), DeviceInfo{}, 1, 1'000'000, loaded);
}

bool tells(const RunSettings& s, const std::string& text) {
  for (const std::string& reason : s.reasons)
    if (reason.find(text) != std::string::npos) return true;
  return false;
}

// The options with which a run goes on from a checkpoint whose state.json holds these.
Json resumed(const Json& written, int V) {
  Json state = Json::object();
  state.set("ranks", 1).set("model", Json::object().set("vocab_size", V)).set("options", written);
  return known_state(state).at("options");
}

}  // namespace

TEST_CASE("loaded weights have a tenth of the default learning rate") {
  CHECK(settings("tiny", false).lr == doctest::Approx(4e-3));
  CHECK(settings("tiny", true).lr == doctest::Approx(4e-4));
  CHECK(settings("tiny", true).min_lr == doctest::Approx(4e-5));
  CHECK(settings("llama3.2-1b", false).lr == doctest::Approx(3e-4));
  CHECK(settings("llama3.2-1b", true).lr == doctest::Approx(3e-5));
  CHECK(tells(settings("llama3.2-1b", true), "3e-05"));
  CHECK(tells(settings("llama3.2-1b", true), "a tenth of the default"));
  CHECK(!tells(settings("llama3.2-1b", false), "tenth"));
  CHECK(settings("llama3.2-1b", true, 1e-3).lr == 1e-3);
  CHECK(!tells(settings("llama3.2-1b", true, 1e-3), "tenth"));
}

TEST_CASE("an epoch of little data has at least 8 steps of the default batch") {
  const auto batch_of = [](int64_t tokens, int ranks) {
    Options options;
    options.seq_len = 256, options.epochs = 3;
    return resolve_settings(options, ModelConfig::preset("llama3.2-1b"), DeviceInfo{}, ranks, tokens, true);
  };
  CHECK(batch_of(0, 1).G == 64);  // the data is not known
  CHECK(batch_of(64 * 8 * 256, 1).G == 64);
  CHECK(!tells(batch_of(64 * 8 * 256, 1), "less"));
  CHECK(batch_of(63 * 8 * 256, 1).G == 32);
  CHECK(batch_of(19 * 256, 1).G == 2);
  CHECK(batch_of(19 * 256, 1).steps == 29);
  CHECK(tells(batch_of(19 * 256, 1), "global batch 2 sequences: less than the default 64, for an epoch has 19"));
  CHECK(batch_of(19 * 256, 3).G == 3);  // what the ranks can share
  CHECK(batch_of(100, 1).G == 1);
}

TEST_CASE("the head's chunks have 4096 to 8192 tokens, and the same size") {
  const auto chunk_of = [](int64_t T, int64_t B, int64_t tensor = 1, int64_t context = 1) {
    Options options;
    options.seq_len = T, options.micro_batch = B, options.global_batch = B;
    options.tensor_parallel_degree = tensor, options.context_parallel_degree = context;
    return resolve_settings(options, ModelConfig::preset("llama3.2-1b"), DeviceInfo{}, 1, 0).head_chunk;
  };
  CHECK(chunk_of(128, 1) == 8192);  // all tokens: a micro-batch on more ranks may have more
  CHECK(chunk_of(8191, 1) == 8192);
  CHECK(chunk_of(4096, 2) == 4096);
  CHECK(chunk_of(4096, 3) == 4096);
  CHECK(chunk_of(8193, 1) == 4224);  // rounded up to 128
  CHECK(chunk_of(16384, 8) == 4096);
  CHECK(chunk_of(16384, 1, 1, 2) == 4096);
  CHECK(chunk_of(8192, 1, 2) == 4096);
  CHECK(chunk_of(8192, 1, 2, 2) == 8192);
  CHECK(chunk_of(6000, 1, 2) == 3072);
  for (int64_t T = 8193; T < 100000; T += 1237) {
    CHECK(chunk_of(T, 1) >= 4096);
    CHECK(chunk_of(T, 1) <= 6144);
    CHECK(chunk_of(T, 1, 8) == chunk_of(T, 1));
  }
}

TEST_CASE("a checkpoint without the size of the head's chunks was written with the older default") {
  const auto chunk_of = [](int V, Json written) {
    return resumed(Json::object().set("head_chunk", written), V).get_int("head_chunk");
  };
  CHECK(chunk_of(128256, "auto") == 1024);
  CHECK(chunk_of(256, "auto") == 8192);
  CHECK(chunk_of(128256, 6144) == 6144);
}

TEST_CASE(
    "tensor parallelism's sums have the type of the activations, or fp32 on request or from an older checkpoint") {
  const auto sums_of = [](const std::string& activations, const std::string& sums) {
    Options options;
    options.dtype = activations;
    if (!sums.empty()) options.tensor_parallel_reduce_dtype = sums;
    const RunSettings s = resolve_settings(options, ModelConfig::preset("tiny"), DeviceInfo{}, 1, 0);
    return trainer_settings(options, s).tensor_sums;
  };
  CHECK(sums_of("bf16", "") == DType::bf16);
  CHECK(sums_of("fp32", "") == DType::fp32);
  CHECK(sums_of("bf16", "fp32") == DType::fp32);
  CHECK(sums_of("bf16", "bf16") == DType::bf16);
  const auto resumed_with = [](const Json& written) {
    return resumed(written, 256).get_string("tensor_parallel_reduce_dtype");
  };
  CHECK(resumed_with(Json::object()) == "fp32");  // this checkpoint is older than the option
  for (const char* written : {"fp32", "bf16", "auto"})
    CHECK(resumed_with(Json::object().set("tensor_parallel_reduce_dtype", written)) == written);
}

TEST_CASE("a state of another version: a later one is refused, an older one gets what it lacks") {
  const auto state = [](const char* text) { return known_state(Json::parse(text, "state.json")); };
  const Json later = Json::object().set("version", kStateVersion + 1);
  says(error_of([&] { known_state(later); }), format("is of version %lld", (long long)kStateVersion + 1),
       format("the versions up to %lld", (long long)kStateVersion));
  const Json old = state(R"({"step": 1, "model": {"vocab_size": 9}, "options": {"model": "m"}, "data_identity":
    {"train": {"files": 1}, "held_out": null}})");
  CHECK(old.at("tokenizer").is_null());
  CHECK(old.get_string("model_name") == "m");
  CHECK(old.get_string("windows") == "per_file");
  CHECK(old.at("data_identity").at("train").at("documents").is_null());
  CHECK(old.get_double("seconds") == 0);
  CHECK(old.get_int("optimizer_steps") == 1);
  for (const int64_t updates : {-1, 2}) {
    Json wrong = old;
    says(error_of([&] { known_state(wrong.set("optimizer_steps", updates)); }), "updates (optimizer_steps) in 1 steps");
  }
  CHECK(known_state(old) == old);
}

TEST_CASE("the command that goes on has the options of the machine, quoted for a shell") {
  const Options options =
      parse_options({"--lr", "0.5", "--out", "x", "--memory-limit", "1 GiB", "--comm-timeout", "9", "--check-data"});
  CHECK(resume_command(Ranks(), "runs/it's", options) ==
        "./train_llama --out 'runs/it'\\''s' --resume auto --check-data on --memory-limit '1 GiB' --comm-timeout 9");
}

// Covers: settings that the program chooses: by the model's size alone the sequences of a step, the learning rate, a
// tenth of it where weights are loaded, and the steps; the held-out tokens of a short run; when several ranks save; the
// head's chunk and the type of tensor parallelism's sums, also of a run that an older program began
#include <algorithm>
#include <array>
#include <tuple>

#include "dev/test/test.h"
#include "dev/test/tiny_trainer.h"
#include "dev/test/token_files.h"
#include "llmc/run/resume.h"
#include "llmc/train/defaults.h"
#include "llmc/train/run_state.h"
#include "llmc/train/settings.h"

namespace {

using Words = std::vector<std::string>;

RunSettings settings(const char* model, bool loaded, double lr = kAuto) {
  Options options;
  options.lr = lr;
  return resolve_settings(options, ModelConfig::preset(model), DeviceInfo{}, 1, 1'000'000, loaded);
}

// The settings of `tiny`.
RunSettings resolved(const Words& words, int ranks = 1) {
  return resolve_settings(parse_options(words), ModelConfig::preset("tiny"), DeviceInfo{}, ranks, 1'000'000);
}

bool tells(const RunSettings& s, const std::string& text) {
  return std::ranges::any_of(s.reasons, [&](const std::string& reason) { return reason.find(text) != text.npos; });
}

}  // namespace

TEST_CASE("loaded weights have a tenth of the default learning rate") {
  const std::tuple<const char*, bool, double, double> cases[] = {{"tiny", false, kAuto, 4e-3},
                                                                 {"tiny", true, kAuto, 4e-4},
                                                                 {"llama3.2-1b", false, kAuto, 3e-4},
                                                                 {"llama3.2-1b", true, kAuto, 3e-5},
                                                                 {"llama3.2-1b", true, 1e-3, 1e-3}};
  for (const auto& [model, loaded, asked, lr] : cases) {
    const RunSettings s = settings(model, loaded, asked);
    CHECK(s.lr == doctest::Approx(lr));
    CHECK(s.min_lr == doctest::Approx(lr / 10));
    CHECK(tells(s, "a tenth of the default") == (loaded && is_auto(asked)));
  }
  CHECK(tells(settings("llama3.2-1b", true), "3e-05"));
}

TEST_CASE("the defaults grow smoothly with the model, from those of tiny to those of 1B") {
  const auto of = [](const char* model) { return settings(model, false); };
  CHECK(of("tiny").T == 128);
  CHECK(of("tiny").G == 16);
  CHECK(of("tiny").steps == 160);
  CHECK(of("smollm2-135m").T == 1024);
  CHECK(of("smollm2-135m").lr == 6e-4);
  for (const char* model : {"llama3.2-1b", "llama3.1-8b", "llama3.1-405b"}) {
    CHECK(of(model).T == 4096);
    CHECK(defaults_of(ModelConfig::preset(model)).G == 64);
    CHECK(of(model).lr == 3e-4);
  }
  ModelConfig config = ModelConfig::preset("llama3.2-1b");
  Defaults before = defaults_of(ModelConfig::preset("tiny"));
  config.V = 256;
  for (config.C = 32, config.FF = 96; config.C < 4096; config.C += 16, config.FF += 48) {
    const Defaults now = defaults_of(config);
    CAPTURE(config.parameters());
    CHECK(now.T >= before.T);
    CHECK(now.T <= 2 * before.T);
    CHECK(now.G >= before.G);
    CHECK(now.T * now.G <= 4 * before.T * before.G);
    CHECK(now.lr <= before.lr);
    CHECK(now.lr >= 0.5 * before.lr);
    CHECK(now.fewest_steps <= before.fewest_steps);
    CHECK(now.most_steps >= before.most_steps);
    if (config.parameters() >= 10'000'000 && config.parameters() <= 100'000'000) {
      CHECK(now.T * now.G >= 4096);
      CHECK(now.T * now.G <= 32768);
    }
    before = now;
  }
  CHECK(settings("smollm2-135m", false).steps == 31);  // a pass over a million tokens
}

TEST_CASE("a model trains for a pass, within what suits its size") {
  // Tiny makes several passes over few tokens, and one with loaded weights. The last has 2 of its 25 sequences a step.
  const std::tuple<const char*, int64_t, bool, int64_t> cases[] = {{"tiny", 10'000, false, 160},
                                                                   {"tiny", 10'000, true, 10},
                                                                   {"tiny", 1'000'000'000, false, 160},
                                                                   {"tiny", 1'000'000'000, true, 160},
                                                                   {"llama3.1-8b", 1LL << 40, false, 1 << 22},
                                                                   {"llama3.1-8b", 100'000, false, 13}};
  for (const auto& [model, tokens, loaded, steps] : cases)
    CHECK(resolve_settings(Options(), ModelConfig::preset(model), DeviceInfo{}, 1, tokens, loaded).steps == steps);
}

TEST_CASE("a validation measures at most a tenth of the run's tokens, unless it was asked for more") {
  const auto windows_of = [](int64_t steps, int64_t tokens, bool only) {
    Options options;
    options.steps = steps, options.val_tokens = tokens, options.eval_only = only;
    return resolve_settings(options, ModelConfig::preset("tiny"), DeviceInfo{}, 1, 1'000'000).val_windows;
  };
  const std::array<int64_t, 3> cases[] = {{160, kAuto, 128}, {20, kAuto, 32}, {1, kAuto, 2}, {1, 16384, 128}};
  for (const auto& [steps, tokens, windows] : cases) CHECK(windows_of(steps, tokens, false) == windows);
  CHECK(windows_of(1, 0, false) > 1'000'000'000);
  CHECK(windows_of(1, kAuto, true) > 1'000'000'000);
}

TEST_CASE("several ranks save every half hour, without a copy until Setup has found room, unless it was asked for") {
  const std::tuple<int, const char*, double, bool> cases[] = {
      {1, "", 0, false},
      {2, "", 30, false},
      {1, "--tensor-parallel-degree 2", 30, false},
      {2, "--checkpoint-every 5", 30, false},
      {2, "--checkpoint-every 5 --checkpoint-async on", 30, true},
      {1, "--checkpoint-minutes 0.5 --checkpoint-async on", 0.5, true},
      {1, "--checkpoint-minutes 0.5 --checkpoint-async off", 0.5, false},
      {2, "--checkpoint-minutes 0", 0, false}};
  for (const auto& [ranks, options, minutes, snapshot] : cases) {
    const RunSettings s = resolved(words_of(options), ranks);
    CHECK(s.checkpoint_minutes == minutes);
    CHECK(s.snapshot == snapshot);
  }
  CHECK(!resolved({}).saves({}));
}

TEST_CASE("the reason of the learning rate tells the schedule") {
  for (const auto& [options, reason] :
       {std::pair{"", "learning rate 0.004, warm-up 10 steps: the default; then a cosine to 0.0004"},
        {"--lr 0.002", "learning rate 0.002: as asked, warm-up 10 steps: the default; then a cosine to 0.0002"},
        {"--schedule wsd", "then constant for 70 steps, and linear to 0.0004 over the last 20 (wsd)"},
        {"--schedule wsd --cooldown-steps 5%",
         "then constant for 85 steps, and linear to 0.0004 over the last 5 (wsd)"},
        {"--schedule wsd --cooldown-steps 90 --cooldown-shape 1-sqrt", "then 1-sqrt to 0.0004 over the last 90 (wsd)"},
        {"--schedule wsd --cooldown-steps 0", "then constant, without a cooldown (wsd)"},
        {"--schedule constant", "; then constant"},
        {"--schedule linear --min-lr 0", "; then linear to 0"},
        {"--warmup-steps 200", "warm-up 200 steps: as asked; then the run ends"}})
    CHECK(tells(resolved(words_of(std::string("--steps 100 ") + options)), reason));
}

TEST_CASE("an epoch of little data has at least 8 steps of the default batch") {
  const auto batch_of = [](int64_t tokens, int ranks) {
    Options options;
    options.seq_len = 256, options.epochs = 3;
    return resolve_settings(options, ModelConfig::preset("llama3.2-1b"), DeviceInfo{}, ranks, tokens, true);
  };
  // No tokens: the data is not known. Three ranks share 3 sequences.
  const std::tuple<int64_t, int, int64_t> cases[] = {{0, 1, 64},       {64 * 8 * 256, 1, 64}, {63 * 8 * 256, 1, 32},
                                                     {19 * 256, 1, 2}, {19 * 256, 3, 3},      {100, 1, 1}};
  for (const auto& [tokens, ranks, batch] : cases) {
    CHECK(batch_of(tokens, ranks).G == batch);
    CHECK(tells(batch_of(tokens, ranks), "less than the default 64") == (batch < 64));
  }
  CHECK(batch_of(19 * 256, 1).steps == 29);
  CHECK(tells(batch_of(19 * 256, 1), "global batch 2 sequences: less than the default 64, for an epoch has 19"));
}

TEST_CASE(
    "the head's chunks have the same size, and at least 4096 tokens or as many as fit where blocks have their "
    "buffers") {
  const auto chunk_of = [](int64_t T, int64_t B, int64_t tensor = 1, int64_t context = 1, const char* dtype = "bf16") {
    Options options;
    options.seq_len = T, options.micro_batch = B, options.global_batch = B, options.dtype = dtype;
    options.tensor_parallel_degree = tensor, options.context_parallel_degree = context;
    return resolve_settings(options, ModelConfig::preset("llama3.2-1b"), DeviceInfo{}, 1, 0).head_chunk;
  };
  // All tokens of a short sequence: a micro-batch on more ranks may have more. Chunks are rounded up to 128.
  const std::array<int64_t, 5> few[] = {{128, 1, 1, 1, 8192},  {8191, 1, 1, 1, 8192}, {4096, 2, 1, 1, 4096},
                                        {4096, 3, 1, 1, 4096}, {8193, 1, 1, 1, 4224}, {16384, 1, 1, 2, 4096},
                                        {8192, 1, 2, 1, 4096}, {8192, 1, 2, 2, 8192}, {6000, 1, 2, 1, 3072}};
  for (const auto& [T, B, tensor, context, chunk] : few) CHECK(chunk_of(T, B, tensor, context) == chunk);
  // A token has 59.6 KB of buffers: dqkv 3072, dattention 2048, dswiglu 8192 and dgate_up 16384 numbers of 2 bytes, and
  // 32 fp32 numbers of attention. Its logits have 256.6 KB. So 0.2325 of the tokens fit: 5 chunks.
  CHECK(chunk_of(4096, 8) == 6656);
  CHECK(chunk_of(16384, 8) == 26240);
  CHECK(chunk_of(4096, 8, 1, 1, "fp32") == 6656);
  CHECK(chunk_of(16384, 8, 4) == 14592);  // two buffers of logits: 9 chunks
  for (int64_t T = 8193; T < 100000; T += 1237) {
    CHECK(chunk_of(T, 1) >= 4096);
    CHECK(chunk_of(T, 1) <= std::max<int64_t>(6144, T / 4));
  }
}

TEST_CASE("tensor parallelism's sums have the type of the activations, or fp32 on request") {
  const auto sums_of = [](const std::string& activations, const std::string& sums) {
    Options options;
    options.dtype = activations;
    if (!sums.empty()) options.tensor_parallel_reduce_dtype = sums;
    const RunSettings s = resolve_settings(options, ModelConfig::preset("tiny"), DeviceInfo{}, 1, 0);
    return trainer_settings(options, s).tensor_sums;
  };
  for (const DType type : {DType::bf16, DType::fp32}) CHECK(sums_of(dtype_name(type), "") == type);
  for (const DType type : {DType::bf16, DType::fp32}) CHECK(sums_of("bf16", dtype_name(type)) == type);
}

TEST_CASE("a state of another version, or that no training writes, is refused") {
  const Json good = saved_state(7, 6);
  CHECK(known_state(good) == good);
  const auto with = [&](const char* key, Json value) {
    Json state = good;
    return error_of([&] { known_state(state.set(key, std::move(value))); });
  };
  says(with("version", kStateVersion + 1), format("is of version %lld", (long long)kStateVersion + 1),
       format("the versions up to %lld", (long long)kStateVersion), "a later train_llama wrote this");
  says(with("version", nullptr), "is of version 0", "an earlier train_llama wrote this");
  says(with("windows", "per_file"), "by the rule \"per_file\"", "go on with the train_llama that wrote");
  for (const int64_t updates : {-1, 8}) says(with("optimizer_steps", updates), "updates (optimizer_steps) in 7 steps");
  CHECK(skipped_steps(known_state(Json(good).set("skipped_steps", Json::parse("[2, 7]", "steps")))) ==
        std::vector<int64_t>{2, 7});
  for (const char* steps : {"[0]", "[2, 2]", "[3, 2]", "[2, 8]"})
    says(with("skipped_steps", Json::parse(steps, "steps")), "was skipped (skipped_steps)");
  says(with("skipped_steps", 3), "is the integer 3", "expected an array");
  says(with("last_step", 3), "is the integer 3", "expected an object");
  says(error_of([] { known_state(Json::object().set("version", kStateVersion)); }), "windows");
}

TEST_CASE("the command that goes on has the options of the machine, quoted for a shell") {
  const Options options =
      parse_options({"--lr", "0.5", "--out", "x", "--memory-limit", "1 GiB", "--comm-timeout", "9", "--check-data"});
  CHECK(resume_command(Ranks(), "runs/it's", options) ==
        "./train_llama --out 'runs/it'\\''s' --resume auto --check-data on --memory-limit '1 GiB' --comm-timeout 9");
}

TEST_CASE("a run that goes on has the learning rate of before, which nobody asked for now") {
  const auto of = [](Words saved, Words now) {
    const Options asked = parse_options(now);
    saved.insert(saved.end(), now.begin(), now.end());
    return resolve_settings(parse_options(saved), ModelConfig::preset("tiny"), DeviceInfo{}, 1, 1'000'000, false,
                            &asked);
  };
  CHECK(tells(of({"--lr", "0.004", "--warmup-steps", "16"}, {"--steps", "160"}),
              "learning rate 0.004, warm-up 16 steps: as before; then a cosine"));
  CHECK(tells(of({"--warmup-steps", "16"}, {"--lr", "0.002"}),
              "learning rate 0.002: as asked, warm-up 16 steps: as before; then a cosine"));
  CHECK(tells(of({"--lr", "0.004", "--warmup-steps", "0"}, {"--stage", "long"}),
              "learning rate 0.004: as before, warm-up 0 steps: a stage has none by itself; then a cosine"));
}

TEST_CASE("a minimal learning rate above the learning rate is refused, also above an automatic one") {
  says(error_of([] { resolved({"--lr", "0.01", "--min-lr", "0.1"}); }), "--min-lr 0.1 is above --lr 0.01\n");
  says(error_of([] { resolved(words_of("--steps 100 --schedule wsd --cooldown-steps 91 --warmup-steps 10")); }),
       "--cooldown-steps 91: with --warmup-steps 10 they are more than the 100 steps of the run\n");
  says(error_of([] { resolved({"--min-lr", "0.1"}); }), "--min-lr 0.1 is above --lr 0.004\n");
}

TEST_CASE("a sequence beyond the model's positions is told the ways out") {
  Options options;
  options.seq_len = 8192;
  says(error_of([&] { resolve_settings(options, ModelConfig::preset("olmo2-13b"), DeviceInfo{}, 1, 0); }),
       "--seq-len 4096 or less", "raise max_position_embeddings in its config.json");
}

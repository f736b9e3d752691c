#include "llmc/train/settings.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "llmc/base/error.h"
#include "llmc/base/text.h"
#include "llmc/data/data_sources.h"
#include "llmc/model/scratch.h"
#include "llmc/model/tensor_parallel.h"
#include "llmc/train/defaults.h"

namespace {

constexpr int64_t kStepsToSampleHalfWay = 20;  // halfway, a shorter run has learnt nothing worth reading
constexpr int64_t kMicroBatchTokens = 8192;    // enough to keep products busy
constexpr int64_t kStepsOfEpoch = 8;           // at least, with the default batch: fewer hardly change a loaded model
constexpr double kMinutes = 30;                // between checkpoints of several ranks, of which any may be lost

int64_t largest_divisor(int64_t number, int64_t limit) {
  for (int64_t d = std::min(number, limit); d > 1; --d)
    if (number % d == 0) return d;
  return 1;
}

// Returns how many ranks would have to compute each sequence together so that G sequences are enough for all ranks.
int64_t enough_together(int64_t G, int64_t world) {
  int64_t together = 1;
  while (world % together || G % (world / together)) ++together;
  return together;
}

void require_shareable(int64_t G, int data_ranks, int64_t together) {
  const std::string they = together == 1
                               ? format("%d data ranks", data_ranks)
                               : format("%d groups of %lld ranks, of which each computes sequences of its own",
                                        data_ranks, (long long)together);
  REQUIRE(G >= data_ranks,
          "--global-batch %lld: fewer sequences than %s\n  use a multiple of %d, or let %lld ranks compute a sequence "
          "together: --tensor-parallel-degree times --context-parallel-degree",
          (long long)G, they.c_str(), data_ranks, (long long)enough_together(G, data_ranks * together));
  REQUIRE(G % data_ranks == 0,
          "--global-batch %lld sequences cannot be shared by %s\n  use a multiple of %d: %lld or %lld", (long long)G,
          they.c_str(), data_ranks, (long long)(G / data_ranks * data_ranks),
          (long long)((G / data_ranks + 1) * data_ranks));
}

// Returns the sequences of T tokens in an epoch, as in Windows; 0 if the data is not known.
int64_t sequences_of_epoch(int64_t data_tokens, int T) { return (data_tokens + T - 1) / T; }

void resolve_batch(RunSettings& s, const Options& o, const Defaults& defaults, const ModelConfig& config, int ranks,
                   int64_t data_tokens) {
  const int64_t T = is_auto(o.seq_len) ? defaults.T : o.seq_len;
  REQUIRE(T <= config.max_positions,
          "--seq-len %lld: model %s has at most %d positions\n  use --seq-len %d or less; to train it on longer ones, "
          "raise max_position_embeddings in its config.json (a pretrained model also needs rope_parameters that scale)",
          (long long)T, config.name.c_str(), config.max_positions, config.max_positions);
  s.T = s.context_length = int(T);
  if (is_auto(o.global_batch)) {
    const int64_t multiple = ranks * (is_auto(o.micro_batch) ? 1 : o.micro_batch);
    const int64_t epoch = sequences_of_epoch(data_tokens, s.T);
    const int64_t most = std::max<int64_t>(1, epoch / kStepsOfEpoch);
    const int64_t wanted = epoch ? std::min(defaults.G, int64_t(std::bit_floor(uint64_t(most)))) : defaults.G;
    s.G = (std::max(wanted, multiple) + multiple - 1) / multiple * multiple;
    s.reasons.push_back(format("global batch %s: %s%s", counted(s.G, "sequence").c_str(),
                               wanted == defaults.G ? "the default"
                                                    : format("less than the default %lld, for an epoch has %lld",
                                                             (long long)defaults.G, (long long)epoch)
                                                          .c_str(),
                               s.G == wanted ? "" : ", rounded up to what the ranks can share"));
  } else {
    s.G = o.global_batch;
  }
  const int64_t together = o.tensor_parallel_degree * o.context_parallel_degree;  // ranks that compute a sequence
  require_shareable(s.G, ranks, together);
  const int64_t share = s.G / ranks;
  REQUIRE(share <= (int64_t(1) << 31) / T,
          "--global-batch %lld is %lld sequences of %lld tokens a rank: at most 2^31 tokens", (long long)s.G,
          (long long)share, (long long)T);
  if (is_auto(o.micro_batch)) {
    const int64_t tokens = kMicroBatchTokens * together;  // each of these ranks has its part
    s.B = int(largest_divisor(share, std::max<int64_t>(1, tokens / T)));
    s.reasons.push_back(format("micro-batch %d: the largest divisor of %s a %s within %lld tokens", s.B,
                               counted(share, "sequence").c_str(), together == 1 ? "rank" : "group",
                               (long long)tokens));
  } else {
    REQUIRE(share % o.micro_batch == 0,
            "--global-batch %lld over %d data ranks is %lld sequences a rank: not a multiple of --micro-batch %lld\n"
            "  the nearest that is: --micro-batch %lld",
            (long long)s.G, ranks, (long long)share, (long long)o.micro_batch,
            (long long)largest_divisor(share, o.micro_batch));
    s.B = int(o.micro_batch);
  }
  s.micro_batches = share / s.B;
}

void resolve_length(RunSettings& s, const Options& o, const Defaults& defaults, int64_t data_tokens, bool loaded) {
  const auto steps_for = [&](double sequences) {
    return std::max<int64_t>(1, int64_t(std::ceil(std::min(sequences, 1e18) / double(s.G))));
  };
  const double epoch = double(sequences_of_epoch(data_tokens, s.T));
  if (!is_auto(o.steps)) s.steps = o.steps;
  else if (!is_auto(o.train_tokens)) s.steps = steps_for(double(o.train_tokens) / s.T);
  else if (!is_auto(o.epochs)) s.steps = steps_for(o.epochs * epoch);
  else s.steps = std::clamp(steps_for(epoch), loaded ? 1 : defaults.fewest_steps, defaults.most_steps);
  if (!is_auto(o.epochs))
    s.reasons.push_back(format("%s: %g epoch%s of %.0f sequences, rounded up to whole steps of %lld",
                               counted(s.steps, "step").c_str(), o.epochs, o.epochs == 1 ? "" : "s", epoch,
                               (long long)s.G));
  if (is_auto(o.steps) && is_auto(o.train_tokens) && is_auto(o.epochs))
    s.reasons.push_back(format("%s: %s", counted(s.steps, "step").c_str(),
                               s.steps == steps_for(epoch)  ? "one pass over the training data"
                               : s.steps > steps_for(epoch) ? "the fewest by default, of a model of this size"
                                                            : "the most by default, of a model of this size"));
}

// Returns how many windows of T held-out tokens --val-tokens asks for, of each source of a mixture. By default those of
// all sources have at most a tenth of the tokens that the run trains on. It measures them five times, and a forward
// pass takes a third of a step's time.
int64_t windows_to_measure(const RunSettings& s, const Options& o) {
  constexpr int64_t kTokens = 16384, kWindows = 16, kAll = std::numeric_limits<int64_t>::max();
  if (!is_auto(o.val_tokens)) return o.val_tokens ? std::max<int64_t>(1, o.val_tokens / s.T) : kAll;
  if (o.eval_only) return kAll;
  const size_t sources = patterns_of(o.val_data.empty() ? o.train_data : o.val_data).size();
  const double tenth = std::ceil(double(s.steps) * double(s.G) / 10 / double(sources));
  return int64_t(std::min(double(std::max(kWindows, kTokens / s.T)), tenth));
}

// Returns the tokens whose logits exist at once: chunks of the same size that have at least 4096, or more if the logits
// still fit where the blocks' backward has its buffers. The gradient of the head's weight is read and written for each
// chunk, 8 V C bytes beside products of 6 V C operations a token. On an H100 this takes 32% of the products' time with
// chunks of 1024 tokens, 8% with 4096 and 4% with 8192. A tensor-parallel rank sends the softmax of one chunk while it
// computes another, so it has two or more, which may be smaller.
int64_t default_head_chunk(const RunSettings& s, const Options& o, const ModelConfig& config) {
  constexpr int64_t kFewest = 4096;
  const int64_t tokens = int64_t(s.B) * s.T / o.context_parallel_degree, tensor = o.tensor_parallel_degree;
  const LayerProjections projections(config);
  const size_t bytes =
      block_scratch_bytes({{config, projections, s.fp8, s.dtype, tokens, tokens, tensor > 1, true}, 0});
  const int64_t slots = tensor > 1 ? kExchangeSlots : 1;
  // The bytes of a logit, and with --fp8-head those of its gradient in both orientations, and of the token's input.
  // Logits are shared out by the tensor-parallel ranks, as the blocks' buffers are.
  const bool fp8 = s.fp8.computes_head(true);
  const int64_t of_logit = slots * int64_t(bytes_of(s.dtype)) + (fp8 ? 2 : 0);
  const int64_t of_token = of_logit * (config.V + 64 * tensor) + (fp8 ? config.C * tensor : 0);
  const int64_t fitting = int64_t(bytes) / of_token / 128 * 128;
  const int64_t at_once = std::max(kFewest, fitting);
  const int64_t most = std::max<int64_t>(1, tokens / kFewest), fewest = tensor > 1 && tokens > kFewest ? 2 : 1;
  const int64_t chunks = std::max(fewest, std::min(most, (tokens + at_once - 1) / at_once));
  return chunks == 1 ? std::max(2 * kFewest, tokens)
                     : (tokens + chunks - 1) / chunks;  // one: of more ranks' batch, too
}

// Describes the effect of --fp8-all-gather.
std::string describe_gather(const Fp8Settings& fp8, const Options& o, const ModelConfig& config, int data_ranks) {
  if (o.zero_stage == 0) return "--fp8-all-gather changes nothing: with --zero-stage 0 no weights travel";
  if ((data_ranks == 1 || o.hybrid_shard_degree == 1) && o.context_parallel_degree == 1)
    return "--fp8-all-gather changes nothing: one rank keeps all weights, so none travel";
  if (!fp8.all_gather)
    return format(
        "--fp8-all-gather changes nothing: --fp8 %s has several scales a tensor, across which ranks' parts are "
        "cut: weights travel in bf16",
        o.fp8.c_str());
  int blocks = 0;
  const LayerProjections projections(config);
  for (int layer = 0; layer < config.L; ++layer) blocks += fp8.gathers_bytes(projections.of(layer));
  return format("weights of %d of %d blocks travel in FP8%s, scales agreed on %s", blocks, config.L,
                blocks < config.L ? " (those with no product in bf16)" : "",
                fp8.precompute_scales ? "right after the update" : "as each block is gathered");
}

// Throws on options that the recipe would ignore. A resumed run may have them from its checkpoint, so the message names
// the default.
void require_options_of_recipe(const Options& o) {
  const Options defaults;
  const auto refuse = [&](bool changed, const char* option, const std::string& otherwise, const char* recipe) {
    REQUIRE(!changed, "--%s changes nothing with --fp8 %s\n  use --%s %s, or --fp8 %s", option, o.fp8.c_str(), option,
            otherwise.c_str(), recipe);
  };
  if (o.fp8 == "off") {
    refuse(o.fp8_grad != defaults.fp8_grad, "fp8-grad", defaults.fp8_grad, "tensorwise or delayed");
    refuse(o.fp8_pow2_scales != defaults.fp8_pow2_scales, "fp8-pow2-scales", defaults.fp8_pow2_scales, "tensorwise");
    refuse(o.fp8_head != defaults.fp8_head, "fp8-head", defaults.fp8_head, "tensorwise");
    refuse(o.fp8_stats != defaults.fp8_stats, "fp8-stats", std::to_string(defaults.fp8_stats), "tensorwise");
  }
  if (o.fp8 == "delayed") return;
  refuse(o.fp8_history != defaults.fp8_history, "fp8-history", std::to_string(defaults.fp8_history), "delayed");
  refuse(o.fp8_amax != defaults.fp8_amax, "fp8-amax", defaults.fp8_amax, "delayed");
  refuse(o.fp8_margin != defaults.fp8_margin, "fp8-margin", std::to_string(defaults.fp8_margin), "delayed");
}

// The scale of the logits' gradients leaves a factor of 2 (quantize.h), which a z-loss of 0.01 uses up where a row's
// logsumexp is 50.
constexpr double kMostZLossInFp8 = 0.01;

void resolve_fp8(RunSettings& s, const Options& o, const ModelConfig& config, int data_ranks) {
  require_options_of_recipe(o);
  s.fp8 = fp8_settings({o.fp8, o.fp8_grad, o.fp8_pow2_scales, o.fp8_skip, o.fp8_head}, config);
  REQUIRE(s.fp8.on() || !o.fp8_all_gather,
          "--fp8-all-gather: --fp8 is off, so there are no FP8 weights\n  add --fp8 tensorwise or delayed");
  if (!s.fp8.on()) return;
  REQUIRE(o.dtype != "fp32",
          "--fp8 %s with --dtype fp32: FP8 products have bf16 around them\n  use --dtype bf16, or --fp8 off",
          o.fp8.c_str());
  s.fp8.history = int(o.fp8_history), s.fp8.latest = o.fp8_amax == "latest", s.fp8.margin = int(o.fp8_margin);
  s.fp8.weights_on_use = o.fp8_weights == "on-use";
  s.fp8.all_gather = (o.fp8_all_gather || (o.offload_weights && !s.fp8.weights_on_use)) && s.fp8.per_tensor_scale();
  s.fp8.precompute_scales = o.fp8_precompute_scales;
  REQUIRE(!s.fp8.computes_head(true) || o.z_loss <= kMostZLossInFp8,
          "--z-loss %g with --fp8-head %s: gradients of logits could be larger than FP8 is scaled for\n"
          "  use %g or less, or --fp8-head off",
          o.z_loss, o.fp8_head.c_str(), kMostZLossInFp8);
  s.products = describe_products(s.fp8, config);
  if (o.fp8_all_gather) s.products.push_back(describe_gather(s.fp8, o, config, data_ranks));
}

// "learning rate 0.004, warm-up 16 steps: the default; then a cosine to 0.0004"
std::string describe_rate(const RunSettings& s, const Options& o, const Options& asked, bool loaded) {
  const auto why = [&](auto field, const char* by_default) {
    return !is_auto(asked.*field) ? "as asked" : !is_auto(o.*field) ? "as before" : by_default;
  };
  const std::string rate =
      why(&Options::lr, loaded ? "a tenth of the default, for the weights are trained already" : "the default");
  const std::string warm_up = !asked.stage.empty() && is_auto(asked.warmup_steps)
                                  ? "a stage has none by itself"
                                  : why(&Options::warmup_steps, is_auto(o.lr) ? rate.c_str() : "the default");
  return format("learning rate %g%s, warm-up %s: %s; then %s", s.lr, rate == warm_up ? "" : (": " + rate).c_str(),
                counted(s.warmup_steps, "step").c_str(), warm_up.c_str(), s.learning_rate().description().c_str());
}

void resolve_schedule(RunSettings& s, const Options& o) {
  constexpr double kCooldown = 0.2;  // share of the run
  s.schedule = parse_schedule(o.schedule), s.cooldown_shape = parse_decay_shape(o.cooldown_shape);
  s.cooldown_steps = cooldown_steps(is_auto(o.cooldown_steps) ? kCooldown : o.cooldown_steps, s.steps);
  REQUIRE(
      s.schedule != Schedule::kWsd || o.cooldown_steps < 1 || s.warmup_steps + s.cooldown_steps <= s.steps,
      "--cooldown-steps %lld: with --warmup-steps %lld they are more than the %lld steps of the run\n  use fewer, or "
      "a longer run",
      (long long)s.cooldown_steps, (long long)s.warmup_steps, (long long)s.steps);
}

double muon_rate(const RunSettings& s, const Options& o) { return is_auto(o.muon_lr) ? s.lr : o.muon_lr; }
double muon_decay(const Options& o) { return is_auto(o.muon_weight_decay) ? o.weight_decay : o.muon_weight_decay; }

// "Muon for the matrices of 4 blocks, 0.79M of 0.9M parameters: learning rate 0.004, weight decay 0.1, …"
std::string describe_muon(const RunSettings& s, const Options& o, const ModelConfig& config) {
  const bool original = o.muon_scale == "original";
  const char* const low = original && is_auto(o.muon_lr) ? " (that of --lr; with this scale 0.02 is usual)" : "";
  return format(
      "Muon for the matrices of %s, %s of %s parameters: learning rate %g%s, weight decay %g, updates %s; AdamW for "
      "all other weights",
      counted(config.L, "block").c_str(), human_count(LayerProjections(config).weights()).c_str(),
      human_count(double(config.parameters())).c_str(), muon_rate(s, o), low, muon_decay(o),
      original ? "times sqrt(max(1, rows / columns)) (original)" : "about as large as AdamW's (match-rms)");
}

void resolve_activations(RunSettings& s, const Options& o) {
  s.activations = {recompute_named(o.recompute), int(o.recompute_every), offload_named(o.activation_offload),
                   int(o.activation_loading_horizon)};
}

}  // namespace

bool RunSettings::samples_at(int64_t step) const {
  if (sample_every == 0) return false;
  if (sample_every < 0) return stage_steps() >= kStepsToSampleHalfWay && step == first_step + stage_steps() / 2;
  return (step - first_step) % sample_every == 0;
}

bool RunSettings::validates_at(int64_t step) const { return val_every > 0 && (step - first_step) % val_every == 0; }

RunSettings resolve_settings(const Options& o, const ModelConfig& config, const DeviceInfo& device, int data_ranks,
                             int64_t data_tokens, bool loaded, const Options* asked) {
  RunSettings s{};
  s.sources = int(training_sources(o.train_data).size());
  const Defaults defaults = defaults_of(config);
  resolve_fp8(s, o, config, data_ranks);
  if (is_auto(o.dtype)) {
    s.dtype = device.gpu || s.fp8.on() ? DType::bf16 : DType::fp32;
    s.precision = s.fp8.on()   ? "bf16: around FP8 products"
                  : device.gpu ? "bf16: a GPU's tensor cores want it"
                               : "fp32: a CPU has no bf16 arithmetic";
  } else {
    s.dtype = o.dtype == "bf16" ? DType::bf16 : DType::fp32;
  }
  resolve_activations(s, o);
  REQUIRE(
      o.master_dtype == "fp32" || s.dtype == DType::bf16,
      "--master-dtype bf16: the products compute with the master weights themselves, which --dtype fp32 has in fp32\n"
      "  use --dtype bf16, or --master-dtype fp32");
  REQUIRE(o.tensor_parallel_reduce_dtype != "bf16" || s.dtype == DType::bf16,
          "--tensor-parallel-reduce-dtype bf16 with --dtype fp32: sums of fp32 numbers travel in fp32\n"
          "  use --dtype bf16, or leave it out");
  resolve_batch(s, o, defaults, config, data_ranks, data_tokens);
  resolve_length(s, o, defaults, data_tokens, loaded);
  s.lr = is_auto(o.lr) ? defaults.lr / (loaded ? 10 : 1) : o.lr;
  s.min_lr = is_auto(o.min_lr) ? s.lr / 10 : o.min_lr;
  REQUIRE(s.min_lr <= s.lr, "--min-lr %g is above --lr %g\n  the learning rate falls from --lr to --min-lr", s.min_lr,
          s.lr);
  s.warmup_steps = is_auto(o.warmup_steps) ? std::min<int64_t>(2000, s.steps / 10) : o.warmup_steps;
  s.attention = attention_kernel_named(o.attention);
  resolve_schedule(s, o);
  s.reasons.push_back(describe_rate(s, o, asked ? *asked : o, loaded));
  if (o.optimizer == "muon" && o.trains()) s.reasons.push_back(describe_muon(s, o, config));
  s.val_every = is_auto(o.val_every) ? std::max<int64_t>(1, s.steps / 4) : o.val_every;
  s.val_windows = windows_to_measure(s, o);
  s.sample_every = is_auto(o.sample_every) ? -1 : o.sample_every;
  const bool several = data_ranks * o.tensor_parallel_degree * o.context_parallel_degree > 1;
  s.checkpoint_minutes = is_auto(o.checkpoint_minutes) ? (several ? kMinutes : 0) : o.checkpoint_minutes;
  // A copy that nobody asked for by name is planned only if there is room: Setup looks.
  s.snapshot = o.checkpoint_async && o.gives("checkpoint-async") && s.saves(o);
  const int64_t chunk = is_auto(o.head_chunk) ? default_head_chunk(s, o, config) : o.head_chunk;
  s.head_chunk = int((chunk + 127) / 128 * 128);
  REQUIRE(!o.tune_products || o.tuning == "auto",
          "--tune-products chooses algorithms, and --tuning %s names chosen ones\n  leave one of the two away",
          o.tuning.c_str());
  return s;
}

bool has_fp8_weights_to_keep(const Options& o, bool shards) {
  if (o.fp8 == "off") return false;
  // From the host come bytes, if a tensor has one scale, and they may be left out unless they travel between ranks.
  if (o.offload_weights) return (o.fp8 == "tensorwise" || o.fp8 == "delayed") && !o.fp8_all_gather;
  return o.zero_stage < 3 || !shards;
}

Mesh mesh_of(const Options& options, int world, int rank) {
  return Mesh::create(world, rank, int(options.tensor_parallel_degree), int(options.context_parallel_degree),
                      int(options.hybrid_shard_degree));
}

TrainerSettings trainer_settings(const Options& o, const RunSettings& s) {
  TrainerSettings t;
  t.dtype = s.dtype;
  t.B = o.sample_only ? 1 : s.B;
  t.T = s.context_length;
  t.head_chunk = s.head_chunk;
  t.z_loss = float(o.z_loss);
  t.tf32 = o.tf32;
  t.attention = s.attention;
  t.beta1 = float(o.beta1), t.beta2 = float(o.beta2), t.eps = float(o.adam_eps);
  t.weight_decay = float(o.weight_decay), t.grad_clip = float(o.grad_clip);
  t.muon = o.optimizer == "muon";
  t.muon_momentum = float(o.muon_momentum);
  t.muon_weight_decay = float(muon_decay(o));
  t.muon_rate_factor = float(muon_rate(s, o) / s.lr);
  t.muon_scale = o.muon_scale == "original" ? MuonScale::original : MuonScale::match_rms;
  t.skip_spikes = o.skip_spikes, t.bad_steps_limit = o.bad_steps_limit;
  t.training = o.trains();
  t.zero_stage = int(o.zero_stage), t.prefetch = int(o.prefetch);
  t.reduce_dtype = o.reduce_dtype == "bf16" ? DType::bf16 : DType::fp32;
  t.fp8 = s.fp8, t.fp8_stats = t.training ? o.fp8_stats : 0;
  t.activations = s.activations;
  // Without a training nothing is added to the weights of the products, which are the rounded masters.
  t.state.master = o.master_dtype == "bf16" || (s.dtype == DType::bf16 && !t.training) ? DType::bf16 : DType::fp32;
  t.state.moments = o.moment_dtype == "bf16" ? DType::bf16 : DType::fp32;
  t.state.on_host = t.training && o.offload_optimizer;
  t.state.gradients_on_host = t.training && o.offload_gradients;
  t.state.weights_on_host = o.offload_weights;
  t.seed = uint64_t(o.seed);
  t.verifies = t.training && o.verify_every > 0;
  t.looks = t.training && o.gpu_every > 0;
  t.snapshot = t.training && s.snapshot;
  t.micro_batches = t.training ? int(s.micro_batches) : 1;
  t.sources = t.training ? s.sources : 1;
  t.graphs = t.training && o.cuda_graphs;
  t.tensor_chunks = int(o.tensor_parallel_overlap);
  t.tensor_sums = o.tensor_parallel_reduce_dtype == "fp32" ? DType::fp32 : s.dtype;
  return t;
}

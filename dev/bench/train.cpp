// How fast a configuration trains and how far that is from this device's limits: tokens a second, MFU, memory, and a
// step by class of work, with the time that its FLOPs and bytes would take at the rates that were measured just before.
//
//   build/cpu/bench/train [--soak N] [--fit] [--brief] [train_llama's options]
//   build/cuda/bench/train --model llama3.2-1b --seq-len 4096 --micro-batch 4 --global-batch 4 --fp8 tensorwise
//   build/cpu/bench/train --predict --gpu H200 --model llama3-8b --seq-len 8192 --micro-batch 1 --zero-stage 3 --nodes 1
//
// Trains on --train-data or random tokens: N steps that are not counted (10), then --steps of them (20), then one that
// is recorded. --fit shortens the model to as many layers as fit. --brief prints the rate alone: it measures no limits,
// records no step, and the steps that are not counted have one micro-batch and take 10 s of a GPU together, so that a
// step of half a million tokens is timed in little more than its own time; it is for one rank, since each would end
// these steps at a time of its own. On several ranks under mpirun otherwise. --predict executes nothing: it replays the
// step of a --gpu that is not here (of --nodes, else of one) at named rates, a model. --flops prints the FLOPs of a
// token of --model at --seq-len, and ends.
#include <algorithm>
#include <charconv>
#include <cstdio>
#include <optional>
#include <string>
#include <vector>

#include "dev/bench/largest.h"
#include "dev/bench/measured_rates.h"
#include "dev/bench/public_rates.h"
#include "dev/bench/step_split.h"
#include "llmc/base/clock.h"
#include "llmc/base/error.h"
#include "llmc/base/philox.h"
#include "llmc/base/text.h"
#include "llmc/comm/communicator.h"
#include "llmc/comm/ranks.h"
#include "llmc/data/sampler.h"
#include "llmc/data/token_dataset.h"
#include "llmc/device/known_devices.h"
#include "llmc/memory/reserve.h"
#include "llmc/predict/mfu.h"
#include "llmc/predict/planner.h"
#include "llmc/predict/simulation.h"
#include "llmc/run/model_source.h"
#include "llmc/run/tuner.h"
#include "llmc/train/settings.h"
#include "llmc/train/trainer.h"

namespace {

struct Arguments {
  Options options;
  int soak = 10;
  bool fit = false, predict = false, brief = false, flops = false;
};

// Options of a run that have no meaning here.
constexpr const char* kOthers[] = {
    "val_data",         "packed_documents",   "document_token", "out",          "train_tokens", "epochs",
    "eval_choices",     "val_every",          "eval_only",      "sample_every", "sample_only",  "dry_run",
    "checkpoint_every", "checkpoint_minutes", "resume",         "consolidate",  "plan",         "val_tokens"};

int steps_of(const std::string& text) {
  int steps = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), steps);
  REQUIRE(error == std::errc() && end == text.data() + text.size() && steps >= 2,
          "--soak %s: expected a number of steps, at least 2", text.c_str());
  return steps;
}

Arguments arguments_of(int argc, char** argv, int ranks) {
  Arguments a;
  std::vector<std::string> others;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument == "--predict") a.predict = true;
    else if (argument == "--fit") a.fit = true;
    else if (argument == "--brief") a.brief = true;
    else if (argument == "--flops") a.flops = true;
    else if (argument == "--soak" && i + 1 < argc) a.soak = steps_of(argv[++i]);
    else others.push_back(argument);
  }
  a.options = parse_options(others);
  const Json given = options_json(a.options), standard = options_json(Options());
  for (std::string name : kOthers) {
    const bool given_here = given.at(name).dump() != standard.at(name).dump();
    std::replace(name.begin(), name.end(), '_', '-');
    REQUIRE(!given_here, "--%s: this only trains, and keeps nothing", name.c_str());
  }
  REQUIRE(a.predict || a.options.nodes == 0, "--nodes: with --predict only");
  REQUIRE(!a.predict || (!a.brief && !a.options.tune_products), "--brief, --tune-products: not with --predict");
  REQUIRE(!a.brief || a.options.trace.empty(), "--trace: not with --brief, which records no step");
  REQUIRE(!a.brief || ranks == 1, "--brief on %d ranks: each would end its warm-up at another step\n  leave it away",
          ranks);
  if (is_auto(a.options.steps)) a.options.steps = 20;
  return a;
}

void print_flops(const Options& options) {
  const ModelConfig config = open_model(options).config;
  REQUIRE(!is_auto(options.seq_len), "--flops: name the tokens of a sequence with --seq-len");
  const int T = int(options.seq_len);
  printf("FLOPs of a token: %.6g, with attention in full %.6g\n", config.flops_per_token(T, true),
         config.flops_per_token(T, false));
}

void print_heading(const ModelConfig& config, const RunSettings& s, const Options& options, int ranks) {
  printf("%s, %d layers, %s parameters: %d rank%s x %lld micro-batch%s of %d sequences of %d tokens, %s%s\n",
         config.name.c_str(), config.L, human_count(double(config.parameters())).c_str(), ranks, ranks == 1 ? "" : "s",
         (long long)s.micro_batches, s.micro_batches == 1 ? "" : "es", s.B, s.T, dtype_name(s.dtype),
         s.fp8.on() ? (", FP8 " + options.fp8).c_str() : "");
  const std::string changed = changed_options_line(options);
  if (!changed.empty()) printf("options: %s\n", changed.c_str());
}

// The layers with which the model fits so many bytes of a device, at most its own.
int fitting_layers(Options options, const DeviceInfo& device, const Mesh& mesh, size_t room) {
  const int all = open_model(options).config.L;
  const int layers = largest_passing([&](int n) {
    if (n > all) return false;
    options.layers = n;
    const ModelConfig config = open_model(options).config;
    const RunSettings settings = resolve_settings(options, config, device, mesh.data_degree(), 0);
    return plan_memory(config, trainer_settings(options, settings), mesh, device).needed_device_bytes() <= room;
  });
  REQUIRE(layers > 0, "--fit: %s does not fit with one layer within %s", options.model.c_str(),
          human_bytes(room).c_str());
  return layers;
}

// ---------------------------------------------------------------------------------------------- a step that is not run

void predict(const Arguments& a) {
  Options options = a.options;
  const DeviceInfo device = modelled_device(options.gpu);
  const int world = options.nodes ? int(options.nodes * options.gpus_per_node) : 1;
  const Mesh mesh = Mesh::create(world, 0, 1, 1, int(options.hybrid_shard_degree));
  const size_t room = MemoryLimits::elsewhere(options, device, int(options.gpus_per_node)).device;
  if (a.fit) options.layers = fitting_layers(options, device, mesh, room);
  const ModelConfig config = open_model(options).config;
  const RunSettings settings = resolve_settings(options, config, device, world, 0);
  const RecordedStep step =
      record_step(config, trainer_settings(options, settings), mesh, device, settings.micro_batches);
  printf("a model of a step on %d %s: nothing is measured\n", world, device.name.c_str());
  print_heading(config, settings, options, world);
  printf("memory: %s of a device, %s\n", human_bytes(step.plan.device_bytes()).c_str(),
         step.plan.needed_device_bytes() <= room ? "which fits" : "which does not fit");
  const double tokens = double(settings.step_tokens()) / world;
  const ReplayRates sheet = ReplayRates::data_sheet(device);
  for (ReplayRates rates : {sheet, public_rates(device, config.HD, settings.T), ReplayRates::of(device)}) {
    rates.ranks_per_node = int(options.gpus_per_node);
    const Replay replayed = replay(step.record, rates);
    printf("\n%s: %s tokens/s a GPU, %s\n%s\n\n", rates.name.c_str(), human_count(tokens / replayed.seconds).c_str(),
           mfu_text(config, settings.T, tokens / replayed.seconds, device.bf16_flops, settings.fp8.on()).c_str(),
           rates.table(rates.used_by(step.record)).c_str());
    printf("%s", split_step(step.record, replayed.spans, sheet).table(tokens).c_str());
  }
  printf("\nroofline: the least at the data sheet's rates\n%s\n", prediction_limits(world).c_str());
}

// ---------------------------------------------------------------------------------------------- a training

// The rows of this rank, of --train-data or at random.
class Batches {
 public:
  Batches(const Options& options, const RunSettings& s, int V, const Ranks& ranks)
      : s_(s), V_(uint64_t(V)), seed_(uint64_t(options.seed)), ranks_(ranks) {
    if (options.train_data.empty()) return;
    const TokenDataset data = TokenDataset::open(options.train_data, V);
    data_.emplace(data.is_text() ? hold_out_last_tenth(data, options.train_data).first : data, s.T, seed_);
  }
  void fill(int64_t step) { fill(step, s_.micro_batches); }
  void fill(int64_t step, int64_t micro_batches) {
    const size_t micro_tokens = size_t(s_.B) * size_t(s_.T);
    inputs.resize(micro_tokens * size_t(micro_batches)), labels.resize(inputs.size());
    for (int64_t k = 0; data_ && k < micro_batches; ++k)
      data_->fill({s_.G, ranks_.size, s_.B}, step, k, ranks_.rank, inputs.data() + size_t(k) * micro_tokens,
                  labels.data() + size_t(k) * micro_tokens);
    for (size_t i = 0; !data_ && i < inputs.size(); ++i) {
      const uint64_t at = uint64_t(step * ranks_.size + ranks_.rank) * inputs.size() + i;
      inputs[i] = int32_t(philox_word(seed_, at, 0) % V_), labels[i] = int32_t(philox_word(seed_, at, 1) % V_);
    }
  }
  std::vector<int32_t> inputs, labels;

 private:
  const RunSettings& s_;
  uint64_t V_, seed_;
  const Ranks& ranks_;
  std::optional<Sampler> data_;
};

struct Measured {
  std::vector<double> seconds;  // of each step
  std::string state;            // of the GPU when it was soaked
  Record record;                // of a step after them
  double loss = 0;

  double mean_seconds() const {
    double sum = 0;
    for (const double s : seconds) sum += s;
    return sum / double(seconds.size());
  }
};

// With --brief a GPU is loaded for at least so many seconds before a step counts: its clock has settled by then.
constexpr double kBriefSoak = 10;

// One step is always under way while the host prepares the next, as in train_llama.
Measured train(Trainer& trainer, Device& device, const Arguments& a, const RunSettings& s, Batches& batches) {
  Measured m;
  int64_t soak = a.soak;
  const auto enqueue = [&](int64_t step, bool no_graph) {
    batches.fill(step, a.brief && step < soak ? 1 : s.micro_batches);
    const double rate = s.learning_rate_at(std::min<int64_t>(step, s.steps));
    trainer.enqueue_step({step, rate, batches.inputs, batches.labels, {}, {}, no_graph});
  };
  const auto finish = [&](int64_t step) {
    const StepResult result = trainer.wait_for_step();
    REQUIRE(!result.held, "step %lld has the loss %g and the norm %g: steps without an update take less time",
            (long long)step + 1, result.loss, double(result.grad_norm));
    if (step >= soak) m.seconds.push_back(result.seconds);
    m.loss = result.loss;
  };
  const double begin = seconds();
  int64_t step = 0;
  for (; step < soak + a.options.steps; ++step) {
    enqueue(step, false);
    // The host asks during a step that is not counted, for this takes it a while; with --brief during the last one,
    // which takes the GPU longer.
    if (step == (a.brief ? soak + a.options.steps - 1 : soak - 2)) m.state = gpu_state(device);
    if (step > 0) finish(step - 1);
    if (a.brief && device.info().gpu && step + 1 == soak && seconds() - begin < kBriefSoak) ++soak;
  }
  finish(step - 1);
  if (a.brief) return m;
  device.record_to(&m.record);  // nothing else is in its record
  enqueue(step, true);
  device.record_to(nullptr);
  m.loss = trainer.wait_for_step().loss;
  return m;
}

// `peak`: FLOP/s of a product, of the data sheet for bf16 or measured; 0 if neither is known.
void report_rate(const Measured& m, const ModelConfig& config, const RunSettings& s, double peak, bool of_data_sheet,
                 int ranks) {
  const double mean = m.mean_seconds(), tokens = double(s.step_tokens()) / ranks;
  const auto [least, most] = std::minmax_element(m.seconds.begin(), m.seconds.end());
  printf("%zu steps: %.2f ms each (%.2f to %.2f): %s tokens/s a rank, %s in all; loss %.4f\n", m.seconds.size(),
         mean * 1e3, *least * 1e3, *most * 1e3, human_count(tokens / mean).c_str(),
         human_count(tokens / mean * ranks).c_str(), m.loss);
  if (peak > 0)
    printf("%s, %s\n", mfu_text(config, s.T, tokens / mean, peak, of_data_sheet && s.fp8.on()).c_str(),
           of_data_sheet ? "by the data sheet" : "the measured product");
  if (!m.state.empty()) printf("GPU, while it trains: %s\n", m.state.c_str());
}

void report_step(const Measured& m, const RunSettings& s, const ReplayRates& ceilings, int ranks) {
  const double tokens = double(s.step_tokens()) / ranks;
  const StepSplit split = split_step(m.record, m.record.spans, ceilings);
  printf("\none recorded step of %.2f ms; roofline: the least at the rates above, for FLOPs or bytes\n\n",
         split.seconds * 1e3);
  printf("%s", split.table(tokens).c_str());
  double compute = 0;
  for (const WorkClass c : {WorkClass::product, WorkClass::fp8_product, WorkClass::attention, WorkClass::pass,
                            WorkClass::optimizer, WorkClass::other})
    compute += split[c].least;
  printf("\nat the roofline of all that it computes: %s tokens/s a rank; this is %.1f%% of that\n",
         human_count(tokens / compute).c_str(), 100 * compute / m.mean_seconds());
}

int least_of_ranks(int number, Device& device, Communicator& communicator) {
  Stream stream(device, "least");
  const DeviceMemory memory(device, sizeof(float));
  float* on_device = reinterpret_cast<float*>(memory.data());
  const float own = -float(number);
  copy(stream, on_device, &own, 1);
  communicator.all_reduce_max(stream, {on_device, {1}});
  float most = 0;
  copy(stream, &most, on_device, 1);
  communicator.wait_for(stream);
  return -int(most);
}

void set_weights(Trainer& trainer, const ModelSource& model, const Options& options) {
  if (model.weights) trainer.load(*model.weights);
  else trainer.initialize(options.init == "normal" ? Init::normal : Init::depth_scaled, uint64_t(options.seed));
}

void run(const Arguments& a, const Ranks& ranks) {
  Options options = a.options;
  Device device(ranks.local_rank, CpuBackend::from_environment(ranks.local_size));
  const auto communicator =
      make_communicator(device, ranks, options.rendezvous, {options.comm_timeout, options.silent_timeout});
  const Mesh mesh = Mesh::create(ranks.size, ranks.rank, 1, 1, int(options.hybrid_shard_degree));
  if (a.fit) {  // all ranks: as many as fit the smallest device
    const size_t room = MemoryLimits::here(options, device.info(), ranks.local_size).device;
    options.layers = least_of_ranks(fitting_layers(options, device.info(), mesh, room), device, *communicator);
  }
  const ModelSource model = open_model(options);
  const RunSettings settings = resolve_settings(options, model.config, device.info(), mesh.data_degree(), 0);
  const bool is_leader = ranks.rank == 0;
  if (is_leader) printf("%s\n", device.info().name.c_str());
  if (is_leader) print_heading(model.config, settings, options, ranks.size);
  MeasuredRates rates;
  if (!a.brief) {
    rates = measure_rates(device, *communicator, settings.dtype, options.tf32, settings.fp8.on());
    if (is_leader) printf("%s\n", rates.text.c_str());
  }

  const auto trainer = Trainer::create(device, *communicator, model.config, trainer_settings(options, settings), mesh);
  const Planner planner(options, model.config, device.info(), mesh, 0,
                        MemoryLimits::here(options, device.info(), ranks.local_size));
  planner.require_fits(trainer->plan());
  if (is_leader && !a.brief) printf("memory, as planned\n%s\n", trainer->plan().table().c_str());
  trainer->allocate();
  Batches batches(options, settings, model.config.V, ranks);
  Tuning tuning = open_tuning(options, nullptr, *communicator, device);
  if (options.tune_products) {
    set_weights(*trainer, model, options);
    batches.fill(0);
    tuning = find_tuning(*trainer, {0, 0, batches.inputs, batches.labels}, *communicator, device);
  }
  trainer->matmul().use(tuning);
  if (is_leader) printf("products: %s\n", describe_products(tuning).c_str());
  set_weights(*trainer, model, options);
  const Measured measured = train(*trainer, device, a, settings, batches);
  if (is_leader && options.cuda_graphs) printf("launched as a whole: %zu operations a step\n", trainer->graph_pieces());
  if (!is_leader) return;
  const bool known = device.info().bf16_flops > 0 && settings.dtype == DType::bf16;
  const double measured_peak = a.brief ? 0 : rates.ceilings.flops(RateClass::product_bf16);
  report_rate(measured, model.config, settings, known ? device.info().bf16_flops : measured_peak, known, ranks.size);
  printf("memory: %s\n", describe_taken(trainer->plan(), device.info(), device.taken_bytes()).c_str());
  if (!a.brief) report_step(measured, settings, rates.ceilings, ranks.size);
  if (!options.trace.empty()) write_trace(options.trace, measured.record, measured.record.spans);
}

}  // namespace

int main(int argc, char** argv) {
  Ranks ranks;
  try {
    ranks = Ranks::start(&argc, &argv);
    const Arguments arguments = arguments_of(argc, argv, ranks.size);
    if (arguments.flops) print_flops(arguments.options);
    else if (arguments.predict) predict(arguments);
    else run(arguments, ranks);
  } catch (const std::exception& error) {
    end_all_ranks(ranks, error);
  }
  ranks.finish();
  return 0;
}

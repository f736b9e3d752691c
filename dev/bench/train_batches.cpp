// Trains on given tokens through the Trainer's API, as dev/reference/train_fp8.py does in PyTorch: dev/bench/fp8_losses
// compares the losses.
//
//   train_batches make DIR SEED                          writes such a directory: see below
//   train_batches train DIR RECIPE STEPS OUT [gather]    RECIPE: off (bf16), a recipe, or an object of it, "gradient",
//                                                        "margin" and "head"; gather: the ranks share the weights
//                                                        out (ZeRO-3) and gather them in FP8
//
// DIR holds config.json, model.safetensors (initial weights), recipe.json (AdamW's) and batches.safetensors: input_ids,
// labels int32 (steps, k, B, T) of k micro-batches a step, learning_rates fp32 (steps). Of n ranks each takes k/n of a
// step's micro-batches. OUT gets a line {"step":0,"loss":5.5,"grad_norm":1.2,"ms":87.5} for each step.
//
// `make` takes a model of two blocks of width 256 with random weights, and 2000 steps of two sequences of 128 bytes of
// the bundled text, from places that the seed draws.
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "llmc/base/error.h"
#include "llmc/base/json.h"
#include "llmc/base/mapped_file.h"
#include "llmc/base/new_file.h"
#include "llmc/base/philox.h"
#include "llmc/base/safetensors.h"
#include "llmc/comm/communicator.h"
#include "llmc/comm/ranks.h"
#include "llmc/train/schedule.h"
#include "llmc/train/trainer.h"

namespace {

constexpr const char* kText = "dev/data/tinyshakespeare.txt";
constexpr int kSteps = 2000, kMicroBatches = 2, kB = 1, kT = 128, kWarmup = 100;
// Twice as high, roundings grow so fast that two right programs are 0.2% apart within 100 steps.
constexpr double kPeak = 5e-4;

ModelConfig small_model() {
  ModelConfig c = ModelConfig::preset("tiny");
  c.C = 256, c.L = 2, c.NH = 4, c.NKV = 2, c.HD = 64, c.FF = 768, c.V = 256;
  c.tied = false;
  c.check();
  return c;
}

void make(const std::string& directory, uint64_t seed) {
  Device device;
  SingleCommunicator communicator;
  auto trainer = Trainer::create(device, communicator, small_model(), {});
  trainer->allocate();
  trainer->initialize(Init::normal, seed);
  trainer->save(directory);

  const Json recipe = Json::object()
                          .set("learning_rate", kPeak)
                          .set("beta1", 0.9)
                          .set("beta2", 0.95)
                          .set("eps", 1e-8)
                          .set("weight_decay", 0.1)
                          .set("grad_clip", 1.0)
                          .set("steps", kSteps);
  write_file(directory + "/recipe.json", recipe.dump(2) + "\n");

  const MappedFile text(kText);
  const auto* bytes = reinterpret_cast<const uint8_t*>(text.data());
  const uint64_t places = text.size() - kT;
  std::vector<int32_t> inputs, labels;
  std::vector<float> rates;
  const LearningRate rate{Schedule::kCosine, kSteps, kWarmup, kPeak, kPeak / 10};
  for (int step = 0; step < kSteps; ++step) {
    rates.push_back(float(rate.at(step)));
    for (int row = 0; row < kMicroBatches * kB; ++row) {
      const uint64_t begin = philox_word(seed, uint64_t(step * kMicroBatches * kB + row), 0) % places;
      for (uint64_t t = begin; t < begin + kT; ++t) inputs.push_back(bytes[t]), labels.push_back(bytes[t + 1]);
    }
  }
  const Shape shape = {kSteps, kMicroBatches, kB, kT};
  SafetensorsWriter writer(directory + "/batches.safetensors", {{"input_ids", StoredType::I32, shape},
                                                                {"labels", StoredType::I32, shape},
                                                                {"learning_rates", StoredType::F32, {kSteps}}});
  writer.write("input_ids", inputs.data(), inputs.size() * sizeof(int32_t));
  writer.write("labels", labels.data(), labels.size() * sizeof(int32_t));
  writer.write("learning_rates", rates.data(), rates.size() * sizeof(float));
  writer.finish();
}

// Elements first .. first+count-1.
template <class T>
std::vector<T> part(const StoredTensor& tensor, StoredType type, size_t first, size_t count) {
  REQUIRE(tensor.type == type, "%s: %s is %s, expected %s", tensor.file.c_str(), tensor.name.c_str(),
          name_of(tensor.type), name_of(type));
  std::vector<T> values(count);
  memcpy(values.data(), Safetensors::range(tensor, first * sizeof(T), count * sizeof(T)), count * sizeof(T));
  return values;
}

Fp8Settings fp8_of(const std::string& recipe, const ModelConfig& config) {
  Json json = Json::object().set("recipe", recipe);
  if (recipe.starts_with("{")) json = Json::parse(recipe, "RECIPE");
  Fp8Choice choice;
  choice.recipe = json.get_string("recipe"), choice.gradient = json.get_string("gradient", "auto");
  choice.head = json.get_string("head", "off");
  Fp8Settings settings = fp8_settings(choice, config);
  settings.margin = int(json.get_int("margin", 0));
  return settings;
}

void train(const Ranks& ranks, const std::string& directory, const std::string& fp8, int steps, const std::string& out,
           bool gather) {
  const ModelConfig config = ModelConfig::from_json(Json::read(directory + "/config.json"), directory);
  const Json recipe = Json::read(directory + "/recipe.json");
  const Safetensors batches(directory + "/batches.safetensors");
  const StoredTensor &inputs = batches.at("input_ids"), &labels = batches.at("labels", inputs.shape);
  const StoredTensor& rates = batches.at("learning_rates");
  REQUIRE(inputs.shape.size() == 4 && rates.shape.size() == 1 && rates.shape[0] == inputs.shape[0],
          "%s: input_ids %s and learning_rates %s, expected (steps, k, B, T) and (steps)", batches.path().c_str(),
          text_of(inputs.shape).c_str(), text_of(rates.shape).c_str());
  const size_t size = size_t(ranks.size), k = inputs.shape[1], B = inputs.shape[2], T = inputs.shape[3];
  REQUIRE(steps >= 1 && size_t(steps) <= inputs.shape[0], "%d steps, %s has 1 to %zu", steps, directory.c_str(),
          size_t(inputs.shape[0]));
  REQUIRE(k % size == 0, "%zu micro-batches cannot be shared out among %zu ranks", k, size);

  TrainerSettings settings;
  settings.dtype = DType::bf16;
  settings.B = int(B), settings.T = int(T), settings.micro_batches = int(k / size);
  settings.beta1 = float(recipe.get_double("beta1")), settings.beta2 = float(recipe.get_double("beta2"));
  settings.eps = float(recipe.get_double("eps")), settings.grad_clip = float(recipe.get_double("grad_clip"));
  settings.weight_decay = float(recipe.get_double("weight_decay"));
  settings.fp8 = fp8_of(fp8, config);
  settings.fp8.all_gather = gather;
  if (gather) settings.zero_stage = 3;

  Device device(ranks.local_rank, CpuBackend::from_environment(ranks.local_size));
  const auto communicator = make_communicator(device, ranks, "");
  auto trainer = Trainer::create(device, *communicator, config, settings, Mesh::create(ranks.size, ranks.rank));
  trainer->allocate();
  trainer->load(Safetensors(directory + "/model.safetensors"));

  const auto close = [](FILE* file) { fclose(file); };
  std::unique_ptr<FILE, decltype(close)> lines(ranks.rank == 0 ? fopen(out.c_str(), "w") : nullptr, close);
  REQUIRE(lines || ranks.rank != 0, "cannot write %s", out.c_str());
  for (int step = 0; step < steps; ++step) {
    const size_t count = k / size * B * T, first = (size_t(step) * size + size_t(ranks.rank)) * count;
    const double rate = part<float>(rates, StoredType::F32, size_t(step), 1)[0];
    const auto own_inputs = part<int32_t>(inputs, StoredType::I32, first, count);
    const auto own_labels = part<int32_t>(labels, StoredType::I32, first, count);
    trainer->enqueue_step({step, rate, own_inputs, own_labels});
    const StepResult result = trainer->wait_for_step();
    if (!lines) continue;
    fprintf(lines.get(), "%s\n",
            Json::object()
                .set("step", step)
                .set("loss", result.loss)
                .set("grad_norm", double(result.grad_norm))
                .set("ms", result.seconds * 1e3)
                .dump()
                .c_str());
    fflush(lines.get());
  }
}

}  // namespace

int main(int argc, char** argv) {
  Ranks ranks;
  try {
    ranks = Ranks::start(&argc, &argv);
    const std::vector<std::string> words(argv + 1, argv + argc);
    if (words.size() == 3 && words[0] == "make") make(words[1], std::stoull(words[2]));
    else if ((words.size() == 5 || (words.size() == 6 && words[5] == "gather")) && words[0] == "train")
      train(ranks, words[1], words[2], std::stoi(words[3]), words[4], words.size() == 6);
    else fail("usage: train_batches make DIR SEED\n       train_batches train DIR RECIPE STEPS OUT [gather]");
  } catch (const std::exception& error) {
    end_all_ranks(ranks, error);
  }
  ranks.finish();
  return 0;
}

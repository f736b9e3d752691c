// test_llama: compares logits, losses, gradient norms, every gradient and the weights after several AdamW steps with a
// parity dump of PyTorch, any number of them (dev/reference/README.md tells what a dump is and how to make one).
//
//   ./test_llama DIR… [--dtype fp32|bf16] [--attention auto|plain|mma]      (without --dtype: both)
//
// An error is |a - b| / max(|b|, floor) in the L2 norm, against PyTorch in float64. Limits, with PyTorch's own errors
// in the same precision as the yardstick (the larger of its eager and sdpa attention):
//   fp32  each tensor at most max(1e-5, 4 x PyTorch's), updates max(1e-4, 4 x PyTorch's): other orders of summation
//   give
//         errors of the same size, which one run of PyTorch only samples
//   bf16  each tensor at most 1.5 x max(PyTorch's, the median of its class), the median of a class at most 1.25 x: bf16
//         errors are noise, steady over a class, so being as good as PyTorch shows in the median
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <map>
#include <regex>

#include "llmc/base/error.h"
#include "llmc/base/json.h"
#include "llmc/base/safetensors.h"
#include "llmc/comm/communicator.h"
#include "llmc/comm/ranks.h"
#include "llmc/device/device.h"
#include "llmc/train/trainer.h"
#include "llmc/train/weights_io.h"

namespace {

struct Recipe {
  double learning_rate, weight_decay;
  float beta1, beta2, eps, grad_clip;
  int steps;
};

Recipe read_recipe(const Json& json) {
  Recipe r;
  r.learning_rate = json.get_double("learning_rate");
  r.weight_decay = json.get_double("weight_decay");
  r.beta1 = float(json.get_double("beta1")), r.beta2 = float(json.get_double("beta2"));
  r.eps = float(json.get_double("eps")), r.grad_clip = float(json.get_double("grad_clip"));
  r.steps = int(json.get_int("steps"));
  REQUIRE(r.steps > 0, "%s: steps is %d, expected at least 1", json.where().c_str(), r.steps);
  return r;
}

std::vector<int32_t> read_tokens(const Safetensors& batch, const char* name, Shape& shape) {
  const StoredTensor& t = batch.at(name);
  REQUIRE(t.type == StoredType::I32 && t.shape.size() == 3, "%s: %s is %s %s, expected I32 (steps, B, T)",
          t.file.c_str(), name, name_of(t.type), text_of(t.shape).c_str());
  shape = t.shape;
  std::vector<int32_t> values(t.elements());
  memcpy(values.data(), t.data, t.data_bytes);
  return values;
}

struct Dump {
  std::string directory;
  LlamaConfig config;
  Recipe recipe;
  Safetensors model, batch, expected;
  Json pytorch_error;
  int B, T;
  std::vector<int32_t> inputs, labels;  // (steps, B, T)
  std::vector<int32_t> positions;       // the same, where rows are packed with documents

  static std::string at(const std::string& directory, const char* file) {
    return (std::filesystem::path(directory) / file).string();
  }

  explicit Dump(const std::string& directory)
      : directory(directory),
        config(LlamaConfig::from_json(Json::read(at(directory, "config.json")), directory)),
        recipe(read_recipe(Json::read(at(directory, "recipe.json")))),
        model(at(directory, "model.safetensors")),
        batch(at(directory, "batch.safetensors")),
        expected(at(directory, "expected.safetensors")),
        pytorch_error(Json::read(at(directory, "pytorch_error.json"))) {
    Shape shape, labels_shape;
    inputs = read_tokens(batch, "input_ids", shape);
    labels = read_tokens(batch, "labels", labels_shape);
    REQUIRE(shape == labels_shape && shape[0] == uint64_t(recipe.steps),
            "%s: input_ids %s and labels %s, expected both to be (%d, B, T) for the recipe's %d steps",
            batch.path().c_str(), text_of(shape).c_str(), text_of(labels_shape).c_str(), recipe.steps, recipe.steps);
    if (batch.find("position_ids")) {
      positions = read_tokens(batch, "position_ids", labels_shape);
      REQUIRE(shape == labels_shape, "%s: position_ids %s, expected them to be as input_ids %s", batch.path().c_str(),
              text_of(labels_shape).c_str(), text_of(shape).c_str());
    }
    B = int(shape[1]);
    T = int(shape[2]);
  }

  std::vector<float> want(const std::string& name) const {
    const StoredTensor& t = expected.at(name);
    std::vector<float> values(t.elements());
    read_as_fp32(t, 0, values.size(), values.data());
    return values;
  }
};

// What this program computes for a dump, under the names of expected.safetensors.
using Results = std::map<std::string, std::vector<float>>;

Results compute(const Dump& dump, Device& device, Communicator& communicator, DType dtype, AttentionKernel attention) {
  TrainerSettings settings;
  settings.dtype = dtype;
  settings.B = dump.B, settings.T = dump.T;
  settings.attention = attention;
  settings.beta1 = dump.recipe.beta1, settings.beta2 = dump.recipe.beta2, settings.eps = dump.recipe.eps;
  settings.weight_decay = float(dump.recipe.weight_decay), settings.grad_clip = dump.recipe.grad_clip;
  auto trainer = Trainer::create(device, communicator, dump.config, settings);
  trainer->allocate();
  trainer->load(dump.model);

  Results results;
  std::map<std::string, std::vector<float>> initial;
  for (const Tensor& t : trainer->layout().tensors) initial[t.name] = trainer->weights(t.name);
  const size_t tokens = size_t(dump.B) * size_t(dump.T);
  for (int step = 0; step < dump.recipe.steps; ++step) {
    const auto begin = ptrdiff_t(size_t(step) * tokens), end = begin + ptrdiff_t(tokens);
    const std::vector<int32_t> inputs(dump.inputs.begin() + begin, dump.inputs.begin() + end);
    const std::vector<int32_t> labels(dump.labels.begin() + begin, dump.labels.begin() + end);
    std::vector<int32_t> positions;
    if (!dump.positions.empty()) positions.assign(dump.positions.begin() + begin, dump.positions.begin() + end);
    if (step == 0) results["logits"] = trainer->logits(inputs, dump.B, dump.T, {}, positions);
    trainer->enqueue_step({step, dump.recipe.learning_rate, inputs, labels, {}, positions});
    const StepResult result = trainer->wait_for_step();
    results["loss"].push_back(float(result.loss));
    results["grad_norm"].push_back(result.grad_norm);
    if (step > 0) continue;
    for (const Tensor& t : trainer->layout().tensors) results["grad." + t.name] = trainer->gradients(t.name);
  }
  for (const Tensor& t : trainer->layout().tensors) {
    std::vector<float> update = trainer->weights(t.name);
    for (size_t i = 0; i < update.size(); ++i) update[i] -= initial[t.name][i];
    results["update." + t.name] = std::move(update);
  }
  return results;
}

// The tensor's name without its layer's number.
std::string class_of(const std::string& name) {
  static const std::regex layer("\\.layers\\.[0-9]+\\.");
  return std::regex_replace(name, layer, ".layers.N.");
}

double error_of(const Dump& dump, const std::string& name, const std::vector<float>& got) {
  const std::vector<float> want = dump.want(name);
  REQUIRE(got.size() == want.size(), "%s: %s has %zu values in the dump, %zu here", dump.directory.c_str(),
          name.c_str(), want.size(), got.size());
  double difference = 0, norm = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    difference += (double(got[i]) - want[i]) * (double(got[i]) - want[i]);
    norm += double(want[i]) * want[i];
  }
  // At T = 1 the gradients of q and k are nothing but rounding: what is small beside all gradients is not compared
  // closely.
  double floor = 0;
  if (name.starts_with("grad.")) floor = double(dump.want("grad_norm")[0]) / 1000;
  if (name.starts_with("update."))
    floor = dump.recipe.learning_rate * dump.recipe.steps * std::sqrt(double(want.size())) / 1000;
  const double scale = std::max(std::sqrt(norm), floor);
  return scale > 0 ? std::sqrt(difference) / scale : difference == 0 ? 0 : INFINITY;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t n = values.size();
  return n % 2 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

struct Entry {
  std::string name;
  double error, pytorch;
};

// The larger the more wrong; a tensor fails above 1.
double excess(const Entry& e, DType dtype, double class_median) {
  const double least = e.name.starts_with("update.") ? 1e-4 : 1e-5;
  const double limit = dtype == DType::fp32 ? std::max(least, 4 * e.pytorch) : 1.5 * std::max(e.pytorch, class_median);
  return std::isfinite(e.error) ? e.error / limit : INFINITY;
}

struct Verdict {
  int passed = 0, failed = 0;
};

// Prints one line a class: its worst tensor with its error, PyTorch's and their ratio.
Verdict judge(const Dump& dump, const Results& results, DType dtype) {
  const Json& pytorch = dump.pytorch_error.at(dtype_name(dtype));
  std::map<std::string, std::vector<Entry>> classes;
  for (const auto& [name, values] : results)
    classes[class_of(name)].push_back({name, error_of(dump, name, values), pytorch.get_double(name)});
  Verdict verdict;
  for (const auto& [class_name, entries] : classes) {
    std::vector<double> ours, theirs;
    for (const Entry& e : entries) ours.push_back(e.error), theirs.push_back(e.pytorch);
    const double their_median = median(theirs);
    const Entry* worst = &entries[0];
    for (const Entry& e : entries)
      if (excess(e, dtype, their_median) > excess(*worst, dtype, their_median)) worst = &e;
    const bool median_ok = dtype == DType::fp32 || median(ours) <= 1.25 * their_median;
    const bool ok = excess(*worst, dtype, their_median) <= 1 && median_ok;
    ++(ok ? verdict.passed : verdict.failed);
    printf("  %s %-58s error %.2e, PyTorch's %.2e, ratio %.2f, %.0f%% of the limit", ok ? "ok  " : "FAIL",
           worst->name.c_str(), worst->error, worst->pytorch, worst->error / worst->pytorch,
           100 * excess(*worst, dtype, their_median));
    if (dtype == DType::bf16)
      printf("; median %.2f of PyTorch's%s", median(ours) / their_median, median_ok ? "" : ", above 1.25");
    printf("\n");
  }
  return verdict;
}

struct Arguments {
  std::vector<std::string> directories;
  std::vector<DType> dtypes = {DType::fp32, DType::bf16};
  AttentionKernel attention = AttentionKernel::automatic;
};

Arguments parse(int argc, char** argv) {
  Arguments a;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i], value = i + 1 < argc ? argv[i + 1] : "";
    if (word == "--dtype") {
      REQUIRE(value == "fp32" || value == "bf16", "--dtype %s: expected fp32 or bf16", value.c_str());
      a.dtypes = {value == "fp32" ? DType::fp32 : DType::bf16};
      ++i;
    } else if (word == "--attention") {
      a.attention = attention_kernel_named(value);
      ++i;
    } else {
      REQUIRE(!word.starts_with("--"), "unknown option %s", word.c_str());
      a.directories.push_back(word);
    }
  }
  REQUIRE(!a.directories.empty(),
          "usage: test_llama DIR… [--dtype fp32|bf16] [--attention auto|plain|mma]\n"
          "  a DIR holds a parity dump, for example dev/reference/dumps/gqa4");
  return a;
}

}  // namespace

int main(int argc, char** argv) try {
  const Arguments arguments = parse(argc, argv);
  Device device;
  SingleCommunicator communicator;
  Verdict all;
  for (const std::string& directory : arguments.directories) {
    const Dump dump(directory);
    for (DType dtype : arguments.dtypes) {
      printf("%s in %s on %s:\n", directory.c_str(), dtype_name(dtype), device.info().name.c_str());
      const Verdict v = judge(dump, compute(dump, device, communicator, dtype, arguments.attention), dtype);
      all.passed += v.passed;
      all.failed += v.failed;
    }
  }
  printf("%d passed, %d failed\n", all.passed, all.failed);
  return all.failed > 0;
} catch (const std::exception& error) {
  fprintf(stderr, "error: %s\n", error.what());
  return 1;
}

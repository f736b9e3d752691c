// test_llama: compares logits, losses, gradient norms, every gradient and the weights after several AdamW steps with
// one or more parity dumps of PyTorch (dev/reference/README.md tells what a dump is and how to make one).
//
//   ./test_llama DIR… [--dtype fp32|bf16|fp8] [--attention auto|plain|mma|hopper]
//   mpirun -np N ./test_llama DIR… --tensor-parallel-degree T --context-parallel-degree C [--tensor-parallel-reduce-dtype fp32|bf16]
//
// Without --dtype it checks every precision that the dump has. N is T times C.
//
// If ranks share sequences, each sequence is padded at its end to a length that they can share. The labels of the
// padding are ignored.
//
// An error is |a - b| / max(|b|, floor) in the L2 norm, where b is PyTorch's result in float64. The yardstick of the
// limits is PyTorch's own error in the same precision (the larger one of its eager and sdpa attention; in FP8, that of
// an emulation of the dump's recipe):
//   fp32       each tensor at most max(1e-5, 4 x PyTorch's), updates max(1e-4, 4 x PyTorch's): other orders of
//              summation give errors of the same size, and one run of PyTorch is only a sample of these. This catches
//              all mistakes but those of rounding
//   bf16, fp8  each tensor at most as often the largest of PyTorch's errors in its class, over the layers and over models
//              with 8 sets of weights, which the dump lists: matrices 1.75 x, norms and biases 2 x, losses and norm of the
//              gradients 3 x, biases of k 4 x. The median over all matrices of error / PyTorch's error is at most 1.1: a
//              program that rounds more often than PyTorch has larger errors in all matrices
// The error of a vector is a matter of luck: AdamW turns an entry whose sign flips into a full step, and among 32
// entries one such entry multiplies the error by 20. This happens to any vector, so the updates of all vectors are one
// class. The biases of k are another: they shift all scores of a query nearly alike, which softmax does not see, so
// their gradients are what is left of large sums. Losses and norm are one number each. The errors of matrices are
// steady. PyTorch's error counts as what rounding leaves, at least, where a gradient is 0 in exact arithmetic: see
// rounding_of. dev/reference/test_limits.py measures how many right programs fail, and which wrong ones pass. A dump
// without such lists has the errors of its own weights only.
//
// In FP8 each product of the dump's own operands is checked, too: see operand_limit.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <map>
#include <optional>

#include "dev/test/quantization.h"
#include "llmc/base/error.h"
#include "llmc/base/json.h"
#include "llmc/base/processor.h"
#include "llmc/base/safetensors.h"
#include "llmc/comm/communicator.h"
#include "llmc/comm/ranks.h"
#include "llmc/device/device.h"
#include "llmc/kernels/classifier.h"
#include "llmc/kernels/fp8_matmul.h"
#include "llmc/train/trainer.h"
#include "llmc/train/weights_io.h"

namespace {

enum class Precision { fp32, bf16, fp8 };
constexpr const char* kPrecisions[] = {"fp32", "bf16", "fp8"};

struct Recipe {
  double learning_rate, weight_decay, z_loss;
  float beta1, beta2, eps, grad_clip;
  int steps;
  OptimizerSettings muon;  // what it says of Muon
};

Recipe read_recipe(const Json& json) {
  Recipe r;
  r.learning_rate = json.get_double("learning_rate");
  r.weight_decay = json.get_double("weight_decay");
  r.z_loss = json.contains("z_loss") ? json.get_double("z_loss") : 0;
  r.beta1 = float(json.get_double("beta1")), r.beta2 = float(json.get_double("beta2"));
  r.eps = float(json.get_double("eps")), r.grad_clip = float(json.get_double("grad_clip"));
  r.steps = int(json.get_int("steps"));
  if (json.contains("muon")) {
    const Json& muon = json.at("muon");
    const std::string scale = muon.get_string("scale");
    REQUIRE(scale == "match-rms" || scale == "original", "%s: Muon's scale is %s, expected match-rms or original",
            json.where().c_str(), scale.c_str());
    r.muon.muon = true;
    r.muon.muon_scale = scale == "original" ? MuonScale::original : MuonScale::match_rms;
    r.muon.muon_rate_factor = float(muon.get_double("learning_rate") / r.learning_rate);
    r.muon.muon_momentum = float(muon.get_double("momentum"));
    r.muon.muon_weight_decay = float(muon.get_double("weight_decay"));
  }
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
  ModelConfig config;
  Recipe recipe;
  Safetensors model, batch, expected;
  std::optional<Safetensors> operands;  // of FP8 products
  Json pytorch_error;
  Fp8Settings fp8;  // from the recipe's `quantization`
  int B, T;
  std::vector<int32_t> inputs, labels;  // (steps, B, T)
  std::vector<int32_t> positions;       // (steps, B, T); empty if rows are not packed with documents

  static std::string at(const std::string& directory, const char* file) {
    return (std::filesystem::path(directory) / file).string();
  }

  explicit Dump(const std::string& directory)
      : directory(directory),
        config(ModelConfig::from_json(Json::read(at(directory, "config.json")), directory)),
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
    if (const Json recipe = Json::read(at(directory, "recipe.json")); recipe.contains("quantization")) {
      fp8 = read_quantization(recipe.at("quantization"), config);
      operands.emplace(at(directory, "operands.safetensors"));
    }
    B = int(shape[1]);
    T = int(shape[2]);
  }

  std::vector<float> want(const std::string& name) const { return floats(expected, name); }
  std::vector<float> floats(const Safetensors& file, const std::string& name) const {
    const StoredTensor& t = file.at(name);
    std::vector<float> values(t.elements());
    read_as_fp32(t, 0, values.size(), values.data());
    return values;
  }
};

// The results of this program for a dump, under the names of expected.safetensors.
using Results = std::map<std::string, std::vector<float>>;

// Returns rows (B, length): the T tokens of each of `rows`, then value(b, t) for t = T .. length-1.
template <class F>
std::vector<int32_t> widened(const int32_t* rows, int B, int T, int length, F&& value) {
  std::vector<int32_t> all;
  for (int b = 0; b < B; ++b)
    for (int t = 0; t < length; ++t) all.push_back(t < T ? rows[b * T + t] : value(b, t));
  return all;
}

// Returns the logits of the dump's own tokens, without those of the padding.
std::vector<float> logits_of(Trainer& trainer, const Dump& dump, const std::vector<int32_t>& inputs,
                             const std::vector<int32_t>& positions, int T) {
  const std::vector<float> all = trainer.logits(inputs, dump.B, T, {}, positions);
  std::vector<float> logits;
  const size_t V = size_t(dump.config.V);
  for (int b = 0; b < dump.B; ++b) {
    const auto begin = all.begin() + ptrdiff_t(size_t(b * T) * V);
    logits.insert(logits.end(), begin, begin + ptrdiff_t(size_t(dump.T) * V));
  }
  return logits;
}

struct Arguments {
  std::vector<std::string> directories;
  std::vector<Precision> precisions = {Precision::fp32, Precision::bf16, Precision::fp8};
  bool chosen = false;  // by the user
  int tensor_degree = 1, context_degree = 1;
  std::optional<DType> tensor_sums;  // by default that of the activations
  AttentionKernel attention = AttentionKernel::automatic;
};

TrainerSettings settings_for(const Dump& dump, int T, Precision precision, const Arguments& arguments) {
  TrainerSettings settings;
  settings.dtype = precision == Precision::fp32 ? DType::fp32 : DType::bf16;
  if (precision == Precision::fp8) settings.fp8 = dump.fp8;
  settings.B = dump.B, settings.T = T;
  settings.attention = arguments.attention;
  settings.tensor_sums = precision == Precision::fp32 ? DType::fp32 : arguments.tensor_sums.value_or(settings.dtype);
  static_cast<OptimizerSettings&>(settings) = dump.recipe.muon;
  settings.beta1 = dump.recipe.beta1, settings.beta2 = dump.recipe.beta2, settings.eps = dump.recipe.eps;
  settings.weight_decay = float(dump.recipe.weight_decay), settings.grad_clip = dump.recipe.grad_clip;
  settings.z_loss = float(dump.recipe.z_loss);
  return settings;
}

// The dump's rows of one step, padded to T tokens: the last token again, no label, the next positions.
struct Batch {
  std::vector<int32_t> inputs, labels, positions;  // (B, T); no positions if the dump has none

  Batch(const Dump& dump, int step, int T) {
    const size_t begin = size_t(step) * size_t(dump.B) * size_t(dump.T);
    const auto last = [&](const std::vector<int32_t>& rows, int b) {
      return rows[begin + size_t((b + 1) * dump.T - 1)];
    };
    inputs = widened(&dump.inputs[begin], dump.B, dump.T, T, [&](int b, int) { return last(dump.inputs, b); });
    labels = widened(&dump.labels[begin], dump.B, dump.T, T, [](int, int) { return kIgnoredLabel; });
    if (!dump.positions.empty())
      positions = widened(&dump.positions[begin], dump.B, dump.T, T,
                          [&](int b, int t) { return last(dump.positions, b) + t - dump.T + 1; });
  }
};

Results compute(const Dump& dump, Device& device, Communicator& communicator, const Mesh& mesh, Precision precision,
                const Arguments& arguments) {
  const int multiple = mesh.context_degree == 1 ? 1 : 2 * mesh.context_degree * mesh.tensor_degree;
  const int T = (dump.T + multiple - 1) / multiple * multiple;
  const TrainerSettings settings = settings_for(dump, T, precision, arguments);
  auto trainer = Trainer::create(device, communicator, dump.config, settings, mesh);
  trainer->allocate();
  trainer->load(dump.model);

  Results results;
  std::map<std::string, std::vector<float>> initial;
  for (const ParameterInfo& t : trainer->layout().tensors) initial[t.name] = trainer->weights(t.name);
  for (int step = 0; step < dump.recipe.steps; ++step) {
    const Batch batch(dump, step, T);
    if (step == 0) results["logits"] = logits_of(*trainer, dump, batch.inputs, batch.positions, T);
    trainer->enqueue_step({step, dump.recipe.learning_rate, batch.inputs, batch.labels, {}, batch.positions});
    const StepResult result = trainer->wait_for_step();
    REQUIRE(!result.held, "step %d is not finite: loss %g, norm %g", step, result.loss, double(result.grad_norm));
    results["loss"].push_back(float(result.loss));
    if (settings.z_loss > 0) results["z_loss"].push_back(float(result.z_loss));
    results["grad_norm"].push_back(result.grad_norm);
    if (step > 0) continue;
    for (const ParameterInfo& t : trainer->layout().tensors) results["grad." + t.name] = trainer->gradients(t.name);
  }
  for (const ParameterInfo& t : trainer->layout().tensors) {
    std::vector<float> update = trainer->weights(t.name);
    for (size_t i = 0; i < update.size(); ++i) update[i] -= initial[t.name][i];
    results["update." + t.name] = std::move(update);
  }
  return results;
}

bool is_vector(const Dump& dump, const std::string& name) { return dump.expected.at(name).shape.size() == 1; }

bool is_bias_of_k(const std::string& name) { return name.ends_with("k_proj.bias"); }

// Returns how often the largest of PyTorch's errors a tensor's error in bf16 or FP8 may be.
double times_of(const Dump& dump, const std::string& name) {
  if (is_bias_of_k(name)) return 4;
  if (name == "loss" || name == "z_loss" || name == "grad_norm") return 3;
  return is_vector(dump, name) ? 2 : 1.75;
}

// Returns the name of the tensors that share a yardstick: the tensor's own with N for the number of its layer.
std::string class_of(const Dump& dump, const std::string& name) {
  if (name.starts_with("update.") && is_vector(dump, name) && !is_bias_of_k(name)) return "updates of vectors";
  const std::string layers = ".layers.";
  const size_t found = name.find(layers);
  if (found == name.npos) return name;
  const size_t begin = found + layers.size(), end = name.find_first_not_of("0123456789", begin);
  if (end == begin || end == name.npos || name[end] != '.') return name;
  return name.substr(0, begin) + "N" + name.substr(end);
}

double norm_of(const std::vector<float>& values) {
  double sum = 0;
  for (const float x : values) sum += double(x) * x;
  return std::sqrt(sum);
}

// Returns the number by which an error is divided. The floor prevents a close comparison of numbers that are small
// compared with all gradients.
double scale_of(const Dump& dump, const std::string& name) {
  const std::vector<float> want = dump.want(name);
  double floor = 0;
  if (name.starts_with("grad.")) floor = double(dump.want("grad_norm")[0]) / 1000;
  if (name.starts_with("update."))
    floor = dump.recipe.learning_rate * dump.recipe.steps * std::sqrt(double(want.size())) / 1000;
  return std::max(norm_of(want), floor);
}

double error_of(const Dump& dump, const std::string& name, const std::vector<float>& got) {
  const std::vector<float> want = dump.want(name);
  REQUIRE(got.size() == want.size(), "%s: %s has %zu values in the dump, %zu here", dump.directory.c_str(),
          name.c_str(), want.size(), got.size());
  double difference = 0;
  for (size_t i = 0; i < want.size(); ++i) difference += (double(got[i]) - want[i]) * (double(got[i]) - want[i]);
  const double scale = scale_of(dump, name);
  return scale > 0 ? std::sqrt(difference) / scale : difference == 0 ? 0 : INFINITY;
}

// Returns the error that rounding leaves of a gradient that is 0 in exact arithmetic, and of its tensor's update; else
// 0. The terms that cancel are as large as all gradients at most, and each is rounded by 2^-24 of itself in fp32. AdamW
// divides what is left by eps, for it is smaller than that.
double rounding_of(const Dump& dump, const std::string& name) {
  const bool update = name.starts_with("update.");
  if (!update && !name.starts_with("grad.")) return 0;
  const std::vector<float> norms = dump.want("grad_norm");
  const double left = 0x1p-24 * double(norms[0]), largest = double(*std::max_element(norms.begin(), norms.end()));
  if (norm_of(dump.want("grad." + name.substr(name.find('.') + 1))) >= left) return 0;
  const Recipe& r = dump.recipe;
  const double step = 0x1p-24 * std::min(largest, double(r.grad_clip)) / double(r.eps);
  return (update ? r.learning_rate * r.steps * step : left) / scale_of(dump, name);
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t n = values.size();
  return n % 2 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

double ratio(double a, double b) { return a == b ? 1 : a / b; }  // 0 / 0 is 1

struct Entry {
  std::string name;
  double error, pytorch, limit = 0;
  double excess() const { return ratio(error, limit); }  // a tensor fails above 1
};

constexpr double kMedianLimit = 1.1;

struct Verdict {
  int passed = 0, failed = 0;
  void operator+=(const Verdict& other) { passed += other.passed, failed += other.failed; }
};

// Prints one line per class: the tensor that is closest to its limit, with its error and PyTorch's error.
Verdict judge(const Dump& dump, const Results& results, Precision precision) {
  const std::string key = precision == Precision::fp8 ? recipe_name(dump.fp8.recipe) : kPrecisions[int(precision)];
  const Json& pytorch = dump.pytorch_error.at(key);
  const bool has_seeds = dump.pytorch_error.contains(key + "_seeds");
  std::map<std::string, std::vector<Entry>> classes;
  std::vector<double> ratios;  // of the matrices
  for (const auto& [name, values] : results) {
    const double error = error_of(dump, name, values);
    const Entry e{name, std::isnan(error) ? INFINITY : error,
                  std::max(pytorch.get_double(name), rounding_of(dump, name))};
    classes[class_of(dump, name)].push_back(e);
    if (!is_vector(dump, name)) ratios.push_back(ratio(e.error, e.pytorch));
  }
  Verdict verdict;
  for (auto& [class_name, entries] : classes) {
    double largest = 0;
    for (const Entry& e : entries) {
      largest = std::max(largest, e.pytorch);
      if (!has_seeds) continue;
      for (const Json& error : dump.pytorch_error.at(key + "_seeds").at(e.name).elements())
        largest = std::max(largest, error.as_double());
    }
    for (Entry& e : entries) {
      const double least = e.name.starts_with("update.") ? 1e-4 : 1e-5;
      e.limit = precision == Precision::fp32 ? std::max(least, 4 * e.pytorch) : times_of(dump, e.name) * largest;
    }
    const Entry& worst = *std::max_element(entries.begin(), entries.end(),
                                           [](const Entry& a, const Entry& b) { return a.excess() < b.excess(); });
    const bool ok = worst.excess() <= 1;
    ++(ok ? verdict.passed : verdict.failed);
    printf("  %s %-58s error %.2e, PyTorch's %.2e, ratio %.2f, %.0f%% of the limit\n", ok ? "ok  " : "FAIL",
           worst.name.c_str(), worst.error, worst.pytorch, ratio(worst.error, worst.pytorch), 100 * worst.excess());
  }
  if (precision == Precision::fp32) return verdict;
  const double of_all = median(ratios);
  ++(of_all <= kMedianLimit ? verdict.passed : verdict.failed);
  printf("  %s the median of the matrices' ratios is %.2f, its limit %.2f\n", of_all <= kMedianLimit ? "ok  " : "FAIL",
         of_all, kMedianLimit);
  return verdict;
}

// ---- the products of the dump's operands

// An FP8 operand as products need it: padded, in device memory.
struct Operand {
  QuantizedTensor tensor;
  DeviceMemory data, scale_inv;

  Operand(Stream& stream, const Dump& dump, const std::string& name, const std::string& scale, Role role,
          bool columnwise) {
    const StoredTensor& stored = dump.operands->at(name);
    REQUIRE(stored.shape.size() == 2, "%s: %s is %s, expected a matrix", stored.file.c_str(), name.c_str(),
            text_of(stored.shape).c_str());
    const int rows = int(stored.shape[0]), columns = int(stored.shape[1]);
    tensor = columnwise ? dump.fp8.operand(role, true, columns, rows) : dump.fp8.operand(role, false, rows, columns);
    REQUIRE(stored.type == (tensor.format == Fp8Format::e4m3 ? StoredType::F8_E4M3 : StoredType::F8_E5M2),
            "%s: %s is %s, expected %s", stored.file.c_str(), name.c_str(), name_of(stored.type),
            format_name(tensor.format));
    std::vector<uint8_t> bytes(tensor.bytes(), 0);
    for (int r = 0; r < rows; ++r)
      memcpy(&bytes[size_t(r) * size_t(tensor.stride())], stored.data + size_t(r) * size_t(columns), size_t(columns));
    const std::vector<float> inverse = dump.floats(*dump.operands, scale);
    std::vector<float> values(tensor.scale_inv_count(), 1.0f);
    const int blocks = (columns + QuantizedTensor::kBlock - 1) / QuantizedTensor::kBlock;
    for (int r = 0; r < rows; ++r)
      for (int block = 0; block < blocks; ++block) {
        const size_t at = tensor.scaling == Scaling::tensor || tensor.one_scale ? 0
                          : tensor.scaling == Scaling::row                      ? size_t(r)
                          : tensor.scaling == Scaling::block_1x128
                              ? size_t(r * blocks + block)
                              : size_t(r / QuantizedTensor::kBlock * blocks + block);
        values[tensor.scale_inv_at(r, block * QuantizedTensor::kBlock)] = inverse.at(at);
      }
    data = DeviceMemory(stream.device(), bytes.size());
    scale_inv = DeviceMemory(stream.device(), values.size() * sizeof(float));
    tensor.data = reinterpret_cast<uint8_t*>(data.data());
    tensor.scale_inv = reinterpret_cast<float*>(scale_inv.data());
    copy(stream, tensor.data, bytes.data(), bytes.size());
    copy(stream, tensor.scale_inv, values.data(), values.size());
    stream.synchronize();
  }
};

// Returns the limit of the relative error in the L2 norm. The CPU adds in fp32 as PyTorch did, but in another order;
// bf16 results then differ if the sum is nearly halfway between two bf16 numbers. A GPU's tensor cores keep about 13
// bits between the promotions to fp32, and with `fast` there may be none along all of K. A sum that is off by d becomes
// another bf16 number, one spacing s away, in d / s of the cases. So the norm grows by sqrt(s d) instead of d, where s
// is 2^-7.5 of the number on average.
double operand_limit(const Device& device, bool bf16_result, bool fast, int K) {
  if (!device.info().gpu) return bf16_result ? 2e-4 : 1e-6;
  const double limit = fast ? std::max(3e-4, 1.5e-6 * K) : 3e-4;
  return bf16_result ? std::sqrt(0x1p-7 * limit) : limit;
}

// Computes a product with a result of type T, and returns its error against the dump's result, rounded to T.
template <class T>
double product_error(Stream& stream, Matmul& matmul, const Operand& a, const Operand& b, bool fast,
                     const std::vector<float>& want) {
  const size_t size = size_t(a.tensor.rows) * size_t(b.tensor.rows);
  const DeviceMemory out(stream.device(), size * sizeof(T));
  const DeviceMemory padded(stream.device(), fp8_matmul_scratch(a.tensor, b.tensor, sizeof(T)));
  T* result = reinterpret_cast<T*>(out.data());
  fp8_matmul(stream, matmul, "fp8_product", Tensor(result, {a.tensor.rows, b.tensor.rows}), a.tensor, b.tensor, false,
             fast, padded.data());
  std::vector<T> got(size);
  copy(stream, got.data(), result, size);
  stream.synchronize();
  REQUIRE(want.size() == size, "a product of %zu numbers, in the dump it has %zu", size, want.size());
  double difference = 0, norm = 0;
  for (size_t i = 0; i < size; ++i) {
    const double w = double(to_float(from_float<T>(want[i]))), d = double(to_float(got[i])) - w;
    difference += d * d, norm += w * w;
  }
  return norm > 0 ? std::sqrt(difference / norm) : difference == 0 ? 0 : INFINITY;
}

// Checks each product that runs in FP8. Prints one line with the worst product for each of the three kinds, in each
// type of the result.
Verdict judge_operands(const Dump& dump, Device& device) {
  Stream stream(device, "compute");
  const DeviceMemory workspace(device, Matmul::workspace_bytes(device.info()));
  Matmul matmul(stream, workspace.data(), {});
  struct Kind {
    const char* name;
    Role a, b;
    bool a_by_columns, b_by_columns;
  };
  const LayerProjections projections(dump.config);
  Verdict verdict;
  for (const Kind& kind : {Kind{"forward", Role::input, Role::weight, false, false},
                           Kind{"dgrad", Role::output_gradient, Role::weight, false, true},
                           Kind{"wgrad", Role::output_gradient, Role::input, true, true}}) {
    if (dump.fp8.bf16_wgrad() && kind.b == Role::input) continue;
    for (const bool bf16_result : {false, true}) {
      double worst = 0;
      std::string worst_name;
      for (const LayerProjection& p : projections.all()) {
        if (!dump.fp8.quantizes(p)) continue;
        const std::string name = format("layers.%d.%s.%s", p.layer, p.name(), kind.name);
        const Operand a(stream, dump, name + ".a", name + ".scale_a", kind.a, kind.a_by_columns);
        const Operand b(stream, dump, name + ".b", name + ".scale_b", kind.b, kind.b_by_columns);
        const bool fast = dump.fp8.fast_accumulation(kind.a == Role::input);
        const std::vector<float> want = dump.floats(*dump.operands, name + ".out");
        const double error = bf16_result ? product_error<bf16>(stream, matmul, a, b, fast, want)
                                         : product_error<float>(stream, matmul, a, b, fast, want);
        const double part = error / operand_limit(device, bf16_result, fast, a.tensor.columns);
        if (part >= worst) worst = part, worst_name = format("%s: error %.2e", name.c_str(), error);
      }
      ++(worst <= 1 ? verdict.passed : verdict.failed);
      printf("  %s %s products of the dump's operands, %s: the worst is %s, %.0f%% of the limit\n",
             worst <= 1 ? "ok  " : "FAIL", kind.name, bf16_result ? "bf16" : "fp32", worst_name.c_str(), 100 * worst);
    }
  }
  return verdict;
}

constexpr const char* kUsage =
    "usage: test_llama DIR… [--dtype fp32|bf16|fp8] [--attention auto|plain|mma|hopper]\n"
    "       mpirun -np N test_llama DIR… --tensor-parallel-degree T --context-parallel-degree C   (N = T C)\n"
    "         [--tensor-parallel-reduce-dtype fp32|bf16]\n"
    "  a DIR holds a parity dump, for example dev/reference/dumps/gqa4";

Arguments parse(int argc, char** argv) {
  Arguments a;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i], value = i + 1 < argc ? argv[i + 1] : "";
    if (word == "--dtype") {
      const auto found = std::find(std::begin(kPrecisions), std::end(kPrecisions), value);
      REQUIRE(found != std::end(kPrecisions), "--dtype %s: expected fp32, bf16 or fp8", value.c_str());
      a.precisions = {Precision(found - kPrecisions)};
      a.chosen = true;
      ++i;
    } else if (word == "--attention") {
      a.attention = attention_kernel_named(value);
      ++i;
    } else if (word == "--tensor-parallel-degree" || word == "--context-parallel-degree") {
      (word == "--tensor-parallel-degree" ? a.tensor_degree : a.context_degree) = std::atoi(value.c_str());
      ++i;
    } else if (word == "--tensor-parallel-reduce-dtype") {
      REQUIRE(value == "fp32" || value == "bf16", "%s %s: expected fp32 or bf16", word.c_str(), value.c_str());
      a.tensor_sums = value == "bf16" ? DType::bf16 : DType::fp32;
      ++i;
    } else {
      REQUIRE(!word.starts_with("--"), "unknown option %s\n%s", word.c_str(), kUsage);
      a.directories.push_back(word);
    }
  }
  REQUIRE(!a.directories.empty(), "%s", kUsage);
  return a;
}

int compare(const Ranks& ranks, const Arguments& arguments) {
  const Mesh mesh = Mesh::create(ranks.size, ranks.rank, arguments.tensor_degree, arguments.context_degree);
  REQUIRE(mesh.data_degree() == 1, "%s: a dump has one batch, for one data rank\n  start %d rank(s)",
          mesh.description().c_str(), arguments.tensor_degree * arguments.context_degree);
  if (ranks.rank > 0) REQUIRE(freopen("/dev/null", "w", stdout), "cannot open /dev/null");  // all ranks find the same
  Device device(ranks.local_rank, CpuBackend::from_environment(ranks.local_size));
  const auto communicator = make_communicator(device, ranks, "");
  Verdict all;
  for (const std::string& directory : arguments.directories) {
    const Dump dump(directory);
    for (const Precision precision : arguments.precisions) {
      const bool fp8 = precision == Precision::fp8;
      REQUIRE(!fp8 || dump.fp8.on() || !arguments.chosen, "%s: its recipe.json has no `quantization`",
              directory.c_str());
      if (fp8 && !dump.fp8.on()) continue;
      printf("%s in %s%s on %s:\n", directory.c_str(), kPrecisions[int(precision)],
             fp8 ? format(" (%s)", recipe_name(dump.fp8.recipe)).c_str() : "",
             ranks.size > 1 ? mesh.description().c_str() : device.info().name.c_str());
      all += judge(dump, compute(dump, device, *communicator, mesh, precision, arguments), precision);
      if (fp8 && ranks.size == 1) all += judge_operands(dump, device);
    }
  }
  printf("%d passed, %d failed\n", all.passed, all.failed);
  return all.failed > 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 2 && !strcmp(argv[1], "--help")) {
    printf("%s\n", kUsage);
    return 0;
  }
  require_processor();
  Ranks ranks;
  int code = 1;
  try {
    ranks = Ranks::start(&argc, &argv);
    code = compare(ranks, parse(argc, argv));
  } catch (const std::exception& error) {
    end_all_ranks(ranks, Error(error.what(), ExitCode::unexpected));
  }
  ranks.finish();
  return code;
}

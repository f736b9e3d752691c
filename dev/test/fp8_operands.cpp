// Writes down what the FP8 products of a training's first steps are given, beside what that was quantized from, for
// dev/reference/check_operands.py, whose head says what the files hold.
//
//   fp8_operands DIR RECIPE [WORD…]      on any number of ranks
//
//   large        several blocks of 128 in each dimension; else hidden 48, FFN 80, 37 tokens
//   stage=N      ZeRO;  all-gather: FP8 weights travel;  on-demand: with scales as each block is gathered
//   grad=F  pow2=on|off  skip=NAMES  history=N  latest  margin=N    as the options --fp8-…
//
// Sources that are quantized as they are computed are computed again by the kernels that write them (rmsnorm_forward,
// swiglu_forward, swiglu_backward, rope_backward); weights are the fp32 masters before the step, rounded to bf16.
// Operands lie in the files without their padding, which must be 0. Of a bf16 product a and b are transposed like the
// others: wgrad's are dYᵀ (OC, N) and Xᵀ (IC, N), though it reads dY and X.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "dev/test/arrays.h"
#include "dev/test/observed_source.h"
#include "llmc/base/error.h"
#include "llmc/base/json.h"
#include "llmc/base/text.h"
#include "llmc/comm/communicator.h"
#include "llmc/train/trainer.h"

namespace {

constexpr int kSteps = 3, kMicroSteps = 2;

template <class T>
std::vector<T> transposed(const std::vector<T>& x, size_t rows, size_t columns) {
  std::vector<T> t(x.size());
  for (size_t r = 0; r < rows; ++r)
    for (size_t c = 0; c < columns; ++c) t[c * rows + r] = x[r * columns + c];
  return t;
}

const char* kind_name(ObservedProduct::Kind kind) {
  constexpr const char* names[] = {"forward", "dgrad", "wgrad"};
  return names[int(kind)];
}

std::string stem_of(int layer, Product product) { return format("layers.%d.%s.", layer, product_name(product)); }

// Looks at each product as it is enqueued, when all before it was executed.
class Observer {
 public:
  Observer(Device& device, const LlamaConfig& config) : device_(device), config_(config), stream_(device, "observer") {}

  void begin_step(NamedArrays weights) {
    weights_ = std::move(weights);
    micros_.clear();
    forward_ = false;
  }
  const std::vector<NamedArrays>& micros() const { return micros_; }

  void see(const ObservedProduct& p) {
    using Kind = ObservedProduct::Kind;
    device_.synchronize();
    if (p.kind == Kind::forward && !forward_) micros_.push_back(weights_);
    forward_ = p.kind == Kind::forward;
    const auto [OC, IC] = product_shape(config_, p.product);
    const std::string stem = stem_of(p.layer, p.product), of_kind = stem + kind_name(p.kind) + ".";
    if (p.kind == Kind::forward) add(stem + "x", matrix(source(p, IC), p.N, IC));
    if (p.kind == Kind::dgrad) add(stem + "dy", matrix(source(p, OC), p.N, OC));
    if (p.a) {
      operand(of_kind, "a", p.a);
      operand(of_kind, "b", p.b);
    } else {
      add(of_kind + "a", bf16_transposed(p.wide_a, p.N, OC));
      add(of_kind + "b", bf16_transposed(p.wide_b, p.N, IC));
    }
    if (p.kind == Kind::forward)
      add(of_kind + "out", matrix(download<bf16>(stream_, p.out, size_t(p.N) * OC), p.N, OC));
    if (p.kind == Kind::dgrad) add(of_kind + "out", matrix(download<bf16>(stream_, p.out, size_t(p.N) * IC), p.N, IC));
    // The sum so far: of what was not added up here, later micro-batches lack the ones before.
    if (p.kind == Kind::wgrad && (micros_.size() == 1 || p.accumulated))
      add(of_kind + "out", array_of(StoredType::F32, {size_t(OC), size_t(IC)},
                                    download<float>(stream_, p.out, size_t(OC) * size_t(IC))));
  }

 private:
  void add(const std::string& name, NamedArray array) {
    REQUIRE(micros_.back().emplace(name, std::move(array)).second, "%s was seen twice", name.c_str());
  }
  static NamedArray matrix(const std::vector<bf16>& values, int rows, int columns) {
    return array_of(StoredType::BF16, {size_t(rows), size_t(columns)}, values);
  }
  NamedArray bf16_transposed(const bf16* data, int rows, int columns) {
    const auto values = download<bf16>(stream_, data, size_t(rows) * size_t(columns));
    return matrix(transposed(values, size_t(rows), size_t(columns)), columns, rows);
  }

  std::vector<bf16> source(const ObservedProduct& p, int columns) {
    return computed(stream_, *p.source, p.N, columns, float(config_.norm_eps));
  }

  void operand(const std::string& stem, const std::string& name, const QuantizedTensor& t) {
    UnpaddedOperand operand = unpadded(stem + name, t, download<uint8_t>(stream_, t.data, t.bytes()),
                                       download<float>(stream_, t.factors, t.factor_count()));
    add(stem + name, std::move(operand.data));
    add(stem + "scale_" + name, std::move(operand.inverse));
  }

  Device& device_;
  const LlamaConfig& config_;
  Stream stream_;
  NamedArrays weights_;
  std::vector<NamedArrays> micros_;  // of the step
  bool forward_ = false;
};

struct Choices {
  LlamaConfig config = LlamaConfig::preset("tiny");
  TrainerSettings settings;
};

Choices choices_of(const std::vector<std::string>& words) {
  Choices choices;
  TrainerSettings& s = choices.settings;
  LlamaConfig& c = choices.config;
  const bool large = std::count(words.begin(), words.end(), "large");
  c.L = 2, c.HD = 16, c.V = 97, c.init_std = 0.08;
  c.C = large ? 144 : 48, c.NH = large ? 9 : 3, c.NKV = large ? 3 : 1, c.FF = large ? 272 : 80;
  s.dtype = DType::bf16;
  s.B = 1, s.T = large ? 133 : 37, s.micro_steps = kMicroSteps;
  Fp8Choice fp8;
  fp8.recipe = words.at(1);
  std::map<std::string, std::string> values;
  for (size_t i = 2; i < words.size(); ++i) {
    const size_t equals = std::min(words[i].find('='), words[i].size());
    values[words[i].substr(0, equals)] = equals < words[i].size() ? words[i].substr(equals + 1) : "yes";
  }
  const auto take = [&](const char* key, const char* otherwise) {
    const auto node = values.extract(key);
    return node ? node.mapped() : std::string(otherwise);
  };
  take("large", "");
  s.zero_stage = atoi(take("stage", "0").c_str());
  fp8.gradient = take("grad", "auto"), fp8.power_of_two = take("pow2", "auto"), fp8.skip = take("skip", "");
  s.fp8 = fp8_settings(fp8, c);
  s.fp8.history = atoi(take("history", "1024").c_str()), s.fp8.margin = atoi(take("margin", "0").c_str());
  s.fp8.latest = take("latest", "no") == "yes";
  s.fp8.all_gather = take("all-gather", "no") == "yes";
  s.fp8.precompute_scales = take("on-demand", "no") == "no";
  REQUIRE(values.empty(), "fp8_operands: %s is no word of its", values.begin()->first.c_str());
  return choices;
}

void write_settings(const std::string& directory, const Fp8Settings& fp8) {
  Json skip = Json::array();
  for (size_t i = 0; i < fp8.skipped.size(); ++i)
    if (fp8.skipped[i])
      skip.push_back(format("layers.%zu.%s", i / kProducts, product_name(Product(int(i) % kProducts))));
  Json json = Json::object().set("recipe", recipe_name(fp8.recipe)).set("gradient", format_name(fp8.gradient));
  json.set("pow2", fp8.power_of_two).set("skip", skip);
  if (fp8.delayed())
    json.set("history", fp8.history).set("algorithm", fp8.latest ? "latest" : "max").set("margin", fp8.margin);
  write_file(directory + "/settings.json", Json::object().set("quantization", json).dump() + "\n");
}

// The operands of all products, before the step that uses them. All ranks call.
NamedArrays weights_of(Trainer& trainer, const LlamaConfig& config) {
  NamedArrays arrays;
  for (const Tensor& tensor : trainer.layout().tensors) {
    if (!tensor.row->fp8) continue;
    std::vector<uint16_t> rounded;
    for (const float x : trainer.weights(tensor.name)) rounded.push_back(bf16_bits(x));
    const int layer = trainer.layout().units[size_t(tensor.unit)].layer;
    NamedArray& array = arrays[format("layers.%d.%s.w", layer, tensor.row->product)];
    const NamedArray part = array_of(StoredType::BF16, {uint64_t(tensor.rows), uint64_t(tensor.columns)}, rounded);
    if (array.shape.empty()) array = part;
    else array.shape[0] += part.shape[0], array.bytes.insert(array.bytes.end(), part.bytes.begin(), part.bytes.end());
  }
  for (int layer = 0; layer < config.L; ++layer)
    for (const Product product : kEachProduct) {
      const auto [OC, IC] = product_shape(config, product);
      REQUIRE(arrays.at(stem_of(layer, product) + "w").shape == (Shape{uint64_t(OC), uint64_t(IC)}),
              "the parts of %s are not one operand", product_name(product));
    }
  return arrays;
}

void train(const Ranks& ranks, const std::vector<std::string>& words) {
  const std::string directory = words.at(0);
  const auto [config, settings] = choices_of(words);
  Device device(ranks.local_rank, CpuWorld::from_environment(ranks.local_size));
  const auto communicator = make_communicator(device, ranks, "");
  const auto trainer =
      Trainer::create(device, *communicator, config, settings, Mesh::create(ranks.size, ranks.rank, 1, 1, 0));
  trainer->allocate();
  trainer->initialize(Init::normal, 7);
  if (ranks.rank == 0) write_settings(directory, settings.fp8);

  const size_t tokens = kMicroSteps * size_t(settings.B) * size_t(settings.T);
  Observer observer(device, config);
  double loss = 0;
  for (int step = 0; step < kSteps; ++step) {
    std::vector<int32_t> inputs, labels;
    for (size_t i = 0; i < tokens; ++i) {
      const uint64_t place = (size_t(step) * size_t(ranks.size) + size_t(ranks.rank)) * tokens + i;
      inputs.push_back(int32_t(place * 2654435761u % 9973 % 97));
      labels.push_back(int32_t(place * 40503u % 7919 % 97));
    }
    // What is only looked at between the steps leaves no traces.
    const ptrdiff_t micro = ptrdiff_t(tokens) / kMicroSteps;
    trainer->evaluate({labels.begin(), labels.begin() + micro}, {inputs.begin(), inputs.begin() + micro});
    observer.begin_step(weights_of(*trainer, config));
    trainer->observe([&](const ObservedProduct& product) { observer.see(product); });
    trainer->enqueue_step({step, 1e-2, inputs, labels});
    loss = trainer->wait_for_step().loss;
    trainer->observe({});
    REQUIRE(observer.micros().size() == kMicroSteps, "%zu micro-batches were seen", observer.micros().size());
    for (size_t k = 0; k < kMicroSteps; ++k)
      write_arrays(directory + format("/step%d.micro%zu.rank%d.safetensors", step, k, ranks.rank),
                   observer.micros()[k]);
  }
  if (ranks.rank == 0) printf("%d steps of %d micro-batches, loss %.17g\n", kSteps, kMicroSteps, loss);
}

}  // namespace

int main(int argc, char** argv) {
  Ranks ranks;
  try {
    ranks = Ranks::start(&argc, &argv);
    REQUIRE(argc >= 3, "fp8_operands DIR RECIPE [WORD…]: see the head of its source");
    train(ranks, {argv + 1, argv + argc});
  } catch (const std::exception& error) {
    end_all_ranks(ranks, error);
  }
  ranks.finish();
  return 0;
}

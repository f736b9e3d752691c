// Writes down the operands of the FP8 products of a training's first steps, and what they were quantized from, for
// dev/reference/check_operands.py, whose head says what the files hold.
//
//   fp8_operands DIR RECIPE [WORD…]      on any number of ranks
//
//   large        several blocks of 128 in each dimension; else hidden 48, FFN 80, 37 tokens
//   stage=N      ZeRO;  all-gather: weights are gathered in FP8;  on-demand: with scales as each block is gathered
//   grad=F  pow2=on|off  skip=NAMES  history=N  latest  margin=N    as the options --fp8-…
//
// Sources that are quantized as they are computed are computed again by the kernels that write them (rmsnorm_forward,
// swiglu_forward, swiglu_backward, rope_backward); weights are the fp32 masters before the step, rounded to bf16.
// Operands lie in the files without their padding, which must be 0. Of a bf16 product a and b are transposed like the
// others: wgrad's are dYᵀ (OC, N) and Xᵀ (IC, N), though it reads dY and X.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include "dev/test/arrays.h"
#include "dev/test/observed_source.h"
#include "dev/test/tiny_trainer.h"
#include "llmc/base/json.h"

namespace {

constexpr int kSteps = 3;

std::string stem_of(const LayerProjection& p) { return format("layers.%d.%s.", p.layer, p.name()); }

// Looks at each product as it is enqueued, when all before it was executed.
class Observer {
 public:
  Observer(Device& device, const ModelConfig& config) : device_(device), config_(config), stream_(device, "observer") {}

  void begin_step(NamedArrays weights) {
    weights_ = std::move(weights);
    micros_.clear();
    forward_ = false;
  }
  const std::vector<NamedArrays>& micros() const { return micros_; }

  void see(const ObservedProduct& p) {
    using Kind = ProductKind;
    device_.synchronize();
    if (p.kind == Kind::forward && !forward_) micros_.push_back(weights_);
    forward_ = p.kind == Kind::forward;
    const int OC = p.projection.OC, IC = p.projection.IC;
    const std::string stem = stem_of(p.projection), of_kind = stem + kind_name(p.kind) + ".";
    if (p.kind == Kind::forward) add(stem + "x", matrix(source(p), p.N, IC));
    if (p.kind == Kind::dgrad) add(stem + "dy", matrix(source(p), p.N, OC));
    if (p.a) {
      operand(of_kind, "a", p.a);
      operand(of_kind, "b", p.b);
    } else {
      add(of_kind + "a", bf16_transposed(p.high_precision_a));
      add(of_kind + "b", bf16_transposed(p.high_precision_b));
    }
    if (p.kind == Kind::forward)
      add(of_kind + "out", matrix(download<bf16>(stream_, p.out.data, size_t(p.N) * OC), p.N, OC));
    if (p.kind == Kind::dgrad)
      add(of_kind + "out", matrix(download<bf16>(stream_, p.out.data, size_t(p.N) * IC), p.N, IC));
    // The sum so far: of what was not added up here, later micro-batches lack the ones before.
    if (p.kind == Kind::wgrad && (micros_.size() == 1 || p.accumulated))
      add(of_kind + "out", array_of(StoredType::F32, {size_t(OC), size_t(IC)},
                                    download<float>(stream_, p.out.data, size_t(OC) * size_t(IC))));
  }

 private:
  void add(const std::string& name, NamedArray array) {
    REQUIRE(micros_.back().emplace(name, std::move(array)).second, "%s was seen twice", name.c_str());
  }
  static NamedArray matrix(const std::vector<bf16>& values, int rows, int columns) {
    return array_of(StoredType::BF16, {size_t(rows), size_t(columns)}, values);
  }
  NamedArray bf16_transposed(const Tensor& x) {
    const auto values = download<bf16>(stream_, x.as<bf16>(), size_t(x.size()));
    return matrix(transposed(values, size_t(x.rows()), size_t(x.columns())), int(x.columns()), int(x.rows()));
  }

  std::vector<bf16> source(const ObservedProduct& p) { return computed(stream_, *p.source, float(config_.norm_eps)); }

  void operand(const std::string& stem, const std::string& name, const QuantizedTensor& t) {
    UnpaddedOperand operand = unpadded(stem + name, t, download<uint8_t>(stream_, t.data, t.bytes()),
                                       download<float>(stream_, t.scale_inv, t.scale_inv_count()));
    add(stem + name, std::move(operand.data));
    add(stem + "scale_" + name, std::move(operand.inverse));
  }

  Device& device_;
  const ModelConfig& config_;
  Stream stream_;
  NamedArrays weights_;
  std::vector<NamedArrays> micros_;  // of the step
  bool forward_ = false;
};

struct Choices {
  ModelConfig config;
  TrainerSettings settings;
};

Choices choices_of(const Words& words) {
  Choices choices;
  Values values(words, 2);
  const bool large = values.has("large");
  choices.config = tiny({.C = large ? 144 : 48,
                         .L = 2,
                         .NH = large ? 9 : 3,
                         .NKV = large ? 3 : 1,
                         .FF = large ? 272 : 80,
                         .init_std = 0.08});
  TrainerSettings& s = choices.settings;
  s.dtype = DType::bf16;
  s.B = 1, s.T = large ? 133 : 37, s.micro_batches = 2, s.zero_stage = values.number("stage");
  s.fp8 = fp8_settings({words[1], values.take("grad", "auto"), values.take("pow2", "auto"), values.take("skip")},
                       choices.config);
  s.fp8.history = values.number("history", 1024), s.fp8.margin = values.number("margin");
  s.fp8.latest = values.has("latest"), s.fp8.all_gather = values.has("all-gather");
  s.fp8.precompute_scales = !values.has("on-demand");
  values.require_all_taken();
  return choices;
}

void write_settings(const std::string& directory, const Fp8Settings& fp8, const LayerProjections& projections) {
  Json skip = Json::array();
  for (const LayerProjection& p : projections.all())
    if (!fp8.quantizes(p)) skip.push_back(format("layers.%d.%s", p.layer, p.name()));
  Json json = Json::object().set("recipe", recipe_name(fp8.recipe)).set("gradient", format_name(fp8.gradient));
  json.set("pow2", fp8.power_of_two).set("skip", skip);
  if (fp8.delayed())
    json.set("history", fp8.history).set("algorithm", fp8.latest ? "latest" : "max").set("margin", fp8.margin);
  write_file(directory + "/settings.json", Json::object().set("quantization", json).dump() + "\n");
}

// The operands of all products, before the step that uses them. All ranks call.
NamedArrays weights_of(Trainer& trainer) {
  NamedArrays arrays;
  for (const ParameterInfo& tensor : trainer.layout().tensors) {
    if (!tensor.projection) continue;
    std::vector<uint16_t> rounded;
    for (const float x : trainer.weights(tensor.name)) rounded.push_back(bf16_bits(x));
    NamedArray& array = arrays[stem_of(*tensor.projection) + "w"];
    const NamedArray part = array_of(StoredType::BF16, {uint64_t(tensor.rows), uint64_t(tensor.columns)}, rounded);
    if (array.shape.empty()) array = part;
    else array.shape[0] += part.shape[0], array.bytes.insert(array.bytes.end(), part.bytes.begin(), part.bytes.end());
  }
  for (const LayerProjection& p : trainer.layout().projections.all())
    REQUIRE(arrays.at(stem_of(p) + "w").shape == (Shape{uint64_t(p.OC), uint64_t(p.IC)}),
            "the parts of %s are not one operand", p.name());
  return arrays;
}

void write_operands(const Ranks& ranks, const Words& words) {
  const std::string& directory = words[0];
  const auto [config, settings] = choices_of(words);
  World world(ranks);
  Training training(world, config, settings);
  if (world.first()) write_settings(directory, settings.fp8, training->layout().projections);
  Observer observer(world.device, config);
  const size_t micros = size_t(settings.micro_batches);
  for (int step = 0; step < kSteps; ++step) {
    training.evaluate();  // leaves no traces
    observer.begin_step(weights_of(*training.trainer));
    training->observe([&](const ObservedProduct& product) { observer.see(product); });
    training.train(1);
    training->observe({});
    REQUIRE(observer.micros().size() == micros, "%zu micro-batches were seen", observer.micros().size());
    for (size_t k = 0; k < micros; ++k)
      write_arrays(directory + format("/step%d.micro%zu.rank%d.safetensors", step, k, ranks.rank),
                   observer.micros()[k]);
  }
  if (world.first())
    printf("%d steps of %zu micro-batches, loss %.17g\n", kSteps, micros, training.trained.losses.back());
}

}  // namespace

int main(int argc, char** argv) { return ranks_main(argc, argv, {{"fp8_operands DIR RECIPE […]", write_operands}}); }

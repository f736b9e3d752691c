// Covers: FP8: which products a recipe and --fp8-skip choose; what cannot run is refused with the reason and the
// recipes that can; numbers that are not finite end a training with their tensor's name
//
// Covers: promise 2: sharded weights in FP8 are half of the bytes that are gathered in bf16, apart from norms
#include <algorithm>
#include <cstring>
#include <limits>
#include <map>
#include <tuple>

#include "dev/test/test.h"
#include "dev/test/tiny_trainer.h"
#include "dev/test/token_files.h"
#include "llmc/config/fp8.h"
#include "llmc/device/known_devices.h"
#include "llmc/predict/simulation.h"

namespace {

ModelConfig odd() { return tiny(); }

Fp8Settings settings_of(const char* recipe, const char* skip = "") { return settings_in(recipe, odd(), skip).fp8; }

std::string choice_error(const char* recipe, const char* gradient, const char* skip) {
  Fp8Choice choice;
  choice.recipe = recipe;
  choice.gradient = gradient, choice.skip = skip;
  return error_of([&] { fp8_settings(choice, odd()); });
}

// "qkv o" for each block that is not all in FP8.
std::string in_bf16(const Fp8Settings& settings) {
  const LayerProjections projections(odd());
  std::string text;
  for (int layer = 0; layer < odd().L; ++layer) {
    std::string names;
    for (const LayerProjection& p : projections.of(layer))
      if (!settings.quantizes(p)) names += std::string(" ") + p.name();
    if (!names.empty()) text += format("%d:%s;", layer, names.c_str());
  }
  return text;
}

}  // namespace

TEST_CASE("--fp8-skip names products") {
  CHECK(in_bf16(settings_of("rowwise")) == "");
  CHECK(in_bf16(settings_of("rowwise", "down_proj")) == "0: down;1: down;2: down;");
  CHECK(in_bf16(settings_of("rowwise", "layers.1.")) == "1: qkv o gate_up down;");
  CHECK(in_bf16(settings_of("rowwise", "first=1,last=1")) == "0: qkv o gate_up down;2: qkv o gate_up down;");
  CHECK(in_bf16(settings_of("rowwise", "layers.2.self_attn.v")) == "2: qkv;");
  CHECK(in_bf16(settings_of("rowwise", "layers.*.mlp,layers.0.self_attn.o")) ==
        "0: o gate_up down;1: gate_up down;2: gate_up down;");
  says(choice_error("rowwise", "auto", "lm_head"), "lm_head matches no weight of a product");
  says(choice_error("rowwise", "auto", "layernorm"), "layernorm matches no weight");
  says(choice_error("rowwise", "auto", "down_proj,,o_proj"), "matches no weight");
  says(choice_error("rowwise", "auto", "first=0"), "first=0 matches no weight");
  says(choice_error("rowwise", "auto", "first=3"), "leaves no product in FP8");
  says(choice_error("off", "auto", "down_proj"), "--fp8 is off");
  says(choice_error("rowwise", "e5m2", ""), "--fp8 rowwise has e4m3 everywhere");
  says(choice_error("blockwise", "e5m2", ""), "e5m2 goes with --fp8 tensorwise or delayed");
  CHECK(choice_error("tensorwise", "e4m3", "").empty());

  const std::vector<std::string> lines =
      describe_products(settings_of("tensorwise", "layers.0.,layers.2.mlp.d"), odd());
  CHECK(lines.size() == 5);
  CHECK(lines[0] == "--fp8 tensorwise: inputs and weights e4m3, output gradients e5m2");
  CHECK(lines[1] == "block 0: qkv, o, gate_up, down in bf16");
  CHECK(lines[2] == "block 1: qkv, o, gate_up, down in FP8");
  CHECK(lines[3] == "block 2: qkv, o, gate_up in FP8, down in bf16");
  says(describe_products(settings_of("rowwise-hp-wgrad"), odd()).back(), "weight gradients, attention and head");
}

TEST_CASE("--fp8-head is told, and refused where its products cannot run") {
  DeviceInfo device;
  device.name = "an imagined GPU";
  const ProductRefusal no_e5m2 = [](const QuantizedTensor& a, const QuantizedTensor&, auto...) {
    return a.format == Fp8Format::e5m2 ? "no e5m2" : "";
  };
  for (const auto& [head, in_fp8, in_bf16] :
       {std::tuple("off", "", "attention and head: bf16"),
        std::tuple("backward", "head: backward in FP8", "attention and the head's forward: bf16"),
        std::tuple("on", "head: all products in FP8", "attention: bf16")}) {
    CAPTURE(head);
    Fp8Choice choice;
    choice.recipe = "blockwise", choice.head = head;
    const Fp8Settings settings = fp8_settings(choice, odd());
    const std::vector<std::string> lines = describe_products(settings, odd());
    CHECK(lines.back() == in_bf16);
    says(lines[lines.size() - 2], in_fp8);
    const std::string error = error_of([&] { require_recipe_runs(settings, device, no_e5m2); });
    CHECK(error.empty() == (settings.head == Fp8HeadProducts::off));
    if (!error.empty())
      says(error, format("--fp8-head %s cannot run on an imagined GPU: no e5m2", head), "leave it away");
  }
  Fp8Choice all_of_it;
  all_of_it.recipe = "rowwise-hp-wgrad", all_of_it.head = "on";
  CHECK(describe_products(fp8_settings(all_of_it, odd()), odd()).back() ==
        "weight gradients of blocks and attention: bf16");
}

TEST_CASE("a recipe that cannot run is refused, with those that can") {
  DeviceInfo device;
  device.name = "an imagined GPU";
  const auto refusal = [&](const char* recipe, const ProductRefusal& refuses) {
    return error_of([&] { require_recipe_runs(settings_of(recipe), device, refuses); });
  };
  const ProductRefusal nothing = [](const QuantizedTensor&, const QuantizedTensor&, auto...) { return std::string(); };
  const ProductRefusal no_rows = [](const QuantizedTensor& a, const QuantizedTensor& b, auto...) {
    return a.scaling == Scaling::row || b.scaling == Scaling::row ? "scales of rows want another GPU" : "";
  };
  const ProductRefusal no_e5m2 = [](const QuantizedTensor& a, const QuantizedTensor& b, auto...) {
    return a.format == Fp8Format::e5m2 || b.format == Fp8Format::e5m2 ? "no e5m2" : "";
  };
  // Only gradients of weights have such operands.
  const ProductRefusal no_small_blocks = [](const QuantizedTensor& a, const QuantizedTensor& b, auto...) {
    return a.scaling == Scaling::block_1x128 && b.scaling == Scaling::block_1x128 ? "blocks on both sides" : "";
  };
  const ProductRefusal all = [](const QuantizedTensor&, const QuantizedTensor&, auto...) { return "no FP8 at all"; };
  // Only gradients of weights in later micro-batches have such products.
  const ProductRefusal no_adding = [](const QuantizedTensor&, const QuantizedTensor&, DType result, bool accumulate,
                                      bool) { return result == DType::fp32 && accumulate ? "no adding" : ""; };
  const ProductRefusal no_fast = [](const QuantizedTensor&, const QuantizedTensor&, DType, bool, bool fast) {
    return fast ? "slow" : "";
  };
  for (const char* name : kRecipes) {
    CHECK(refusal(name, nothing).empty());
    says(refusal(name, all), format("--fp8 %s cannot run on an imagined GPU: no FP8 at all\n"
                                    "  no recipe can: leave --fp8 away",
                                    name));
  }
  const std::string others = "\n  those that can: --fp8 tensorwise, delayed, blockwise";
  says(refusal("rowwise", no_rows),
       "--fp8 rowwise cannot run on an imagined GPU: scales of rows want" + std::string(" another GPU") + others);
  says(refusal("rowwise-hp-wgrad", no_rows), others);
  CHECK(refusal("blockwise", no_rows).empty());
  says(refusal("delayed", no_e5m2), "no e5m2\n  those that can: --fp8 rowwise, rowwise-hp-wgrad, blockwise");
  says(refusal("blockwise", no_small_blocks),
       "blocks on both sides\n  those that can: --fp8 tensorwise, delayed, rowwise, rowwise-hp-wgrad");
  CHECK(refusal("rowwise", no_small_blocks).empty());
  says(refusal("tensorwise", no_adding), "no adding\n  those that can: --fp8 rowwise-hp-wgrad");
  says(refusal("rowwise", no_fast), "slow\n  those that can: --fp8 blockwise");
}

TEST_CASE("what is not finite is named") {
  for (const char* recipe : kRecipes)
    for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
      CAPTURE(recipe);
      CAPTURE(bad);
      World world;
      Training training(world, odd(), settings_in(recipe, odd()), {}, {});
      TemporaryFolder folder;
      const std::string path = folder / "weights.safetensors";
      std::vector<TensorSpec> specs;
      for (const ParameterInfo& t : training->layout().tensors) {
        const std::vector<int64_t> shape = t.whole_shape();
        specs.push_back({t.name, StoredType::F32, {shape.begin(), shape.end()}});
      }
      SafetensorsWriter writer(path, specs);
      for (const TensorSpec& spec : specs) {
        std::vector<float> values(spec.elements());
        for (size_t i = 0; i < values.size(); ++i) values[i] = 0.01f * float(int(i * 7919 % 23) - 11);
        if (spec.name == "model.layers.1.mlp.down_proj.weight") values[values.size() - 3] = bad;
        writer.write(spec.name, values.data(), values.size() * sizeof(float));
      }
      writer.finish();
      training->load(Safetensors(path));
      training.enqueue();
      const StepResult result = training.finish();
      CHECK(result.held);
      CHECK(!result.finite);
      const Batch batch = training.batch(0);
      const std::optional<NotFinite> found = training->search_not_finite({0, 1e-2, batch.inputs, batch.labels}).found;
      CHECK(found);
      CHECK(found->tensor == "the weight of down in block 1, which FP8 cannot hold");
      CHECK(found->micro_batch == 0);
      says(error_of([&] { training.evaluate(); }), "block");
    }
}

TEST_CASE("FP8 weights are half of the bytes that are gathered in bf16") {
  for (const int ranks : {2, 3, 8})
    for (const char* skip : {"", "layers.1.mlp.down_proj"}) {
      CAPTURE(ranks);
      CAPTURE(skip);
      const ModelConfig config = tiny({.L = 5});
      TrainerSettings settings = settings_in("tensorwise", config, skip);
      settings.zero_stage = 3;
      const Mesh mesh = Mesh::create(ranks, ranks - 1);
      // How often each number of bytes is gathered in a step, and what is summed without a scatter.
      size_t sums = 0, summed = 0;
      const auto gathered = [&](bool all_gather, bool precompute) {
        settings.fp8.all_gather = all_gather, settings.fp8.precompute_scales = precompute;
        std::map<size_t, int> times;
        sums = summed = 0;
        for (const Record::Entry& entry :
             record_step(config, settings, mesh, modelled_device("H100"), 2).record.entries) {
          if (entry.name == "all_gather") ++times[entry.sent];
          if (entry.name == "all_reduce_sum") ++sums, summed += entry.sent;
        }
        return times;
      };
      const ParameterLayout layout(config, ranks);
      const size_t part = layout.part_size(layout.block_unit(0));
      CHECK(gathered(true, false) == gathered(true, true));
      const size_t others = size_t(ranks - 1);  // what a rank sends of a part
      std::map<size_t, int> high_precision = gathered(false, true);
      const size_t wide_sums = sums, wide_summed = summed;
      std::map<size_t, int> narrow = gathered(true, true);
      const size_t block_in_bf16 = others * part * sizeof(bf16), block_in_fp8 = others * part;
      const int blocks = high_precision[block_in_bf16], narrow_blocks = narrow[block_in_fp8];
      CHECK(blocks > 2 * config.L);
      CHECK(narrow_blocks > 0);
      CHECK(narrow_blocks + narrow[block_in_bf16] == blocks);
      CHECK((narrow[block_in_bf16] > 0) == (skip[0] != 0));
      // The norms of all blocks, padded, in fp32: in a ring each rank sends all but one part of it twice.
      const size_t norms = size_t(config.L) * 2 * ParameterLayout::kAlignment * sizeof(float);
      CHECK(sums == wide_sums + 1);
      CHECK(summed - wide_summed == 2 * (norms * others / size_t(ranks)));
      size_t wide_bytes = 0, narrow_bytes = 0;
      for (const auto& [bytes, times] : high_precision) wide_bytes += bytes * size_t(times);
      for (const auto& [bytes, times] : narrow) narrow_bytes += bytes * size_t(times);
      CHECK(wide_bytes - narrow_bytes == size_t(narrow_blocks) * block_in_fp8);
      printf("%d ranks%s: %zu bytes of weights gathered in bf16, %zu in FP8 (norms %zu)\n", ranks,
             skip[0] ? ", a product in bf16" : "", wide_bytes, narrow_bytes, summed - wide_summed);
    }
}

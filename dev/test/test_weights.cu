// Covers: promise 6: import, export and import again give the same bits, in fp32 and bf16, one file and shards
#include <cstring>

#include "dev/test/test.h"
#include "dev/test/tiny_trainer.h"
#include "dev/test/token_files.h"

namespace {

ModelConfig small(bool tied) { return tiny({.L = 2, .tied = tied}); }

Training trainer_for(World& world, const ModelConfig& config, DType dtype, const std::optional<Init>& init = {}) {
  TrainerSettings settings;
  settings.dtype = dtype;
  settings.B = 2, settings.T = 9;
  return Training(world, config, settings, {}, init);
}

}  // namespace

TEST_CASE("weights survive export and import bit for bit") {
  World world;
  for (bool tied : {false, true})
    for (DType dtype : {DType::fp32, DType::bf16}) {
      CAPTURE(tied);
      TemporaryFolder scratch;
      const ModelConfig config = small(tied);
      Training first = trainer_for(world, config, dtype, Init::depth_scaled);
      // A step makes masters that bf16 cannot hold: the export must keep them all the same.
      first.train(1);
      first->save(scratch / "a");

      Training second = trainer_for(world, ModelConfig::from_json(Json::read(scratch / "a/config.json"), "a"), dtype);
      second->load(Safetensors(scratch / "a"));
      second->save(scratch / "b");
      const Safetensors a(scratch / "a"), b(scratch / "b");
      CHECK(a.tensors().size() == first->layout().tensors.size());
      for (const StoredTensor& t : a.tensors()) {
        CAPTURE(t.name);
        CHECK(memcmp(t.data, b.at(t.name, t.shape).data, t.data_bytes) == 0);
        const std::vector<float> in_memory = first->weights(t.name);
        CHECK(memcmp(t.data, in_memory.data(), t.data_bytes) == 0);
      }
      const std::vector<int32_t> tokens = {1, 2, 3, 4, 5};
      CHECK(first->logits(tokens, 1, 5) == second->logits(tokens, 1, 5));
    }
}

TEST_CASE("initial weights depend on the seed and the name alone") {
  World world;
  Training a = trainer_for(world, small(false), DType::fp32);
  ModelConfig deeper = small(true);
  deeper.L = 3;
  Training b = trainer_for(world, deeper, DType::bf16);
  a->initialize(Init::normal, 1);
  b->initialize(Init::normal, 1);
  const char* name = "model.layers.1.self_attn.k_proj.weight";
  CHECK(a->weights(name) == b->weights(name));
  CHECK(a->weights(name) != a->weights("model.layers.0.self_attn.k_proj.weight"));
  b->initialize(Init::normal, 2);
  CHECK(a->weights(name) != b->weights(name));
}

TEST_CASE("weights that do not fit are refused by name") {
  World world;
  TemporaryFolder scratch;
  Training trainer = trainer_for(world, small(false), DType::fp32);
  trainer->initialize(Init::normal, 1);
  trainer->save(scratch / "a");
  const Safetensors weights(scratch / "a");
  ModelConfig wider = small(false);
  wider.FF = 56;
  const auto refusal = [&](const ModelConfig& config) {
    return error_of([&] { trainer_for(world, config, DType::fp32)->load(weights); });
  };
  CHECK(refusal(wider).find("gate_proj") != std::string::npos);
  ModelConfig deeper = small(false);
  deeper.L = 3;
  CHECK(refusal(deeper).find("model.layers.2") != std::string::npos);
  ModelConfig shallower = small(false);
  shallower.L = 1;
  CHECK(refusal(shallower).empty());
}

TEST_CASE("a head that is stored in a tied model is the embedding, or refused") {
  World world;
  const ModelConfig untied = small(false), tied = small(true);
  Training trainer = trainer_for(world, untied, DType::fp32);
  trainer->initialize(Init::normal, 1);
  std::vector<float> embedding = trainer->weights("model.embed_tokens.weight");
  // Writes the tensors that an untied model exports, with `head` as lm_head.
  const auto stored = [&](const std::string& directory, const std::vector<float>& head) {
    std::vector<TensorSpec> specs;
    for (const ParameterInfo& t : trainer->layout().tensors) {
      const std::vector<int64_t> shape = t.whole_shape();
      specs.push_back({t.name, StoredType::F32, {shape.begin(), shape.end()}});
    }
    SafetensorsDirectoryWriter writer(directory, specs);
    for (const TensorSpec& spec : specs) {
      const std::vector<float> numbers = spec.name == "lm_head.weight" ? head : trainer->weights(spec.name);
      writer.write(spec.name, numbers.data(), spec.bytes());
    }
    writer.finish();
    return error_of([&] { trainer_for(world, tied, DType::fp32)->load(Safetensors(directory)); });
  };
  TemporaryFolder scratch;
  CHECK(stored(scratch / "same", embedding) == "");
  embedding[40 * 96 + 7] += 1;
  const std::string refusal = stored(scratch / "other", embedding);
  CHECK(refusal.find("lm_head.weight differs from model.embed_tokens.weight") != std::string::npos);
  CHECK(refusal.find("in row 96") != std::string::npos);
}

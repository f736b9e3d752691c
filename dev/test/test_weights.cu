// Covers: promise 6: import, export and import again give the same bits, in fp32 and bf16, one file and shards
#include <unistd.h>

#include <cstring>
#include <filesystem>

#include "dev/test/test.h"
#include "llmc/comm/communicator.h"
#include "llmc/train/trainer.h"

namespace fs = std::filesystem;

namespace {

struct Scratch {
  fs::path path = fs::temp_directory_path() / format("llmc-weights-%d", int(getpid()));
  ~Scratch() { fs::remove_all(path); }
  std::string at(const char* name) const { return (path / name).string(); }
};

LlamaConfig small(bool tied) {
  LlamaConfig c = LlamaConfig::preset("tiny");
  c.C = 40, c.L = 2, c.NH = 6, c.NKV = 2, c.HD = 16, c.FF = 52, c.V = 97, c.tied = tied;
  return c;
}

std::unique_ptr<Trainer> trainer_for(Device& device, Communicator& communicator, const LlamaConfig& config,
                                     DType dtype) {
  TrainerSettings settings;
  settings.dtype = dtype;
  settings.B = 2, settings.T = 9;
  auto trainer = Trainer::create(device, communicator, config, settings);
  trainer->allocate();
  return trainer;
}

}  // namespace

TEST_CASE("weights survive export and import bit for bit") {
  Device device;
  SingleCommunicator communicator;
  for (bool tied : {false, true})
    for (DType dtype : {DType::fp32, DType::bf16}) {
      CAPTURE(tied);
      Scratch scratch;
      const LlamaConfig config = small(tied);
      auto first = trainer_for(device, communicator, config, dtype);
      first->initialize(Init::depth_scaled, 7);
      // A step makes masters that bf16 cannot hold: the export must keep them all the same.
      const std::vector<int32_t> inputs(18, 5), labels(18, 6);
      first->enqueue_step({0, 1e-2, inputs, labels});
      first->wait_for_step();
      first->save(scratch.at("a"));

      auto second = trainer_for(device, communicator,
                                LlamaConfig::from_json(Json::read(scratch.at("a/config.json")), "a"), dtype);
      second->load(Safetensors(scratch.at("a")));
      second->save(scratch.at("b"));
      const Safetensors a(scratch.at("a")), b(scratch.at("b"));
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
  Device device;
  SingleCommunicator communicator;
  auto a = trainer_for(device, communicator, small(false), DType::fp32);
  LlamaConfig deeper = small(true);
  deeper.L = 3;
  auto b = trainer_for(device, communicator, deeper, DType::bf16);
  a->initialize(Init::normal, 1);
  b->initialize(Init::normal, 1);
  const char* name = "model.layers.1.self_attn.k_proj.weight";
  CHECK(a->weights(name) == b->weights(name));
  CHECK(a->weights(name) != a->weights("model.layers.0.self_attn.k_proj.weight"));
  b->initialize(Init::normal, 2);
  CHECK(a->weights(name) != b->weights(name));
}

TEST_CASE("weights that do not fit are refused by name") {
  Device device;
  SingleCommunicator communicator;
  Scratch scratch;
  auto trainer = trainer_for(device, communicator, small(false), DType::fp32);
  trainer->initialize(Init::normal, 1);
  trainer->save(scratch.at("a"));
  const Safetensors weights(scratch.at("a"));
  LlamaConfig wider = small(false);
  wider.FF = 56;
  const auto refusal = [&](const LlamaConfig& config) {
    return error_of([&] { trainer_for(device, communicator, config, DType::fp32)->load(weights); });
  };
  CHECK(refusal(wider).find("gate_proj") != std::string::npos);
  LlamaConfig deeper = small(false);
  deeper.L = 3;
  CHECK(refusal(deeper).find("model.layers.2") != std::string::npos);
  LlamaConfig shallower = small(false);
  shallower.L = 1;
  CHECK(refusal(shallower).empty());
}

TEST_CASE("a head that is stored in a tied model is the embedding, or refused") {
  Device device;
  SingleCommunicator communicator;
  const LlamaConfig untied = small(false), tied = small(true);
  auto trainer = trainer_for(device, communicator, untied, DType::fp32);
  trainer->initialize(Init::normal, 1);
  std::vector<float> embedding = trainer->weights("model.embed_tokens.weight");
  // Writes the tensors that an untied model exports, with `head` as lm_head.
  const auto stored = [&](const std::string& directory, const std::vector<float>& head) {
    std::vector<TensorSpec> specs;
    for (const Tensor& t : trainer->layout().tensors) {
      const std::vector<int64_t> shape = t.whole_shape();
      specs.push_back({t.name, StoredType::F32, {shape.begin(), shape.end()}});
    }
    SafetensorsDirectoryWriter writer(directory, specs);
    for (const TensorSpec& spec : specs) {
      const std::vector<float> numbers = spec.name == "lm_head.weight" ? head : trainer->weights(spec.name);
      writer.write(spec.name, numbers.data(), spec.bytes());
    }
    writer.finish();
    return error_of([&] { trainer_for(device, communicator, tied, DType::fp32)->load(Safetensors(directory)); });
  };
  Scratch scratch;
  CHECK(stored(scratch.at("same"), embedding) == "");
  embedding[40 * 96 + 7] += 1;
  const std::string refusal = stored(scratch.at("other"), embedding);
  CHECK(refusal.find("lm_head.weight differs from model.embed_tokens.weight") != std::string::npos);
  CHECK(refusal.find("in row 96") != std::string::npos);
}

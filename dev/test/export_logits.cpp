// Writes tokens and this program's logits for them, for a comparison with PyTorch:
//
//   export_logits MODEL_DIR OUT.safetensors
#include "dev/test/tiny_trainer.h"
#include "llmc/base/json.h"
#include "llmc/base/safetensors.h"

namespace {

void write_logits(const Ranks& ranks, const Words& words) {
  const ModelConfig config = ModelConfig::from_json(Json::read(words[0] + "/config.json"), words[0]);
  World world(ranks);
  TrainerSettings settings;
  settings.B = 2, settings.T = 61;
  Training training(world, config, settings, {}, {});
  training->load(Safetensors(words[0]));
  const uint64_t B = 2, T = 61;
  const std::vector<int32_t> tokens = tokens_of(config.V, 0, B * T).inputs;
  const std::vector<float> logits = training->logits(tokens, int(B), int(T));
  SafetensorsWriter writer(
      words[1], {{"input_ids", StoredType::I32, {B, T}}, {"logits", StoredType::F32, {B, T, uint64_t(config.V)}}});
  writer.write("input_ids", tokens.data(), tokens.size() * sizeof(int32_t));
  writer.write("logits", logits.data(), logits.size() * sizeof(float));
  writer.finish();
}

}  // namespace

int main(int argc, char** argv) {
  return ranks_main(argc, argv, {{"export_logits MODEL_DIR OUT.safetensors", write_logits}});
}

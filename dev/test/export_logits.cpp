// Writes tokens and this program's logits for them, for a comparison with PyTorch:
//
//   export_logits MODEL_DIR OUT.safetensors
#include <cstdio>

#include "llmc/base/error.h"
#include "llmc/base/json.h"
#include "llmc/base/philox.h"
#include "llmc/base/safetensors.h"
#include "llmc/comm/communicator.h"
#include "llmc/train/trainer.h"

int main(int argc, char** argv) try {
  REQUIRE(argc == 3, "usage: export_logits MODEL_DIR OUT.safetensors");
  const std::string directory = argv[1];
  const LlamaConfig config = LlamaConfig::from_json(Json::read(directory + "/config.json"), directory);
  Device device;
  SingleCommunicator communicator;
  TrainerSettings settings;
  settings.B = 2, settings.T = 61;
  auto trainer = Trainer::create(device, communicator, config, settings);
  trainer->allocate();
  trainer->load(Safetensors(directory));
  std::vector<int32_t> tokens;
  for (int i = 0; i < settings.B * settings.T; ++i)
    tokens.push_back(int32_t(philox_word(1, uint64_t(i), 0) % uint32_t(config.V)));
  const std::vector<float> logits = trainer->logits(tokens, settings.B, settings.T);
  const uint64_t B = uint64_t(settings.B), T = uint64_t(settings.T);
  SafetensorsWriter writer(
      argv[2], {{"input_ids", StoredType::I32, {B, T}}, {"logits", StoredType::F32, {B, T, uint64_t(config.V)}}});
  writer.write("input_ids", tokens.data(), tokens.size() * sizeof(int32_t));
  writer.write("logits", logits.data(), logits.size() * sizeof(float));
  writer.finish();
} catch (const std::exception& error) {
  fprintf(stderr, "error: %s\n", error.what());
  return 1;
}

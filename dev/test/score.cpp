// Writes what this program measures of a model, for a comparison with PyTorch: score MODEL_DIR ITEMS TEXT SEQ_LEN OUT
//
// OUT: JSON with `held_out` (nats a token and bits a byte of the windows of TEXT, each byte or token by the model's
// tokenizer) and, for each format of the items, the log-likelihoods of each item's endings and the accuracies.
#include <cstdio>

#include "llmc/base/error.h"
#include "llmc/base/json.h"
#include "llmc/base/new_file.h"
#include "llmc/comm/communicator.h"
#include "llmc/train/evaluation.h"

namespace {

Json measured(Trainer& trainer, const std::string& items, ChoiceFormat format, const TextCodec& codec, int B, int T) {
  Evaluation evaluation(0, 1, B, T);
  std::vector<ChoiceItem> choices = read_choices(items, format, codec);
  cut_choices(choices, items, T);
  evaluation.ask_choices(std::move(choices));
  Json all = Json::array();
  for (const std::vector<float>& of_item : evaluation.log_likelihoods(trainer)) {
    Json one = Json::array();
    for (const float x : of_item) one.push_back(double(x));
    all.push_back(one);
  }
  const ChoiceScore score = *evaluation.run(trainer).choices;
  return Json::object()
      .set("log_likelihoods", all)
      .set("acc", score.acc)
      .set("acc_norm", score.acc_norm)
      .set("acc_norm_tokens", score.acc_norm_tokens);
}

}  // namespace

int main(int argc, char** argv) try {
  REQUIRE(argc == 6, "usage: score MODEL_DIR ITEMS TEXT SEQ_LEN OUT");
  const std::string directory = argv[1], items = argv[2], text = argv[3];
  const LlamaConfig config = LlamaConfig::from_json(Json::read(directory + "/config.json"), directory);
  Device device;
  SingleCommunicator communicator;
  TrainerSettings settings;
  settings.B = 3, settings.T = std::stoi(argv[4]), settings.training = false;
  auto trainer = Trainer::create(device, communicator, config, settings);
  trainer->allocate();
  trainer->load(Safetensors(directory));
  const TextCodec codec = TextCodec::open("", directory, "", config);
  Evaluation held_out(0, 1, settings.B, settings.T);
  held_out.measure_loss(ValidationWindows(TokenDataset::open(text, config.V), settings.T, 16), {}, codec);
  const EvaluationResult result = held_out.run(*trainer);
  const Json out =
      Json::object()
          .set("held_out", Json::object().set("nats", *result.loss).set("bits_per_byte", *result.bits_per_byte))
          .set("lm-eval", measured(*trainer, items, ChoiceFormat::lm_eval, codec, settings.B, settings.T))
          .set("llm.c", measured(*trainer, items, ChoiceFormat::llmc, codec, settings.B, settings.T));
  write_file(argv[5], out.dump(1) + "\n");
} catch (const std::exception& error) {
  fprintf(stderr, "error: %s\n", error.what());
  return 1;
}

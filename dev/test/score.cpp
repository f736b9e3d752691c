// Writes what this program measures of a model, for a comparison with PyTorch: score MODEL_DIR ITEMS TEXT SEQ_LEN OUT
//
// OUT: JSON with `held_out` (nats a token and bits a byte of the windows of TEXT, each byte or token by the model's
// tokenizer) and, for each format of the items, the log-likelihoods of each item's endings and the accuracies.
#include "dev/test/tiny_trainer.h"
#include "llmc/base/json.h"
#include "llmc/base/new_file.h"
#include "llmc/run/evaluation.h"

namespace {

Json measured(Trainer& trainer, const std::string& items, ChoiceFormat format, const TextCodec& codec, int B, int T) {
  Evaluation evaluation(0, 1, B, T);
  std::vector<ChoiceItem> choices = read_choices(items, format, ChoiceKeys(), codec);
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

void score(const Ranks& ranks, const Words& words) {
  const std::string &directory = words[0], &items = words[1], &text = words[2];
  const ModelConfig config = ModelConfig::from_json(Json::read(directory + "/config.json"), directory);
  World world(ranks);
  TrainerSettings settings;
  settings.B = 3, settings.T = std::stoi(words[3]), settings.training = false;
  Training training(world, config, settings, {}, {});
  training->load(Safetensors(directory));
  const TextCodec codec = TextCodec::open("", directory, "", config);
  Evaluation held_out(0, 1, settings.B, settings.T);
  held_out.measure_loss(ValidationWindows(TokenDataset::open(text, config.V), settings.T, 16), {}, codec);
  const EvaluationResult result = held_out.run(*training.trainer);
  const auto scored = [&](ChoiceFormat format) {
    return measured(*training.trainer, items, format, codec, settings.B, settings.T);
  };
  const Json out =
      Json::object()
          .set("held_out",
               Json::object().set("nats", result.loss->nats).set("bits_per_byte", *result.loss->bits_per_byte))
          .set("lm-eval", scored(ChoiceFormat::lm_eval))
          .set("llm.c", scored(ChoiceFormat::llmc));
  write_file(words[4], out.dump(1) + "\n");
}

}  // namespace

int main(int argc, char** argv) { return ranks_main(argc, argv, {{"score MODEL_DIR ITEMS TEXT SEQ_LEN OUT", score}}); }

// Computes the batches of dev/reference/make_batches.py, each as a first step:  fp8_errors DIR OUT
//
// OUT holds what DIR/batches_expected.safetensors does, under the same names: logits (batches, B, T, V), loss and
// grad_norm (batches), grad.<name> (batches, its shape). dev/reference/compare_batches.py compares the two.
#include "dev/test/quantization.h"
#include "dev/test/tiny_trainer.h"
#include "llmc/base/json.h"
#include "llmc/base/safetensors.h"

namespace {

// Elements of one batch of a tensor (batches, B, T).
std::vector<int32_t> tokens_of(const StoredTensor& tensor, size_t batch) {
  REQUIRE(tensor.type == StoredType::I32 && tensor.shape.size() == 3, "%s: %s is %s %s, expected I32 (batches, B, T)",
          tensor.file.c_str(), tensor.name.c_str(), name_of(tensor.type), text_of(tensor.shape).c_str());
  std::vector<int32_t> values(tensor.shape[1] * tensor.shape[2]);
  const size_t bytes = values.size() * sizeof(int32_t);
  memcpy(values.data(), Safetensors::range(tensor, batch * bytes, bytes), bytes);
  return values;
}

void compute(const Ranks& ranks, const Words& words) {
  const std::string& directory = words[0];
  const ModelConfig config = ModelConfig::from_json(Json::read(directory + "/config.json"), directory);
  const Json quantization = Json::read(directory + "/settings.json").at("quantization");
  const Safetensors model(directory + "/model.safetensors"), batches(directory + "/batches.safetensors");
  const StoredTensor& inputs = batches.at("input_ids");
  const StoredTensor& labels = batches.at("labels", inputs.shape);
  TrainerSettings settings;
  settings.dtype = DType::bf16;
  settings.B = int(inputs.shape.at(1)), settings.T = int(inputs.shape.at(2));
  if (!quantization.is_null()) settings.fp8 = read_quantization(quantization, config);

  std::map<std::string, std::vector<float>> results;  // of all batches
  const auto keep = [&](const std::string& name, const std::vector<float>& values) {
    results[name].insert(results[name].end(), values.begin(), values.end());
  };
  std::map<std::string, Shape> shapes = {
      {"logits", {inputs.shape[0], inputs.shape[1], inputs.shape[2], uint64_t(config.V)}},
      {"loss", {inputs.shape[0]}},
      {"grad_norm", {inputs.shape[0]}}};
  World world(ranks);
  for (size_t batch = 0; batch < inputs.shape[0]; ++batch) {
    // One of its own: delayed scales have no history.
    Training training(world, config, settings, {}, {});
    training->load(model);
    const Batch own{tokens_of(inputs, batch), tokens_of(labels, batch), {}};
    keep("logits", training->logits(own.inputs, settings.B, settings.T));
    training.enqueue(own);
    const StepResult result = training.finish();
    keep("loss", {float(result.loss)});
    keep("grad_norm", {result.grad_norm});
    for (const auto& [tensor, gradient] : training.end().gradients) {
      const std::string name = "grad." + tensor;
      keep(name, gradient);
      Shape& shape = shapes[name] = model.at(tensor).shape;
      shape.insert(shape.begin(), inputs.shape[0]);
    }
  }
  std::vector<TensorSpec> specs;
  for (const auto& [name, shape] : shapes) specs.push_back({name, StoredType::F32, shape});
  SafetensorsWriter writer(words[1], specs);
  for (const auto& [name, values] : results) writer.write(name, values.data(), values.size() * sizeof(float));
  writer.finish();
}

}  // namespace

int main(int argc, char** argv) { return ranks_main(argc, argv, {{"fp8_errors DIR OUT", compute}}); }

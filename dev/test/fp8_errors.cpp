// Computes the batches of dev/reference/make_batches.py, each as a first step:  fp8_errors DIR OUT
//
// OUT holds what DIR/batches_expected.safetensors does, under the same names: logits (batches, B, T, V), loss and
// grad_norm (batches), grad.<name> (batches, its shape). dev/reference/compare_batches.py compares the two.
#include <cstdio>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "dev/test/quantization.h"
#include "llmc/base/error.h"
#include "llmc/base/json.h"
#include "llmc/base/safetensors.h"
#include "llmc/comm/communicator.h"
#include "llmc/train/trainer.h"

namespace {

// Of one batch: elements of (batches, B, T).
std::vector<int32_t> tokens_of(const StoredTensor& tensor, size_t batch) {
  REQUIRE(tensor.type == StoredType::I32 && tensor.shape.size() == 3, "%s: %s is %s %s, expected I32 (batches, B, T)",
          tensor.file.c_str(), tensor.name.c_str(), name_of(tensor.type), text_of(tensor.shape).c_str());
  std::vector<int32_t> values(tensor.shape[1] * tensor.shape[2]);
  const size_t bytes = values.size() * sizeof(int32_t);
  memcpy(values.data(), Safetensors::range(tensor, batch * bytes, bytes), bytes);
  return values;
}

void compute(const std::string& directory, const std::string& out) {
  const LlamaConfig config = LlamaConfig::from_json(Json::read(directory + "/config.json"), directory);
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
  Device device;
  SingleCommunicator communicator;
  for (size_t batch = 0; batch < inputs.shape[0]; ++batch) {
    // One of its own: delayed scales have no history.
    const auto trainer = Trainer::create(device, communicator, config, settings);
    trainer->allocate();
    trainer->load(model);
    const std::vector<int32_t> own_inputs = tokens_of(inputs, batch), own_labels = tokens_of(labels, batch);
    keep("logits", trainer->logits(own_inputs, settings.B, settings.T));
    trainer->enqueue_step({0, 1e-3, own_inputs, own_labels});
    const StepResult result = trainer->wait_for_step();
    keep("loss", {float(result.loss)});
    keep("grad_norm", {result.grad_norm});
    for (const Tensor& tensor : trainer->layout().tensors) {
      const std::string name = "grad." + tensor.name;
      keep(name, trainer->gradients(tensor.name));
      Shape& shape = shapes[name] = model.at(tensor.name).shape;
      shape.insert(shape.begin(), inputs.shape[0]);
    }
  }
  std::vector<TensorSpec> specs;
  for (const auto& [name, shape] : shapes) specs.push_back({name, StoredType::F32, shape});
  SafetensorsWriter writer(out, specs);
  for (const auto& [name, values] : results) writer.write(name, values.data(), values.size() * sizeof(float));
  writer.finish();
}

}  // namespace

int main(int argc, char** argv) try {
  REQUIRE(argc == 3, "usage: fp8_errors DIR OUT");
  compute(argv[1], argv[2]);
} catch (const std::exception& error) {
  fprintf(stderr, "error: %s\n", error.what());
  return 1;
}

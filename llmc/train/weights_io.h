// Weights between the device and Hugging Face's files.
#pragma once

#include <functional>
#include <string>

#include "llmc/base/safetensors.h"
#include "llmc/device/device.h"
#include "llmc/model/config.h"
#include "llmc/model/tensors.h"

// The stored numbers as fp32 into out[count], exactly: F32, F16, BF16. Throws on any other type.
void read_as_fp32(const StoredTensor& tensor, uint64_t first, uint64_t count, float* out);

// Throws on a tensor of the layout that `weights` does not have, or has in another shape, and on one that the model has
// no place for. Layers beyond a model that was `shortened` are passed over, and so is the head of a tied model if its
// numbers are the embedding's; else it is refused.
void require_weights_fit(const TensorLayout& layout, const Safetensors& weights, bool shortened = false);

// A piece of a tensor, from `weights`, which fit, to the device. Reads no more of them.
void load_piece(Stream& stream, float* to, const Piece& piece, const Safetensors& weights);

// config.json, generation_config.json (as it was beside the weights that were loaded, or made of config.json's tokens)
// and the fp32 weights, unit by unit in their order, as a directory that Hugging
// Face's AutoModelForCausalLM.from_pretrained reads. The weights get their final names last, when all is on disk.
class WeightsWriter {
 public:
  WeightsWriter(const std::string& directory, const TensorLayout& layout, const LlamaConfig& config);
  // All of a unit: `read` gives elements first .. first+count-1 of a tensor.
  using Read = std::function<void(const Tensor& tensor, size_t first, size_t count, float* out)>;
  void write_unit(int unit, const Read& read);
  void finish();

 private:
  const std::string directory_;
  const TensorLayout& layout_;
  const LlamaConfig& config_;
  SafetensorsDirectoryWriter writer_;
};

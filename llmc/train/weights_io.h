// Moves weights between the device and Hugging Face's files.
#pragma once

#include <functional>
#include <string>

#include "llmc/base/safetensors.h"
#include "llmc/config/config.h"
#include "llmc/config/parameters.h"
#include "llmc/device/device.h"

// Converts stored numbers first .. first+count-1, which are F32, F16 or BF16, exactly to fp32 in out[count]. Throws on
// any other type.
void read_as_fp32(const StoredTensor& tensor, uint64_t first, uint64_t count, float* out);

// Throws if `weights` lacks a tensor of the layout or has it in another shape, and if it has a tensor that the model
// has no place for. Layers beyond a model that was `shortened` are ignored. The head of a tied model is ignored if its
// numbers are those of the embedding; otherwise this throws.
void require_weights_fit(const ParameterLayout& layout, const Safetensors& weights, bool shortened = false);

// Copies a slice of a tensor from `weights`, which must fit, to the device. Reads no more than that slice.
void load_slice(Stream& stream, float* to, const Slice& slice, const Safetensors& weights);

// Writes a directory that Hugging Face's AutoModelForCausalLM.from_pretrained reads: config.json,
// generation_config.json (that of the weights that were loaded, or made of config.json's tokens) and the fp32
// weights, unit by unit in order. The weights get their final names last, when all is on disk.
class WeightsWriter {
 public:
  WeightsWriter(const std::string& directory, const ParameterLayout& layout, const ModelConfig& config);
  // Writes a whole unit. `read` fills `out` with elements first .. first+count-1 of a tensor.
  using Read = std::function<void(const ParameterInfo& tensor, size_t first, size_t count, float* out)>;
  void write_unit(int unit, const Read& read);
  void finish();
  // Returns the first tensor with an infinity or NaN among those that were written; "" if there is none.
  const std::string& not_finite() const { return not_finite_; }

 private:
  std::string not_finite_;
  const std::string directory_;
  const ParameterLayout& layout_;
  const ModelConfig& config_;
  SafetensorsDirectoryWriter writer_;
};

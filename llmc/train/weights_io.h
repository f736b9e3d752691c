// Weights between the device and Hugging Face's files.
#pragma once

#include <string>

#include "llmc/base/safetensors.h"
#include "llmc/device/device.h"
#include "llmc/model/config.h"
#include "llmc/model/tensors.h"

// The stored numbers as fp32 into out[count], exactly: F32, F16, BF16. Throws on any other type.
void read_as_fp32(const StoredTensor& tensor, uint64_t first, uint64_t count, float* out);

// Throws on a tensor of the layout that `weights` does not have, or has in another shape, and on one that the model has
// no place for; but a head that is tied, and layers beyond a model that was `shortened` are passed over.
void require_weights_fit(const TensorLayout& layout, const Safetensors& weights, bool shortened = false);

// Every tensor of the layout from `weights`, which fit, into the flat buffer `master` (device).
void load_weights(Stream& stream, float* master, const TensorLayout& layout, const Safetensors& weights);

// config.json, generation_config.json and the fp32 weights of the flat buffer as a directory that Hugging Face's
// AutoModelForCausalLM.from_pretrained reads. The weights get their final names last, when all is on disk.
void save_weights(Stream& stream, const float* master, const TensorLayout& layout, const LlamaConfig& config,
                  const std::string& directory);

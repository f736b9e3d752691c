#include "llmc/train/weights_io.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <unordered_set>

#include "llmc/base/error.h"
#include "llmc/base/new_file.h"
#include "llmc/device/number.h"

namespace {

constexpr size_t kChunk = size_t(16) << 20;  // elements that pass through the host at once

// Converts IEEE half precision, exactly.
float half_to_float(uint16_t h) {
  const uint32_t sign = uint32_t(h & 0x8000) << 16, exponent = h >> 10 & 31, mantissa = h & 1023;
  if (exponent == 31) return bits_to_float(sign | 0x7f800000u | mantissa << 13);
  if (exponent) return bits_to_float(sign | (exponent + 112) << 23 | mantissa << 13);
  const float value = float(mantissa) * 0x1p-24f;
  return sign ? -value : value;
}

std::vector<uint64_t> stored_shape(const ParameterInfo& t) {
  std::vector<uint64_t> shape;
  for (int64_t extent : t.whole_shape()) shape.push_back(uint64_t(extent));
  return shape;
}

}  // namespace

void read_as_fp32(const StoredTensor& tensor, uint64_t first, uint64_t count, float* out) {
  const uint64_t width = bytes_of(tensor.type);
  const std::byte* data = Safetensors::range(tensor, first * width, count * width);
  const auto half = [&](uint64_t i) {
    uint16_t bits;
    memcpy(&bits, data + 2 * i, 2);
    return bits;
  };
  switch (tensor.type) {
    case StoredType::F32:
      memcpy(out, data, count * 4);
      return;
    case StoredType::BF16:
      for (uint64_t i = 0; i < count; ++i) out[i] = to_float(bf16{half(i)});
      return;
    case StoredType::F16:
      for (uint64_t i = 0; i < count; ++i) out[i] = half_to_float(half(i));
      return;
    default:
      fail("%s: tensor %s is stored as %s, expected F32, BF16 or F16", tensor.file.c_str(), tensor.name.c_str(),
           name_of(tensor.type));
  }
}

namespace {

// Throws if a tied model stores a head that differs from the embedding: training the embedding alone would lose it.
void require_same_numbers(const StoredTensor& head, const StoredTensor& embedding) {
  REQUIRE(head.shape == embedding.shape, "%s: %s is %s, and %s, to which config.json ties it, is %s", head.file.c_str(),
          head.name.c_str(), text_of(head.shape).c_str(), embedding.name.c_str(), text_of(embedding.shape).c_str());
  const uint64_t size = head.elements();
  std::vector<float> a, b;
  for (uint64_t first = 0; first < size; first += a.size()) {
    const uint64_t count = std::min<uint64_t>(kChunk, size - first);
    a.resize(count), b.resize(count);
    read_as_fp32(head, first, count, a.data());
    read_as_fp32(embedding, first, count, b.data());
    if (memcmp(a.data(), b.data(), count * sizeof(float)) == 0) continue;
    size_t i = 0;
    while (float_to_bits(a[i]) == float_to_bits(b[i])) ++i;
    fail(
        "%s: %s differs from %s (%g and %g in row %llu), and config.json says \"tie_word_embeddings\": true\n"
        "  set it to false to train both, or take the head out of the file to train the embedding as the head",
        head.file.c_str(), head.name.c_str(), embedding.name.c_str(), double(a[i]), double(b[i]),
        (unsigned long long)((first + i) / head.shape[1]));
  }
}

}  // namespace

void require_weights_fit(const ParameterLayout& layout, const Safetensors& weights, bool shortened) {
  std::unordered_set<std::string> known;
  for (const ParameterInfo& t : layout.tensors) {
    known.insert(t.name);
    weights.at(t.name, stored_shape(t));
  }
  const int layers = int(layout.units.size()) - 2;
  for (const StoredTensor& stored : weights.tensors()) {
    // Harmless are a tied head, tables that older versions stored, and layers beyond a model that was shortened.
    int layer = 0;
    const bool harmless =
        stored.name == "lm_head.weight" || stored.name.ends_with("rotary_emb.inv_freq") ||
        (shortened && sscanf(stored.name.c_str(), "model.layers.%d.", &layer) == 1 && layer >= layers);
    REQUIRE(harmless || known.count(stored.name), "%s: the model has no place for tensor %s %s", stored.file.c_str(),
            stored.name.c_str(), text_of(stored.shape).c_str());
  }
  const StoredTensor* head = weights.find("lm_head.weight");
  if (head && !known.count(head->name)) require_same_numbers(*head, weights.at("model.embed_tokens.weight"));
}

void load_slice(Stream& stream, float* to, const Slice& slice, const Safetensors& weights) {
  const StoredTensor& stored = weights.at(slice.tensor->name);
  std::vector<float> numbers;
  for (size_t done = 0; done < slice.count; done += numbers.size()) {
    numbers.resize(std::min(kChunk, slice.count - done));
    slice.window().from(done).for_runs(numbers.size(), [&](size_t at, uint64_t first, size_t count) {
      read_as_fp32(stored, first, count, numbers.data() + at);
    });
    copy(stream, to + done, numbers.data(), numbers.size());
    stream.synchronize();
  }
}

namespace {

std::vector<TensorSpec> specs_of(const ParameterLayout& layout) {
  std::vector<TensorSpec> specs;
  for (const ParameterInfo& t : layout.tensors) specs.push_back({t.name, StoredType::F32, stored_shape(t)});
  return specs;
}

}  // namespace

WeightsWriter::WeightsWriter(const std::string& directory, const ParameterLayout& layout, const ModelConfig& config)
    : directory_(directory), layout_(layout), config_(config), writer_(directory, specs_of(layout)) {}

void WeightsWriter::write_unit(int unit, const Read& read) {
  std::vector<float> numbers;
  for (const Slice& slice : layout_.slices(unit, 0, layout_.units[size_t(unit)].size)) {
    for (size_t done = 0; done < slice.count; done += numbers.size()) {
      numbers.resize(std::min(kChunk, slice.count - done));
      read(*slice.tensor, done, numbers.size(), numbers.data());
      if (not_finite_.empty() && !std::ranges::all_of(numbers, [](float x) { return std::isfinite(x); }))
        not_finite_ = slice.tensor->name;
      writer_.write(slice.tensor->name, numbers.data(), numbers.size() * sizeof(float));
    }
  }
}

void WeightsWriter::finish() {
  const std::filesystem::path folder(directory_);
  const Json json = config_.to_json();
  Json generation = config_.generation.is_null() ? Json::object() : config_.generation;
  for (const char* token : {"bos_token_id", "eos_token_id", "pad_token_id"})
    if (json.contains(token) && !generation.contains(token)) generation.set(token, json.at(token));
  write_file((folder / "config.json").string(), json.dump(2) + "\n");
  write_file((folder / "generation_config.json").string(), generation.dump(2) + "\n");
  writer_.finish();
}

// The shape of a model, with Hugging Face's names for its values.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "llmc/base/json.h"
#include "llmc/config/family.h"
#include "llmc/kernels/rope.h"

// The largest model that is accepted. These limits are far beyond every known model. They keep products of the sizes
// within 32 bits, and the sum of all weights within 64.
inline constexpr int kMostLayers = 10'000;
inline constexpr int kMostWidth = 1 << 20;       // hidden size, FFN, and all query heads together
inline constexpr int kMostVocabulary = 1 << 24;  // tokens

// How layers of one model differ.
struct Layer {
  bool windowed = false;  // its attention has the sliding window
};

struct ModelConfig {
  std::string name;  // of the preset or the directory
  const Family* family = kFamilies;
  int C = 0;    // hidden_size
  int L = 0;    // num_hidden_layers
  int NH = 0;   // num_attention_heads
  int NKV = 0;  // num_key_value_heads
  int HD = 0;   // head_dim
  int FF = 0;   // intermediate_size
  int V = 0;    // vocab_size
  double norm_eps = 1e-5;
  double init_std = 0.02;  // initializer_range
  bool tied = false;       // tie_word_embeddings: the head is the embedding
  int max_positions = 0;
  RopeScaling rope;
  // The sliding window: a query sees this many keys at most, its own included. 0: no layer has one.
  int window = 0;
  std::vector<Layer> layers;  // (L); empty: all are as Layer{}
  int bos = -1;               // -1: none
  int pad = -1;               // pad_token_id: where it is an input, its row of the embedding gets no gradient
  std::vector<int> eos;       // Hugging Face's file has one number or a list
  Json generation;            // generation_config.json as it was beside the weights; null: there was no such file

  int q_width() const { return NH * HD; }
  int kv_width() const { return NKV * HD; }
  int qkv_width() const { return (NH + 2 * NKV) * HD; }
  int window_of(int layer) const { return window > 0 && layers[size_t(layer)].windowed ? window : 0; }
  int windowed_layers() const;
  // New layers are as the last one. Throws on more than kMostLayers.
  void set_layers(int count);
  int64_t parameters() const;
  // The tokens that end a sampled text: those of generation_config.json or, if it names none, those of config.json.
  std::vector<int> end_tokens() const;

  // Throws, with the values, if no such model can exist or our kernels cannot compute it.
  void check() const;

  // Returns the part of the model that one rank of a tensor-parallel group computes: its heads, its columns of the MLP
  // and its rows of the vocabulary. The last rank may have fewer rows of the vocabulary. If there are fewer key and
  // value heads than ranks, several ranks have the same ones. Throws on a degree that does not divide them, and names
  // the degrees that do.
  ModelConfig tensor_part(int degree, int rank) const;
  int vocabulary_part(int degree) const { return (V + degree - 1) / degree; }  // rows of all ranks but the last

  // The names are those of presets().
  static ModelConfig preset(const std::string& name);
  static std::vector<std::string> presets();
  // Reads Hugging Face's config.json of any family, with today's names (rope_parameters, dtype) or the older ones
  // (rope_theta, rope_scaling, torch_dtype). Throws on everything that this program would compute differently: other
  // families, the keys of config_keys.h, and other kinds of RoPE than those of RopeType.
  static ModelConfig from_json(const Json& json, const std::string& name);
  Json to_json() const;

  // Floating-point operations per token of one forward and one backward pass: 6 N plus attention. N counts the
  // parameters of all products, so it counts the embedding only where it is the head too. `causal` false counts all of
  // attention, 12 L NH HD T, as torchtitan does; true counts only the pairs that the causal mask leaves, 6 L NH HD T,
  // as llm.c does. Neither counts pairs that a window hides.
  double flops_per_token(int T, bool causal) const;
};

// Reads null, one number or a list.
std::vector<int> read_tokens(const Json& json);

// The shape of a model, with Hugging Face's names for its values.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "llmc/base/json.h"
#include "llmc/kernels/rope.h"

struct ModelConfig {
  std::string name;  // of the preset or the directory
  int C = 0;         // hidden_size
  int L = 0;         // num_hidden_layers
  int NH = 0;        // num_attention_heads
  int NKV = 0;       // num_key_value_heads
  int HD = 0;        // head_dim
  int FF = 0;        // intermediate_size
  int V = 0;         // vocab_size
  double norm_eps = 1e-5;
  double init_std = 0.02;  // initializer_range
  bool tied = false;       // tie_word_embeddings: the head is the embedding
  int max_positions = 0;
  RopeScaling rope;
  int bos = -1;          // -1: none
  int pad = -1;          // pad_token_id. It is an ordinary token here: its embedding is trained wherever it occurs
  std::vector<int> eos;  // Hugging Face's file has one number or a list
  Json generation;       // generation_config.json as it was beside the weights; null: there was no such file

  int q_width() const { return NH * HD; }
  int kv_width() const { return NKV * HD; }
  int qkv_width() const { return (NH + 2 * NKV) * HD; }
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

  // Presets: tiny, llama2-7b, llama3.2-1b, llama3.2-3b, llama3-8b, llama3-70b, llama3-405b.
  static ModelConfig preset(const std::string& name);
  static std::vector<std::string> presets();
  // Reads Hugging Face's config.json, with today's names (rope_parameters, dtype) or the older ones (rope_theta,
  // rope_scaling, torch_dtype). Throws on everything that this program would compute differently: the keys of
  // config_keys.h, and kinds of RoPE other than "default" and "llama3".
  static ModelConfig from_json(const Json& json, const std::string& name);
  Json to_json() const;

  // Floating-point operations per token of one forward and one backward pass: 6 N plus attention. N counts the
  // parameters of all products, so it counts the embedding only where it is the head too. `causal` false counts all of
  // attention, 12 L NH HD T, as torchtitan does; true counts only the pairs that the causal mask leaves, 6 L NH HD T,
  // as llm.c does.
  double flops_per_token(int T, bool causal) const;
};

// The shape of a Llama-3-class model, in Hugging Face's terms.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "llmc/base/json.h"
#include "llmc/kernels/rope.h"

struct LlamaConfig {
  std::string name;  // the preset's or directory's
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
  int pad = -1;          // pad_token_id, an ordinary token here: its embedding is trained wherever the token occurs
  std::vector<int> eos;  // Hugging Face has one or a list
  Json generation;       // generation_config.json as it was beside the weights; null: there was none

  int q_width() const { return NH * HD; }
  int kv_width() const { return NKV * HD; }
  int qkv_width() const { return (NH + 2 * NKV) * HD; }
  int64_t parameters() const;
  // What ends a text that is sampled: generation_config.json's, or if it names none the config's.
  std::vector<int> end_tokens() const;

  // Throws with the values if no such model can exist or our kernels cannot take it.
  void check() const;

  // What of the model a rank of a tensor-parallel group computes: its heads, columns of the MLP and rows of the
  // vocabulary, of which the last rank may have fewer. With fewer key and value heads than ranks several have the same.
  // Throws on a degree that does not divide them, naming those that would.
  LlamaConfig tensor_part(int degree, int rank) const;
  int vocabulary_part(int degree) const { return (V + degree - 1) / degree; }  // rows of all ranks but the last

  // Presets: tiny, llama2-7b, llama3.2-1b, llama3.2-3b, llama3-8b, llama3-70b, llama3-405b.
  static LlamaConfig preset(const std::string& name);
  static std::vector<std::string> presets();
  // Hugging Face's config.json, in today's names (rope_parameters, dtype) or the older ones (rope_theta, rope_scaling,
  // torch_dtype). Refuses what this program would compute differently: see config_keys.h, and other kinds of RoPE.
  static LlamaConfig from_json(const Json& json, const std::string& name);
  Json to_json() const;

  // Floating-point operations a token of one forward and backward pass. N counts the parameters of all products, so the
  // embedding only where it is the head too. Attention in full, as torchtitan counts, or only what the causal mask
  // leaves, as llm.c does.
  double flops_per_token(int T, bool causal) const;
};

// The families of models: how each differs from a Llama. A family is the `model_type` of Hugging Face's config.json.
#pragma once

#include <string>

// The RMSNorm of queries and keys between their product and RoPE: over each head, with one weight for all heads, or
// over all of a token's heads together.
enum class QkNorm { none, head, whole };

struct Family {
  const char* model_type;
  const char* architecture;  // the class of transformers
  bool qkv_bias = false;     // q, k and v have biases
  QkNorm qk_norm = QkNorm::none;
  bool norm_after = false;   // norms are applied to the outputs of attention and MLP, before these are added to the
                             // residual stream, instead of to their inputs
  bool windows = false;      // layers may have a sliding window
  bool layer_types = false;  // a list of them says which
  // The first layer with the window if use_sliding_window is set and the file has neither this number nor the list. 0:
  // the family has no such keys.
  int max_window_layers = 0;
  // The values of transformers for keys that a config.json lacks. 0: one key/value head per query head; a head size of
  // hidden size / heads.
  double norm_eps = 1e-6;
  int NKV = 0, HD = 0, max_positions = 2048;
  int pad = -1;
};

inline constexpr Family kFamilies[] = {
    {.model_type = "llama", .architecture = "LlamaForCausalLM"},
    {.model_type = "mistral", .architecture = "MistralForCausalLM", .windows = true, .NKV = 8, .max_positions = 131072},
    // A mistral whose windows differ by layer.
    {.model_type = "ministral",
     .architecture = "MinistralForCausalLM",
     .windows = true,
     .layer_types = true,
     .NKV = 8,
     .max_positions = 131072},
    {.model_type = "qwen2",
     .architecture = "Qwen2ForCausalLM",
     .qkv_bias = true,
     .windows = true,
     .layer_types = true,
     .max_window_layers = 28,
     .NKV = 32,
     .max_positions = 32768},
    {.model_type = "qwen3",
     .architecture = "Qwen3ForCausalLM",
     .qk_norm = QkNorm::head,
     .windows = true,
     .layer_types = true,
     .max_window_layers = 28,
     .NKV = 32,
     .HD = 128,
     .max_positions = 32768},
    {.model_type = "olmo2",
     .architecture = "Olmo2ForCausalLM",
     .qk_norm = QkNorm::whole,
     .norm_after = true,
     .norm_eps = 1e-5,
     .pad = 1},
};

// Returns null if there is no such family.
const Family* find_family(const std::string& model_type);

#include "llmc/config/config_keys.h"

#include <algorithm>
#include <span>
#include <string_view>

#include "llmc/base/error.h"

namespace {

enum class Use {
  used,      // by ModelConfig::from_json
  harmless,  // `text` says why
  switched,  // passes as null or as `text`, a JSON value; a list passes if each of its elements equals this value
};

struct ConfigKey {
  std::string_view name;
  Use use;
  const char* text = "";
  std::string_view families = "";  // for which the row holds; empty: for all
};

constexpr const char* kProvenance = "says where the file comes from";
constexpr const char* kGeneration = "a setting of generation; sampling here has options";
constexpr const char* kImplementation = "chooses a kernel or a precision; options do that here";
constexpr const char* kTokenizer = "is the tokenizer's";
constexpr const char* kTask = "is for tasks other than predicting the next token";
constexpr const char* kOutput = "says which results a call returns";

constexpr ConfigKey kKeys[] = {
    {"model_type", Use::used},
    {"hidden_size", Use::used},
    {"num_hidden_layers", Use::used},
    {"num_attention_heads", Use::used},
    {"num_key_value_heads", Use::used},
    {"head_dim", Use::used},
    {"intermediate_size", Use::used},
    {"vocab_size", Use::used},
    {"max_position_embeddings", Use::used},
    {"rms_norm_eps", Use::used},
    {"initializer_range", Use::used},
    {"tie_word_embeddings", Use::used},
    {"rope_theta", Use::used},
    {"rope_parameters", Use::used},
    {"rope_scaling", Use::used},
    {"bos_token_id", Use::used},
    {"eos_token_id", Use::used},
    {"pad_token_id", Use::used},
    {"sliding_window", Use::used, "", "mistral ministral qwen2 qwen3"},
    {"layer_types", Use::used, "", "ministral qwen2 qwen3"},
    {"use_sliding_window", Use::used, "", "qwen2 qwen3"},
    {"max_window_layers", Use::used, "", "qwen2 qwen3"},

    {"architectures", Use::used},
    {"pretraining_tp", Use::harmless, "cuts products into parts, which are added"},
    {"is_llama_config", Use::harmless, "says what model_type says"},
    {"max_sequence_length", Use::harmless, "an older name of max_position_embeddings, which nothing reads"},
    {"max_window_layers", Use::harmless, "says which layers have sliding_window, if there is one"},
    {"attention_bias", Use::harmless, "is not read: q, k and v always have biases", "qwen2"},
    {"attention_bias", Use::harmless, "is not read: there are no biases", "mistral ministral"},
    {"is_decoder", Use::harmless, "changes nothing in a model that is always causal"},
    {"chunk_size_feed_forward", Use::harmless, "changes no result"},
    {"transformers_version", Use::harmless, kProvenance},
    {"unsloth_version", Use::harmless, kProvenance},
    {"unsloth_fixed", Use::harmless, kProvenance},
    {"transformers.js_config", Use::harmless, "is for a browser"},
    {"torch_dtype", Use::harmless, kImplementation},
    {"dtype", Use::harmless, kImplementation},
    {"use_bfloat16", Use::harmless, kImplementation},
    {"use_cache", Use::harmless, kImplementation},
    {"gradient_checkpointing", Use::harmless, kImplementation},
    {"attn_implementation", Use::harmless, kImplementation},
    {"torchscript", Use::harmless, kImplementation},
    {"tokenizer_class", Use::harmless, kTokenizer},
    {"tokenizer_model_max_length", Use::harmless, kTokenizer},
    {"tokenizer_padding_side", Use::harmless, kTokenizer},
    {"model_max_length", Use::harmless, kTokenizer},
    {"sep_token_id", Use::harmless, kTokenizer},
    {"unk_token_id", Use::harmless, kTokenizer},
    {"return_dict", Use::harmless, kOutput},
    {"output_attentions", Use::harmless, kOutput},
    {"output_hidden_states", Use::harmless, kOutput},
    {"keys_to_ignore_at_inference", Use::harmless, kOutput},
    {"id2label", Use::harmless, kTask},
    {"label2id", Use::harmless, kTask},
    {"problem_type", Use::harmless, kTask},
    {"finetuning_task", Use::harmless, kTask},
    {"task_specific_params", Use::harmless, kTask},
    {"tf_legacy_loss", Use::harmless, kTask},
    {"decoder_start_token_id", Use::harmless, kTask},
    {"do_sample", Use::harmless, kGeneration},
    {"temperature", Use::harmless, kGeneration},
    {"top_k", Use::harmless, kGeneration},
    {"top_p", Use::harmless, kGeneration},
    {"typical_p", Use::harmless, kGeneration},
    {"max_length", Use::harmless, kGeneration},
    {"max_new_tokens", Use::harmless, kGeneration},
    {"min_length", Use::harmless, kGeneration},
    {"length_penalty", Use::harmless, kGeneration},
    {"repetition_penalty", Use::harmless, kGeneration},
    {"diversity_penalty", Use::harmless, kGeneration},
    {"exponential_decay_length_penalty", Use::harmless, kGeneration},
    {"no_repeat_ngram_size", Use::harmless, kGeneration},
    {"encoder_no_repeat_ngram_size", Use::harmless, kGeneration},
    {"early_stopping", Use::harmless, kGeneration},
    {"num_beams", Use::harmless, kGeneration},
    {"num_beam_groups", Use::harmless, kGeneration},
    {"num_return_sequences", Use::harmless, kGeneration},
    {"bad_words_ids", Use::harmless, kGeneration},
    {"suppress_tokens", Use::harmless, kGeneration},
    {"begin_suppress_tokens", Use::harmless, kGeneration},
    {"forced_bos_token_id", Use::harmless, kGeneration},
    {"forced_eos_token_id", Use::harmless, kGeneration},
    {"remove_invalid_values", Use::harmless, kGeneration},
    {"output_scores", Use::harmless, kGeneration},
    {"return_dict_in_generate", Use::harmless, kGeneration},
    {"prefix", Use::harmless, kGeneration},

    // A key that is in no row passes as null, false, [] or {}. The keys below pass with another value, or do not pass
    // as false.
    {"hidden_act", Use::switched, "\"silu\""},
    {"is_causal", Use::switched, "true"},
    {"use_rope", Use::switched, "true"},
    {"layer_types", Use::switched, "\"full_attention\""},
    {"no_rope_layers", Use::switched, "1"},  // 1: the layer has rotary positions
    {"partial_rotary_factor", Use::switched, "1"},
    {"rotary_pct", Use::switched, "1"},
    {"rope_ratio", Use::switched, "1"},
    {"logit_scale", Use::switched, "1"},
    {"logits_scaling", Use::switched, "1"},
    {"embedding_multiplier", Use::switched, "1"},
    {"residual_multiplier", Use::switched, "1"},
    {"scale_emb", Use::switched, "1"},
    {"attention_dropout", Use::switched, "0"},
    {"attention_probs_dropout_prob", Use::switched, "0"},
    {"attn_pdrop", Use::switched, "0"},
    {"dropout", Use::switched, "0"},
    {"embd_pdrop", Use::switched, "0"},
    {"embedding_dropout", Use::switched, "0"},
    {"hidden_dropout", Use::switched, "0"},
    {"hidden_dropout_prob", Use::switched, "0"},
    {"resid_pdrop", Use::switched, "0"},
    {"residual_dropout", Use::switched, "0"},
};

// The keys of rope_parameters and rope_scaling.
constexpr ConfigKey kRopeKeys[] = {
    {"rope_type", Use::used},
    {"type", Use::used},
    {"rope_theta", Use::used},
    {"factor", Use::used},
    {"low_freq_factor", Use::used},
    {"high_freq_factor", Use::used},
    {"original_max_position_embeddings", Use::used},
    {"beta_fast", Use::used},
    {"beta_slow", Use::used},
    {"mscale", Use::used},
    {"mscale_all_dim", Use::used},
    {"attention_factor", Use::used},
    {"truncate", Use::used},
    {"partial_rotary_factor", Use::switched, "1"},
};

// transformers keeps this entry when it reads a GGUF file and writes the model again with ordinary tensors.
bool was_gguf(const std::string& name, const Json& value) {
  return name == "quantization_config" && value.is_object() && value.get_string("quant_method", "") == "gguf";
}

bool equal(const Json& a, const Json& b) {
  return a.is_number() && b.is_number() ? a.as_double() == b.as_double() : a == b;
}

bool is_switched_off(const Json& value, const ConfigKey* key) {
  if (value.is_null()) return true;
  if (!key) return value == Json(false) || ((value.is_array() || value.is_object()) && value.size() == 0);
  const Json off = Json::parse(key->text, "the table of keys");
  if (!value.is_array()) return equal(value, off);
  return std::all_of(value.elements().begin(), value.elements().end(), [&](const Json& e) { return equal(e, off); });
}

bool holds_for(const ConfigKey& key, const Family& family) {
  if (key.families.empty()) return true;
  const std::string list = " " + std::string(key.families) + " ";
  return list.find(format(" %s ", family.model_type)) != list.npos;
}

void require_known(const Json& object, std::span<const ConfigKey> keys, const Family& family) {
  for (const auto& [name, value] : object.items()) {
    const auto key = std::find_if(keys.begin(), keys.end(),
                                  [&](const ConfigKey& k) { return k.name == name && holds_for(k, family); });
    const ConfigKey* known = key == keys.end() ? nullptr : &*key;
    if (name.starts_with('_') || was_gguf(name, value)) continue;  // '_': private to the library that wrote it
    if (known && known->use != Use::switched) continue;
    std::string shown = value.dump();
    if (shown.size() > 80) shown = shown.substr(0, 77) + "...";
    REQUIRE(is_switched_off(value, known),
            "%s: %s is %s, which this program does not compute: it would be another model\n"
            "  if it changes nothing in this model, remove it from the file or set it to %s",
            object.where().c_str(), name.c_str(), shown.c_str(),
            known ? (std::string(known->text) + " or null").c_str() : "false or null");
  }
}

}  // namespace

void require_known_keys(const Json& config, const Family& family) {
  require_known(config, kKeys, family);
  for (const char* name : {"rope_parameters", "rope_scaling"})
    if (const Json* rope = config.find(name); rope && !rope->is_null()) require_known(*rope, kRopeKeys, family);
}

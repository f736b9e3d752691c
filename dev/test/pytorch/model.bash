# A small model's directory without weights, around one of the tokenizers in dev/test/tokenizers; sourced after lib.bash.
# shellcheck shell=bash

# model_with_tokenizer llama3|llama2 DIR
model_with_tokenizer() {
  local begin='<s>' end='</s>' bos=1 eos=2 vocabulary
  if [ "$1" = llama3 ]; then begin='<|begin_of_text|>' end='<|end_of_text|>' bos=1505 eos=1506; fi
  mkdir -p "$2"
  cp "$root/dev/test/tokenizers/$1.json" "$2/tokenizer.json"
  vocabulary=$("$PYTHON" -c 'import sys, tokenizers; print(tokenizers.Tokenizer.from_file(sys.argv[1]).get_vocab_size())' "$2/tokenizer.json")
  # As real ones: a class with rules of its own (LlamaTokenizer), which must not be what reads the export.
  echo "{\"bos_token\": \"$begin\", \"eos_token\": \"$end\", \"tokenizer_class\": \"LlamaTokenizer\", \"add_bos_token\": true}" >"$2/tokenizer_config.json"
  cat >"$2/config.json" <<END
{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "hidden_size": 96,
 "num_hidden_layers": 2, "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 16, "intermediate_size": 192,
 "vocab_size": $vocabulary, "bos_token_id": $bos, "eos_token_id": $eos, "rms_norm_eps": 1e-5, "initializer_range": 0.02,
 "tie_word_embeddings": false, "max_position_embeddings": 512, "rope_theta": 10000.0}
END
}
# quietly COMMAND…: its output only if it fails.
quietly() { "$@" >"$scratch/out.txt" 2>&1 || { cat "$scratch/out.txt" && fail "$*"; }; }

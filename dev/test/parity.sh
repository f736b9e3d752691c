#!/usr/bin/env bash
# Covers: promise 1: logits, losses, gradients and the weights after 12 steps of AdamW, or of Muon and AdamW, agree with
# PyTorch on every shape of dev/reference/dumps, in fp32, bf16 and each FP8 recipe, whose products agree on its operands;
# broken dumps are refused
# Timeout: 300
set -euo pipefail
# shellcheck source=dev/test/lib.bash
source "$(dirname "$0")/lib.bash"
cd "$root"
# shellcheck disable=SC2206  # words: what runs the programs of a cross build, and the program
parity=(${EMULATOR:-} "$build/test_llama")

agrees() { # DUMP OPTIONS…
  local code=0
  "${parity[@]}" "$@" >"$scratch/out" 2>&1 || code=$?
  checks=$((checks + 1))
  if [ "$code" != 0 ]; then
    grep -vE '^  ok' "$scratch/out"
    fail "$*: exit code $code"
  fi
  echo "ok   $*: $(tail -n 1 "$scratch/out")"
}
for dump in dev/reference/dumps/*; do
  agrees "$dump" # in all precisions that it has
done
for attention in mma hopper; do
  for dump in dev/reference/dumps/{head64,head128,packed128,window128,qwen3_head128}; do agrees "$dump" --dtype bf16 --attention "$attention"; done
done
check "at least 30 shapes" [ "$checks" -ge 40 ]

# Sequences of one token, whose gradients of q and k are 0 but for rounding; other updates of theirs are seen all the same.
python3 dev/test/one_token_dump.py "$scratch/one-token"
agrees "$scratch/one-token"
sed -i 's/"weight_decay": 0.1/"weight_decay": 0.2/' "$scratch/one-token/recipe.json"
refused "another decay of q, whose gradient is 0" "  FAIL update.model.layers.0.self_attn.q_proj.weight" \
  "${parity[@]}" "$scratch/one-token" --dtype fp32

# Seen failing: one wrong number, and dumps that cannot be compared.
broken() { # WHAT TEXT COMMAND…: in a copy of a dump; then its parity fails and says TEXT
  rm -rf "$scratch/dump" && cp -r dev/reference/dumps/tied "$scratch/dump"
  (cd "$scratch/dump" && "${@:3}")
  refused "$1" "$2" "${parity[@]}" "$scratch/dump" --dtype fp32
}
broken "another learning rate" "  FAIL update" sed -i 's/"learning_rate": 0.001/"learning_rate": 0.00101/' recipe.json
cp -r dev/reference/dumps/muon "$scratch/muon" && sed -i 's/"match-rms"/"original"/' "$scratch/muon/recipe.json"
refused "another scale of Muon" "  FAIL update.model.layers" "${parity[@]}" "$scratch/muon" --dtype fp32
broken "another epsilon of the norms" "  FAIL logits" sed -i 's/"rms_norm_eps": 1e-05/"rms_norm_eps": 1.1e-05/' config.json
broken "a dump without its expectation" "expected.safetensors" rm expected.safetensors
broken "a truncated batch" "batch.safetensors" truncate -s -100 batch.safetensors
broken "weights of another shape" "embed_tokens" sed -i 's/"vocab_size": 96/"vocab_size": 95/' config.json
cp -r dev/reference/dumps/tied "$scratch/theta" && sed -i 's/"rope_theta": 10000.0/"rope_theta": 1000.0/' "$scratch/theta/config.json"
cp -r dev/reference/dumps/tied "$scratch/alone" && sed -i 's/bf16_seeds/others/' "$scratch/alone/pytorch_error.json"
refused "another theta, in bf16" "  FAIL the median" "${parity[@]}" "$scratch/theta" --dtype bf16
agrees "$scratch/alone" --dtype bf16 # a dump without the errors of other weights
check "--help is no error" eval '"${parity[@]}" --help | grep -q "^usage: test_llama"'
refused "no dump at all" "usage: test_llama" "${parity[@]}"
refused "another option" "unknown option --tolerance" "${parity[@]}" "$scratch/dump" --tolerance 1
echo "$checks checks passed"

#!/usr/bin/env bash
# Covers: promise 6 on a model that has learnt something, SmolLM2-135M: logits, held-out loss, log-likelihoods of multiple
# choice and the likeliest text are PyTorch's, lm-eval's and Hugging Face's, with kept keys and values and without
# Timeout: 900
set -euo pipefail
# shellcheck source=dev/test/lib.bash
source "$(dirname "$0")/../lib.bash"
# shellcheck source=dev/test/pytorch/model.bash
source "$(dirname "$0")/../pytorch/model.bash"
model=$root/build/pretrained/model PYTHON=$root/build/pytorch/bin/python
export OMP_WAIT_POLICY=passive # PyTorch's threads share the cores with other tests: who waits must not spin
in_own_tree

"$build/test/export_logits" "$model" "$scratch/logits.safetensors"
logits() { "$PYTHON" dev/reference/compare_export.py "$1" --logits "$scratch/logits.safetensors"; }
check "logits are PyTorch's" logits "$model"
mkdir "$scratch/turned"
ln -s "$model"/* "$scratch/turned"
rm "$scratch/turned/config.json"
sed 's/"rope_theta": 100000.0/"rope_theta": 101000.0/' "$model/config.json" >"$scratch/turned/config.json"
check "a rope_theta that is 1% larger is seen" eval '! logits "$scratch/turned"'

# The program's own tokenizer cuts a text into the same shard as the tokenizers library.
items=$scratch/items.jsonl score=$scratch/score.json
head -n 4 dev/test/choices/items.jsonl >"$items"
quietly "$train" --model "$model" --train-data dev/data/README.md --eval-only --eval-choices "$items" \
  --val-tokens 64 --seq-len 128
cp "$scratch/out.txt" "$scratch/evaluated.txt"
LLMC_DATA_PYTHON=$PYTHON quietly dev/data/prepare dev/data/README.md --tokenizer "$model" --val-fraction 0 --out "$scratch/data"
shard=$(echo "$scratch"/data/*.bin)
check "the tokens of a text are those of the tokenizers library" cmp runs/cache/*/*.bin "$shard"

"$build/test/score" "$model" "$items" "$shard" 128 "$score"
check "held-out loss and choices are PyTorch's" \
  "$PYTHON" dev/reference/compare_score.py "$model" "$items" "$shard" 128 "$score"
check "and lm-eval's" "$PYTHON" dev/reference/compare_lm_eval.py "$model" "$items" "$score"
tail -n 2 "$scratch/evaluated.txt"

# The likeliest text. Ranks that split the context keep no keys: they compute the whole sequence for each token.
prompt=$'<|im_start|>user\nWhy is the sky blue?<|im_end|>\n<|im_start|>assistant\n'
likeliest() { # NAME RANKS OPTIONS…: after the heading
  limit=600 ranks "$2" "$train" --model "$model" --sample-only --temperature 0 --seq-len 128 \
    --prompt "$prompt" --sample-tokens 60 "${@:3}" |
    sed '1,/^sample of the model:/d' >"$scratch/$1.txt"
}
likeliest kept 1
likeliest whole 2 --context-parallel-degree 2
"$PYTHON" dev/reference/greedy.py "$model" "$prompt" 60 >"$scratch/theirs.txt"
cat "$scratch/kept.txt"
check "the likeliest 60 tokens are Hugging Face's" cmp "$scratch/kept.txt" "$scratch/theirs.txt"
check "without kept keys and values, too" cmp "$scratch/whole.txt" "$scratch/theirs.txt"
check "  and are text" [ "$(wc -w <"$scratch/kept.txt")" -ge 30 ]
echo "$checks checks passed"

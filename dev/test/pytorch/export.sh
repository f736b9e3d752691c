#!/usr/bin/env bash
# Covers: promise 6: PyTorch reads the export of a trained model and gives the same logits; so it does for every family, window and kind of RoPE
# Timeout: 300
set -euo pipefail
# shellcheck source=dev/test/lib.bash
source "$(dirname "$0")/../lib.bash"
in_own_tree
compare() { # MODEL_DIR
  "$build/test/export_logits" "$1" "$scratch/logits.safetensors" &&
    "$PYTHON" dev/reference/compare_export.py "$1" --logits "$scratch/logits.safetensors"
}
quiet=(--val-every 0 --sample-every 0)
"$train" --steps 5 "${quiet[@]}" --out "$scratch/tiny" >"$scratch/out.txt" 2>&1 || { cat "$scratch/out.txt" && fail "training"; }
check "tiny, after 5 steps" compare "$scratch/tiny/export"
tr -dc 'A-D' <dev/data/tinyshakespeare.txt | tr 'A-D' '\1-\4' >"$scratch/letters.txt" # tokens below any vocabulary
# exported DUMP: its model is imported, trained for a step, exported.
exported() {
  rm -rf "$scratch/model" && cp -r "dev/reference/dumps/$1" "$scratch/model"
  rm "$scratch"/model/{batch,expected}.safetensors
  "$train" --model "$scratch/model" --train-data "$scratch/letters.txt" --steps 1 --seq-len 16 "${quiet[@]}" \
    --out "$scratch/$1" >"$scratch/out.txt" 2>&1 || { cat "$scratch/out.txt" && fail "training $1"; }
}
# Every family, window and kind of RoPE.
for dump in linear qwen2_tied qwen3 window window_ministral window_layers window_upper olmo2_pad yarn yarn_mscale; do
  exported $dump
  check "$dump, after a step" compare "$scratch/$dump/export"
done
# A tied head, llama3 scaling and the older names of the config.
exported older_config
check "tied, scaled RoPE, after a step" compare "$scratch/older_config/export"
sed -i 's/"factor": [0-9.]*/"factor": 2.5/' "$scratch/older_config/export/config.json"
check "another scaling factor on one side is seen" eval '! "$PYTHON" dev/reference/compare_export.py "$scratch/older_config/export" --logits "$scratch/logits.safetensors"'
echo "$checks checks passed"

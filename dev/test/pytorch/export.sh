#!/usr/bin/env bash
# Covers: promise 6: PyTorch reads the export of a trained model and gives the same logits; so it does for a scaled, tied one
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
# A tied head, llama3 scaling and the older names of the config: imported, trained one step, exported.
cp -r dev/reference/dumps/older_config "$scratch/model"
rm "$scratch"/model/{batch,expected}.safetensors
tr -dc 'A-D' <dev/data/tinyshakespeare.txt | tr 'A-D' '\1-\4' >"$scratch/letters.txt" # tokens below its vocabulary
"$train" --model "$scratch/model" --train-data "$scratch/letters.txt" --steps 1 --seq-len 16 "${quiet[@]}" \
  --out "$scratch/scaled" >"$scratch/out.txt" 2>&1 || { cat "$scratch/out.txt" && fail "training a scaled, tied model"; }
check "tied, scaled RoPE, after a step" compare "$scratch/scaled/export"
sed -i 's/"factor": [0-9.]*/"factor": 2.5/' "$scratch/scaled/export/config.json"
check "another scaling factor on one side is seen" eval '! "$PYTHON" dev/reference/compare_export.py "$scratch/scaled/export" --logits "$scratch/logits.safetensors"'
echo "$checks checks passed"

#!/usr/bin/env bash
# Covers: promise 6, evaluation: held-out loss and the log-likelihoods of multiple choice are PyTorch's of the exported model, the
# text being built as lm-eval and llm.c do; AutoTokenizer and
# AutoModelForCausalLM continue a prompt with the same 200 tokens
# Timeout: 300
set -euo pipefail
# shellcheck source=dev/test/lib.bash
source "$(dirname "$0")/../lib.bash"
cd "$root"
items=dev/test/choices/items.jsonl
head -c 20000 dev/data/tinyshakespeare.txt >"$scratch/held_out.txt"
"$train" --steps 30 --val-every 0 --sample-every 0 --out "$scratch/run" >"$scratch/out.txt" 2>&1 || { cat "$scratch/out.txt" && fail "training"; }
same() {
  "$build/test/score" "$scratch/run/export" $items "$scratch/held_out.txt" 160 "$scratch/score.json" &&
    "$PYTHON" dev/reference/compare_score.py "$scratch/run/export" $items "$scratch/held_out.txt" 160 "$scratch/score.json"
}
check "the scores are PyTorch's" same
sed -i '0,/"acc": /s//"acc": 1/' "$scratch/score.json"
check "another accuracy is seen" eval '! "$PYTHON" dev/reference/compare_score.py "$scratch/run/export" $items "$scratch/held_out.txt" 160 "$scratch/score.json"'

# 200 tokens of the likeliest text; the line after the heading on, without the empty line at the end.
"$train" --model "$scratch/run/export" --sample-only --temperature 0 --seq-len 256 --prompt 'KING RICHARD:' --sample-tokens 200 |
  sed '1,/^sample of the model:/d' >"$scratch/ours.txt"
"$PYTHON" dev/reference/greedy.py "$scratch/run/export" 'KING RICHARD:' 200 >"$scratch/theirs.txt"
check "the likeliest 200 tokens are Hugging Face's" cmp "$scratch/ours.txt" "$scratch/theirs.txt"
check "  and are text" [ "$(wc -c <"$scratch/ours.txt")" -ge 213 ]
echo "$checks checks passed"

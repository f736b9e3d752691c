#!/usr/bin/env bash
# Covers: promise 6, evaluation, for models of bytes and with Llama 3's and Llama 2's kind of tokenizer: held-out loss, bits a
# byte and the log-likelihoods of multiple choice are PyTorch's of the exported model, the text being built as lm-eval and
# llm.c do; lm-eval itself gives the same; AutoTokenizer and AutoModelForCausalLM continue a prompt with the same 200 tokens
# Timeout: 600
set -euo pipefail
# shellcheck source=dev/test/lib.bash
source "$(dirname "$0")/../lib.bash"
# shellcheck source=dev/test/pytorch/model.bash
source "$(dirname "$0")/model.bash"
in_own_tree
items=dev/test/choices/items.jsonl prompt='KING RICHARD:'
head -c 20000 dev/data/tinyshakespeare.txt >"$scratch/held_out.txt"

same() { # EXPORT HELD_OUT
  "$build/test/score" "$1" $items "$2" 160 "$scratch/score.json" &&
    "$PYTHON" dev/reference/compare_score.py "$1" $items "$2" 160 "$scratch/score.json"
}
for kind in bytes llama3 llama2; do
  run=$scratch/$kind/run held_out=$scratch/held_out.txt
  options=(--steps 30 --val-every 0 --sample-every 0 --out "$run")
  if [ $kind != bytes ]; then
    model_with_tokenizer $kind "$scratch/$kind"
    LLMC_DATA_PYTHON=$PYTHON quietly dev/data/prepare tinyshakespeare --tokenizer "$scratch/$kind" \
      --out "$scratch/$kind/data" --val-fraction 0.03
    held_out=$(echo "$scratch/$kind"/data/*_val_*.bin)
    options+=(--model "$scratch/$kind/config.json" --train-data "$scratch/$kind/data/*_train_*.bin" --seq-len 128 --global-batch 8 --lr 3e-3)
  fi
  quietly "$train" "${options[@]}"
  check "$kind: the scores are PyTorch's" same "$run/export" "$held_out"
  check "$kind: and lm-eval's" "$PYTHON" dev/reference/compare_lm_eval.py "$run/export" $items "$scratch/score.json"

  # 200 tokens of the likeliest text; the line after the heading on, without the empty line at the end.
  "$train" --model "$run/export" --sample-only --temperature 0 --seq-len 256 --prompt "$prompt" --sample-tokens 200 |
    sed '1,/^sample of the model:/d' >"$scratch/ours.txt"
  "$PYTHON" dev/reference/greedy.py "$run/export" "$prompt" 200 >"$scratch/theirs.txt"
  check "$kind: the likeliest 200 tokens are Hugging Face's" cmp "$scratch/ours.txt" "$scratch/theirs.txt"
  check "  and are text" [ "$(wc -c <"$scratch/ours.txt")" -ge 213 ]
done

cp "$scratch/score.json" "$scratch/true.json"
sed -i '0,/"acc": /s//"acc": 1/' "$scratch/score.json"
check "another accuracy is seen" eval '! "$PYTHON" dev/reference/compare_score.py "$run/export" $items "$held_out" 160 "$scratch/score.json"'
check "also compared with lm-eval's" eval '! "$PYTHON" dev/reference/compare_lm_eval.py "$run/export" $items "$scratch/score.json"'
cp "$scratch/true.json" "$scratch/score.json"
sed -i 's/PreTrainedTokenizerFast/LlamaTokenizer/' "$run/export/tokenizer_config.json"
check "a class with rules of its own is seen" eval '! "$PYTHON" dev/reference/compare_score.py "$run/export" $items "$held_out" 160 "$scratch/score.json"'
echo "$checks checks passed"

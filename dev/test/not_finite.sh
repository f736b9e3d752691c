#!/usr/bin/env bash
# Covers: a step that is not finite leaves weights, moments and FP8 history as they were, to the bit, on 1, 2 and 4 ranks; the
# run ends with exit code 4 and names rank, micro-batch, file, token and tensor; its last good state is saved
# Timeout: 600
# Turn: 3
set -euo pipefail
# shellcheck source=dev/test/lib.bash
source "$(dirname "$0")/lib.bash"
in_own_tree
export LLMC_THREADS=1

limit=200
for n in 1 2 4; do
  check "the state of $n rank(s)" ranks $n "$build/test/not_finite" "$scratch"
done

echo "-- the program"
options=(--seq-len 16 --global-batch 8 --micro-batch 2 --val-every 0)
a_token_that_is_nan
options+=(--model "$scratch/start" --steps 28 --warmup-steps 2)

# not_finite NAME COMMAND…: the run must end with exit code 4.
not_finite() {
  local code=0
  "${@:2}" >"$scratch/$1.txt" 2>&1 </dev/null || code=$?
  [ "$code" = 4 ] || { cat "$scratch/$1.txt" && fail "$1: exit code $code"; }
}
# held NAME: the step that was not finite.
held() { sed -n 's/.*step \([0-9]*\) has the loss nan.*/\1/p' "$scratch/$1.txt"; }
# same_checkpoint A B STEP: the two runs have the same numbers in it.
same_checkpoint() {
  local file
  for file in "$(checkpoint "$1" "$3")"/*.safetensors; do
    cmp "$file" "$(checkpoint "$2" "$3")/$(basename "$file")" || return 1
  done
}

# One rank writes a checkpoint while a step is held that is to be in the next one; two ranks have saved none.
for n in 1 2; do
  more=() every=1
  if [ $n = 2 ]; then more=(--cuda-graphs --zero-stage 3 --dtype bf16 --fp8 delayed) every=100; fi
  run good$n $n --train-data "$scratch/without.txt" "${more[@]}" --checkpoint-every 1 --keep-checkpoints 0
  not_finite bad$n ranks $n "$train" --out "$scratch/bad$n" "${options[@]}" --train-data "$scratch/with.txt" "${more[@]}" \
    --checkpoint-every $every
  step=$(held bad$n)
  check "$n rank(s): a step is held" [ "$step" -gt 1 ]
  check "$n rank(s): the tensor" says bad$n "an infinity or NaN is the output of the embedding"
  check "$n rank(s): the micro-batch" grep -q "in micro-batch [1-4] of $((4 / n))$" "$scratch/bad$n.txt"
  check "$n rank(s): the place in the file" says bad$n "it begins at token 1234 of $scratch/with.txt"
  check "$n rank(s): the weights" says bad$n "the weights held one before the step: model.embed_tokens.weight"
  check "$n rank(s): the state before step $step" same_checkpoint bad$n good$n $((step - 1))
  check "$n rank(s): no later state" not test -e "$(checkpoint bad$n "$step")"
done
check "two ranks: the rank" grep -q "of the embedding, on rank [01] of 2," "$scratch/bad2.txt"
step=$(held bad1)
not_finite kept "$train" --out "$scratch/kept" "${options[@]}" --train-data "$scratch/with.txt" --keep-checkpoints 1 \
  --checkpoint-every $((step - 2))
check "the save before the step leaves the checkpoint before it" [ -e "$(checkpoint kept $((step - 2)))/manifest.json" ]
for n in 1 2; do
  not_finite huge$n ranks $n "$train" --out "$scratch/huge$n" --layers 1 --seq-len 16 --global-batch 4 --val-every 0 \
    --sample-every 0 --steps 1 --warmup-steps 0 --lr 1e39
  check "$n rank(s): an update beyond fp32 is seen in the export" grep -q "weight in $scratch/huge$n/export has an infinity or NaN" \
    "$scratch/huge$n.txt"
done
not_finite again "$train" --out "$scratch/bad1" --resume auto
check "gone on, it meets the same step" [ "$(held again)" = "$step" ]
echo "$checks checks passed"

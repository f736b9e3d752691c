#!/usr/bin/env bash
# Covers: promise 2: FP8 trainings of ranks that share: weights that are gathered in FP8 have the bits of those gathered in
# bf16, and so have scales found ahead and on demand, in each stage and any order of the streams; from one saved state,
# 2 and 3 ranks have one rank's loss, and its gradients to rounding
# Timeout: 1200
#
# SHARDING=every: more stages and orders, and 4 ranks of which 2 share.
set -euo pipefail
# shellcheck source=dev/test/lib.bash
source "$(dirname "$0")/lib.bash"
in_own_tree
export LLMC_THREADS=1

every=() rank_counts=(1 2)
if [ "${SHARDING:-}" = every ]; then every=(every) rank_counts=(1 2 3 4) limit=300; fi
for n in "${rank_counts[@]}"; do check "$n rank(s): the same bits" ranks "$n" "$build/test/fp8_ranks" same "${every[@]}"; done
for recipe in delayed blockwise; do
  check "$recipe, 2 ranks: the record of a step is that of a device that executes nothing" \
    ranks 2 "$build/test/recorded" 3 0 "$recipe"
done

echo "-- one step from a saved state"
odd_model layers=2 hidden=36 ffn=51 tied=false
options=(--model "$scratch/odd.json" --train-data "$scratch/letters.txt" --steps 3 --checkpoint-every 3 --global-batch 6
  --micro-batch 2 --seq-len 21 --lr 3e-3 --warmup-steps 1 --val-every 0 --sample-every 0 --export off)
step() { # NAME RANKS RUN WORD…
  ranks "$2" "$build/test/fp8_ranks" step "$(checkpoint "$3" 3)" "$scratch/$1.safetensors" "${@:4}" >"$scratch/$1.loss" ||
    { cat "$scratch/$1.loss" && fail "the step $1"; }
}
# same_step A B: losses to the bit, gradients to 1e-6, which is what sums in another order differ by.
same_step() {
  local distance
  distance=$(dev/test/weights_distance.py "$scratch/$1.safetensors" "$scratch/$2.safetensors" | cut -d' ' -f1)
  echo "     $(cat "$scratch/$2.loss"), gradients differ by $distance"
  cmp "$scratch/$1.loss" "$scratch/$2.loss" && awk -v d="$distance" 'BEGIN { exit !(d != "" && d <= 1e-6) }'
}
for recipe in tensorwise delayed; do
  run $recipe 1 --fp8 $recipe
  step $recipe-one 1 $recipe recipe=$recipe
  for n in 2 3; do
    step $recipe-$n $n $recipe recipe=$recipe stage=3 all-gather
    check "$recipe, $n ranks that share, weights in FP8: one rank's step" same_step $recipe-one $recipe-$n
  done
done
step lost 1 tensorwise recipe=delayed without-history
check "a lost history is seen" not same_step delayed-one lost
run alone 1 --dry-run --fp8 tensorwise --zero-stage 3 --fp8-all-gather
check "one rank alone is told that nothing is gathered" says alone "one rank keeps all weights"
echo "$checks checks passed"

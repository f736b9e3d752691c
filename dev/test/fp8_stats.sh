#!/usr/bin/env bash
# Covers: FP8: --fp8-stats counts each step with all it quantizes, weights too, whichever steps are counted, whatever is
# validated or sampled between them, where weights travel in FP8, and over a resume
# Timeout: 120
# Alone: its ranks take all cores
set -euo pipefail
# shellcheck source=dev/test/lib.bash
source "$(dirname "$0")/lib.bash"
in_own_tree
export LLMC_THREADS=1

odd_model layers=2 tied=false
run() { # NAME RANKS ARGUMENTS…
  ranks "$2" "$train" --out "$scratch/$1" --model "$scratch/odd.json" --train-data "$scratch/letters.txt" --seq-len 16 --micro-batch 1 --global-batch 4 --steps 5 --warmup-steps 1 \
    --export off --sample-tokens 2 "${@:3}" >"$scratch/$1.txt" 2>&1 || { cat "$scratch/$1.txt" && fail "the run $1"; }
}
stats() { grep '"fp8"' "$scratch/$1/train.jsonl"; }
# classes RUN LINES CLASSES: with all, 12: of each product input, weight and output gradient.
classes() {
  [ "$(stats "$1" | wc -l)" = "$2" ] && [ "$(stats "$1" | grep -o '"amax"' | wc -l)" = $(($3 * $2)) ] &&
    ! stats "$1" | grep -q '"scale":\[null\|"scale":\[0,'
}
of_step() { stats "$1" | grep "\"step\":$2,"; }

quiet=(--val-every 0 --sample-every 0)
for recipe in tensorwise delayed; do
  run "$recipe-1" 1 --fp8 $recipe --fp8-stats 1 "${quiet[@]}"
  run "$recipe-2" 1 --fp8 $recipe --fp8-stats 2 "${quiet[@]}"
  run "$recipe-busy" 1 --fp8 $recipe --fp8-stats 2 --val-every 1 --sample-every 2
  check "$recipe: five steps, all classes" classes "$recipe-1" 5 12
  check "$recipe: three steps, all classes" classes "$recipe-2" 3 12
  for step in 1 3 5; do
    check "$recipe: step $step, counted alone and among others" test "$(of_step "$recipe-1" $step)" = "$(of_step "$recipe-2" $step)"
    check "$recipe: step $step, between validations and samples" test "$(of_step "$recipe-1" $step)" = "$(of_step "$recipe-busy" $step)"
  done
  check "$recipe: the steps differ" test "$(of_step "$recipe-1" 1 | sed 's/"step":1//')" != "$(of_step "$recipe-1" 3 | sed 's/"step":3//')"
done
# A rank counts what it quantizes: of weights that travel in FP8 its own part, here without the last two products'.
gathered() { # NAME ARGUMENTS…
  run "$1-1" 2 "${@:2}" --fp8-all-gather --fp8-stats 1 "${quiet[@]}"
  run "$1-2" 2 "${@:2}" --fp8-all-gather --fp8-stats 2 --val-every 2 --sample-every 3
  check "$1: five steps" classes "$1-1" 5 10
  for step in 1 3 5; do
    check "$1: step $step" test "$(of_step "$1-1" $step)" = "$(of_step "$1-2" $step)"
  done
}
gathered tensorwise-gathered --fp8 tensorwise --zero-stage 1
gathered delayed-gathered --fp8 delayed --zero-stage 3 --fp8-precompute-scales off

# Gone on from step 4, whose log lacks its last newline: the lines of that step stay, and each step's are there once.
run kept 1 --fp8 tensorwise --fp8-stats 1 --checkpoint-every 2 "${quiet[@]}"
rm -r "$scratch/kept/checkpoints/step-00000005"
cp "$scratch/kept/train.jsonl" "$scratch/whole.jsonl"
head -n 8 "$scratch/whole.jsonl" | head -c -1 >"$scratch/kept/train.jsonl"
ranks 1 "$train" --out "$scratch/kept" --resume auto >"$scratch/kept.txt" 2>&1
check "gone on: each line is there, once" cmp <(without_times "$scratch/whole.jsonl") <(without_times "$scratch/kept/train.jsonl")
echo "$checks checks passed"

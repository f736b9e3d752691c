#!/usr/bin/env bash
# Covers: FP8: --fp8-stats counts each step with all it quantizes, weights too, whichever steps are counted, whatever is
# validated or sampled between them, where weights are gathered in FP8, and over a resume
# Timeout: 120
set -euo pipefail
# shellcheck source=dev/test/lib.bash
source "$(dirname "$0")/lib.bash"
in_own_tree
export LLMC_THREADS=1

odd_model layers=2 tied=false
options=(--model "$scratch/odd.json" --train-data "$scratch/letters.txt" --seq-len 16 --micro-batch 1 --global-batch 2 --steps 5
  --warmup-steps 1 --val-tokens 64 --sample-tokens 2)
stats() { log "$1" | grep '"fp8"'; }
# classes RUN LINES CLASSES: with all, 12: of each product input, weight and output gradient.
classes() {
  [ "$(stats "$1" | wc -l)" = "$2" ] && [ "$(stats "$1" | grep -o '"amax"' | wc -l)" = $(($3 * $2)) ] &&
    ! stats "$1" | grep '"scale":\[null\|"scale":\[0,' >/dev/null
}
of_step() { stats "$1" | sed -n "s/\"step\":$2,//p"; }

# A rank counts what it quantizes: of weights that are gathered in FP8 its own part, here without the last two products'.
while read -r name n count words; do
  # shellcheck disable=SC2086  # words
  set -- $words
  run "$name-each" "$n" --fp8-stats 1 --val-every 0 --sample-every 0 --export off "$@"
  run "$name-busy" "$n" --fp8-stats 2 --val-every 1 --sample-every 2 --export off "$@"
  check "$name: five steps, all classes" classes "$name-each" 5 "$count"
  check "$name: three steps, all classes" classes "$name-busy" 3 "$count"
  for step in 1 3 5; do
    check "$name: step $step, counted among others, and between validations and samples" \
      cmp <(of_step "$name-each" $step) <(of_step "$name-busy" $step)
  done
  check "$name: the steps differ" not cmp -s <(of_step "$name-each" 1) <(of_step "$name-each" 3)
done <<'END'
tensorwise           1  12  --fp8 tensorwise --checkpoint-every 2
delayed              1  12  --fp8 delayed
tensorwise-gathered  2  10  --fp8 tensorwise --fp8-all-gather --zero-stage 1
delayed-gathered     2  10  --fp8 delayed --fp8-all-gather --zero-stage 3 --fp8-precompute-scales off
END

# Gone on from step 4, whose log lacks its last newline: the lines of that step stay, and each step's are there once.
cp -r "$scratch/tensorwise-each" "$scratch/kept"
rm -r "$(checkpoint kept 5)"
head -n 8 "$scratch/tensorwise-each/train.jsonl" | head -c -1 >"$scratch/kept/train.jsonl"
resume kept 1 auto
check "gone on: each line is there, once" same_log tensorwise-each kept
echo "$checks checks passed"

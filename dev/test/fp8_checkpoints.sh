#!/usr/bin/env bash
# Covers: promise 4: FP8 trainings that go on from a checkpoint have the losses and weights of those that were never
# interrupted, to the last bit: of each recipe, delayed scales with their history; saved during training or between steps;
# also where weights are gathered in FP8
# Timeout: 300
#
# CHECKPOINTS=every: each recipe in both ways of saving, on one rank and on two.
set -euo pipefail
# shellcheck source=dev/test/lib.bash
source "$(dirname "$0")/lib.bash"
in_own_tree
export LLMC_THREADS=1

odd_model layers=2
options=(--model "$scratch/odd.json" --train-data "$scratch/letters.txt" --global-batch 4 --micro-batch 2 --seq-len 21 --lr 6e-3
  --warmup-steps 2 --val-tokens 64 --sample-every 0 --checkpoint-every 3)
goes_on() { # NAME RANKS ARGUMENTS…
  run "$1" "$2" --val-every "${val:-0}" --steps 6 "${@:3}"
  resume "$1-on" "$2" "$(checkpoint "$1" 3)"
  check "$1: gone on, the same bits" ends_alike "$1" "$1-on" $((3 + 4 * ${val:-0}))
}
if [ "${CHECKPOINTS:-}" = every ]; then
  for recipe in tensorwise delayed rowwise rowwise-hp-wgrad blockwise; do
    for n in 1 2; do
      goes_on "$recipe-$n-async" $n --fp8 $recipe --zero-stage 3 --fp8-all-gather
      goes_on "$recipe-$n" $n --fp8 $recipe --zero-stage 3 --checkpoint-async off
    done
  done
  goes_on delayed-sharded 2 --fp8 delayed --zero-stage 1
  goes_on delayed-demand 2 --fp8 delayed --zero-stage 2 --fp8-all-gather --fp8-precompute-scales off
else
  goes_on tensorwise 2 --fp8 tensorwise --zero-stage 3 --fp8-all-gather
  goes_on delayed-sharded 2 --fp8 delayed --fp8-head on --zero-stage 3 --fp8-all-gather
  goes_on rowwise 1 --fp8 rowwise --fp8-head backward --checkpoint-async off
  goes_on rowwise-hp-wgrad 1 --fp8 rowwise-hp-wgrad
  goes_on blockwise 1 --fp8 blockwise --fp8-skip first=1
fi
# A ring of 2 steps goes round before the checkpoint; validations leave no traces in it.
val=1 goes_on delayed-short 1 --fp8 delayed --fp8-history 2 --fp8-margin 1 --checkpoint-async off

# A checkpoint of another recipe has no history: the first step takes current scales.
run plain 1 --val-every 0 --steps 3 --fp8 tensorwise
resume plain-on 1 "$(checkpoint plain 3)" --steps 4 --fp8 delayed
check "gone on with another recipe: the first step is there" \
  [ "$(numbers plain-on loss | cut -d" " -f1)" = 4 ]

# With other settings the scales are made anew: of the numbers that they are to hold, most of the format's room is used.
# fills RUN CLASS LARGEST: in the first step, amax times its block's scale is LARGEST or up to a 16th of it.
fills() {
  python3 - "$scratch/$1/train.jsonl" "$2" "$3" <<'END'
import json, sys
path, name, largest = sys.argv[1], sys.argv[2], float(sys.argv[3])
counts = next(line["fp8"] for line in map(json.loads, open(path)) if "fp8" in line)[name]
print(f"     {name}: {counts}")
sys.exit(not (counts["saturated"] < 0.01 and largest / 16 <= counts["amax"] * counts["scale"][0] <= 2 * largest))
END
}
run delayed-whole 1 --val-every 0 --steps 3 --fp8 delayed --fp8-skip down_proj
while IFS='|' read -r what class largest words; do
  # shellcheck disable=SC2086  # words
  resume again 1 "$(checkpoint delayed-whole 3)" --steps 4 --fp8-stats 1 $words
  check "gone on $what" fills again "$class" "$largest"
  rm -r "$scratch/again"
done <<'END'
as it was|o output gradient|57344
with gradients in another format|o output gradient|448|--fp8-grad e4m3
with a margin|o output gradient|896|--fp8-margin 6
with a product that was in bf16|down output gradient|57344|--fp8-skip=
END

with_history() { grep -laF 'other/fp8_amax_history@0' "$(checkpoint "$1" 3)"/*.safetensors | wc -l; }
check "delayed's checkpoints have a history, once, others none" [ "$(with_history delayed-sharded) $(with_history plain)" = "1 0" ]
echo "$checks checks passed"

#!/usr/bin/env bash
# Covers: promise 3: an optimizer's state, gradients and weights in the host's memory have the bits of those on the device,
# in fp32 and in bf16, on one rank and where the state is shared out; so have runs that go on from a checkpoint
# Timeout: 1200
# Turn: 3
#
# MEMORY=every: every type, stage and size of a chunk.
set -euo pipefail
# shellcheck source=dev/test/lib.bash
source "$(dirname "$0")/lib.bash"
in_own_tree
export LLMC_THREADS=1

choices=some
if [ "${MEMORY:-}" = every ]; then choices=every limit=900; fi
check "one rank" "$build/test/state_choices" "$choices"
check "two ranks that share" ranks 2 "$build/test/state_choices" "$choices"

echo "-- the program"
options=(--layers 3 --seq-len 32 --global-batch 4 --micro-batch 1 --steps 6 --warmup-steps 1 --val-every 3 --val-tokens 128
  --sample-every 3 --sample-tokens 5 --checkpoint-every 3 --dtype bf16)
offload=(--offload-optimizer --offload-gradients --offload-weights)
run plain 1
run offloaded 1 "${offload[@]}"
check "offloaded: the plain run's log and weights" same plain offloaded
for recipe in tensorwise delayed rowwise; do
  run $recipe 1 --fp8 $recipe
  run $recipe-weights 1 --fp8 $recipe --offload-weights --recompute block --cuda-graphs
  check "weights alone, $recipe, with recomputation and graphs" same $recipe $recipe-weights
  run $recipe-0 2 --fp8 $recipe --zero-stage 0
  run $recipe-0-weights 2 --fp8 $recipe --zero-stage 0 --offload-weights
  check "weights alone, $recipe, on two ranks that each keep all" same $recipe-0 $recipe-0-weights
  run $recipe-3 2 --fp8 $recipe --zero-stage 3
  run $recipe-3-weights 2 --fp8 $recipe --zero-stage 3 --offload-weights
  check "weights alone, $recipe, on two ranks" same $recipe-3 $recipe-3-weights
  if [ "$choices" = some ] && [ $recipe != tensorwise ]; then continue; fi # activation_policies has all recipes
  run $recipe-use 1 --fp8 $recipe --fp8-weights on-use --cuda-graphs
  check "FP8 weights on use, $recipe, with graphs" same $recipe $recipe-use
  run $recipe-1-use 2 --fp8 $recipe --fp8-weights on-use --zero-stage 1
  check "FP8 weights on use, $recipe, on two ranks that share the state" same $recipe-0 $recipe-1-use
  run $recipe-1-gather 2 --fp8 $recipe --zero-stage 1 --fp8-all-gather
  run $recipe-1-gather-use 2 --fp8 $recipe --zero-stage 1 --fp8-all-gather --fp8-weights on-use
  check "FP8 weights on use, $recipe, where they are gathered" same $recipe-1-gather $recipe-1-gather-use
  run $recipe-0-use 2 --fp8 $recipe --fp8-weights on-use --zero-stage 0 --offload-weights
  check "FP8 weights on use, $recipe, from the host" same $recipe-0 $recipe-0-use
done
# measured NAME RANKS OPTIONS…: the held-out loss of the plain run's weights, and what they write.
measured() {
  for what in "--eval-only --val-tokens 512" "--sample-only --prompt KING --sample-tokens 9"; do
    # shellcheck disable=SC2086  # words
    ranks "$2" "$train" --model "$scratch/plain" --seq-len 32 --dtype bf16 --quiet $what "${@:3}"
  done >"$scratch/$1.measured"
}
for way in "1" "1 --fp8 tensorwise" "2 --zero-stage 3" "2 --zero-stage 3 --fp8 delayed"; do
  # shellcheck disable=SC2086  # words
  measured there $way
  # shellcheck disable=SC2086  # words
  measured host $way --offload-weights
  check "measures and samples: $way" cmp "$scratch/there.measured" "$scratch/host.measured"
done
kept() { sed -n "s/^ *\(memory \)\? *FP8 weights  *//p" "$scratch/$1.txt"; }
check "  of all 3 blocks: $(kept tensorwise), of one: $(kept tensorwise-use)" eval \
  '[[ $(kept tensorwise) = *iB && $(kept tensorwise-use) = *iB && $(kept tensorwise) != "$(kept tensorwise-use)" ]]'
check "  the loss" grep -q "held-out loss" "$scratch/host.measured"
check "  and a text" [ "$(wc -l <"$scratch/host.measured")" -ge 2 ]
resume offloaded-on 1 "$(checkpoint plain 3)" --offload-optimizer
check "gone on from the plain run's checkpoint, offloaded" ends_alike plain offloaded-on 7
options+=(--zero-stage 3 --moment-dtype bf16 --master-dtype bf16)
for way in on off; do
  run "narrow-$way" 2 --checkpoint-async $way
  resume "narrow-$way-on" 2 "$(checkpoint "narrow-$way" 3)"
  check "in bf16, checkpoints during training $way: gone on, the same bits" ends_alike "narrow-$way" "narrow-$way-on" 7
done
run narrow-offloaded 2 "${offload[@]}"
check "in bf16 and offloaded" same narrow-on narrow-offloaded
check "bf16 is another training" not same_weights plain narrow-on
refused "a bf16 master of fp32 weights" "use --dtype bf16" "$train" --dry-run --dtype fp32 --master-dtype bf16
echo "$checks checks passed"

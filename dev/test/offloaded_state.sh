#!/usr/bin/env bash
# Covers: promise 3: an optimizer's state and gradients in the host's memory have the bits of those on the device, in fp32
# and in bf16, on one rank and where the state is shared out; so have runs that go on from a checkpoint
# Timeout: 1200
# Alone: its ranks take all cores
#
# MEMORY=every: every type, stage and piece.
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
head -c 30000 dev/data/tinyshakespeare.txt >"$scratch/text.txt"
run() { # NAME RANKS ARGUMENTS…
  ranks "$2" "$train" --out "$scratch/$1" "${@:3}" >"$scratch/$1.txt" 2>&1 || { cat "$scratch/$1.txt" && fail "the run $1"; }
}
short=(--train-data "$scratch/text.txt" --layers 2 --seq-len 32 --global-batch 8 --micro-batch 2 --steps 6 --warmup-steps 1
  --val-every 3 --sample-every 3 --sample-tokens 5 --checkpoint-every 3 --dtype bf16)
alike() { # A B: all lines but the first steps' where B goes on, and the weights
  cmp <(without_times "$scratch/$1/train.jsonl" | grep '"loss"' | tail -n 3) <(without_times "$scratch/$2/train.jsonl" | grep '"loss"' | tail -n 3) &&
    cmp "$scratch/$1/export/model.safetensors" "$scratch/$2/export/model.safetensors"
}
run plain 1 "${short[@]}"
run offloaded 1 "${short[@]}" --offload-optimizer --offload-gradients
check "offloaded: the plain run's losses and weights" alike plain offloaded
run offloaded-on 1 --resume "$scratch/plain/checkpoints/step-00000003"  --offload-optimizer
check "gone on from the plain run's checkpoint, offloaded" alike plain offloaded-on
narrow=(--moment-dtype bf16 --master-dtype bf16)
for way in on off; do
  run "narrow-$way" 2 "${short[@]}" "${narrow[@]}" --zero-stage 3 --checkpoint-async $way
  run "narrow-$way-on" 2 --resume "$scratch/narrow-$way/checkpoints/step-00000003"
  check "in bf16, checkpoints beside training $way: gone on, the same bits" alike "narrow-$way" "narrow-$way-on"
done
run narrow-offloaded 2 "${short[@]}" "${narrow[@]}" --zero-stage 3 --offload-optimizer --offload-gradients
check "in bf16 and offloaded" alike narrow-on narrow-offloaded
check "bf16 is another training" eval '! cmp -s "$scratch/plain/export/model.safetensors" "$scratch/narrow-on/export/model.safetensors"'
check "a bf16 master of fp32 weights is refused" eval '! "$train" --dry-run --dtype fp32 --master-dtype bf16 >"$scratch/out.txt" 2>&1 && grep -q "use --dtype bf16" "$scratch/out.txt"'
echo "$checks checks passed"

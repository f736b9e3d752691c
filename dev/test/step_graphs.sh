#!/usr/bin/env bash
# Covers: promise 3: --cuda-graphs on and off, the same bits of losses, norms and weights in fp32, bf16 and each FP8 recipe,
# with micro-batches, offload, and a state that ranks share out; from the second step on the host waits once a step, for
# the step before, and allocates nothing
# Timeout: 900
# Alone: its ranks take all cores
#
# GRAPHS=every: of two ranks every stage.
set -euo pipefail
# shellcheck source=dev/test/lib.bash
source "$(dirname "$0")/lib.bash"
in_own_tree
export LLMC_THREADS=1

kinds=some
if [ "${GRAPHS:-}" = every ]; then kinds=every limit=600; fi
check "one rank" "$build/test/step_graphs" "$kinds"
check "one rank, lazy streams" env LLMC_CPU_STREAMS=lazy "$build/test/step_graphs" "$kinds"
check "two ranks that share" ranks 2 "$build/test/step_graphs" "$kinds"

echo "-- the program"
head -c 30000 dev/data/tinyshakespeare.txt >"$scratch/text.txt"
run() { # NAME RANKS ARGUMENTS…
  ranks "$2" "$train" --out "$scratch/$1" "${@:3}" >"$scratch/$1.txt" 2>&1 || { cat "$scratch/$1.txt" && fail "the run $1"; }
}
short=(--train-data "$scratch/text.txt" --layers 2 --seq-len 32 --global-batch 12 --micro-batch 2 --steps 8 --warmup-steps 3
  --val-every 2 --sample-every 3 --sample-tokens 5 --checkpoint-every 3 --dtype bf16)
alike() { # A B
  cmp <(without_times "$scratch/$1/train.jsonl") <(without_times "$scratch/$2/train.jsonl") &&
    cmp "$scratch/$1/export/model.safetensors" "$scratch/$2/export/model.safetensors"
}
for ranks in 1 2; do
  more=(--fp8 delayed --fp8-stats 4 --activation-offload attention)
  if [ $ranks = 2 ]; then more=(--fp8 tensorwise --zero-stage 3 --fp8-all-gather); fi
  run "off$ranks" $ranks "${short[@]}" "${more[@]}"
  run "on$ranks" $ranks "${short[@]}" "${more[@]}" --cuda-graphs --trace "$scratch/trace.json"
  check "$ranks rank(s), validation, samples, a trace and checkpoints between: losses and weights" alike "off$ranks" "on$ranks"
  run "resumed$ranks" $ranks --resume "$scratch/off$ranks/checkpoints/step-00000003" --cuda-graphs
  check "$ranks rank(s), gone on from a checkpoint with graphs: weights" \
    cmp "$scratch/off$ranks/export/model.safetensors" "$scratch/resumed$ranks/export/model.safetensors"
done
echo "$checks checks passed"

#!/usr/bin/env bash
# Covers: promise 3: --cuda-graphs on and off, the same bits of losses, norms and weights in fp32, bf16 and each FP8 recipe,
# with micro-batches, offload, and a state that ranks share out; from the second step on the host waits once a step, for
# the step before, and allocates nothing
# Timeout: 900
# Turn: 2
#
# GRAPHS=every: of two ranks every stage, and both in eager and lazy streams.
set -euo pipefail
# shellcheck source=dev/test/lib.bash
source "$(dirname "$0")/lib.bash"
in_own_tree
export LLMC_THREADS=1

limit=300 kinds=some
lazy=(env LLMC_CPU_STREAMS=lazy)
if [ "${GRAPHS:-}" = every ]; then
  limit=600 kinds=every
  check "one rank, lazy streams" "${lazy[@]}" "$build/test/step_graphs" $kinds
  check "two ranks that share" ranks 2 "$build/test/step_graphs" $kinds
fi
check "one rank" "$build/test/step_graphs" $kinds
check "two ranks that share, lazy streams" ranks 2 "${lazy[@]}" "$build/test/step_graphs" $kinds

echo "-- the program"
odd_model layers=2
options=(--model "$scratch/odd.json" --train-data "$scratch/letters.txt" --seq-len 16 --global-batch 8 --micro-batch 2 --steps 8
  --warmup-steps 3 --val-every 2 --val-tokens 256 --sample-every 3 --sample-tokens 5 --checkpoint-every 3 --dtype bf16)
more=(--fp8 delayed --fp8-head on --fp8-stats 4 --activation-offload attention)
for n in 1 2; do
  if [ $n = 2 ]; then more=(--fp8 tensorwise --fp8-head backward --zero-stage 3 --fp8-all-gather); fi
  run off$n $n "${more[@]}"
  run on$n $n "${more[@]}" --cuda-graphs --trace "$scratch/trace.json"
  check "$n rank(s), validation, samples, a trace and checkpoints between: losses and weights" same off$n on$n
  resume resumed$n $n "$(checkpoint off$n 3)" --cuda-graphs
  check "$n rank(s), gone on from a checkpoint with graphs: weights" same_weights off$n resumed$n
done
echo "$checks checks passed"

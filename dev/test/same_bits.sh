#!/usr/bin/env bash
# Covers: promise 3: the same run twice gives the same bits of weights and log, on 1 and 2 ranks, with any number of
# threads, thread order and stream schedule of the CPU world
# Timeout: 300
# Alone: its ranks take all cores
set -euo pipefail
# shellcheck source=dev/test/lib.bash
source "$(dirname "$0")/lib.bash"

run() { # NAME RANKS [VARIABLE=VALUE…]
  env "${@:3}" bash -c 'source dev/test/lib.bash; trap - EXIT; ranks "$@"' run "$2" "$train" --layers 2 --steps 6 \
    --global-batch 4 --seq-len 48 --micro-batch 1 --val-every 3 --sample-every 0 --dtype "$dtype" --out "$scratch/$1" \
    >"$scratch/$1.txt" 2>&1 || {
    cat "$scratch/$1.txt"
    fail "the run $1"
  }
}
same() { # A B
  cmp "$scratch/$1/export/model.safetensors" "$scratch/$2/export/model.safetensors" &&
    cmp <(without_times "$scratch/$1/train.jsonl") <(without_times "$scratch/$2/train.jsonl")
}

in_own_tree
for dtype in fp32 bf16; do
  run a-$dtype 1
  run b-$dtype 1
  check "$dtype: the same run twice" same a-$dtype b-$dtype
  run threads-$dtype 1 LLMC_THREADS=3
  check "$dtype: 3 threads" same a-$dtype threads-$dtype
  run orders-$dtype 1 LLMC_CPU_ORDER=reverse LLMC_CPU_STREAMS=lazy
  check "$dtype: threads in reverse, streams lazy" same a-$dtype orders-$dtype
  run random-$dtype 1 LLMC_CPU_ORDER=random LLMC_CPU_STREAMS=random LLMC_CPU_SEED=7
  check "$dtype: threads and streams at random" same a-$dtype random-$dtype
  run two-a-$dtype 2
  run two-b-$dtype 2 LLMC_CPU_STREAMS=lazy
  check "$dtype: 2 ranks twice" same two-a-$dtype two-b-$dtype
done
run_again() { ! cmp -s "$scratch/a-fp32/export/model.safetensors" "$scratch/a-bf16/export/model.safetensors"; }
check "fp32 and bf16 are seen to differ" run_again
echo "$checks checks passed"

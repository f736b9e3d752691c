#!/usr/bin/env bash
# Covers: promise 3: the same run twice gives the same bits of weights and log, on 1 and 2 ranks, with any number of
# threads, thread order and stream schedule of the CPU backend
set -euo pipefail
# shellcheck source=dev/test/lib.bash
source "$(dirname "$0")/lib.bash"
in_own_tree
for dtype in fp32 bf16; do
  options=(--layers 2 --steps 4 --global-batch 4 --seq-len 48 --micro-batch 1 --val-every 2 --val-tokens 200 --sample-every 0
    --dtype "$dtype")
  LLMC_THREADS=1 run $dtype 1
  LLMC_THREADS=1 run again 1
  LLMC_THREADS=3 run threads 1
  LLMC_CPU_ORDER=reverse LLMC_CPU_STREAMS=lazy run lazy 1
  LLMC_CPU_ORDER=random LLMC_CPU_STREAMS=random LLMC_CPU_SEED=7 run random 1
  for other in again threads lazy random; do check "$dtype, $other: the same bits" same $dtype $other; done
  run two 2
  LLMC_CPU_STREAMS=lazy run two-lazy 2
  check "$dtype, 2 ranks, lazy: the same bits" same two two-lazy
  rm -r "$scratch"/{again,threads,lazy,random,two,two-lazy}
done
check "fp32 and bf16 are seen to differ" not same_weights fp32 bf16
echo "$checks checks passed"

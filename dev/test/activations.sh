#!/usr/bin/env bash
# Covers: promise 3: what backward computes again and what waits for it in the host's memory change no bit of a training,
# in fp32, bf16 and FP8, on one rank and where the state is shared out; planned memory is touched to the last byte, none is
# allocated later, and what has left the device is poison there
# Timeout: 1800
# Turn: 3
#
# MEMORY=every: all combinations that mean something.
set -euo pipefail
# shellcheck source=dev/test/lib.bash
source "$(dirname "$0")/lib.bash"
in_own_tree
export LLMC_THREADS=1

combinations=pairs
if [ "${MEMORY:-}" = every ]; then combinations=every limit=1200; fi
check "one rank" "$build/test/activation_policies" "$combinations"
check "two ranks that share" ranks 2 "$build/test/activation_policies" "$combinations"
check "slots grow by a block's with each step of the horizon" "$build/test/activation_policies" slots

echo "-- the program"
options=(--layers 3 --seq-len 32 --global-batch 4 --micro-batch 2 --steps 4 --warmup-steps 1 --val-every 2 --val-tokens 128
  --sample-every 2 --sample-tokens 12 --temperature 0)
echo '{"sm_activation_offloading": true, "activation_loading_horizon": 2}' >"$scratch/smp.json"
run plain 1
run block 1 --recompute block
run offload 1 --activation-offload all --activation-loading-horizon 1
run smp 1 --config "$scratch/smp.json"
for other in block offload smp; do check "$other: the plain run's lines, samples and weights" same plain $other; done
check "the banner: what is kept" says plain "kept: x, rstd1, norm1, qkv, attention, lse, middle, rstd2, norm2, gate_up, swiglu"
check "the banner: SageMaker's offloading" says smp "on the host: x, 2 blocks' on the device"
run far 1 --activation-offload input --activation-loading-horizon 3 --recompute-every 2 --dry-run
check "a horizon of all blocks changes nothing, and is told" says far "all 3 blocks are within the horizon of 3"
check "so is --recompute-every alone" says far "--recompute-every changes nothing"
refused "a horizon of 0" "activation-loading-horizon" "$train" --dry-run --activation-offload input --activation-loading-horizon 0
echo "$checks checks passed"

#!/usr/bin/env bash
# Covers: a build for ARCH=89 on a software RTX 4090, which has 99 KiB of shared memory for a block: PyTorch's dumps in bf16
# and in FP8, and trainings with everything on the host have the bits of those without
# Programs: test_llama train_llama
# Timeout: 900
set -euo pipefail
# shellcheck source=dev/test/lib.bash
source "$(dirname "$0")/../../lib.bash"
in_own_tree
export LLMC_SOFTGPU=rtx4090
check "head128 in bf16" "$build/test_llama" "$root/dev/reference/dumps/head128" --dtype bf16
check "fp8_tensorwise" "$build/test_llama" "$root/dev/reference/dumps/fp8_tensorwise" --dtype fp8
options=(--steps 2 --seq-len 32 --micro-batch 1 --global-batch 2 --val-every 0 --sample-every 0 --dtype bf16)
for fp8 in off tensorwise; do
  run "device-$fp8" 1 --fp8 $fp8
  run "host-$fp8" 1 --fp8 $fp8 --offload-weights --offload-optimizer --offload-gradients --activation-offload all
  check "--fp8 $fp8: on the host as on the device" same "device-$fp8" "host-$fp8"
done
echo "$checks checks passed"

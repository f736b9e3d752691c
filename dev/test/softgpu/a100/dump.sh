#!/usr/bin/env bash
# Covers: a build for ARCH=80 on a software A100 and RTX 4090: PyTorch's dump with attention by mma; Hopper's attention is
# refused
# Programs: test_llama
set -euo pipefail
# shellcheck source=dev/test/lib.bash
source "$(dirname "$0")/../../lib.bash"
export LLMC_SOFTGPU=a100
dump=("$build/test_llama" "$root/dev/reference/dumps/head128" --dtype bf16)
check "head128 in bf16" "${dump[@]}" --attention mma
# It has 99 KiB of shared memory for a block: the gradients of keys and values take smaller tiles.
LLMC_SOFTGPU=rtx4090 check "on an RTX 4090" "${dump[@]}" --attention mma
refused "Hopper's attention" "it needs a GPU of compute capability 9.0" "${dump[@]}" --attention hopper
echo "$checks checks passed"

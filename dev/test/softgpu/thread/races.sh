#!/usr/bin/env bash
# Covers: the software GPU under ThreadSanitizer: a barrier that is missing in the PTX is a race between two lines of .cu
# files, also where the results are right
# Programs: kernels/hopper kernels/tensor_core
set -euo pipefail
# shellcheck source=dev/test/lib.bash
source "$(dirname "$0")/../../lib.bash"
cd "$root"
export LLMC_ONE_ORDER=1 LLMC_SIZES=few TSAN_OPTIONS=halt_on_error=1
export LLMC_THREADS=2 # blocks of one thread of the host are executed one after the other

# race WHAT KERNEL EDIT FILE: each side of the race has a line of FILE.
race() {
  LLMC_SOFTGPU_PTX=$3 refused "$1" "ThreadSanitizer: data race" "$build/kernels/$2" check
  check "  between two lines of $4" [ "$(grep -A 99 -m 1 "data race" "$scratch/refused" | grep -cE "^ +#[0-9] run .*$4:[0-9]+")" -ge 2 ]
}
race "no __syncthreads before an mbarrier is used" hopper '0,/bar\.sync[[:space:]]+0;/s/bar\.sync[[:space:]]+0;/;/' device/mbarrier.cuh
race "no __syncwarp between a store and ldmatrix" tensor_core 's/bar\.warp\.sync[^;]*;/;/' "(kernels/tensor_core.cu|device/tensor_core.cuh)"
check "no edit, no race" "$build/kernels/tensor_core" check
echo "$checks checks passed"

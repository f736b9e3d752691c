#!/usr/bin/env bash
# Covers: the software GPU executes the kernels of a debug build: a wait at an mbarrier that never completes is given up after
# 10 s, and launch() throws with thread, block, parity and address; a wait that completes does not
set -euo pipefail
# shellcheck source=dev/test/lib.bash
source "$(dirname "$0")/../lib.bash"
says() { grep -E -- "$2" <<<"$(timeout 60 "$build/softgpu/bounded_wait" "$1" 2>&1)"; } # ARRIVALS PATTERN
check "both come" says 2 "^waited for all$"
check "one comes" says 1 "a wait for two \(.*bounded_wait\.cu:[0-9]+\): thread [0-9]+ of block 0 waited in vain for parity 0 of the mbarrier at 1024 of shared memory"
echo "$checks checks passed"

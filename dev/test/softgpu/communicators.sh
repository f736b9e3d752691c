#!/usr/bin/env bash
# Covers: the software GPU's NCCL: communicators that do not block, from their start to ncclCommFinalize and ncclCommAbort,
# say that they are in progress while another rank has not come, and refuse calls until then
set -euo pipefail
# shellcheck source=dev/test/lib.bash
source "$(dirname "$0")/../lib.bash"
check "two ranks" timeout 60 "$build/softgpu/communicators"
echo "$checks checks passed"

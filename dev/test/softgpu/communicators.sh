#!/usr/bin/env bash
# Covers: the software GPU's NCCL: communicators that do not block, from their start to ncclCommFinalize and ncclCommAbort,
# say that they are in progress while another rank has not come, and refuse calls until then; messages from rank to rank
# match by their order, wait for nobody else, and are refused if they do not match
set -euo pipefail
# shellcheck source=dev/test/lib.bash
source "$(dirname "$0")/../lib.bash"
check "two ranks" timeout 60 "$build/softgpu/communicators"
refused "a message of another size" \
  "receives 32 elements of type 7 from rank 0, which sends 64 of type 7" timeout 60 "$build/softgpu/communicators" mismatch
echo "$checks checks passed"

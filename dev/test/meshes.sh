#!/usr/bin/env bash
# Covers: promise 2: tensor and context parallelism, with sharding, hybrid sharding and accumulation, train as one rank
# does: first loss, gradients, norm and 10 losses, on 2 and 4 (or 8) ranks, for odd vocabularies and shared key and value heads
# Timeout: 600
#
# MESHES=every: each combination, on 8 ranks too, and 20 losses; else each mesh, in stage 0 without and in stage 3 with accumulation.
set -euo pipefail
# shellcheck source=dev/test/lib.bash
source "$(dirname "$0")/lib.bash"
cd "$root"
for n in 2 4 ${MESHES:+8}; do
  # shellcheck disable=SC2086  # no word, or one
  limit=300 check "$n ranks train as one" ranks "$n" "$build/test/meshes" ${MESHES:-}
done
echo "$checks checks passed"

#!/usr/bin/env bash
# Covers: a spike, by impossible labels or by a norm 50 times too large, leaves weights, moments, FP8 history and the window as they
# were, to the bit, on 1, 2 and 4 ranks, with graphs, offload and delayed FP8, also in a snapshot that is under way; the training
# goes on as if it had never been, also from a checkpoint in the middle of a window; two in a row halt it
# Timeout: 900
# Turn: 3
set -euo pipefail
# shellcheck source=dev/test/lib.bash
source "$(dirname "$0")/lib.bash"

limit=300
for n in 1 2 4; do
  check "the state of $n rank(s)" ranks $n "$build/test/spikes" "$scratch"
done
echo "$checks checks passed"

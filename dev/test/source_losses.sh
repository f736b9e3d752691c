#!/usr/bin/env bash
# Covers: promise 2: the losses of the sources of a mixture are those of their rows, and add up to the loss of the step, on 1, 2 and
# 4 ranks, with tensor and context parallelism, and with graphs; the weights do not depend on the sources
# Turn: 2
set -euo pipefail
# shellcheck source=dev/test/lib.bash
source "$(dirname "$0")/lib.bash"
for how in "" graphs; do
  # shellcheck disable=SC2086  # an empty one is no word
  check "one rank $how" "$build/test/source_losses" $how
done
for how in "" tensor context; do
  # shellcheck disable=SC2086
  check "two ranks $how" ranks 2 "$build/test/source_losses" $how
done
check "four ranks, lazy streams" ranks 4 env LLMC_CPU_STREAMS=lazy "$build/test/source_losses" tensor
echo "$checks checks passed"

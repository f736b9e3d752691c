#!/usr/bin/env bash
# Covers: promise 8: with tensor and context parallelism every planned byte is touched and no other; activations and what
# travels are what formulas on paper say, as the communicators counted it, and as a device records it that executes nothing
# Timeout: 900
# Alone: its ranks take all cores
#
# MEMORY=every: on up to 32 ranks; else on up to 4.
set -euo pipefail
# shellcheck source=dev/test/lib.bash
source "$(dirname "$0")/lib.bash"
cd "$root"
most=4
if [ "${MEMORY:-}" = every ]; then most=32; fi
echo "A rank's memory, and what it sends in a step of two micro-batches of 4 x 256 tokens, ZeRO stage 3, bf16:"
printf '%6s %7s %5s %5s %11s %11s %11s %11s %11s\n' tensor context ranks sums memory activations sharding tensor context
for tensor in 1 2 4 8; do
  for context in 1 2 4; do
    n=$((tensor * context))
    if [ $n -gt $most ]; then continue; fi
    for sums in fp32 bf16; do
      if [ $sums = bf16 ] && { [ $tensor = 1 ] || [ $context != 1 ]; }; then continue; fi
      limit=300 ranks $n "$build/test/mesh_memory" $tensor $context $sums || fail "tensor $tensor, context $context, sums in $sums"
      checks=$((checks + 1))
    done
  done
done
echo "$checks checks passed"

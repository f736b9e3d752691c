#!/usr/bin/env bash
# Covers: promise 8: with tensor and context parallelism every planned byte is touched and no other; activations and what
# is sent are what formulas on paper say, as the communicators counted it, and as a device records it that executes nothing
# Timeout: 900
#
# MEMORY=every: each mesh, on up to 32 ranks; else some of 2 and 4.
set -euo pipefail
# shellcheck source=dev/test/lib.bash
source "$(dirname "$0")/lib.bash"
cd "$root"
ways=("1 2 fp32" "2 1 fp32" "2 1 bf16" "2 2 fp32" "4 1 bf16") # tensor, context, the type of sums
if [ "${MEMORY:-}" = every ]; then
  ways=()
  for tensor in 1 2 4 8; do
    for context in 1 2 4; do
      ways+=("$tensor $context fp32")
      if [ $tensor != 1 ] && [ $context = 1 ]; then ways+=("$tensor $context bf16"); fi
    done
  done
fi
echo "A rank's memory, and what it sends in a step of two micro-batches of 4 x 256 tokens, ZeRO stage 3, bf16:"
printf '%6s %7s %5s %5s %11s %11s %11s %11s %11s\n' tensor context ranks sums memory activations sharding tensor context
for way in "${ways[@]}"; do
  read -r tensor context sums <<<"$way"
  limit=300 check "tensor $tensor, context $context, sums in $sums" \
    ranks $((tensor * context)) "$build/test/mesh_memory" "$tensor" "$context" "$sums" </dev/null
done
echo "$checks checks passed"

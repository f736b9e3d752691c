#!/usr/bin/env bash
# Covers: promise 7: number types have the bits of CUDA's headers: all bf16, all FP8 codes, fp32 of every exponent
# Timeout: 300
set -euo pipefail
# shellcheck source=dev/test/lib.bash
source "$(dirname "$0")/lib.bash"
cd "$root"
include=${CUDA_HOME:-/usr/local/cuda}/include
if ! [ -e "$include/cuda_fp8.h" ]; then
  echo "no CUDA headers in $include (CUDA_HOME): nothing to compare with"
  exit
fi
compile() { g++ -std=c++20 -O2 -w -I"$1" -isystem "$include" dev/test/cuda_numbers.cpp -o "$scratch/numbers"; }
compile .
"$scratch/numbers"
# Seen failing: rounding away from zero instead of to even.
mkdir -p "$scratch/wrong/llmc"
cp -r llmc/base llmc/device "$scratch/wrong/llmc"
sed -i 's/(u + 0x7fffu + ((u >> 16) & 1u)) >> 16/(u + 0x8000u) >> 16/' "$scratch/wrong/llmc/device/number.h"
! cmp -s llmc/device/number.h "$scratch/wrong/llmc/device/number.h" || fail "the wrong rounding changes nothing"
compile "$scratch/wrong"
if "$scratch/numbers" >"$scratch/out"; then fail "a wrong rounding is not seen"; fi
grep -q '^FAIL fp32 to bf16' "$scratch/out" || { cat "$scratch/out" && fail "a wrong rounding is not seen"; }
echo "ok   another rounding is seen: $(grep '^FAIL' "$scratch/out")"

#!/usr/bin/env bash
# Covers: promise 1 on a model that has learnt something, SmolLM2-135M: logits, losses, gradients and the weights after 20
# AdamW steps on a text agree with PyTorch in fp32 and bf16, and after 4 steps in FP8 with PyTorch's emulation
# Timeout: 1800
set -euo pipefail
# shellcheck source=dev/test/lib.bash
source "$(dirname "$0")/../lib.bash"
model=$root/build/pretrained/model PYTHON=$root/build/pytorch/bin/python
export OMP_WAIT_POLICY=passive # PyTorch's threads share the cores with other tests: who waits must not spin
cd "$root"

# parity PRECISION OPTIONS…: test_llama with a dump on the text; prints its failures, or how many comparisons passed.
parity() {
  local code=0
  rm -rf "$scratch/dump"
  "$PYTHON" dev/reference/pretrained_dump.py "$model" dev/data/tinyshakespeare.txt --out "$scratch/dump" "${@:2}" \
    2>"$scratch/err.txt" || { cat "$scratch/err.txt" && return 1; }
  # shellcheck disable=SC2086  # words
  "$build/test_llama" "$scratch/dump" $1 >"$scratch/out.txt" || code=$?
  grep -E "FAIL| logits |loss |passed" "$scratch/out.txt"
  return $code
}
check "20 steps in fp32 and bf16" parity "" --steps 20
for recipe in tensorwise blockwise; do check "4 steps with --fp8 $recipe" parity "--dtype fp8" --steps 4 --fp8 $recipe; done
echo "$checks checks passed"

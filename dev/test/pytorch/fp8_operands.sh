#!/usr/bin/env bash
# Covers: FP8: each operand of each product is its source quantized as the recipe says, bit for bit as PyTorch casts it,
# in each of several micro-batches, on one rank and where weights are shared out, gathered in bf16 or FP8
# Timeout: 1800
#
#   dev/test/pytorch/fp8_operands.sh                          all of them
#   dev/test/pytorch/fp8_operands.sh RANKS RECIPE [WORD…]     one of them, as dev/test/fp8_operands.cpp has it
set -euo pipefail
# shellcheck source=dev/test/lib.bash
source "$(dirname "$0")/../lib.bash"
cd "$root"
export LLMC_THREADS=1

operands() { # RANKS RECIPE [WORD…]
  rm -rf "$scratch/dump" && mkdir "$scratch/dump"
  ranks "$1" "$build/test/fp8_operands" "$scratch/dump" "${@:2}" || return 1
  "$PYTHON" dev/reference/check_operands.py "$scratch/dump"
}
if [ $# -gt 0 ]; then
  check "$*" operands "$@"
  exit
fi

recipes=(tensorwise delayed rowwise rowwise-hp-wgrad blockwise)
for recipe in "${recipes[@]}"; do
  check "$recipe" operands 1 "$recipe"
  check "$recipe, 2 ranks, stage 3" operands 2 "$recipe" stage=3
  check "$recipe, several blocks of 128" operands 1 "$recipe" large
done
for recipe in tensorwise delayed; do
  for way in "" on-demand; do
    # shellcheck disable=SC2086  # a word or none
    check "$recipe, weights are gathered in FP8 $way" operands 2 "$recipe" stage=3 all-gather $way
  done
  check "$recipe, the same on 3 ranks, whole weights kept" operands 3 "$recipe" stage=2 all-gather
  check "$recipe, scales powers of two, gradients e4m3" operands 1 "$recipe" pow2=on grad=e4m3
done
for recipe in rowwise rowwise-hp-wgrad blockwise; do check "$recipe, any scales" operands 1 "$recipe" pow2=off; done
check "delayed, of 2 steps, 1 power of two below" operands 1 delayed history=2 margin=1
check "delayed, of the last step" operands 2 delayed latest stage=1
for recipe in "${recipes[@]}"; do
  check "$recipe, some products in bf16" operands 1 "$recipe" skip=down_proj,layers.0.self_attn.q
done
check "some products in bf16, weights are gathered in FP8 where none is" operands 2 tensorwise stage=3 all-gather skip=layers.0.mlp.gate
echo "$checks checks passed"

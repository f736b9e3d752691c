#!/usr/bin/env bash
# Covers: --nvtx names steps, phases, blocks and operations for Nsight Systems; the ranges nest, and without the option
# there are none
# Programs: train_llama
# Timeout: 300
set -euo pipefail
# shellcheck source=dev/test/lib.bash
source "$(dirname "$0")/../lib.bash"
in_own_tree
nvcc=$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)
${CC:-cc} -shared -fPIC -I"${CUDA_HOME:-$(dirname "$(dirname "$(readlink -f "$nvcc")")")}/include" \
  -o "$scratch/log.so" dev/test/softgpu/nvtx_log.c
export NVTX_INJECTION64_PATH=$scratch/log.so
options=(--steps 2 --val-every 0 --sample-every 0 --export off --micro-batch 1 --global-batch 2 --seq-len 32 --layers 2 --dtype bf16
  --recompute block)
logged() { # FILE OPTIONS…
  NVTX_LOG=$scratch/$1 "$build/train_llama" "${options[@]}" --out "$scratch/$1-run" "${@:2}" >"$scratch/out.txt" 2>&1 ||
    { cat "$scratch/out.txt" && fail "a training"; }
}
logged ranges --nvtx
logged none
check "no ranges without the option" eval '! grep -q . "$scratch/none" 2>/dev/null'
# The names above a line of the log, joined: each operation and where it is.
awk '{ depth = (match($0, /[^ ]/) - 1) / 2; name[depth] = substr($0, 2 * depth + 1); path = name[0]
       for (i = 1; i <= depth; ++i) path = path " / " name[i]; print path }' "$scratch/ranges" >"$scratch/paths"
for path in "step 1 / forward / block 0 / attention_forward" "step 2 / forward / block 1 / matmul_forward" \
  "step 1 / backward / block 1 / rmsnorm_backward" "step 2 / backward / block 0 / recompute / swiglu_forward" \
  "step 2 / optimizer / adamw"; do
  check "$path" grep -q "^$path" "$scratch/paths"
done
check "each range ends where it began" eval '! grep -q unbalanced "$scratch/ranges" && [ "$(grep -c "^step" "$scratch/ranges")" = 2 ]'
check "no work of a step outside of its phases" eval '! grep -qE "^step [0-9]+ / (attention|matmul|rmsnorm|swiglu|adamw)" "$scratch/paths"'
echo "$checks checks passed"

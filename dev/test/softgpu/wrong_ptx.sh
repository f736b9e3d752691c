#!/usr/bin/env bash
# Covers: the software GPU sees wrong PTX: operands, modifiers, register lists, fences, waits, barriers, boxes and sizes, one
# mistake at a time, each noticed by the check of its kernel or by the translator
# Timeout: 1500
#
# T="words": the mistakes that contain one of them. None of these can be seen in the CPU backend, which executes no PTX.
set -euo pipefail
# shellcheck source=dev/test/lib.bash
source "$(dirname "$0")/../lib.bash"
cd "$root"
export LLMC_SIZES=few

# Lines: the kernel program, what is wrong, and a sed expression that makes it so.
mistakes() {
  grep -vE '^ *(#|$)' <<'END'
attention_hopper | what threads wrote is not published to TMA and wgmma | s/fence\.proxy\.async[^;]*;/;/
attention_hopper | registers are read and written during a product | s/wgmma\.fence\.sync\.aligned;/;/
attention_hopper | nobody waits for products | s/wgmma\.wait_group\.sync\.aligned 0;/;/
attention_hopper | fewer bytes are announced than come | s/(mbarrier\.arrive\.expect_tx[^;]*), %r[0-9]+;/\1, 4096;/
attention_hopper | the other operand's layout in a product | s/(wgmma\.mma_async[^;]*, p, 1, 1), 1;/\1, 0;/
attention_hopper | two registers of a product change places | s/(wgmma\.mma_async[^{;]*\{)(%f[0-9]+), (%f[0-9]+), (%f[0-9]+), (%f[0-9]+)/\1\4, \3, \2, \5/
attention_hopper | a product begins with what was there | s/(wgmma\.mma_async[^;]*\}, [^;]*), p, 1, 1/\1, 1, 1, 1/
attention_hopper | all wait for the first phase | s/(mbarrier\.try_wait[^;]*), %r[0-9]+;/\1, 0;/
attention_hopper | registers are taken that nobody gave back | s/setmaxnreg\.dec[^;]*;/;/
attention_hopper | a box of another head and row | s/(cp\.async\.bulk\.tensor[^;]*\{%r[0-9]+), (%r[0-9]+), (%r[0-9]+), /\1, \3, \2, /
attention_hopper | barriers are not published | s/fence\.mbarrier_init[^;]*;/;/
attention_hopper | a stage is given back twice | s/(mbarrier\.arrive\.shared::cta[^;]*;)/\1 \1/
attention_mma | nobody waits for copies | s/cp\.async\.wait_group[^;]*;/;/
attention_mma | a copy of a part | s/(cp\.async\.c[ag]\.shared\.global [^;]*), 16, %r[0-9]+;/\1, 16, 8;/
attention_mma | a matrix is not transposed | s/(ldmatrix[^;]*)\.trans/\1/
attention_mma | two fragments of A change places | s/(mma\.sync[^{;]*\{[^}]*\}, ?\{%r[0-9]+), ?(%r[0-9]+), ?(%r[0-9]+)/\1, \3, \2/
attention_mma | the sum does not go on | s/(mma\.sync[^;]*\{)(%f[0-9]+),/\1%f0,/
attention_mma | the base of exponentials | s/ex2\.approx\.ftz\.f32 (%f[0-9]+), (%f[0-9]+);/mul.f32 \1, \2, 0f3f000000;/
rmsnorm | lanes exchange with others | s/shfl\.sync\.bfly/shfl.sync.down/
global_norm | a barrier is missing | s/bar\.sync[[:space:]]+0;/;/
tensor_core | the halves of a pair change places | s/(cvt\.rn\.bf16x2\.f32 %r[0-9]+), (%f[0-9]+), (%f[0-9]+)/\1, \3, \2/
quantize | the other format of FP8 | s/satfinite\.e4m3x2/satfinite.e5m2x2/
quantize | a maximum that is a minimum | s/redux\.sync\.max/redux.sync.min/
quantize | a maximum that is a sum | s/atom\.global\.max\.u32/atom.global.add.u32/
transpose_quantized | other bytes | s/(prmt\.b32[^;]*), 30212;/\1, 30213;/
swiglu | one number of four | s/st\.global\.v4\.f32 ([^;]*)\{(%f[0-9]+), (%f[0-9]+)/st.global.v4.f32 \1{\3, \2/
rope | addresses 16 bytes on | s/(ld\.global[^;]*\[%rd[0-9]+)\];/\1+16];/
embedding | one thread or row too many | s/setp\.ge\.s32/setp.gt.s32/
adamw | a root of another rounding | s/sqrt\.rn\.f32/rsqrt.approx.f32/
number | rounding to odd | s/cvt\.rn\.bf16\.f32/cvt.rz.bf16.f32/
END
}

wrong() { # KERNEL EDIT
  LLMC_SOFTGPU_PTX=$2 timeout 300 "$build/kernels/$1" check
}
tried=0 equal=0
while IFS='|' read -r kernel what edit; do
  kernel=${kernel// /} what=${what# } edit=${edit# }
  if [ -n "${T:-}" ] && ! grep -qE "${T// /|}" <<<"$kernel $what"; then continue; fi
  tried=$((tried + 1))
  # One order of threads is not enough: each is tried until one notices.
  noticed=""
  for world in LLMC_CPU_SEED=1 "LLMC_CPU_ORDER=reverse LLMC_CPU_COPIES=early" "LLMC_CPU_ORDER=random LLMC_CPU_COPIES=random LLMC_CPU_SEED=2"; do
    # shellcheck disable=SC2086  # variables
    if ! env LLMC_ONE_ORDER=1 $world bash -c "$(declare -f wrong); build=$build; wrong \"\$@\"" - "$kernel" "$edit" >"$scratch/said" 2>&1; then
      noticed=$(grep -m1 -E '^FAIL|^error|error in a kernel|translate:|LLMC_SOFTGPU_PTX' "$scratch/said" | cut -c1-150)
      break
    fi
  done
  if [ -n "$noticed" ]; then
    checks=$((checks + 1))
    echo "ok   $kernel, $what: $noticed"
  else
    equal=$((equal + 1))
    echo "NOT SEEN  $kernel, $what$(grep -m1 "LLMC_SOFTGPU_PTX" "$scratch/said" || true)"
  fi
done < <(mistakes)
echo "$checks of $tried mistakes noticed"
[ "$equal" = 0 ] && [ "$tried" -gt 0 ]

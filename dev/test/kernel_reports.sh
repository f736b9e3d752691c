#!/usr/bin/env bash
# Covers: the device world: kernels that diverge, hang, overrun or misalign end with kernel, block, thread, file and line
# Timeout: 120
set -euo pipefail
# shellcheck source=dev/test/lib.bash
source "$(dirname "$0")/lib.bash"
# shellcheck disable=SC2206  # words: what runs the programs of a cross build, and the program
reports=(${EMULATOR:-} "$build/test/kernel_reports")
source_file=dev/test/kernel_reports.cu
ulimit -c 0
tested=()

# A place in the source: reports name the file and the line of what was called there.
line_of() { grep -nE -m1 -A"${2:-3}" "void $1\(" "$root/$source_file" | grep -E -m1 "$3" | sed 's/^\([0-9]*\).*/\1/'; }

# ends NAME TEXT…: in every thread order the case must end by itself, not well, with a report that says each TEXT.
ends() {
  local code text order own='error in a kernel'
  if [ "$1" = sanitized ]; then own='Sanitizer:|runtime error:' && shift; fi
  tested+=("$1")
  for order in forward reverse random; do
    code=0
    (LLMC_CPU_ORDER=$order timeout 20 "${reports[@]}" "$1" || exit $?) >"$scratch/out" 2>&1 || code=$?
    checks=$((checks + 1))
    if [ $code = 0 ] || [ $code = 124 ]; then
      cat "$scratch/out"
      fail "$1, $order order, ended with code $code"
    fi
    for text in "$own" "kernel broken, launched at $source_file:" "block (" "of (3,1,1), thread (" "${@:2}"; do
      text=${text//(/\\(} text=${text//)/\\)}
      if ! grep -qE -- "$text" "$scratch/out"; then
        cat "$scratch/out"
        fail "$1, $order order: does not say \"$text\""
      fi
    done
    if [ "$(grep -cE "error in a kernel|runtime error:|(ERROR|WARNING): [A-Z][a-z]*Sanitizer:" "$scratch/out")" != 1 ]; then
      cat "$scratch/out"
      fail "$1, $order order: reported more than once"
    fi
  done
  echo "ok   $1: $(grep -m1 -E "$own" "$scratch/out")"
}
at() { echo "$source_file:$(line_of "$1" 6 "$2")"; }

if ! "${reports[@]}" whole >"$scratch/out" 2>&1; then
  grep -q "nothing to test on a GPU" "$scratch/out" || { cat "$scratch/out" && fail "whole"; }
  echo "kernel_reports: skipped, these reports are the CPU world's"
  exit
fi
tested+=(whole)

ends two_barriers "divergence: thread [0-9]+ reached __syncthreads at $source_file:[0-9]+ while [0-9]+ thread(s) wait in __syncthreads" \
  "$(at two_barriers 'if .* __syncthreads')" "$(at two_barriers 'else __syncthreads')"
ends barrier_against_sum divergence "__syncthreads at $(at barrier_against_sum __syncthreads)" "block_sum at $(at barrier_against_sum block_sum)"
ends two_collectives "divergence in warp [0-3]: lane" "warp_sum at $(at two_collectives warp_sum)" "warp_max at $(at two_collectives warp_max)"
ends two_masks "hang" "__shfl_sync at $(at two_masks __shfl_sync), warp 0, mask ffffffff" "__syncthreads at $(at two_masks __syncthreads)"
ends not_in_mask "$(at not_in_mask __shfl_sync): __shfl_sync: lane [0-9]+ is not in its own mask 0000ffff"
ends warp_against_barrier "hang" "16 thread(s) wait in __shfl_xor_sync at $(at warp_against_barrier __shfl_xor_sync), warp 3" \
  "64 thread(s) wait in __syncthreads at $(at warp_against_barrier __syncthreads)"
ends sum_of_half_warps "warp_sum needs all 32 lanes, has 0000ffff"
ends sum_of_some "block_sum"
ends returned_during_sum "block"
ends named_of_two_sizes "$(at named_of_two_sizes named_barrier_sync): named_barrier_sync: barrier 3 of [0-9]+ threads, but [0-9]+ wait there for [0-9]+"
ends named_not_met "hang" "96 thread(s) wait in named_barrier_sync at $(at named_not_met named_barrier_sync), barrier 3 of 128"
ends named_of_half_warps "$(at named_of_half_warps named_barrier_sync): named_barrier_sync: barrier 3 of 48 threads, expected 1 to 15 and whole warps"
ends copy_misaligned "$(at copy_misaligned cp_async16): cp_async16 of 16 bytes from 0x[0-9a-f]+ to 0x[0-9a-f]+: not aligned"
ends copy_to_global "$(at copy_to_global cp_async16): cp_async16: the target is not in the block's 1024 bytes of shared memory"
ends matrix_misaligned "$(at matrix_misaligned ldmatrix): ldmatrix: the row's address 0x[0-9a-f]+ is not 16-byte aligned"
ends tile_misaligned "$(at tile_misaligned swizzled_address): a swizzled tile of rows of 128 bytes lies at 0x[0-9a-f]+, no multiple of that"

symbols=$(nm "$build/test/kernel_reports")
memory=(beyond_memory integer_overflow) races=(race_in_shared race_in_warp race_in_global)
if [[ $symbols == *__asan_init* ]]; then # AddressSanitizer has reports of its own
  ends sanitized shared_overrun "in .*shared_overrun" "$(at shared_overrun 'values.*\+ 1')"
  ends sanitized large_frame "stack-overflow|DEADLYSIGNAL"
  ends sanitized null_pointer "DEADLYSIGNAL|null pointer"
  ends sanitized beyond_memory "heap-buffer-overflow" "$(at beyond_memory 1024)" "thread (77,0,0)"
  ends sanitized integer_overflow "signed integer overflow: [0-9]+ \* 30000000" "$(at integer_overflow 30000000)"
  tested+=("${races[@]}")
elif [[ $symbols == *__tsan_init* ]]; then
  ends sanitized race_in_shared "data race" "$(at race_in_shared '127 -|= float')"
  ends sanitized race_in_warp "data race" "$(at race_in_warp '127 -|= warp_sum')"
  ends sanitized race_in_global "data race" "$(at race_in_global 'threadIdx.x % 2')"
  tested+=("${memory[@]}" shared_overrun large_frame null_pointer)
else
  tested+=("${memory[@]}" "${races[@]}") # not seen without a sanitizer
  ends shared_overrun "wrote shared memory at byte 512, but the launch asked for 512 bytes"
  ends large_frame "stack overflow: a thread has 128 KiB"
  ends null_pointer "a thread read or wrote at (nil)"
fi

check "every case was tested" [ "$("${reports[@]}" | sort)" = "$(printf '%s\n' "${tested[@]}" | sort)" ]
echo "$checks checks passed"

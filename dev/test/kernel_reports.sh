#!/usr/bin/env bash
# Covers: the device backend: kernels that diverge, hang, overrun or misalign end with kernel, block, thread, file and line
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
line_of() { grep -nE -m1 -A"${2:-3}" "(void |BROKEN\(|BROKEN_WITH_MAP\()$1[(,)]" "$root/$source_file" | grep -E -m1 "$3" | sed 's/^\([0-9]*\).*/\1/'; }

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
  echo "kernel_reports: skipped, these reports are the CPU backend's"
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

# Hopper's instructions.
barrier="the barrier at byte 16384 of shared memory"
ends barrier_not_initialised "$(at barrier_not_initialised mbarrier_arrive): mbarrier_arrive: $barrier is not initialised"
ends barrier_not_published "$(at barrier_not_published mbarrier_arrive): mbarrier_arrive: $barrier is not published: thread [0-9]+ uses it, thread 0 has"
ends barrier_published_by_another "$(at barrier_published_by_another mbarrier_wait): mbarrier_wait: $barrier is not published"
ends barrier_initialised_twice "$barrier was initialised before, by thread [01]"
ends barrier_overwritten "mbarrier_wait: $barrier was overwritten: it holds 0000000000000001"
ends barrier_in_device_memory "mbarrier_init: the barrier is not in the block's 17408 bytes of shared memory"
ends barrier_arrived_too_often "$(at barrier_arrived_too_often mbarrier_arrive_expect_tx): mbarrier_arrive_expect_tx: too many arrivals at $barrier: a phase has 1"
ends barrier_counts_too_much "$barrier counts 1048576 bytes, at most 1048575"
ends barrier_not_completed hang "128 thread(s) wait in mbarrier_wait at $(at barrier_not_completed mbarrier_wait), barrier at byte 16384 of shared memory, parity 0: 0 of 1 arrivals and 64 bytes are missing"
# In random order both phases may have passed before thread 64 waits: then it waits for ever.
ends barrier_went_on "$(at barrier_went_on 'i < 2'): mbarrier_arrive: $barrier went through two phases while thread 64 still waited for the first|hang"
ends box_misaligned "$(at box_misaligned tma_load): tma_load: the box's place, byte 128 of shared memory, is not aligned to 1024 bytes"
ends box_between_chunks "$(at box_between_chunks tma_load): tma_load: the box begins at coordinate 4 of dimension 0, which is no multiple of 16 bytes"
ends store_before_tensor "$(at store_before_tensor tma_store): tma_store: the box begins before the tensor: a GPU loads such a box, but does not store it"
ends store_of_ragged_rows "$(at store_of_ragged_rows tma_store): tma_store: rows of 60 elements are not whole 16 bytes: a GPU would write beyond them"
ends box_beyond_shared "tma_load: the box's place is not in the block's 17408 bytes of shared memory"
ends box_without_map "tma_load: the map is not one that tensor_map() made"
ends box_not_waited_for "$(at box_not_waited_for tma_load): tma_load: the block ended while the box was under way to byte 0"
ends box_of_unpublished_barrier "tma_load: $barrier is not published: the copy engine does not see it"
ends box_not_expected "tma_load: the block ended while the box was under way" "a box of 8192 bytes is under way to byte 0 of shared memory, tma_load of thread 0 at $(at box_not_expected tma_load)"
LLMC_CPU_COPIES=early ends box_expected_in_part "$(at box_expected_in_part tma_load): tma_load: the block ended when 8192 bytes had come that nobody announced at $barrier"
ends store_not_committed "$(at store_not_committed tma_store): tma_store: thread 3 returned with 1 box(es) not committed"
ends store_not_waited_for "$(at store_not_waited_for tma_store): tma_store: thread 3 returned with 1 box(es) not waited for"
product="$source_file:$(line_of product_with 9 "wgmma<"): wgmma:"
ends product_not_begun "$(at product_not_begun "wgmma<"): wgmma: a batch of products begins with wgmma_fence()"
ends product_begun_once "$(at product_begun_once "wgmma<"): wgmma: a batch of products begins with wgmma_fence()"
ends product_of_two_operands "$product the descriptor of B differs within warpgroup 0: [0-9a-f]{16} in thread [0-9]+, [0-9a-f]{16} in thread"
ends product_accumulates_for_some "$product accumulate differs within warpgroup 0: [a-z]+ in thread"
ends product_of_reserved_bits "$product A's descriptor .*: bits that must be 0 are set: 0020000000000000"
ends product_of_base_offset "$product A's descriptor .*: base offset 3, expected 0"
ends product_from_second_row "$product A's descriptor .*: start 1152 is 128 bytes after a multiple of its pattern of 1024 bytes"
ends product_across_lines "$product A's descriptor .*: 16 elements from byte 112 of a line of 128 bytes"
ends product_beyond_shared "$product B's descriptor .*: it reaches from byte 12288 to 20480 of the block's 17408 bytes"
ends product_without_stride "$product B's descriptor .*: stride 0"
ends product_of_some "wgmma_fence is for a whole warpgroup, but thread [0-9]+ of warpgroup 0 has returned"
ends product_of_three_warps "wgmma_fence: thread [0-9]+ is in no whole warpgroup: the block has 96 threads"
ends product_against_wait "divergence in warpgroup 0: thread" "wgmma_commit_group at $(at product_against_wait wgmma_commit_group)" "wgmma_wait_group at $(at product_against_wait wgmma_wait_group)"
ends product_not_met hang "24 thread(s) wait in wgmma_wait_group at $(at product_not_met wgmma_wait_group), warp 0, where 24 of 32 threads have come"
ends product_not_committed "$(at product_not_committed "wgmma<"): wgmma: thread [0-9]+ returned while 1 product(s) of its warpgroup were not committed"
ends product_not_waited_for "$(at product_not_waited_for wgmma_commit_group): wgmma_commit_group: thread [0-9]+ returned while 1 group(s) of products of its warpgroup were not waited for"
ends product_overwritten "$(at product_overwritten "wgmma<"): wgmma: thread [0-9]+ wrote its accumulators while the product was under way"
ends product_of_two_accumulators "wgmma: the threads of warp [0-3] have different accumulators"
ends registers_not_given_up hang "128 thread(s) wait in setmaxnreg_inc at $(at registers_not_given_up setmaxnreg_inc), warpgroup [12] has 168 registers a thread and wants 232: 8192 more, 5120 are free"
ends registers_given_up_in_vain "setmaxnreg_dec: 200 registers, but the thread has 168"
ends registers_taken_in_vain "setmaxnreg_inc: 128 registers, but the thread has 168"
ends registers_of_two_counts "divergence in warpgroup [0-2]: thread" "setmaxnreg_dec at $(at registers_of_two_counts 'setmaxnreg_dec<64>')"
ends named_arrived_in_vain "named_barrier_arrive: the block ended when 64 of 96 threads had come to barrier 4"
ends window_of_device_memory "smem_address: 0x[0-9a-f]+ is not in the block's 17408 bytes of shared memory"

symbols=$(nm "$build/test/kernel_reports")
memory=(beyond_memory integer_overflow) races=(race_in_shared race_in_warp race_in_global race_with_product)
if [[ $symbols == *__asan_init* ]]; then # AddressSanitizer has reports of its own
  ends sanitized barrier_misaligned "misaligned address" "$(at barrier_misaligned reinterpret_cast)"
  ends sanitized shared_overrun "in .*shared_overrun" "$(at shared_overrun 'values.*\+ 1')"
  ends sanitized large_frame "stack-overflow|DEADLYSIGNAL"
  ends sanitized null_pointer "DEADLYSIGNAL|null pointer"
  ends sanitized beyond_memory "heap-buffer-overflow" "$(at beyond_memory 1024)" "thread (77,0,0)"
  ends sanitized integer_overflow "signed integer overflow: [0-9]+ \* 30000000" "$(at integer_overflow 30000000)"
  tested+=("${races[@]}")
elif [[ $symbols == *__tsan_init* ]]; then
  ends barrier_misaligned "mbarrier_init: the barrier, byte 12 of shared memory, is not aligned to 8 bytes"
  ends sanitized race_in_shared "data race" "$(at race_in_shared '127 -|= float')"
  ends sanitized race_in_warp "data race" "$(at race_in_warp '127 -|= warp_sum')"
  ends sanitized race_in_global "data race" "$(at race_in_global 'threadIdx.x % 2')"
  ends sanitized race_with_product "data race" "$(at race_with_product '= 1')"
  tested+=("${memory[@]}" shared_overrun large_frame null_pointer)
else
  ends barrier_misaligned "mbarrier_init: the barrier, byte 12 of shared memory, is not aligned to 8 bytes"
  tested+=("${memory[@]}" "${races[@]}") # not seen without a sanitizer
  ends shared_overrun "wrote shared memory at byte 512, but the launch asked for 512 bytes"
  ends large_frame "stack overflow: a thread has 128 KiB"
  ends null_pointer "a thread read or wrote at (nil)"
fi

check "every case was tested" [ "$("${reports[@]}" | sort)" = "$(printf '%s\n' "${tested[@]}" | sort)" ]
echo "$checks checks passed"

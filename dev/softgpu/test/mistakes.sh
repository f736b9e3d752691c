#!/usr/bin/env bash
# Each mistake of mistakes.cu ends with the error of CUDA that a GPU gives, or with a report.
#   mistakes.sh PROGRAM
set -uo pipefail
program=$1 passed=0 failed=0
# An expectation names a kernel for the line in which it is defined.
line_of() { grep -n "void $1(" "${BASH_SOURCE[0]%.sh}.cu" | cut -d: -f1; }
declare -A expected=(
  [none]=cudaSuccess
  [host_memory_in_a_kernel]='a read of 4 bytes of global memory.*there is no such memory|cudaErrorIllegalAddress'
  [device_memory_on_the_host]='exit code 139'
  [read_beyond_an_allocation]="cu:$(line_of read_one): a read of 4 bytes|cudaErrorIllegalAddress"
  [write_beyond_an_allocation]="cu:$(line_of write_one): a write of 4 bytes|cudaErrorIllegalAddress"
  [write_before_an_allocation]="cu:$(line_of write_one): a write of 4 bytes|cudaErrorIllegalAddress"
  [memory_never_written]="cu:$(line_of read_one): a read of 4 bytes of global memory.*never written|cudaErrorLaunchFailure"
  [copied_memory_never_written]='never written|cudaErrorLaunchFailure'
  [misaligned_vector]="cu:$(line_of read_vector): a read of 16 bytes.*not aligned|cudaErrorMisalignedAddress"
  [memory_that_was_freed]="cu:$(line_of write_one): a write|cudaErrorIllegalAddress"
  [two_barriers]='divergence|cudaErrorLaunchFailure'
  [lost_thread]='hang: no thread of the block can go on|cudaErrorLaunchTimeout'
  [outside_shared_memory]='a write of 4 bytes of shared memory|cudaErrorIllegalAddress'
  [outside_a_local_array]='of local memory|cudaErrorIllegalAddress'
  [trap]="cu:$(line_of stop): trap|cudaErrorLaunchFailure"
  [every_call_after_an_error]=cudaErrorLaunchFailure
  [shared_memory_without_an_attribute]=cudaErrorInvalidValue
  [shared_memory_beyond_the_gpu]=cudaErrorInvalidValue
  [threads_beyond_the_launch_bounds]=cudaErrorLaunchOutOfResources
  [empty_grid]=cudaErrorInvalidConfiguration
  [grid_too_high]=cudaErrorInvalidConfiguration
  [too_many_threads]=cudaErrorInvalidConfiguration
  [copy_beyond_an_allocation]=cudaErrorInvalidValue
  [more_memory_than_there_is]=cudaErrorMemoryAllocation
  [allocation_in_a_capture]=cudaErrorStreamCaptureUnsupported
  [spoiled_capture]=cudaErrorStreamCaptureInvalidated
  [wait_in_a_capture]=cudaErrorStreamCaptureUnsupported
  [query_in_a_capture]=cudaErrorStreamCaptureUnsupported
  [query_beside_a_capture]=cudaSuccess
  [query_of_a_captured_event]=cudaErrorCapturedEvent
  [capture_not_joined]=cudaErrorStreamCaptureUnjoined
  [capture_waits_for_other_work]=cudaErrorStreamCaptureIsolation
  [capture_ended_by_another_thread]=cudaErrorStreamCaptureWrongThread
  [work_time_before_it_is_done]=cudaErrorInvalidResourceHandle
)
while read -r name; do
  said=$(timeout 60 "$program" "$name" 2>&1; echo "exit code $?")
  good=1
  IFS='|' read -ra patterns <<<"${expected[$name]:-no expectation}"
  for pattern in "${patterns[@]}"; do grep -qE "$pattern" <<<"$said" || good=0; done
  if [ $good = 1 ]; then
    passed=$((passed + 1))
  else
    failed=$((failed + 1))
    echo "FAIL  $name: expected ${expected[$name]:-nothing}, got:" && head -5 <<<"$said"
  fi
done < <("$program")
echo "$passed passed, $failed failed"
[ $failed = 0 ] && [ $passed -gt 0 ]

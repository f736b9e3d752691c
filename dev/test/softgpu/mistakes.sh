#!/usr/bin/env bash
# Covers: the software GPU: mistakes in kernels, launches, products, collectives, copies and captures end with the error
# that CUDA gives;
# a full stream, a free and a pageable copy wait, the destruction of a stream does not
#
# Each mistake of mistakes.cu prints the name of its error. An expectation is what must be said, parts separated by |.
set -euo pipefail
# shellcheck source=dev/test/lib.bash
source "$(dirname "$0")/../lib.bash"
source_file=$root/dev/test/softgpu/mistakes.cu
line_of() { grep -n "void $1(" "$source_file" | cut -d: -f1; } # in which a kernel is defined
declare -A expected=(
  [none]=cudaSuccess
  [host_memory_in_a_kernel]='a read of 4 bytes of global memory.*there is no such memory|cudaErrorIllegalAddress'
  [device_memory_on_the_host]='exit code 139'
  [read_beyond_an_allocation]="cu:$(line_of read_one): a read of 4 bytes|cudaErrorIllegalAddress"
  [write_beyond_an_allocation]="cu:$(line_of write_one): a write of 4 bytes|cudaErrorIllegalAddress"
  [write_before_an_allocation]="cu:$(line_of write_one): a write of 4 bytes|cudaErrorIllegalAddress"
  [memory_never_written]="cu:$(line_of read_one): a read of 4 bytes of global memory.*never written|cudaErrorLaunchFailure"
  [copied_memory_never_written]='never written|cudaErrorLaunchFailure'
  [product_of_memory_never_written]='cublasLtMatmul: a read of 1024 bytes.*byte 0 was never written|cudaErrorLaunchFailure'
  [product_next_to_padding]=cudaSuccess
  [padding_of_a_product]="cu:$(line_of read_one): a read of 4 bytes of global memory.*never written|cudaErrorLaunchFailure"
  [collective_of_memory_never_written]='ncclAllReduce: a read of 256 bytes.*byte 0 was never written|cudaErrorLaunchFailure'
  [collective_that_writes]=cudaSuccess
  [misaligned_vector]="cu:$(line_of read_vector): a read of 16 bytes.*not aligned|cudaErrorMisalignedAddress"
  [memory_that_was_freed]="cu:$(line_of write_one): a write|cudaErrorIllegalAddress"
  [two_barriers]='divergence|cudaErrorLaunchFailure'
  [lost_thread]='hang: no thread of the block can go on|cudaErrorLaunchTimeout'
  [outside_shared_memory]='a write of 4 bytes of shared memory|cudaErrorIllegalAddress'
  [outside_a_local_array]='of local memory|cudaErrorIllegalAddress'
  [trap]="cu:$(line_of stop): trap|cudaErrorLaunchFailure"
  [variables_of_a_module]='counted 202, 0|cudaSuccess'
  [beyond_a_variable]=cudaErrorInvalidValue
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
  [query_during_a_capture]=cudaSuccess
  [query_of_a_captured_event]=cudaErrorCapturedEvent
  [capture_not_joined]=cudaErrorStreamCaptureUnjoined
  [capture_waits_for_other_work]=cudaErrorStreamCaptureIsolation
  [capture_ended_by_another_thread]=cudaErrorStreamCaptureWrongThread
  [wait_for_room_in_a_stream]=cudaSuccess
  [room_for_a_thousand]=cudaErrorNotReady # it did not wait
  [destruction_of_a_stream]=cudaErrorNotReady
  [work_of_a_stream_that_was_destroyed]=cudaSuccess
  [wait_of_free]=cudaSuccess
  [wait_of_a_pageable_copy]=cudaSuccess
  [work_time_before_it_is_done]=cudaErrorInvalidResourceHandle
)
says() { # NAME
  local said patterns pattern
  said=$(timeout 60 "$build/softgpu/mistakes" "$1" 2>&1 || echo "exit code $?")
  IFS='|' read -ra patterns <<<"${expected[$1]:-an expectation}"
  for pattern in "${patterns[@]}"; do
    grep -qE -- "$pattern" <<<"$said" || { echo "expected: $pattern, said: $said" && return 1; }
  done
}
for name in $("$build/softgpu/mistakes"); do check "$name" says "$name"; done
check "as many as expected" [ "$checks" = "${#expected[@]}" ]
expected[none]=cudaErrorIllegalAddress
check "seen failing: no error where one is expected" [ "$(says none)" = "expected: cudaErrorIllegalAddress, said: cudaSuccess" ]
echo "$checks checks passed"

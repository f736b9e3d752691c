#!/usr/bin/env bash
# Covers: NCCL's memory and windows: what fails on one rank ends all, and names the way round; a group of collectives is one
# launch, and so is an all_to_all; NCCL takes fewer multiprocessors for ranks of one node;
# a wait leaves no error of CUDA; ranks on one GPU are refused; a rank that is stopped is named
#
# NCCL and CUDA are a stand-in (nccl.cpp): what NCCL itself does in these cases is not seen.
set -euo pipefail
# shellcheck source=dev/test/lib.bash
source "$(dirname "$0")/lib.bash"
unset "${!NCCL_@}"
nccl=$build/test/nccl
if [[ $(ldd "$nccl") != *libmpi* ]]; then
  refused "a build without MPI has no stand-in" "is one of the CPU backend, over MPI" "$nccl"
  exit
fi
export limit=60

check "windows" ranks 2 "$nccl" windows
check "NCCL_WIN_ENABLE=0 goes without NCCL's memory" env NCCL_WIN_ENABLE=0 bash -c "$(declare -f ranks); ranks 2 $nccl off"
round="NCCL_WIN_ENABLE=0 on all ranks goes round it"
says() { grep -qF -- "$1" "$scratch/refused"; }
for n in 0 1; do
  refused "ncclMemAlloc fails on rank $n" "error on rank $n of 2: ncclMemAlloc of 1000 bytes: an error of NCCL" \
    ranks 2 "$nccl" memory $n
  check "  the other rank knows it" says "error on rank $((1 - n)) of 2: ncclMemAlloc of 1000 bytes failed on 1 of 2 ranks"
  check "  and the way round" says "$round"
done
refused "a registration fails on rank 0, while the other waits" \
  "ncclCommWindowRegister of 1000 bytes on rank 0 of 2: an error of NCCL" ranks 2 "$nccl" register 0
check "  and the way round" says "$round"
refused "NCCL_WIN_ENABLE=0 on one rank alone" "error on all 2 ranks: NCCL_WIN_ENABLE=0 is set on 1 of 2 ranks" \
  ranks 2 "$nccl" off-here 1
refused "two ranks on one GPU" "error on all 2 ranks: ranks 0, 1 of 2 take the same GPU, GPU-1 on host $(hostname)" \
  ranks 2 "$nccl" same-gpu
# shellcheck disable=SC2016  # of the other shell
again() { ranks 2 bash -c 'NCCL_HOSTID=rank$OMPI_COMM_WORLD_RANK exec "$0" same-gpu' "$nccl"; }
check "  unless each has an NCCL_HOSTID of its own; these take as many multiprocessors as NCCL likes" again
refused "the second collective of a group fails on rank 1" \
  "all_reduce_sum (dev/test/nccl.cpp" ranks 2 "$nccl" group 1
check "  the message names the group" says ", the first of a group of 3, on rank 1 of 2: an error of NCCL"
refused "the second message of an all_to_all fails on rank 1, and its group is ended" \
  "all_to_all (dev/test/nccl.cpp" ranks 2 "$nccl" all_to_all 1
check "NCCL's failure ends as that of a lost rank" exits 5 ranks 2 "$nccl" group 1
check "a GPU's failure does, too" exits 5 ranks 2 "$nccl" gpu 1
check "  with its error" grep -qF "cudaEventRecord(event, stream)" "$scratch/out.txt"
for n in 0 1; do
  check "rank $n is stopped before a collective" exits 5 ranks 2 "$nccl" stopped $n
  check "  the other one names it, before --comm-timeout" grep -qx "error on .*all_reduce_sum: waits in vain for rank $n" \
    "$scratch/out.txt"
  check "  and says why" grep -q "^  silent for" "$scratch/out.txt"
done
check "a wrong call of CUDA is no failure of the GPU" exits 1 ranks 2 "$nccl" call 1

export LLMC_TEST_RENDEZVOUS=$scratch/meet WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=1
RANK=0 timeout $limit "$nccl" same-gpu >"$scratch/rank0" 2>&1 &
same="ranks 0, 1 of 2 take the same GPU, GPU-1 on host $(hostname)"
refused "two ranks on one GPU that meet at a file" "error on rank 1 of 2: $same" env RANK=1 timeout $limit "$nccl" same-gpu
wait $! && code=0 || code=$?
check "  both end with an error" [ "$code" = 64 ]
check "  the same" grep -qF "error on rank 0 of 2: $same" "$scratch/rank0"
check "  and leave no file" [ -z "$(find "$scratch" -name "meet*")" ]
echo "$checks checks passed"

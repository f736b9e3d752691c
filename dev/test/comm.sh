#!/usr/bin/env bash
# Covers: promise 2: collectives on 1 to 4 ranks have the bits of a sum in rank order, in every schedule of the streams
# Covers: an error or a rank that stays away ends all ranks, and is said once with the rank; exit handlers and destructors
# that hang hold up no failing rank; an MPI without threads is refused; how many ranks a machine has, as mpirun, torchrun,
# srun or MPI tell
# Timeout: 300
set -euo pipefail
# shellcheck source=dev/test/lib.bash
source "$(dirname "$0")/lib.bash"
comm=$build/test/comm
export LLMC_THREADS=1
export ASAN_OPTIONS=detect_leaks=0 # in a build with it: MPI leaks, from modules that it has unloaded, so nothing can name them
unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE "${!SLURM_@}"

# passes RANKS [SCENARIO]: all its checks.
passes() { exits 0 ranks "$1" "$comm" "${@:2}" && said "checks passed on each of $1 ranks"; }
times() { [ "$(grep -cF -- "$2" "$scratch/${3:-out.txt}")" = "$1" ]; } # TIMES TEXT [FILE]

check "one rank without a launcher" passes 1
check "one rank is told nothing" exits 0 "$comm" who
check "  and starts no MPI" said "rank 0 of 1, local 0 of 1, no launcher seen"

echo "-- ranks that the environment names"
refused "RANK without WORLD_SIZE" "RANK=0 is set, but WORLD_SIZE is not" env RANK=0 "$comm"
refused "no LOCAL_RANK" "WORLD_SIZE=2 is set, but LOCAL_RANK is not" env RANK=0 WORLD_SIZE=2 "$comm"
refused "a rank that cannot be" "RANK=2: expected a number from 0 to 1" env RANK=2 WORLD_SIZE=2 LOCAL_RANK=0 "$comm"
refused "no number" "WORLD_SIZE=two: expected a number" env RANK=0 WORLD_SIZE=two LOCAL_RANK=0 "$comm"
who() { # LOCAL_SIZE HOW VARIABLE=VALUE…
  check "rank 5 of 8 of ${*:3}" exits 0 env "${@:3}" "$comm" who
  check "  is local 1 of $1" said "rank 5 of 8, local 1 of $1, $2"
}
torchrun=(RANK=5 WORLD_SIZE=8 LOCAL_RANK=1)
who 4 "told by RANK, WORLD_SIZE and LOCAL_RANK" "${torchrun[@]}" LOCAL_WORLD_SIZE=4
who 8 "told by RANK, WORLD_SIZE and LOCAL_RANK" "${torchrun[@]}"
check "  it says what it takes them for" said "LOCAL_WORLD_SIZE is not set, so all ranks count as ranks of this machine"
refused "more local ranks than ranks" "LOCAL_WORLD_SIZE=9: expected a number from 2 to 8" \
  env "${torchrun[@]}" LOCAL_WORLD_SIZE=9 "$comm" who
srun=(SLURM_PROCID=5 SLURM_STEP_NUM_TASKS=8 SLURM_LOCALID=1)
who 4 "started by srun" "${srun[@]}" SLURM_NTASKS_PER_NODE=4
who 8 "started by srun" "${srun[@]}" SLURM_NTASKS_PER_NODE=16
who 3 "started by srun" "${srun[@]}" SLURM_NODEID=1 SLURM_STEP_TASKS_PER_NODE='5,3' SLURM_NTASKS_PER_NODE=8 SLURM_TASKS_PER_NODE='2(x9)'
who 2 "started by srun" "${srun[@]}" SLURM_NODEID=3 SLURM_TASKS_PER_NODE='2(x4)'
who 8 "started by srun" "${srun[@]}" SLURM_NODEID=3
check "  it says which variable is missing" said "SLURM_NTASKS_PER_NODE is not set, so all ranks count as ranks of this"
wrong() { refused "$1" "$2" env "${srun[@]}" "${@:3}" "$comm" who; } # WHAT TEXT VARIABLE=VALUE…
wrong "a list that is none" "SLURM_STEP_TASKS_PER_NODE=4(x2: expected a list" SLURM_NODEID=1 "SLURM_STEP_TASKS_PER_NODE=4(x2"
wrong "a node beyond it" "a list of 2 nodes, but this is number 2" SLURM_NODEID=2 "SLURM_STEP_TASKS_PER_NODE=4(x2)"
wrong "fewer tasks than the own number" "SLURM_TASKS_PER_NODE=1(x8): 1 tasks on node 2, but SLURM_LOCALID=1" \
  SLURM_NODEID=2 "SLURM_TASKS_PER_NODE=1(x8)"

two=(env RANK=1 WORLD_SIZE=2 LOCAL_RANK=1 "$comm" connect)
if [[ $(ldd "$comm") != *libmpi* ]]; then
  refused "several ranks without MPI" "this build has no MPI, and on the CPU several ranks need it" "${two[@]}"
  echo "$checks checks passed; this build has no MPI, so none ran on several ranks"
  exit
fi
refused "several ranks without mpirun" "start them with mpirun -np 2, or scripts/run -n 2" "${two[@]}"
check "  with the rank" grep -qF "error on rank 1 of 2" "$scratch/refused"
refused "mpirun of another MPI" "PMI_SIZE=2, but MPI does not see the other ranks" env PMI_RANK=0 PMI_SIZE=2 "$comm" who

echo "-- ranks on this machine"
three() { # the launcher's change of what ranks see
  exits 0 ranks 3 "$@" "$comm" who && said "rank "{"0 of 3, local 0","1 of 3, local 1","2 of 3, local 2"}" of 3, started by mpirun"
}
check "mpirun tells of three ranks" three
check "  without its variables MPI does" three env -u OMPI_COMM_WORLD_LOCAL_SIZE
# shellcheck disable=SC2016  # of the other shell
halves='OMPI_COMM_WORLD_LOCAL_SIZE=2 OMPI_COMM_WORLD_LOCAL_RANK=$((OMPI_COMM_WORLD_RANK % 2)) "$0" "$1"'
check "mpirun's variables tell" exits 0 ranks 3 bash -c "$halves" "$comm" who
check "  that two are first on their machine" times 2 "of 3, local 0 of 2"
check "  and one second" said "rank 1 of 3, local 1 of 2"

echo "-- collectives"
for n in 2 3 4; do check "$n ranks" passes $n; done
LLMC_CPU_STREAMS=lazy check "2 ranks, lazy streams" passes 2
LLMC_CPU_STREAMS=random check "3 ranks, random streams" passes 3
check "one rank works for longer than a collective may take, and none is lost" passes 2 long-work

echo "-- errors"
limit=15
# fails RANKS ERROR SCENARIO…: on the ranks that it names, once, with nothing else but mpirun's block of 9 lines.
fails() {
  refused "${*:3}" "error on $2" ranks "$1" "$comm" "${@:3}"
  check "  and no other error" times 1 'error on' refused
  check "  and little of mpirun's own" [ "$(wc -l <"$scratch/refused")" -le 11 ]
}
fails 3 "rank 0 of 3: trouble of one rank" fail-one 0
LLMC_CPU_STREAMS=lazy fails 3 "rank 2 of 3: trouble of one rank" fail-one 2
fails 3 "ranks 1, 2 of 3: trouble of the others" fail-others
fails 4 "all 4 ranks: trouble of all" fail-all
fails 4 "all 4 ranks: trouble of all" fail-late
fails 3 "all 3 ranks: trouble before exit handlers that hang" fail-at-exit
for n in 1 2; do
  refused "$n: a failing rank runs no exit handler" "trouble before exit handlers that hang" \
    timeout 15 env RANK=0 WORLD_SIZE=$n LOCAL_RANK=0 "$comm" fail-at-exit
done
refused "an error whose destructors hang" "trouble before destructors that hang" timeout 15 "$comm" fail-in-destructors
refused "each rank's own error" "trouble number" ranks 3 "$comm" fail-each
for n in 0 1 2; do check "  of rank $n, once" times 1 "error on rank $n of 3: trouble number $n" refused; done
refused "ranks that disagree" "error on ranks 0, 2 of 3: all_reduce_sum (dev/test/comm.cpp" ranks 3 "$comm" disagree 1
check "  with both sizes" grep -qF "here it is 4000 bytes" "$scratch/refused"
check "  of both" grep -qF "error on rank 1 of 3: all_reduce_sum (dev/test/comm.cpp" "$scratch/refused"
check "a rank that stays away ends all as a lost one does" exits 5 ranks 3 "$comm" stay-away 1
check "  on all ranks" said "error on ranks 0, 2 of 3: all_reduce_sum (dev/test/comm.cpp"
check "  by its name" said "waited 2 s for rank 1"
if [[ $(ldd "$comm") == *libmpi* ]]; then
  ${MPICC:-mpicc} -shared -fPIC -O1 -o "$scratch/single.so" -x c - <<'C'
#include <mpi.h>
int MPI_Init_thread(int* argc, char*** argv, int required, int* provided) {
  const int result = PMPI_Init_thread(argc, argv, required, provided);
  return *provided = MPI_THREAD_SINGLE, result;
}
C
  refused "an MPI that allows no threads" "provides thread level 0: expected MPI_THREAD_FUNNELED (1) or higher" \
    ranks 2 env ASAN_OPTIONS="$ASAN_OPTIONS:verify_asan_link_order=0" LD_PRELOAD="$scratch/single.so" "$comm" who
fi
echo "$checks checks passed"

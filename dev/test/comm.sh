#!/usr/bin/env bash
# Covers: promise 2: collectives on 1 to 4 ranks have the bits of a sum in rank order, in every schedule of the streams
# Covers: an error, a lost or a stuck rank ends all ranks, and is said once with the rank; exit handlers and destructors
# that hang hold up no failing rank; how many ranks a machine has, as mpirun, torchrun, srun or MPI tell
# Timeout: 300
# Alone: ranks wait for others only so many seconds
set -euo pipefail
# shellcheck source=dev/test/lib.bash
source "$(dirname "$0")/lib.bash"
comm=$build/test/comm
export LLMC_THREADS=1
export ASAN_OPTIONS=detect_leaks=0 # in a build with it: MPI leaks, from modules that it has unloaded, so nothing can name them
unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE "${!SLURM_@}"

says() { grep -qF -- "$1" "$scratch/out"; }
says_times() { [ "$(grep -cF -- "$2" "$scratch/out")" = "$1" ]; }
now() { awk '{ print $1 }' /proc/uptime; }
within() { awk "BEGIN { exit !($(now) - $2 < $1) }"; } # SECONDS SINCE

# passes RANKS [VARIABLE=VALUE]: all checks.
passes() {
  if env ${2:+"$2"} bash -c "$(declare -f ranks); ranks $1 $comm" >"$scratch/out" 2>&1 &&
    says "checks passed on each of $1 ranks"; then return; fi
  cat "$scratch/out"
  return 1
}

# works RANKS SCENARIO: all checks of a scenario.
works() {
  if ranks "$1" "$comm" "$2" >"$scratch/out" 2>&1 && says "checks passed on each of $1 ranks"; then return; fi
  cat "$scratch/out"
  return 1
}

# ends RANKS ARGUMENTS…: must end within 15 s with a code other than 0.
ends() {
  local code=0 begin
  begin=$(now)
  timeout 30 bash -c "$(declare -f ranks); ranks $1 $comm ${*:2}" >"$scratch/out" 2>&1 || code=$?
  checks=$((checks + 1))
  if [ $code = 0 ] || [ $code -ge 124 ] || ! within 15 "$begin"; then
    cat "$scratch/out"
    fail "$* ended with code $code"
  fi
}

# error_is TEXT: stderr is that error, once, and no more than mpirun's block of 9 lines beside it.
error_is() {
  check "$1" says_times 1 "$1"
  check "  and no other error" says_times 1 'error on'
  check "  and little of mpirun's own" [ "$(grep -vc '^alive' "$scratch/out")" -le 11 ]
}

# start RANKS ARGUMENTS…: in the background, until all ranks are at work; pids=(of rank 0, of rank 1, …).
start() {
  : >"$scratch/out" # or the last start's lines may be taken for this one's
  LLMC_THREADS=1 mpirun --oversubscribe --bind-to none -n "$1" "$comm" "${@:2}" >"$scratch/out" 2>&1 &
  job=$!
  for _ in {1..200}; do
    if says_times "$1" 'alive'; then break; fi
    sleep 0.1
  done
  mapfile -t pids < <(sort "$scratch/out" | sed -n 's/^alive [0-9]* //p')
  check "$1 ranks are at work" [ "${#pids[@]}" = "$1" ]
  sleep 0.3
  begin=$(now)
}

# all_gone: none of the ranks runs; who has ended may still wait for its parent.
all_gone() { ! ps -o stat= -p "$(IFS=, && echo "${pids[*]}")" | grep -qv '^Z'; }

# all_end SECONDS: mpirun within so long and with a code other than 0, and none of its ranks is left.
all_end() {
  local code=0
  for _ in {1..600}; do
    if ! kill -0 "$job" 2>/dev/null; then break; fi
    sleep 0.1
  done
  if kill -0 "$job" 2>/dev/null; then
    cat "$scratch/out"
    ps -o pid,stat,wchan:24,args -p "$job,$(IFS=, && echo "${pids[*]}")" || true
    kill -KILL "$job" "${pids[@]}" || true
    fail "mpirun does not end"
  fi
  wait "$job" || code=$?
  check "  all end within $1 s (code $code)" within "$1" "$begin"
  check "  with a code other than 0" [ "$code" != 0 ]
  check "  and no process is left" all_gone
}

check "one rank without a launcher" passes 1
$comm who >"$scratch/out"
check "starts no MPI" says "rank 0 of 1, local 0 of 1, no launcher seen"

# ---- ranks that the environment names ----
refused "RANK without WORLD_SIZE" "RANK=0 is set, but WORLD_SIZE is not" env RANK=0 "$comm"
refused "no LOCAL_RANK" "WORLD_SIZE=2 is set, but LOCAL_RANK is not" env RANK=0 WORLD_SIZE=2 "$comm"
refused "a rank that cannot be" "RANK=2: expected a number from 0 to 1" env RANK=2 WORLD_SIZE=2 LOCAL_RANK=0 "$comm"
refused "no number" "WORLD_SIZE=two: expected a number" env RANK=0 WORLD_SIZE=two LOCAL_RANK=0 "$comm"
env RANK=5 WORLD_SIZE=8 LOCAL_RANK=1 LOCAL_WORLD_SIZE=4 "$comm" who >"$scratch/out"
check "torchrun's ranks" says "rank 5 of 8, local 1 of 4, told by RANK, WORLD_SIZE and LOCAL_RANK"
env RANK=5 WORLD_SIZE=8 LOCAL_RANK=1 "$comm" who >"$scratch/out"
check "without LOCAL_WORLD_SIZE" says "rank 5 of 8, local 1 of 8, told by RANK, WORLD_SIZE and LOCAL_RANK"
check "  it says what it takes them for" says "LOCAL_WORLD_SIZE is not set, so all ranks count as ranks of this machine"
refused "more local ranks than ranks" "LOCAL_WORLD_SIZE=9: expected a number from 2 to 8" \
  env RANK=5 WORLD_SIZE=8 LOCAL_RANK=1 LOCAL_WORLD_SIZE=9 "$comm" who
srun() { env SLURM_PROCID=5 SLURM_STEP_NUM_TASKS=8 SLURM_LOCALID=1 "$@" "$comm" who; }
srun_is() { # LOCAL_SIZE VARIABLE=VALUE…: how many ranks are on this node
  srun "${@:2}" >"$scratch/out"
  check "srun's ranks: ${*:2}" says "rank 5 of 8, local 1 of $1, started by srun"
}
srun_is 4 SLURM_NTASKS_PER_NODE=4
srun_is 8 SLURM_NTASKS_PER_NODE=16
srun_is 3 SLURM_NODEID=1 SLURM_STEP_TASKS_PER_NODE='5,3' SLURM_NTASKS_PER_NODE=8 SLURM_TASKS_PER_NODE='2(x9)'
srun_is 2 SLURM_NODEID=3 SLURM_TASKS_PER_NODE='2(x4)'
srun_is 8 SLURM_NODEID=3
check "  it says which variable is missing" says "SLURM_NTASKS_PER_NODE is not set, so all ranks count as ranks of this"
refused "a list that is none" "SLURM_STEP_TASKS_PER_NODE=4(x2: expected a list" srun SLURM_NODEID=1 "SLURM_STEP_TASKS_PER_NODE=4(x2"
refused "a node beyond it" "a list of 2 nodes, but this is number 2" srun SLURM_NODEID=2 "SLURM_STEP_TASKS_PER_NODE=4(x2)"
refused "fewer tasks than the own number" "SLURM_TASKS_PER_NODE=1(x8): 1 tasks on node 2, but SLURM_LOCALID=1" \
  srun SLURM_NODEID=2 "SLURM_TASKS_PER_NODE=1(x8)"

two=(env RANK=1 WORLD_SIZE=2 LOCAL_RANK=1 "$comm" connect)
if [[ $(ldd "$comm") != *libmpi* ]]; then
  refused "several ranks without MPI" "this build has no MPI, and on the CPU several ranks need it" "${two[@]}"
  echo "$checks checks passed; this build has no MPI, so none ran on several ranks"
  exit
fi
refused "several ranks without mpirun" "start them with mpirun -np 2, or scripts/run -n 2" "${two[@]}"
refused "  with the rank" "error on rank 1 of 2" "${two[@]}"
refused "mpirun of another MPI" "PMI_SIZE=2, but MPI does not see the other ranks" env PMI_RANK=0 PMI_SIZE=2 "$comm" who

# ---- ranks on this machine ----
who() { ranks 3 "$@" "$comm" who | sort >"$scratch/out"; }
who
for n in 0 1 2; do check "mpirun's rank $n" says "rank $n of 3, local $n of 3, started by mpirun"; done
# shellcheck disable=SC2016  # of the other shell
who bash -c 'OMPI_COMM_WORLD_LOCAL_SIZE=2 OMPI_COMM_WORLD_LOCAL_RANK=$((OMPI_COMM_WORLD_RANK % 2)) "$0" "$1"'
check "mpirun's variables tell" says_times 2 "of 3, local 0 of 2"
check "  of each" says "rank 1 of 3, local 1 of 2"
who env -u OMPI_COMM_WORLD_LOCAL_SIZE
for n in 0 1 2; do check "without them MPI tells: rank $n" says "rank $n of 3, local $n of 3, started by mpirun"; done

# ---- collectives ----
for n in 2 3 4; do check "$n ranks" passes $n; done
check "one rank works for longer than a collective may take, and none is lost" works 2 long-work
for streams in lazy random; do
  for n in 2 3; do check "$n ranks, $streams streams" passes $n LLMC_CPU_STREAMS=$streams; done
done

# ---- errors ----
for n in 0 2; do
  ends 3 fail-one $n
  error_is "error on rank $n of 3: trouble of one rank"
done
LLMC_CPU_STREAMS=lazy ends 3 fail-one 1
error_is "error on rank 1 of 3: trouble of one rank"
ends 3 fail-others
error_is "error on ranks 1, 2 of 3: trouble of the others"
ends 4 fail-all
error_is "error on all 4 ranks: trouble of all"
ends 4 fail-late
error_is "error on all 4 ranks: trouble of all"
ends 3 fail-at-exit
error_is "error on all 3 ranks: trouble before exit handlers that hang"
for n in 1 2; do
  refused "$n: a failing rank runs no exit handler" "trouble before exit handlers that hang" \
    timeout 15 env RANK=0 WORLD_SIZE=$n LOCAL_RANK=0 "$comm" fail-at-exit
done
refused "an error whose destructors hang" "trouble before destructors that hang" timeout 15 "$comm" fail-in-destructors
ends 3 fail-each
for n in 0 1 2; do check "error on rank $n of 3" says_times 1 "error on rank $n of 3: trouble number $n"; done
ends 3 disagree 1
check "ranks that disagree" says "error on ranks 0, 2 of 3: all_reduce_sum (dev/test/comm.cpp"
check "  with both sizes" says "here it is 4000 bytes"
check "  of both" says "error on rank 1 of 3: all_reduce_sum (dev/test/comm.cpp"
ends 3 stay-away 1
check "a rank that stays away" says "error on ranks 0, 2 of 3: all_reduce_sum (dev/test/comm.cpp"
check "  is named" says "waited 2 s for rank 1"

# ---- lost and stuck ranks ----
start 3 work 60
kill -KILL "${pids[1]}"
all_end 10
start 3 work 2
kill -STOP "${pids[2]}"
all_end 12
check "a stopped rank is named" grep -q "waited 2 s for rank 2$" "$scratch/out"
check "  with the collective" says ": all_reduce_sum (dev/test/comm.cpp"
check "  and nothing crashes" eval '! says "signal"'
echo "$checks checks passed"

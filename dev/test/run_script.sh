#!/usr/bin/env bash
# Covers: scripts/run: Ctrl-C, SIGTERM and SIGHUP finish a step of 3 s on all ranks, also if all processes get them, also
# twice (bare mpirun kills the ranks), unless nohup keeps SIGHUP away; a second Ctrl-C ends at once; SIGKILL leaves
# nothing behind; threads, exit codes
# Timeout: 240
# Alone: it sends signals, and a step ends 3 s after one, by the clock
#
# A stand-in for train_llama, with its signal handlers, takes steps of 3 s and, asked to stop, finishes its step and saves.
set -euo pipefail
# shellcheck source=dev/test/lib.bash
source "$(dirname "$0")/lib.bash"
cd "$root"
cat >"$scratch/stand_in.cpp" <<'CPP'
#include <mpi.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "llmc/run/interrupt.h"

int main(int argc, char** argv) {
  const StopRequests stop_requests;
  int rank = 0, ranks = 1;
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  const std::string what = argc > 1 ? argv[1] : "";
  if (what == "threads")
    printf("rank %d of %d: %s threads, OpenBLAS %s, colour %s\n", rank, ranks, getenv("LLMC_THREADS"),
           getenv("OPENBLAS_NUM_THREADS"), getenv("NO_COLOR") ? "off" : "on");
  for (int step = 0, stop = 0; what == "" && !stop; step++) {
    printf("rank %d started step %d\n", rank, step);
    fflush(stdout);
    while (!stop_requests.any()) usleep(20000);
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(3);
    while (std::chrono::steady_clock::now() < end) usleep(20000);
    stop = stop_requests.any();
    MPI_Allreduce(MPI_IN_PLACE, &stop, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
    if (stop) printf("rank %d saved after step %d\n", rank, step);
  }
  MPI_Finalize();
  if (what == "signal") raise(SIGKILL);
  return what == "exit" ? 7 : 0;
}
CPP
"${MPI_HOME:+$MPI_HOME/bin/}mpicxx" -std=c++20 -Wno-cast-function-type -DOMPI_SKIP_MPICXX=1 -I "$root" "$scratch/stand_in.cpp" \
  llmc/run/interrupt.cpp -o "$scratch/stand_in"
export LLMC_PROGRAM=$scratch/stand_in
unset LLMC_THREADS NO_COLOR
says_times() { [ "$(grep -c -e "$3" "$scratch/$1.txt")" = "$2" ]; } # NAME TIMES PATTERN

echo "-- signals: all of these wait at the same time"
declare -A group=()
start() { # NAME COMMAND…
  begin "$1" 'started step 0' "${@:2}"
  group[$1]=$child
}
ctrl_c() { kill -INT -- "-${group[$1]}"; } # to the whole group in the foreground
everyone() { # PID: it and all that descends from it
  local pid
  echo "$1"
  for pid in $(pgrep -P "$1"); do everyone "$pid"; done
}
finish() { # NAME
  child=${group[$1]}
  ends 60
}
start bare mpirun -n 2 --oversubscribe "$scratch/stand_in"
unset OMPI_ALLOW_RUN_AS_ROOT OMPI_ALLOW_RUN_AS_ROOT_CONFIRM
start one scripts/run -n 1
start two scripts/run -n 2
start term scripts/run -n 2
start all scripts/run -n 2
start all_one scripts/run -n 1
start hangup env --default-signal=HUP scripts/run -n 2
start interrupted scripts/run -n 2
start ignoring env --ignore-signal=HUP scripts/run -n 2
mapfile -t pids_all < <(everyone "${group[all]}")
mapfile -t pids_hangup < <(everyone "${group[hangup]}")
mapfile -t pids_interrupted < <(everyone "${group[interrupted]}")
mapfile -t pids_ignoring < <(everyone "${group[ignoring]}")
pids_all_one=("${group[all_one]}" "$(pgrep -P "${group[all_one]}")") # without the daemon of this rank's MPI
sleep 0.3
for name in bare one two; do ctrl_c $name; done
kill -TERM "${group[term]}"
sleep 0.1
kill -TERM -- "-${group[term]}" # as timeout(1) does: the process, then its group
kill -TERM "${pids_all[@]}" "${pids_all_one[@]}" # as systemd does
kill -HUP "${pids_hangup[@]}" "${pids_ignoring[@]}"
kill -INT "${pids_interrupted[@]}"
sleep 0.5
kill -TERM "${pids_all[@]}" "${pids_all_one[@]}" "${group[term]}"
finish bare
check "bare mpirun, why the script exists, fails at Ctrl-C" [ "$code" != 0 ]
check "  and loses the step" says_times bare 0 saved
for run in "one 1" "two 2" "term 2" "all 2" "all_one 1" "hangup 2" "interrupted 2"; do
  read -r name n <<<"$run"
  finish "$name"
  check "$name: all ranks save after the signal" says_times "$name" "$n" 'saved after step 0'
  check "  and end well (code $code)" [ "$code" = 0 ]
done
sleep 0.5
check "a SIGHUP that was ignored at the start stays so: no rank has saved" says_times ignoring 0 'saved after'
kill -TERM "${group[ignoring]}"
start again scripts/run -n 2
ctrl_c again
sleep 0.2
ctrl_c again
child=${group[again]}
check "a second Ctrl-C ends before the step does" ends 2.4
check "  saves nothing" says_times again 0 'saved after'
check "  and ends with code 130 (it is $code)" [ "$code" = 130 ]

finish ignoring
check "  SIGTERM makes them save" says_times ignoring 2 'saved after step 0'

start killed scripts/run -n 2
mapfile -t pids_killed < <(everyone "${group[killed]}")
kill -KILL "${group[killed]}"
gone() { # 20 s for mpirun to end and for its ranks to notice
  for _ in $(seq 200); do
    kill -0 "${pids_killed[@]:1}" 2>/dev/null || return 0
    sleep 0.1
  done
  return 1
}
check "SIGKILL to scripts/run alone ends mpirun and its ranks" gone

echo "-- threads, exit codes"
runs() { check "scripts/run ${*:2} ends with code $1" exits "$1" scripts/run "${@:2}"; }
runs 7 -n 2 exit
runs 7 -n 1 exit
runs 137 -n 2 signal
runs 137 -n 1 signal
cores=$(env -u OMP_NUM_THREADS nproc)
runs 0 -n 1 threads
check "one rank has all cores" said "rank 0 of 1: $cores threads, OpenBLAS 1, colour off"
runs 0 -n $((cores + 1)) threads
check "more ranks than cores have a thread each" says_times out $((cores + 1)) "of $((cores + 1)): 1 threads, OpenBLAS 1"
LLMC_THREADS=3 runs 0 -n 2 threads
check "LLMC_THREADS of the environment counts" says_times out 2 '3 threads'
runs 64 -n 0
check "no ranks are refused" said 'expected the number of ranks'
check "an option of scripts/run that stands among the program's" exits 64 scripts/run --steps 2 --restarts 3
check "  is told where it belongs" said "--restarts is an option of scripts/run: name it before those of train_llama"
LLMC_PROGRAM=$(type -P true)
runs 0 -n 1
runs 64 -n 2
check "a program without MPI says so" said 'built without MPI: it trains on one rank, not 2'
runs 0 --help
check "--help tells its own options" said '-n RANKS' '--hosts HOST:SLOTS'
LLMC_PROGRAM=$scratch/nothing
runs 64 -n 1
check "no program is said" said 'build it first'
echo "$checks checks passed"

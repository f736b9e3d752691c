#!/usr/bin/env bash
# Covers: scripts/run: Ctrl-C and SIGTERM finish a step of 3 s on all ranks (bare mpirun kills them), threads, exit codes
# Timeout: 120
# Alone: it sends signals, and steps take 3 s by the clock
#
# A stand-in for train_llama takes steps of 3 s and, asked by SIGINT or SIGUSR1, finishes its step and saves.
set -euo pipefail
cd "$(dirname "$0")/../.."
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
checks=0

check() { # WHAT COMMAND...
  checks=$((checks + 1))
  if "${@:2}"; then return; fi
  echo "run_script: $1: not so. The output was:"
  cat "$scratch/out"
  exit 1
}
says() { grep -q -e "$1" "$scratch/out"; }
says_times() { [ "$(grep -c -e "$2" "$scratch/out")" = "$1" ]; }
silent_on() { ! says "$1"; }

cat >"$scratch/stand_in.cpp" <<'CPP'
#ifdef WITH_MPI
#include <mpi.h>
#endif
#include <time.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>

static volatile sig_atomic_t asked = 0;

static double now() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return double(t.tv_sec) + 1e-9 * double(t.tv_nsec);
}

int main(int argc, char** argv) {
  struct sigaction action = {};
  action.sa_handler = [](int) { asked = 1; };
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGUSR1, &action, nullptr);
  int rank = 0, ranks = 1;
#ifdef WITH_MPI
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
#endif
  int code = 0;
  if (argc > 2 && !strcmp(argv[1], "exit")) {
    code = atoi(argv[2]);
  } else if (argc > 1 && !strcmp(argv[1], "threads")) {
    printf("rank %d of %d: %s threads, OpenBLAS %s, colour %s\n", rank, ranks, getenv("LLMC_THREADS"),
           getenv("OPENBLAS_NUM_THREADS"), getenv("NO_COLOR") ? "off" : "on");
  } else {
    for (int step = 0, stop = 0; !stop; step++) {
      printf("rank %d started step %d\n", rank, step);
      fflush(stdout);
      for (double begin = now(); now() - begin < 3;) {
        timespec slice = {0, 20'000'000};
        nanosleep(&slice, nullptr);
      }
      stop = asked;
#ifdef WITH_MPI
      MPI_Allreduce(MPI_IN_PLACE, &stop, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
#endif
      if (stop) printf("rank %d saved after step %d\n", rank, step);
    }
  }
#ifdef WITH_MPI
  MPI_Finalize();
#endif
  return code;
}
CPP
g++ -std=c++20 -Wno-cast-function-type "$scratch/stand_in.cpp" -o "$scratch/single"
"${MPI_HOME:+$MPI_HOME/bin/}mpicxx" -std=c++20 -DWITH_MPI -DOMPI_SKIP_MPICXX=1 "$scratch/stand_in.cpp" -o "$scratch/stand_in"
export LLMC_PROGRAM=$scratch/stand_in
unset LLMC_THREADS NO_COLOR

# start COMMAND...: in a process group of its own, as a terminal would have it, until its first step has begun.
start() {
  : >"$scratch/out" # or the last start's lines may be taken for this one's
  env --default-signal=INT setsid "$@" >"$scratch/out" 2>&1 &
  group=$!
  for _ in {1..200}; do
    if says 'started step 0'; then sleep 0.3 && return; fi
    sleep 0.1
  done
  check "$* starts" false
}
ctrl_c() { kill -INT -- "-$group"; } # to the whole group in the foreground
finish() {
  code=0
  wait "$group" || code=$?
}

# Why the script exists: bare mpirun.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
start mpirun -n 2 --oversubscribe "$scratch/stand_in"
ctrl_c
finish
check "bare mpirun loses the step at Ctrl-C" silent_on saved
check "bare mpirun fails at Ctrl-C" [ "$code" != 0 ]
unset OMPI_ALLOW_RUN_AS_ROOT OMPI_ALLOW_RUN_AS_ROOT_CONFIRM

for ranks in 1 2; do
  start scripts/run -n $ranks
  ctrl_c
  finish
  check "$ranks ranks save after Ctrl-C" says_times $ranks 'saved after step 0'
  check "$ranks ranks end well after Ctrl-C (code $code)" [ "$code" = 0 ]
done

start scripts/run -n 2
kill -TERM "$group"
sleep 0.1
kill -TERM -- "-$group" # as timeout(1) does: the process, then its group
finish
check "2 ranks save after SIGTERM" says_times 2 'saved after step 0'
check "they end well after SIGTERM (code $code)" [ "$code" = 0 ]

start scripts/run -n 2
ctrl_c
sleep 0.2
begin=$EPOCHREALTIME
ctrl_c
finish
took=$(awk "BEGIN { print int(1000 * ($EPOCHREALTIME - $begin)) }")
check "a second Ctrl-C ends before the step does (took $took ms)" [ "$took" -lt 2400 ]
check "a second Ctrl-C saves nothing" silent_on saved
check "a second Ctrl-C fails (code $code)" [ "$code" != 0 ]

# run CODE ARGUMENTS...: to its end, with that code.
run() {
  code=0
  scripts/run "${@:2}" >"$scratch/out" 2>&1 || code=$?
  check "scripts/run ${*:2} ends with code $1 (it was $code)" [ "$code" = "$1" ]
}
run 7 -n 2 exit 7
run 7 -n 1 exit 7
cores=$(env -u OMP_NUM_THREADS nproc)
run 0 -n 1 threads
check "one rank has all cores" says "rank 0 of 1: $cores threads, OpenBLAS 1, colour off"
run 0 -n $((cores + 1)) threads
check "more ranks than cores have a thread each" says_times $((cores + 1)) "of $((cores + 1)): 1 threads, OpenBLAS 1"
LLMC_THREADS=3 run 0 -n 2 threads
check "LLMC_THREADS of the environment counts" says_times 2 '3 threads'
run 1 -n 0
check "no ranks are refused" says 'expected the number of ranks'
LLMC_PROGRAM=$scratch/single
run 0 -n 1 exit 0
run 1 -n 2 exit 0
check "a program without MPI says so" says 'built without MPI: it trains on one rank, not 2'
LLMC_PROGRAM=$scratch/nothing
run 1 -n 1
check "no program is said" says 'build it first'
echo "run_script: $checks checks passed"

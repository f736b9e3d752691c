#!/usr/bin/env bash
# Covers: promise 2: the CUDA build on ranks of which one is killed, stopped or late, at the start, in a gather, in a
# reduce-scatter, while a graph is captured and while a checkpoint is saved: every other one ends by itself within
# --comm-timeout (stopped: --silent-timeout) and 15 s (a killed one: within 15 s), with code 5, and names it
# Timeout: 900
# Alone: it looks at how long ranks wait for one that is lost
#
# LOST=every: all ways at all places on 2 and 4 ranks; else each place and each way once.
set -euo pipefail
# shellcheck source=dev/test/lib.bash
source "$(dirname "$0")/../lib.bash"
in_own_tree
${CC:-cc} -shared -fPIC -O1 -o "$scratch/disk.so" "$root/dev/test/disk_preload.c"
export LLMC_THREADS=1
at_most=17

# lost NAME RANKS RANK WHERE NUMBER HOW OPTIONS…: no launcher ends the ranks for each other
lost() {
  local name=$1 n=$2 rank=$3 where=$4 number=$5 how=$6 r code begin pids=() variables good=1
  for ((r = 0; r < n; ++r)); do
    variables=(RANK=$r "WORLD_SIZE=$n" LOCAL_RANK=$r "LOCAL_WORLD_SIZE=$n")
    if [ $r = "$rank" ] && [ "$where" = checkpoint ]; then
      variables+=(LD_PRELOAD="$scratch/disk.so" DISK_DOES="$how" DISK_RANK=0 DISK_CALL="$number")
    elif [ $r = "$rank" ]; then
      variables+=(LLMC_SOFTGPU_LOSE="$where $number $how")
    fi
    env "${variables[@]}" timeout --signal=KILL 100 "$train" --rendezvous "$scratch/$name.meet" --layers 1 --seq-len 32 \
      --global-batch $((4 * n)) --micro-batch 1 --steps 1000000 --val-every 0 --sample-every 0 --zero-stage 3 \
      --comm-timeout $timeout_seconds --silent-timeout 5 --out "$scratch/$name" "${@:7}" >"$scratch/$name.$r" 2>&1 &
    pids+=($!)
  done
  # The lost rank says when (a kill by the disk's stand-in shows in its end).
  while kill -0 "${pids[$rank]}" 2>/dev/null && ! grep -q "software GPU: lost in" "$scratch/$name.$rank" &&
    ! { [ "$where" = checkpoint ] && [ -e "$scratch/$name/checkpoints" ]; }; do sleep 0.1; done
  begin=$SECONDS
  for ((r = 0; r < n; ++r)); do
    if [ $r = "$rank" ]; then continue; fi
    code=0
    wait "${pids[$r]}" 2>/dev/null || code=$?
    if [ $code != 5 ] || ! grep -qE "for ranks? $rank$" "$scratch/$name.$r"; then
      good=0
      echo "rank $r of $n ends with code $code:" && tail -n 3 "$scratch/$name.$r"
    fi
  done
  echo "     $((SECONDS - begin)) s: $(grep -hm1 -E "for ranks? $rank$" "$scratch/$name".* | head -n 1)"
  kill -KILL "${pids[$rank]}" 2>/dev/null || true
  wait "${pids[$rank]}" 2>/dev/null || true
  pkill -KILL -f "$scratch/$name " || true
  [ $good = 1 ] && [ $((SECONDS - begin)) -le $at_most ]
}

# lost_at_start RANKS RANK HOW: before it has met the others, who are connected by MPI. mpirun ends them with the first.
# shellcheck disable=SC2016  # of the other shell
lost_at_start() {
  local code=0 begin=$SECONDS
  timeout 60 mpirun --oversubscribe --bind-to none -n "$1" bash -c '
    if [ "$OMPI_COMM_WORLD_RANK" = "$0" ]; then export LLMC_SOFTGPU_LOSE="start 1 $1"; fi
    exec "${@:2}"' "$2" "$3" "$train" --layers 1 --steps 2 --comm-timeout $timeout_seconds --out "$scratch/start" \
    >"$scratch/start.log" 2>&1 || code=$?
  echo "     $((SECONDS - begin)) s: $(grep -m1 -E "for ranks? $2$|rank $2 .*signal 9" "$scratch/start.log")"
  pkill -KILL -f "$scratch/start" || true
  [ $code != 0 ] && [ $code != 124 ] && grep -qE "for ranks? $2$|rank $2 .*signal 9" "$scratch/start.log" &&
    [ $((SECONDS - begin)) -le $((at_most + 3)) ]
}

places=(start all_gather reduce_scatter capture checkpoint)
# Each is late enough that rank 0 has heard of all ranks: one that was never heard of is not silent.
declare -A number=([all_gather]=100 [reduce_scatter]=10 [capture]=3 [checkpoint]=3)
declare -A more=([capture]=--cuda-graphs [checkpoint]="--checkpoint-every 2")
try() { # RANKS RANK WHERE HOW
  timeout_seconds=60 # the end of one that is killed is seen at once, and a stopped one is silent
  if [ "$4" = late ] || [ "$3-$4" = start-stop ]; then timeout_seconds=2; fi
  if [ "$3" = start ]; then
    check "$1 ranks: $2 is lost at the start: $4" lost_at_start "$1" "$2" "$4"
    return
  fi
  # shellcheck disable=SC2086  # words
  check "$1 ranks: $2 is lost in $3: $4" lost "$3-$4-$1-$2" "$1" "$2" "$3" "${number[$3]}" "$4" ${more[$3]:-}
}
if [ "${LOST:-}" = every ]; then
  for n in 2 4; do
    for where in "${places[@]}"; do
      for how in kill stop late; do
        # A rank whose disk is slow is not lost: the others wait for its save.
        if [ $where-$how = checkpoint-late ]; then continue; fi
        try $n $((n == 2 ? 1 : (${#where} + ${#how}) % 4)) "$where" $how
      done
    done
  done
else
  try 2 1 start stop
  try 2 0 all_gather kill
  try 4 2 reduce_scatter stop
  try 2 1 capture late
  try 4 3 checkpoint stop
fi
echo "$checks checks passed"

#!/usr/bin/env bash
# Covers: promise 2: a rank of a training that is stopped ends all others within --comm-timeout and 5 s, by its name and
# that of the collective; one that is killed hangs nobody, and scripts/run says how to go on
# Timeout: 200
# Alone: it looks at how long ranks wait for one that is stopped
set -euo pipefail
# shellcheck source=dev/test/lib.bash
source "$(dirname "$0")/lib.bash"
in_own_tree
export LLMC_THREADS=1

start() { # NAME RANKS ARGUMENTS…: until it trains
  begin "$1" '^step' mpirun --oversubscribe --bind-to none -n "$2" "$train" --layers 1 --seq-len 32 --global-batch 12 \
    --micro-batch 1 --steps 1000000 --val-every 0 --sample-every 0 --comm-timeout 2 --out "$scratch/$1" "${@:3}"
}
signal() { # NAME RANK SIGNAL
  local pid
  for pid in $(pgrep -f "^$train .*$scratch/$1 "); do
    if tr '\0' '\n' <"/proc/$pid/environ" | grep -x "OMPI_COMM_WORLD_RANK=$2" >/dev/null; then kill "-$3" "$pid"; fi
  done
}
ended() { ends "$1" && [ "$code" = "$2" ] || { echo "exit code $code" && return 1; }; } # SECONDS at most, CODE
none_left() { for _ in {1..30}; do pgrep -f "^$train .*$scratch/$1 " >/dev/null || return 0; sleep 0.1; done; return 1; }
named() { # NAME RANK
  local collective="(all_gather|reduce_scatter_sum|all_reduce_sum) \(llmc/[a-z_/]*\.cpp:[0-9]+\), collective [0-9]+ of this run"
  grep -m 1 -oE "$collective: waited 2 s for rank $2" "$scratch/$1.txt"
}

while read -r name n lost arguments; do
  # shellcheck disable=SC2086  # words
  start "$name" "$n" $arguments --checkpoint-every 20
  sleep 0.3
  signal "$name" "$lost" STOP
  check "$name: rank $lost of $n is stopped, and all end within 7 s" ended 7 5
  check "  rank and collective are named" named "$name" "$lost"
  check "  nobody is left" none_left "$name"
  check "  and nothing crashes" says_not "$name" "signal"
done <<'END'
zero3 3 1 --zero-stage 3
ddp 2 0 --zero-stage 0
hybrid 4 3 --zero-stage 2 --hybrid-shard-degree 2
mesh 4 2 --tensor-parallel-degree 2 --context-parallel-degree 2
END

start killed 3 --zero-stage 3
signal killed 2 KILL
check "a rank is killed: all end within 5 s" ended 5 137
check "  nobody is left" none_left killed

echo "-- by scripts/run"
lost=$scratch/lost
begin lost '^step' env LLMC_PROGRAM="$train" scripts/run -n 3 --zero-stage 3 --out "$lost" --layers 1 --seq-len 32 \
  --global-batch 12 --steps 1000000 --val-every 0 --sample-every 0 --checkpoint-every 10
for _ in $(seq 600); do
  if compgen -G "$lost/checkpoints/step-*[0-9]" >/dev/null; then break; fi
  sleep 0.1
done
signal lost 1 KILL
check "a rank is killed: it ends with its code" ended 20 137
check "  SIGTERM of the launcher promises nothing" says_not lost "asked to stop"
check "  the signal is named" says lost "scripts/run: exit code 137: signal 9 ended a rank"
check "  and how to go on" says lost "scripts/run: the newest checkpoint there is $lost/checkpoints/step-" "to go on, start again with --out $lost --resume auto"
begin lost '^step' env LLMC_PROGRAM="$train" scripts/run -n 2 --out "$lost.2" --layers 1 --seq-len 32 --global-batch 4 \
  --steps 1000000 --val-every 0 --sample-every 0
pids=$(pgrep -f "^$train .*$lost.2 ")
kill -KILL "$(head -n 1 <<<"$pids")"
check "without a checkpoint nothing is promised" eval 'ended 20 137 && says_not lost "to go on"'
echo "$checks checks passed"

#!/usr/bin/env bash
# Covers: promise 2: a rank of a training that is stopped ends all others within --comm-timeout and 5 s, by its name and
# that of the collective; one that is killed hangs nobody
# Timeout: 200
# Alone: it looks at how long ranks wait for one that is stopped
set -euo pipefail
# shellcheck source=dev/test/lib.bash
source "$(dirname "$0")/lib.bash"
in_own_tree

start() { # NAME RANKS ARGUMENTS…: until it trains
  LLMC_THREADS=1 mpirun --oversubscribe --bind-to none -n "$2" "$train" --layers 2 --seq-len 32 --global-batch 12 --micro-batch 1 \
    --steps 1000000 --val-every 0 --sample-every 0 --comm-timeout 3 --out "$scratch/$1" "${@:3}" >"$scratch/$1.txt" 2>&1 &
  job=$!
  for _ in {1..200}; do if grep -q '^step' "$scratch/$1.txt"; then break; fi && sleep 0.1; done
}
pid_of() { # NAME RANK
  local pid
  for pid in $(pgrep -f "^$train .*$scratch/$1 "); do
    if tr '\0' '\n' <"/proc/$pid/environ" | grep -qx "OMPI_COMM_WORLD_RANK=$2"; then echo "$pid"; fi
  done
}
ends() { # after at most so many seconds, not well
  local begin=$SECONDS
  code=0
  wait "$job" || code=$?
  took=$((SECONDS - begin))
  [ "$code" != 0 ] && [ "$took" -le "$1" ]
}
none_left() { for _ in {1..30}; do pgrep -f "^$train .*$scratch/$1 " >/dev/null || return 0; sleep 0.1; done; return 1; }
named() { grep -qE "(all_gather|reduce_scatter_sum|all_reduce_sum) \(llmc/[a-z_/]*\.cpp:[0-9]+\), collective [0-9]+ of this run: waited 3 s for rank $2" "$scratch/$1.txt"; }

for mesh in "zero3 3 1 --zero-stage 3" "ddp 2 0 --zero-stage 0" "hybrid 4 3 --zero-stage 2 --hybrid-shard-degree 2" \
  "mesh 4 2 --tensor-parallel-degree 2 --context-parallel-degree 2"; do
  read -r name n lost arguments <<<"$mesh"
  # shellcheck disable=SC2086  # words
  start "$name" "$n" $arguments --checkpoint-every 20
  sleep 0.3
  kill -STOP "$(pid_of "$name" "$lost")"
  check "$name: rank $lost of $n is stopped, and all end within 8 s" ends 8
  check "  after $took s; rank and collective are named: $(grep -oE 'waited 3 s for rank.*' "$scratch/$name.txt" | sort -u | tr '\n' ' ')" named "$name" "$lost"
  check "  nobody is left" none_left "$name"
done

start killed 3 --zero-stage 3
kill -KILL "$(pid_of killed 2)"
check "a rank is killed: all end within 5 s" ends 5
check "  nobody is left" none_left killed
echo "$checks checks passed"

#!/usr/bin/env bash
# Covers: promise 4: a rank or mpirun is ended by SIGKILL at calls of the disk all through the saves of a run: what goes on
# from the newest complete checkpoint has the same losses to the last bit
# Timeout: 900
#
# KILLS=60 kills so many times (default: 6), spread over all calls; the commit decides which calls. Ends with how often
# each kind of call was hit.
set -euo pipefail
# shellcheck source=dev/test/lib.bash
source "$(dirname "$0")/lib.bash"
in_own_tree
kills=${KILLS:-6}
export OMPI_MCA_odls_base_sigkill_timeout=0 # mpirun waits no second for ranks that it ends
shift_by=$((16#$(git -C "$root" rev-parse HEAD 2>/dev/null | head -c 4 || echo 0)))

${CC:-cc} -shared -fPIC -O1 -o "$scratch/disk.so" dev/test/disk_preload.c
odd_model layers=1
options=(--model "$scratch/odd.json" --train-data "$scratch/letters.txt" --seq-len 16 --global-batch 4 --micro-batch 2 --steps 10 --val-every 0 --sample-every 0 --export off
  --zero-stage 3 --checkpoint-every 2 --keep-checkpoints 2)
on_disk() { # NAME: as far as it comes
  LD_PRELOAD=$scratch/disk.so ranks 2 "$train" "${options[@]}" --out "$scratch/$1" >"$scratch/$1.txt" 2>&1
}
same_losses() { cmp <(numbers straight loss) <(numbers "$1" loss); }

run straight 2
DISK_DOES=count DISK_LOG=$scratch/counts on_disk counted
check "counting changes nothing" same_losses counted
calls() { grep -c "^$1 " "$scratch/counts"; }
echo "a run's 5 saves ask the disk $(calls 0) times on rank 0, $(calls 1) times on rank 1"

# Who is killed, in turn: rank 0, mpirun by rank 0, rank 1.
for ((kill = 0; kill < kills; ++kill)); do
  case $((kill % 3)) in
    0) whom="rank 0" rank=0 does=kill ;;
    1) whom="mpirun" rank=0 does=kill-mpirun ;;
    2) whom="rank 1" rank=1 does=kill ;;
  esac
  count=$(calls $rank) each=$(((kills + 2) / 3))
  call=$((1 + (kill / 3 * count / each + shift_by) % count))
  rm -rf "$scratch/killed" "$scratch/log"
  code=0
  DISK_DOES=$does DISK_RANK=$rank DISK_CALL=$call DISK_LOG=$scratch/log on_disk killed || code=$?
  hit=$(cat "$scratch/log" 2>/dev/null || true)
  [ "$code" != 0 ] && [ -n "$hit" ] || fail "$whom at call $call: the code is $code, the call '$hit'"
  for _ in $(seq 200); do # mpirun's ranks end a moment after it
    pgrep -f "$scratch/killed" >/dev/null || break
    sleep 0.1
  done
  ! pgrep -f "$scratch/killed" || fail "$whom at call $call ($hit): ranks live on"
  echo "$whom killed at $hit"
  resume killed 2 auto "${options[@]}"
  from=$(sed -n 's/.*goes on  *after step \([0-9]*\).*/\1/p' "$scratch/killed.txt")
  check "$whom killed at call $call ($(cut -d' ' -f3- <<<"$hit")), gone on after step ${from:-0}: the same losses" \
    same_losses killed
  ! ls -d "$scratch/killed/checkpoints/"*.partial 2>/dev/null || fail "something partial stays"
  echo "$hit" | sed -E 's/^[0-9]+ [0-9]+ //; s/[0-9]{8}/N/g; s#/checkpoints/?##; s/rank-0000[01]-of-00002/rank/g' >>"$scratch/hits"
done
echo "calls that were hit:"
sort "$scratch/hits" | uniq -c | sort -rn
echo "$checks checks passed"

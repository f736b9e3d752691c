#!/usr/bin/env bash
# Covers: a start waits for the lock of its run's folder, on all ranks together, and goes on from the newest checkpoint when
# the holder lets it go, or is killed; it says once whose it is; --lock-timeout ends the wait, and so does a request to
# stop, with code 0; a lock is never taken from a process that lives
# Timeout: 120
set -euo pipefail
# shellcheck source=dev/test/lib.bash
source "$(dirname "$0")/lib.bash"
in_own_tree
export LLMC_THREADS=1
small=(--layers 1 --seq-len 16 --global-batch 4 --val-every 0 --sample-every 0 --export off)
waits="train.jsonl: waiting up to"

run two 1 "${small[@]}" --steps 2 --checkpoint-every 2
check "a lock that is held: --lock-timeout 0 ends at once, with code 5" exits 5 \
  flock "$scratch/two/train.jsonl" "$train" --out "$scratch/two" --resume auto --steps 3 --lock-timeout 0
check "  and says what to do" said "its run has not ended"
check "the time that is given comes to its end" exits 5 \
  flock "$scratch/two/train.jsonl" "$train" --out "$scratch/two" --resume auto --steps 3 --lock-timeout 0.5
check "  after one word" [ "$(grep -c "$waits" "$scratch/out.txt")" = 1 ]
check "  which names the last start, a process that has ended" grep -qE "the last start there is process [0-9]+ on $(hostname), .* it has ended|, which has ended" \
  "$scratch/out.txt"
check "  nothing is changed" [ "$(losses "$scratch/two/train.jsonl" | wc -l)" = 2 ]

for n in 1 2; do
  exec {held}>>"$scratch/two/train.jsonl"
  flock "$held"
  if [ $n = 1 ]; then start=("$train"); else start=(mpirun --oversubscribe --bind-to none -n 2 "$train"); fi
  begin waiting "$waits" "${start[@]}" --out "$scratch/two" --resume auto --steps $((2 + n)) --comm-timeout 1 {held}>&-
  sleep 1.5 # longer than the ranks would wait for each other
  check "$n rank(s) wait" kill -0 "$child"
  exec {held}>&-
  check "  and go on when the lock is free" ends 60
  check "  well" [ "$code" = 0 ]
  check "  to the end" [ "$(losses "$scratch/two/train.jsonl" | tail -n 1 | cut -d' ' -f1)" = $((2 + n)) ]
done

exec {held}>>"$scratch/two/train.jsonl"
flock "$held"
for n in 1 2; do
  if [ $n = 1 ]; then start=("$train"); else start=(env LLMC_PROGRAM="$train" scripts/run -n 2); fi
  begin asked "$waits" "${start[@]}" --out "$scratch/two" --resume auto --steps 9 {held}>&-
  kill -TERM "$child"
  check "$n rank(s): SIGTERM ends the wait" ends 60
  check "  with code 0" [ "$code" = 0 ]
  check "  and says so" says asked "asked to stop, while another process wrote $scratch/two: nothing was trained"
done
exec {held}>&-

# A run that lives, though it does nothing: it is stopped behind its checkpoint. It ends, and another goes on from there.
begin holder "^saved .*step-0" "$train" "${small[@]}" --out "$scratch/alive" --steps 1000000 --checkpoint-every 20 --keep-checkpoints 0
holder=$child
kill -STOP "$holder"
"$train" --out "$scratch/alive" --resume auto --steps 1000000 --stop-after 0.0001 >"$scratch/next.txt" 2>&1 &
child=$!
wait_for "$scratch/next.txt" "$waits"
check "a process that lives keeps its lock" says next "the last start there is process $holder on $(hostname), of "
check "  as the word says" says next ", which still runs"
mkdir "$scratch/alive/checkpoints/step-00900000" # as if the holder had saved one while the other waits; it is refused by name
echo "{}" >"$scratch/alive/checkpoints/step-00900000/manifest.json"
kill -KILL "$holder"
check "it is killed: the next one goes on" ends 60
check "  after it has looked again which checkpoint is the newest" grep -q "step-00900000 is refused" "$scratch/next.txt"
echo "$checks checks passed"

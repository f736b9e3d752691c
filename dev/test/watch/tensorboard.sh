#!/usr/bin/env bash
# Covers: scripts/tensorboard follows a real run: TensorBoard's own reader has exactly the values of train.jsonl, within
# seconds, once each also after kill -9, torn files and a rollback; the server shows them, also of a run that is killed and
# goes on; the x axis may be tokens; logs of older programs are read
# Timeout: 300
set -euo pipefail
# shellcheck source=dev/test/lib.bash
source "$(dirname "$0")/../lib.bash"
cd "$scratch"
compare() { "$PYTHON" "$root/dev/test/watch/tensorboard_check.py" "$@"; }
follow() { "$root/scripts/tensorboard" --no-server "$@" >>follow.txt 2>&1; }

# A run under way: the follower is killed once while it writes, and started again.
"$train" --steps 60 --val-every 10 --sample-every 20 --export off --out run >train.txt 2>&1 &
training=$!
until [ -s run/train.jsonl ]; do sleep 0.1; done
"$root/scripts/tensorboard" --no-server run >follow.txt 2>&1 &
follower=$! # of Python itself: the script becomes it
check "values come within seconds, while the run goes on" compare live run
check "the run was still under way" kill -0 "$training"
kill -KILL "$follower"
wait "$follower" || true
check "a second start goes on, and ends with the run" follow run
wait "$training"
check "every value of train.jsonl, once" compare equal run
check "a third start" follow run
check "writes nothing twice" compare equal run
check "no file without events" eval '[ "$(ls run/tensorboard/events* | wc -l)" -le 2 ]'

# Files that were cut short: an event file in a record, a train.jsonl in a line.
cp -r run torn
truncate -s -7 "$(ls torn/tensorboard/events* | tail -n 1)" # the newest: it is the one being written
check "a torn event file is seen" eval '! compare equal torn >seen.txt 2>&1'
sleep 1.1 # event files are read in the order of the seconds in their names
check "is made good by another start" follow torn
check "without a duplicate" compare equal torn
printf '{"step":61,"loss":1.5,"memory_gib":2.5,"val_bits_per_byte":"inf"}\n{"step":62,"lo' >>torn/train.jsonl
sleep 1.1
check "half a line waits" follow torn
check "fields nobody knows are scalars, inf and nan too" compare equal torn
printf 'ss":1.25}\n' >>torn/train.jsonl
sleep 1.1
check "its rest comes" follow torn
check "then it counts" compare equal torn

# A run that went on from a checkpoint has taken lines back, and has others of the same steps.
back=(--layers 1 --seq-len 16 --global-batch 2 --val-every 0 --sample-every 0 --export off)
"$train" "${back[@]}" --steps 8 --checkpoint-every 4 --out back >back.txt 2>&1
check "a run with checkpoints" follow back
rm -r back/checkpoints/step-00000008
"$train" "${back[@]}" --out back --resume auto --steps 8 --lr 1e-3 >back.txt 2>&1
check "went on from the one before" eval '[ "$(wc -l <back/train.jsonl)" = 8 ] && [ -s back/train.rolled-back.jsonl ]'
check "another start" follow back
check "shows what stands in train.jsonl, and nothing else" compare equal back
"$train" "${back[@]}" --out back --resume auto --steps 10 --lr 1e-3 >back.txt 2>&1
check "one that took nothing back" follow back
check "goes on with its new lines" [ "$(tail -n 1 follow.txt)" = "back has ended: 2 new lines written" ]

check "--x tokens" follow --x tokens run
check "has tokens in the place of steps" compare tokens run run/tensorboard-tokens
check "  next to the others" compare equal run
cp -r run older && rm -r older/tensorboard older/tensorboard-tokens
sed -E -i 's/,"time":[0-9.]*//; s/,"tokens":[0-9]*//' older/train.jsonl
check "a log of an older program" follow --x tokens older
check "has the same tokens" compare tokens run older/tensorboard-tokens

# A run that is killed and goes on while the server shows it: the steps that are trained again are there once.
"$train" "${back[@]}" --steps 100000 --checkpoint-every 5 --keep-checkpoints 0 --out killed >killed.txt 2>&1 &
training=$!
until [ -s killed/train.jsonl ]; do sleep 0.1 && kill -0 "$training"; done
"$root/scripts/tensorboard" killed --port 0 >server.txt 2>&1 &
server=$!
until [ -d killed/checkpoints/step-00000010 ]; do sleep 0.05 && kill -0 "$training"; done
kill -KILL "$training"
wait "$training" || true
wait_for server.txt "killed has ended"
find killed/checkpoints/* -maxdepth 0 ! -name step-00000005 -exec rm -r {} + # the steps after it are lost
"$train" --out killed --resume auto --steps 30 --lr 1e-3 >killed.txt 2>&1
check "steps were trained again" [ -s killed/train.rolled-back.jsonl ]
shown() { compare equal killed >seen.txt 2>&1; }
for _ in $(seq 100); do if shown; then break; fi && sleep 0.2; done
check "a server that goes on has each step once" compare equal killed
kill "$server"
wait "$server" || true

# Several runs into one folder; the server; two writers.
check "--logdir" follow run torn --logdir all
check "has a folder a run" compare equal run all/run
"$root/scripts/tensorboard" run torn --port 0 >server.txt 2>&1 &
server=$!
until grep -q "^TensorBoard: http" server.txt; do sleep 0.2 && kill -0 "$server"; done
check "the server shows the runs" compare served run "$(sed -n 's/^TensorBoard: \([^ ]*\).*/\1/p' server.txt)"
refused "a second writer" "is being written by another" "$root/scripts/tensorboard" --no-server run
kill "$server"
check "SIGTERM ends it well" wait "$server"
echo "$checks checks passed"

#!/usr/bin/env bash
# Covers: scripts/wandb_sync follows a real run into an offline run of wandb, with exactly the values of train.jsonl; a
# second call goes on with the next line, also after kill -9 and with a server; lines that are taken back meanwhile are
# logged anew
# Timeout: 300
#
# With an environment of its own: wandb is not among what the scripts install.
set -euo pipefail
# shellcheck source=dev/test/lib.bash
source "$(dirname "$0")/../lib.bash"
in_own_tree
scripts/python_environment watch-wandb dev/test/watch/requirements.txt 130
python=$root/build/watch-wandb/bin/python
export PYTHONPATH=$root/scripts WANDB_MODE=offline WANDB_SILENT=true
cd "$scratch"
sync() { timeout 100 "$python" -m llmc_runs.wandb_sync "$@"; }
compare() { "$python" "$root/dev/test/watch/wandb_check.py" "$@"; }
lines() { # FROM TO: lines of a train.jsonl
  for ((i = $1; i <= $2; ++i)); do echo "{\"step\":$i,\"loss\":$i.5,\"step_ms\":10,\"tokens_per_s\":100}"; done
}
"$train" --steps 20 --val-every 10 --sample-every 10 --export off --out run >train.txt 2>&1 &
until [ -s run/train.jsonl ]; do sleep 0.1; done
check "it follows a run to its end" sync run
check "the run has ended by itself" wait "$!"
check "every value of train.jsonl is logged" compare run
sed '5s/"lr":/"lr":1/' -i.right run/train.jsonl
check "another value is seen" eval '! compare run 2>seen.txt && grep -q "line 5: lr" seen.txt'
mv run/train.jsonl.right run/train.jsonl

# Offline a second call knows from wandb's files where the first one ended.
check "a second call without new lines" sync run
check "logs nothing" compare run
lines 21 30 >>run/train.jsonl
check "a third call" sync run
check "logs the new lines, and no other" compare run

# After a rollback what is logged there stays, and the run is logged anew.
{ sed -n 1,25p run/train.jsonl && for i in 26 27 28; do echo "{\"step\":$i,\"loss\":7.5}"; done; } >lines && mv lines run/train.jsonl
mv run/wandb/run_id first_id && cp first_id run/wandb/run_id
check "a call after a rollback" sync run
check "logs each line of train.jsonl, as another run" eval 'compare run && ! cmp -s first_id run/wandb/run_id'

# A run under way, whose follower is killed, and another ended by SIGTERM.
mkdir cut && lines 1 100 >cut/train.jsonl && mkdir cut/wandb && : >cut/wandb/run_id # as if cut short by an older kill
hold_log cut
"$python" -m llmc_runs.wandb_sync cut >cut.txt 2>&1 {held}>&- &
follower=$!
until grep -aq "step" cut/wandb/offline-run-*/run-*.wandb 2>/dev/null; do sleep 0.2 && kill -0 "$follower"; done
lines 101 110 >>cut/train.jsonl
sleep 1.5 # logged, and not yet in wandb's file
refused "a second follower" "is being written by another scripts/wandb_sync" sync cut
kill -KILL "$follower"
wait "$follower" || true
check "what it had not written is missing" eval '! compare cut 2>seen.txt && grep -q "lines logged" seen.txt'
"$python" -m llmc_runs.wandb_sync cut >term.txt 2>&1 {held}>&- &
follower=$!
until compare cut >compared.txt 2>&1; do sleep 1 && kill -0 "$follower"; done
kill "$follower"
check "SIGTERM ends it well" wait "$follower"
check "without a word" eval '! grep Traceback term.txt'
check "and every line is there once" compare cut
release_log

# A run that takes lines back while it is followed.
mkdir back && lines 1 20 >back/train.jsonl
hold_log back
"$python" -m llmc_runs.wandb_sync back >back.txt 2>&1 {held}>&- &
follower=$!
until [ "$(grep -c . back/wandb/lines 2>/dev/null)" = 20 ]; do sleep 0.2 && kill -0 "$follower"; done
cp back/wandb/run_id first_id
{ lines 1 10 && for i in 11 12; do echo "{\"step\":$i,\"loss\":7.5}"; done; } >back/new && mv back/new back/train.jsonl
wait_for back.txt "logged anew"
release_log
check "a follower goes on after a rollback, to the end" wait "$follower"
check "with each line once, as another run" eval 'compare back && ! cmp -s first_id back/wandb/run_id'

# With a server: it says where the first call ended.
"$python" "$root/dev/test/watch/wandb_server.py" "$scratch/history" >port 2>server.txt &
server=$!
until [ -s port ]; do sleep 0.1 && kill -0 "$server"; done
WANDB_BASE_URL=http://127.0.0.1:$(cat port) WANDB_API_KEY=$(printf '%040d' 1)
export WANDB_BASE_URL WANDB_API_KEY WANDB_MODE=online HOME=$scratch
mkdir online && lines 1 20 >online/train.jsonl
check "a call with a server" sync online
check "every value comes to it" compare online history
lines 21 30 >>online/train.jsonl
check "another call" sync online
check "goes on with the line after the last one" compare online history
kill "$server"
refused "no account" "WANDB_MODE=offline needs no account" env -u WANDB_API_KEY "$python" -m llmc_runs.wandb_sync online
echo "$checks checks passed"

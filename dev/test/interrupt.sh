#!/usr/bin/env bash
# Covers: Ctrl-C, SIGTERM, SIGHUP and a pipe without a reader are answered at once, finish the step and save, also during the start and under
# scripts/run; Ctrl-C says how to go on; a second one ends at once, a second SIGTERM does not; what nohup ignores stays ignored
# Timeout: 240
# Alone: it sends signals and looks at how long ranks take to end
set -euo pipefail
# shellcheck source=dev/test/lib.bash
source "$(dirname "$0")/lib.bash"
in_own_tree
export LLMC_PROGRAM=$train

start() { # NAME COMMAND…: until it trains
  begin "$1" '^step' "${@:2}" --steps 1000000 --val-every 0 --sample-every 0 --out "$scratch/$1"
}
steps() { losses "$scratch/$1/train.jsonl" | wc -l; }
ctrl_c() { # SECONDS: after which it must have ended
  kill -INT "$child"
  ends "$1" || fail "Ctrl-C does not end it within $1 s"
}
stopped_well() { # NAME
  [ "$code" = 0 ] && says "$1" "asked to stop" && says "$1" "saved $scratch/$1/checkpoints/step-" &&
    [ ! -e "$scratch/$1/export" ] && [ "$(steps "$1")" -lt 1000000 ]
}

start once "$train" --layers 1 --seq-len 32
kill -STOP "$child" # so that no step is done between the count and Ctrl-C
before=$(steps once)
kill -INT "$child"
kill -CONT "$child"
ends 20 || fail "Ctrl-C does not end it within 20 s"
after=$(steps once)
# The step that runs, and the one before it, whose line is written when it does.
check "Ctrl-C: no step is begun after it ($before steps were done, $after are)" [ $((after - before)) -le 2 ]
check "Ctrl-C: the step is finished, the state is saved, the code is 0 (it is $code)" stopped_well once
check "runs/latest is this run" [ "$(readlink -f runs/latest)" = "$scratch/once" ]
how=$(sed -n 's/^to go on: //p' "$scratch/once.txt")
check "it ends with the command that goes on: $how" [ "$how" = "./train_llama --out $scratch/once --resume auto" ]
# shellcheck disable=SC2086  # words
check "which does" exits 0 ${how/#.\/train_llama/$train} --steps $((after + 2))
check "  for two steps more" [ "$(steps once)" = $((after + 2)) ]
check "a run that is done has no such line" not grep "^to go on" "$scratch/out.txt"

start unsaved "$train" --layers 1 --seq-len 32 --checkpoint-on-signal off
ctrl_c 20
check "--checkpoint-on-signal off promises no checkpoint" says unsaved "the step under way ends; a second Ctrl-C ends at once"
check "--checkpoint-on-signal off ends well" [ "$code" = 0 ]
check "  without a checkpoint" [ ! -e "$scratch/unsaved/checkpoints" ]
check "  the export can be gone on from" exits 0 "$train" --model "$scratch/unsaved/export" --steps 1 --val-every 0 \
  --sample-every 0 --seq-len 32 --out "$scratch/on"

LLMC_THREADS=1 start twice "$train" --seq-len 256 --global-batch 128 # a step takes a second or more on any processor
sleep 0.3 # into the next step
before=$(steps twice)
check "nobody has asked it to stop" says_not twice "asked to stop"
kill -TERM "$child"
answered() { for _ in {1..50}; do says twice "$1" >/dev/null && return; sleep 0.01; done; return 1; }
check "a request to stop is answered at once" answered "asked to stop: the step under way ends, then a checkpoint is saved"
check "  before the step ends" [ "$(steps twice)" = "$before" ]
kill -TERM "$child"
sleep 0.1
check "a second SIGTERM does not end it at once" kill -INT "$child"
sleep 0.1
ctrl_c 3
check "all of them are answered once" [ "$(grep -c "asked to stop" "$scratch/twice.txt")" = 1 ]
check "a second Ctrl-C does, with code 130 (it is $code)" [ "$code" = 130 ]

start terminated "$train" --layers 1 --seq-len 32
while kill -TERM "$child" 2>/dev/null; do sleep 0.01; done # from the step to the end
check "SIGTERM again and again: it ends well, too" ends 20
check "  and has saved (the code is $code)" stopped_well terminated

# A signal that waits when the program starts comes before all else.
early() { # COMMAND…
  env --block-signal=TERM "$BASH" -c 'kill -TERM $$; exec "$@"' "$BASH" "$@"
}
check "SIGTERM at the start of a training" exits 0 early "$train" --layers 1 --seq-len 32 --steps 1000000 \
  --out "$scratch/early"
check "  saves after the first step" [ -d "$(checkpoint early 1)" ]
check "SIGTERM at the start of what saves nothing ends it" exits 143 early "$train" --sample-only --sample-tokens 100000000

start ignoring env --ignore-signal=INT,HUP "$train" --layers 1 --seq-len 32
kill -INT "$child"
kill -HUP "$child"
for _ in 1 2 3; do
  before=$(steps ignoring)
  until [ "$(steps ignoring)" -gt "$before" ]; do sleep 0.01 && kill -0 "$child"; done
done
check "SIGINT and SIGHUP that were ignored at the start stay so" says_not ignoring "asked to stop"
kill -TERM "$child"
check "  SIGTERM ends it within 20 s" ends 20
check "  and well (the code is $code)" stopped_well ignoring

check "a pipe whose reader has ended: the training ends well" exits 0 bash -o pipefail -c '"$@" | head -n 1' bash \
  "$train" --layers 1 --seq-len 32 --val-every 0 --sample-every 0 --steps 1000000 --out "$scratch/piped"
check "  and saves" [ -d "$(echo "$scratch"/piped/checkpoints/step-*[0-9])" ]

begin sampling 'sample of the model' "$train" --sample-only --sample-tokens 100000000
ctrl_c 5
check "Ctrl-C ends sampling (the code is $code)" [ "$code" = 130 ]

# run_script.sh has steps that are longer than mpirun's patience.
start two scripts/run -n 2 --layers 1 --seq-len 32
ctrl_c 60
check "scripts/run: Ctrl-C ends well on 2 ranks (the code is $code)" stopped_well two
# shellcheck disable=SC2016  # the inner shell expands it
begin tee '^step' bash -c 'scripts/run -n 2 "$@" 2>&1 | tee "$0"' "$scratch/tee.copy" --layers 1 --seq-len 32 \
  --steps 1000000 --val-every 0 --sample-every 0 --out "$scratch/tee"
kill -INT -- "-$child" # to tee, too
tee_saved() { for _ in {1..300}; do ! compgen -G "$scratch/tee/checkpoints/step-*[0-9]" >/dev/null || return 0; sleep 0.1; done; return 1; }
check "scripts/run | tee: the ranks save, though nobody reads what they print" tee_saved
check "  with the command for 2 ranks" says two "to go on: scripts/run -n 2 --out $scratch/two --resume auto"
echo "$checks checks passed"

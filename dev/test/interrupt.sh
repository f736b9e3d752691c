#!/usr/bin/env bash
# Covers: Ctrl-C finishes the step, saves, and says where and how to go on, also under scripts/run; a second one ends at
# once
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
check "--checkpoint-on-signal off ends well" [ "$code" = 0 ]
check "  without a checkpoint" [ ! -e "$scratch/unsaved/checkpoints" ]
check "  the export can be gone on from" exits 0 "$train" --model "$scratch/unsaved/export" --steps 1 --val-every 0 \
  --sample-every 0 --seq-len 32 --out "$scratch/on"

LLMC_THREADS=1 start twice "$train" --seq-len 256 --global-batch 256 # a step takes a second or more on any processor
sleep 0.3 # into the next step
kill -INT "$child"
sleep 0.2
ctrl_c 3
check "a second Ctrl-C ends at once, with code 130 (it is $code)" [ "$code" = 130 ]

begin sampling 'sample of the model' "$train" --sample-only --sample-tokens 100000000
ctrl_c 5
check "Ctrl-C ends sampling (the code is $code)" [ "$code" = 130 ]

# run_script.sh has steps that are longer than mpirun's patience.
start two scripts/run -n 2 --layers 1 --seq-len 32
ctrl_c 60
check "scripts/run: Ctrl-C ends well on 2 ranks (the code is $code)" stopped_well two
check "  with the command for 2 ranks" says two "to go on: scripts/run -n 2 --out $scratch/two --resume auto"
echo "$checks checks passed"

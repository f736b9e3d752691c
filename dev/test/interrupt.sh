#!/usr/bin/env bash
# Covers: Ctrl-C finishes the step, saves, and says where and how to go on; a second one ends at once; the same under
# scripts/run with steps longer than 2 s
# Timeout: 240
# Alone: it sends signals and looks at how long ranks take to end
set -euo pipefail
# shellcheck source=dev/test/lib.bash
source "$(dirname "$0")/lib.bash"
in_own_tree
export LLMC_PROGRAM=$train

ends_within() { # SECONDS: sets code
  local begin=$SECONDS
  code=0
  wait "$child" || code=$?
  [ $((SECONDS - begin)) -le "$1" ] || fail "took $((SECONDS - begin)) s to end"
}
start() { # NAME COMMAND…: in a process group of its own, where SIGINT is not ignored
  name=$1
  setsid env --default-signal=INT "${@:2}" --steps 1000 --val-every 0 --sample-every 0 --out "$scratch/$name" >"$scratch/$name.txt" 2>&1 &
  child=$!
  wait_for "$scratch/$name.txt" '^step'
}
stopped_well() {
  [ "$code" = 0 ] && grep -q "asked to stop" "$scratch/$name.txt" &&
    grep -q "saved $scratch/$name/checkpoints/step-" "$scratch/$name.txt" && [ ! -e "$scratch/$name/export" ] &&
    [ "$(losses "$scratch/$name/train.jsonl" | wc -l)" -lt 1000 ]
}

start once "$train" --layers 1 --seq-len 32
before=$(losses "$scratch/once/train.jsonl" | wc -l)
kill -INT "$child"
ends_within 20
after=$(losses "$scratch/once/train.jsonl" | wc -l)
check "Ctrl-C: no step is begun after it ($before steps were done, $after are)" [ $((after - before)) -le 3 ]
check "Ctrl-C: the step is finished, the state is saved, the code is 0 (it is $code)" stopped_well
latest() { [ "$(readlink -f runs/latest)" = "$scratch/$1" ]; }
check "runs/latest is this run" latest once
how=$(sed -n 's/^to go on: //p' "$scratch/once.txt")
check "it ends with the command that goes on: $how" [ "$how" = "./train_llama --out $scratch/once --resume auto" ]
step=$(losses "$scratch/once/train.jsonl" | tail -n 1 | cut -d' ' -f1)
gone_on() { ${how/#.\/train_llama/$train} --steps $((step + 2)) >"$scratch/on.txt" 2>&1 && [ "$(losses "$scratch/once/train.jsonl" | wc -l)" = $((step + 2)) ]; }
check "which does" gone_on
check "a run that is done has no such line" eval '! grep "^to go on" "$scratch/on.txt"'
start unsaved "$train" --layers 1 --seq-len 32 --checkpoint-on-signal off
kill -INT "$child"
ends_within 20
exported() { [ "$code" = 0 ] && [ -s "$scratch/unsaved/export/model.safetensors" ] && [ ! -e "$scratch/unsaved/checkpoints" ]; }
check "--checkpoint-on-signal off: the weights are exported instead" exported
check "the export can be gone on from" "$train" --model "$scratch/unsaved/export" --steps 1 --val-every 0 --sample-every 0 --seq-len 32 --out "$scratch/on"

start twice "$train" --seq-len 256 --global-batch 128
kill -INT "$child"
sleep 0.2
kill -INT "$child"
ends_within 3
check "a second Ctrl-C ends at once, with code 130 (it is $code)" [ "$code" = 130 ]

sampling() { # Ctrl-C while it samples, before any step
  setsid env --default-signal=INT "$train" --sample-only --sample-tokens 100000000 >"$scratch/sampling.txt" 2>&1 &
  child=$!
  wait_for "$scratch/sampling.txt" 'sample of the model'
  kill -INT "$child"
  ends_within 5
}
sampling
check "Ctrl-C ends sampling (the code is $code)" [ "$code" = 130 ]

# About 50,000 tokens a step: over 2 s on two cores.
start slow scripts/run -n 2 --global-batch 400 --seq-len 128 --micro-batch 8
sleep 0.5
kill -INT "$child"
ends_within 60
check "scripts/run: Ctrl-C in a long step ends well on 2 ranks (the code is $code)" stopped_well
check "  with the command for 2 ranks" grep -qx "to go on: scripts/run -n 2 --out $scratch/slow --resume auto" "$scratch/slow.txt"
longest=$(sed -n 's/.*"step_ms":\([0-9]*\).*/\1/p' "$scratch/slow/train.jsonl" | sort -n | tail -n 1)
check "its longest step took over 2 s ($longest ms)" [ "$longest" -gt 2000 ]
echo "$checks checks passed"

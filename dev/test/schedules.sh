#!/usr/bin/env bash
# Covers: promise 4: a cooldown from a checkpoint has the bits of the run that planned it, on one rank and on several, also
# after it was stopped; --stop-after saves and ends like Ctrl-C, and the run goes on to the same bits; --z-loss changes
# gradients, no reported loss and no evaluation, and is reported by itself
# Timeout: 240
# Turn: 2
set -euo pipefail
# shellcheck source=dev/test/lib.bash
source "$(dirname "$0")/lib.bash"
in_own_tree
export LLMC_PROGRAM=$train LLMC_THREADS=1
short=(--layers 1 --seq-len 32 --global-batch 4 --micro-batch 1 --warmup-steps 3 --lr 0.00390625 --min-lr 0 --sample-every 0)
options=("${short[@]}" --val-every 4 --val-tokens 256)
falling() { # NAME: 5 steps from 17 on, whose rates fall to 0
  numbers "$1" lr | awk 'BEGIN { last = 0.00390625 } { bad += $2 >= last || $1 != 16 + NR; last = $2 } END { exit bad || NR != 5 || last != 0 }'
}
rates() { numbers "$1" lr | cut -d' ' -f2 | tr '\n' ' '; }

echo "-- a cooldown as a branch"
run base 1 --steps 24 --schedule wsd --cooldown-steps 0 --checkpoint-every 8 --keep-checkpoints 0
check "without a cooldown the rate stays" eval 'numbers base lr | awk "NR > 2 && \$2 != 0.00390625 { exit 1 }"'
for shape in linear cosine 1-sqrt; do
  run "planned-$shape" 1 --steps 21 --schedule wsd --cooldown-steps 5 --cooldown-shape $shape
  resume "branch-$shape" 1 "$(checkpoint base 16)" --cooldown-steps 5 --cooldown-shape $shape
  check "$shape: it ends with the planned one's bits" ends_alike "planned-$shape" "branch-$shape" 8
  check "  in the steps after the checkpoint, at falling rates" falling "branch-$shape"
done
check "the shapes differ" eval '[ "$(for shape in linear cosine 1-sqrt; do rates branch-$shape; echo; done | sort -u | wc -l)" = 3 ]'
check "the first lines tell the length" says branch-linear "--steps 21 (was 24)"
check "  the cooldown" says branch-linear "then constant for 13 steps, and linear to 0 over the last 5 (wsd)"
check "  and no jump of the rate" says_not branch-linear "does not go on as it was"
run planned-share 1 --steps 20 --schedule wsd --cooldown-steps 20%
resume branch-share 1 "$(checkpoint base 16)" --cooldown-steps 20%
check "a share is one of all the steps" ends_alike planned-share branch-share 6

run steady 2 --steps 8 --schedule constant --zero-stage 2 --checkpoint-every 8
run planned 2 --steps 12 --schedule wsd --zero-stage 2 --cooldown-steps 4 --cooldown-shape 1-sqrt
resume branch 2 "$(checkpoint steady 8)" --cooldown-steps 4 --cooldown-shape 1-sqrt --checkpoint-every 2
check "from a run with a constant rate, on 2 ranks" ends_alike planned branch 6
mv "$(checkpoint branch 12)" "$scratch/last" && rm -r "$scratch/branch/export"
resume branch 2 auto --cooldown-steps 4
check "a branch that was stopped: the same bits, and no second cooldown" same_weights planned branch
check "  in as many steps" [ "$(numbers branch loss | tail -n 1 | cut -d' ' -f1)" = 12 ]
resume longer 2 "$(checkpoint steady 8)" --cooldown-steps 4 --schedule wsd --steps 14
check "with a length it is no branch: the cooldown ends the run" \
  [ "$(rates longer | awk '{ print $1, $2, $3, $4, $5, $6 * 1 }')" = "0.00390625 0.00390625 0.0029296875 0.001953125 0.0009765625 0" ]

run cosine 1 --steps 8 --checkpoint-every 4
refused "a run whose rate falls already" "with --schedule cosine the learning rate falls before a cooldown" \
  "$train" --resume "$(checkpoint cosine 4)" --cooldown-steps 4 --out "$scratch/refused-1"
resume anyway 1 "$(checkpoint cosine 4)" --cooldown-steps 4 --schedule wsd
check "  but where it is asked for, with a warning" says anyway "the learning rate does not go on as it was: step 4 had "
refused "a branch within the warm-up" "--cooldown-steps 4: with --warmup-steps 30 they are more than the 12 steps" \
  "$train" --resume "$(checkpoint steady 8)" --warmup-steps 30 --cooldown-steps 4 --out "$scratch/refused-2"

echo "-- --stop-after"
stopped() { # NAME RANKS: a run that would never end, but for its time
  local options=("${short[@]}" --val-every 0 --schedule constant)
  local since=$EPOCHREALTIME
  run "$1" "$2" --steps 1000000 --stop-after 0.0003
  check "$2 ranks: it takes its time" awk "BEGIN { exit !($EPOCHREALTIME - $since >= 1.08) }"
  check "  it says why it ends" says "$1" "the time of --stop-after 0.0003 is over: ending after step"
  at=$(numbers "$1" loss | tail -n 1 | cut -d' ' -f1)
  check "  it has saved step $at" [ -d "$(checkpoint "$1" "$at")" ]
  check "  it says how to go on" says "$1" "--out $scratch/$1 --resume auto"
  check "  without that time" says_not "$1" "--resume auto --stop-after"
  resume "$1" "$2" auto --steps $((at + 3))
  run "$1-whole" "$2" --steps $((at + 3))
  check "  gone on, it has the bits of a run that was never stopped" same_weights "$1-whole" "$1"
}
stopped alone 1
stopped together 2
check "a time that is over at the start: one step" exits 0 "$train" "${options[@]}" --steps 1000000 --stop-after 1e-9 --out "$scratch/one"
check "  is done, and saved" [ -d "$(checkpoint one 1)" ]

echo "-- --z-loss"
run without 1 --steps 6 --checkpoint-every 6
run with 1 --steps 6 --z-loss 0.01 --checkpoint-every 3 --keep-checkpoints 0
first() { numbers "$1" "$2" | head -n 1; }
check "the first step reports the same loss" [ "$(first with loss)" = "$(first without loss)" ]
check "  of another gradient" [ "$(first with grad_norm)" != "$(first without grad_norm)" ]
check "  and the z-loss by itself: $(first with z_loss)" eval 'first with z_loss | awk "{ exit !(\$1 == 1 && \$2 > 0.05 && \$2 < 2) }"'
check "  which only such a run reports" not grep -q z_loss "$scratch/without/train.jsonl"
check "  on the terminal, too" says with " + z-loss "
check "the first evaluation is without it" [ "$(first with val_loss)" = "$(first without val_loss)" ]
resume with-on 1 "$(checkpoint with 3)"
check "a run that goes on takes it over" ends_alike with with-on 5
run tensor 2 --steps 6 --z-loss 0.01 --tensor-parallel-degree 2 --zero-stage 1
check "2 tensor-parallel ranks: the same losses" near with tensor 6 1e-6 1e-4
key=z_loss check "  and z-losses" near with tensor 6 1e-6 1e-4
run data 2 --steps 6 --z-loss 0.01 --zero-stage 3
key=z_loss check "2 data ranks: the same z-losses" near with data 6 1e-6 1e-4
echo "$checks checks passed"

#!/usr/bin/env bash
# Covers: data in files that are mostly shorter than a sequence: what --epochs counts and the banner says, the same losses
# on 1, 2 and 4 ranks and over a resume
set -euo pipefail
# shellcheck source=dev/test/lib.bash
source "$(dirname "$0")/lib.bash"
cd "$scratch"
mkdir text
for i in $(seq 100 169); do
  dd if="$root/dev/data/tinyshakespeare.txt" of="text/$i.txt" bs=1 skip=$((i * 1500)) count=$((60 + i * 53 % 97)) status=none
done
bytes=$(cat text/* | wc -c)
windows=$(((bytes - bytes / 10 + 127) / 128)) # the last tenth is held out
steps=$(((2 * windows + 3) / 4))
options=(--layers 1 --seq-len 128 --global-batch 4 --lr 1e-3 --train-data 'text/*' --epochs 2 --val-every 0 --sample-every 0
  --export off)
# Other sequences are off by 1e-2 at once.
alike() { near one "$1" "$2" 1e-5 1e-5; }

run one 1 --checkpoint-every 10 --keep-checkpoints 0
check "an epoch is $windows sequences, which have all tokens" \
  says one "an epoch: $windows sequences, each token once; the run: 2"
check "two epochs are $steps steps of 4 sequences" [ "$(numbers one loss | wc -l)" = $steps ]
for n in 2 4; do
  run "on$n" $n
  check "$n ranks: the same losses" alike "on$n" $steps
done
last=$(checkpoint one 20)
resume resumed 2 "$last"
check "gone on within the second epoch, on 2 ranks: the same losses" alike resumed $((steps - 20))

echo "$checks checks passed"

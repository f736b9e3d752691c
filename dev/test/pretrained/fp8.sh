#!/usr/bin/env bash
# Covers: FP8 on a model that has learnt something, SmolLM2-135M: 20 steps of fine-tuning in bf16, in each recipe and with the
# head in FP8 cost at most so much more loss than fp32
# Timeout: 1800
set -euo pipefail
# shellcheck source=dev/test/lib.bash
source "$(dirname "$0")/../lib.bash"
# shellcheck source=dev/test/pytorch/model.bash
source "$(dirname "$0")/../pytorch/model.bash"
in_own_tree
options=(--model "$root/build/pretrained/model" --train-data dev/data/tinyshakespeare.txt --seq-len 128 --global-batch 1
  --steps 20 --lr 3e-5 --val-every 20 --val-tokens 1024 --sample-every 0 --export off)

# losses_of NAME: held-out loss before and after, and the mean of the steps' losses.
losses_of() {
  awk '{ match($0, /"(val_)?loss":[^,}]*/); split(substr($0, RSTART, RLENGTH), f, ":") }
    /"val_loss"/ { held[n++] = f[2]; next } /"loss"/ { sum += f[2]; steps++ }
    END { if (n != 2 || steps != 20) exit 1; printf "%.4f %.4f %.4f\n", held[0], held[1], sum / steps }' "$1/train.jsonl"
}
# costs NAME PERCENT: each of the three losses lies at most so much above that of fp32, and not further below.
costs() {
  paste -d' ' <(losses_of "$scratch/fp32") <(losses_of "$scratch/$1") | awk -v name="$1" -v most="$2" '
    { for (i = 1; i <= 3; ++i) { p[i] = 100 * ($(i + 3) / $i - 1); if (!(p[i] <= most && p[i] >= -most)) bad = 1 }
      text = "     %-18s held out %s (%+.2f%%), after 20 steps %s (%+.2f%%); steps %s (%+.2f%%)\n"
      printf text, name, $4, p[1], $5, p[2], $6, p[3] }
    END { exit bad || NR != 1 }'
}
quietly "$train" "${options[@]}" --dtype fp32 --out "$scratch/fp32"
quietly "$train" "${options[@]}" --dtype bf16 --out "$scratch/bf16"
# Twenty steps at so small a batch are noisy: bf16's losses lie within 0.4% of fp32's, those of the recipes 0.4% to 2% above.
check "bf16 costs next to nothing" costs bf16 0.8
for recipe in tensorwise delayed rowwise rowwise-hp-wgrad blockwise; do
  quietly "$train" "${options[@]}" --fp8 $recipe --out "$scratch/$recipe"
  check "the loss that $recipe costs" costs $recipe 3
done
for head in backward on; do
  quietly "$train" "${options[@]}" --fp8 tensorwise --fp8-head $head --out "$scratch/head-$head"
  check "the loss that --fp8-head $head costs" costs head-$head 3
done
check "a run that lost more would be noticed" eval '! costs blockwise 0.05'
echo "$checks checks passed"

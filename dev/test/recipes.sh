#!/usr/bin/env bash
# Covers: FP8 with default options: each recipe trains, measures held-out data and questions, samples before, during and
# after, exports, and continues prompts of any length from its export, on 1 and 2 ranks, in ZeRO stages 0 and 3
# Timeout: 900
#
# RECIPES=every: all 20 combinations; else two, one of them of the recipe whose blocks pad most, with fewer prompts.
set -euo pipefail
# shellcheck source=dev/test/lib.bash
source "$(dirname "$0")/lib.bash"
cd "$root"
text=dev/data/tinyshakespeare.txt
head -n 4 dev/test/choices/items.jsonl >"$scratch/items.jsonl"

# has STEP KEY: the log has a line of the step with the key.
has() { grep -q "\"step\":$1,.*\"$2\":" "$run/train.jsonl"; }
logged() {
  local step
  for step in 1 2 3 4; do has $step loss || return 1; done
  for step in 0 4; do has $step val_loss && has $step choices_acc || return 1; done
  for step in 0 2 4; do has $step sample || return 1; done
}
# learns: each of the losses is a number, and the last is below the first by a tenth at least.
learns() {
  losses "$run/train.jsonl" | awk '{ if (!($2 > 0 && $2 < 6)) bad = 1; if (NR == 1) first = $2; last = $2 }
    END { exit bad || NR != 4 || !(last < 0.9 * first) }'
}
# continues CHARACTERS: the export's sample begins with the prompt of so many characters, and goes on.
continues() {
  local prompt
  prompt=$(head -c "$1" "$text" | tr '\n' ' ')
  ranks "$n" "$train" --model "$run/export" --dtype bf16 --fp8 "$recipe" --zero-stage "$stage" --sample-only \
    --sample-tokens 20 --prompt "$prompt" >"$scratch/sample.txt" 2>"$scratch/errors.txt" || { cat "$scratch/errors.txt" && return 1; }
  # Bytes need be no text.
  LC_ALL=C awk -v prompt="$prompt" 'index($0, prompt) == 1 && length($0) > length(prompt) { found = 1 } END { exit !found }' "$scratch/sample.txt"
}
whole() { # recipe, n, stage
  local begin=$SECONDS length
  run=$scratch/$recipe-$n-$stage
  ranks "$n" "$train" --model tiny --dtype bf16 --fp8 "$recipe" --zero-stage "$stage" --steps 4 --sample-every 2 \
    --sample-tokens 20 --eval-choices "$scratch/items.jsonl" --out "$run" >"$scratch/out.txt" 2>&1 || { cat "$scratch/out.txt" && return 1; }
  logged || { cat "$run/train.jsonl" && return 1; }
  learns || { losses "$run/train.jsonl" && return 1; }
  [ -s "$run/export/model.safetensors" ] || return 1
  for length in "${lengths[@]}"; do continues "$length" || { echo "a prompt of $length characters" && return 1; }; done
  seconds=$((SECONDS - begin))
}

chosen=("delayed 1 0" "blockwise 2 3") lengths=(3 130)
if [ "${RECIPES:-}" = every ]; then
  chosen=() lengths=(1 3 17 130)
  for recipe in tensorwise delayed rowwise rowwise-hp-wgrad blockwise; do
    for n in 1 2; do for stage in 0 3; do chosen+=("$recipe $n $stage"); done; done
  done
fi
for each in "${chosen[@]}"; do
  read -r recipe n stage <<<"$each"
  check "$recipe, $n rank(s), stage $stage" whole
  echo "     $seconds s, $(losses "$run/train.jsonl" | awk 'NR == 1 || NR == 4 { printf "%s%.4f", sep, $2; sep = " to " }')"
done
echo "$checks checks passed"

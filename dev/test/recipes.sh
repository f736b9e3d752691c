#!/usr/bin/env bash
# Covers: FP8 with default options: each recipe trains, measures held-out data and questions, samples before, during and
# after, exports, and continues prompts of any length from its export, on 1 and 2 ranks, in ZeRO stages 0 and 3; delayed
# scales of tensors that begin with zeros follow from the running pass until there is another number
# Timeout: 1500
# Alone: its ranks take all cores
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

echo "-- o_proj and down_proj begin with zeros, and so do the gradients of what feeds them"
cp -r "$run/export" "$scratch/zeroed"
python3 - "$scratch/zeroed/model.safetensors" <<'END'
import json, struct, sys

with open(sys.argv[1], "r+b") as file:
    (size,) = struct.unpack("<Q", file.read(8))
    for name, tensor in json.loads(file.read(size)).items():
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            begin, end = tensor["data_offsets"]
            file.seek(8 + size + begin)
            file.write(bytes(end - begin))
END
zeroed() { # NAME RANKS ARGUMENTS…
  ranks "$2" "$train" --model "$scratch/zeroed" --dtype bf16 --global-batch 8 --micro-batch 2 --seq-len 64 --lr 9e-4 --steps 5 \
    --warmup-steps 0 --val-every 0 --sample-every 0 --export off --out "$scratch/$1" "${@:3}" >"$scratch/out.txt" 2>&1 ||
    { cat "$scratch/out.txt" && fail "the run $1"; }
  losses "$scratch/$1/train.jsonl" | awk -v name="$1" '{ printf "%s %.4f", NR == 1 ? "     " name ":" : "", $2 } END { print "" }'
}
# near A B: the second loss, which says what the first update did, within 1%, and the others within 3%: such steps are
# chaotic, and with other scales they differ by 0.1% and up to 1.5%. With a scale of 1 the second is off by 20%, since
# weights of 9e-4 all become 0.
near() {
  paste -d' ' <(losses "$scratch/$1/train.jsonl") <(losses "$scratch/$2/train.jsonl") |
    awk '{ off = $4 / $2 - 1; limit = NR <= 2 ? 0.01 : 0.03; if (!(off < limit && off > -limit)) bad = 1 } END { exit bad || NR != 5 }'
}
same_losses() { cmp <(losses "$scratch/$1/train.jsonl" | tail -n "$3") <(losses "$scratch/$2/train.jsonl" | tail -n "$3"); }
counts() { sed -n 's/.*"fp8_underflows":\([0-9]*\).*/\1/p' "$scratch/$1/train.jsonl" | tr '\n' ' '; }
zeroed zero-tensorwise 1 --fp8 tensorwise
zeroed zero-delayed 1 --fp8 delayed --checkpoint-every 1 --keep-checkpoints 0
check "delayed keeps to tensorwise" near zero-tensorwise zero-delayed
check "  no tensor underflows" [ "$(counts zero-delayed)" = "0 0 0 0 0 " ]
zeroed resumed 1 --fp8 delayed --resume "$scratch/zero-delayed/checkpoints/step-00000001"
check "  resumed behind the first step: the same bits" same_losses zero-delayed resumed 4
zeroed zero-shared 2 --fp8 delayed --zero-stage 3 --fp8-all-gather
check "  on 2 ranks whose weights travel in FP8" near zero-tensorwise zero-shared
zeroed zero-tensor 2 --fp8 delayed --tensor-parallel-degree 2
check "  on 2 ranks that share products" near zero-tensorwise zero-tensor
echo "$checks checks passed"

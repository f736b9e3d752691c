#!/usr/bin/env bash
# Covers: FP8 with default options: each recipe trains, measures held-out data and questions, samples before, during and
# after, exports, and continues prompts of any length from its export, on 1 and 2 ranks, in ZeRO stages 0 and 3; delayed
# scales of tensors that begin with zeros follow from the running pass until there is another number
# Timeout: 1500
# Turn: 2
#
# RECIPES=every: all 20 combinations; else two, one of them of the recipe whose blocks pad most, with fewer prompts.
set -euo pipefail
# shellcheck source=dev/test/lib.bash
source "$(dirname "$0")/lib.bash"
in_own_tree
text=dev/data/tinyshakespeare.txt
head -n 4 dev/test/choices/items.jsonl >"$scratch/items.jsonl"

# has STEP KEY: the log has a line of the step with the key.
has() { log "$name" | grep "\"step\":$1,.*\"$2\":" >/dev/null; }
logged() {
  local step
  for step in 1 2 3 4; do has $step loss || return 1; done
  for step in 0 4; do has $step val_loss && has $step choices_acc || return 1; done
  for step in 0 2 4; do has $step sample || return 1; done
}
# learns: each of the losses is a number, and the last is below the first by a tenth at least.
learns() {
  numbers "$name" loss | awk '
    { printf "     step %d: %.4f\n", $1, $2; if (!($2 > 0 && $2 < 6)) bad = 1; if (NR == 1) first = $2 }
    END { exit bad || NR != 4 || !($2 < 0.9 * first) }'
}
# continues CHARACTERS: the export's sample begins with the prompt of so many characters, and goes on.
continues() {
  local prompt
  prompt=$(head -c "$1" "$text" | tr '\n' ' ')
  resume sample "$n" none --model "$scratch/$name/export" --dtype bf16 --fp8 "$recipe" --zero-stage "$stage" --sample-only \
    --sample-tokens 20 --prompt "$prompt"
  # Bytes need be no text.
  LC_ALL=C awk -v prompt="$prompt" 'index($0, prompt) == 1 && length($0) > length(prompt) { found = 1 }
    END { exit !found }' "$scratch/sample.txt"
}

chosen=("delayed 1 0" "blockwise 2 3") lengths=(3 130) less=(--val-tokens 1024 --global-batch 8)
if [ "${RECIPES:-}" = every ]; then
  chosen=() lengths=(1 3 17 130) less=()
  for recipe in tensorwise delayed rowwise rowwise-hp-wgrad blockwise; do
    for n in 1 2; do for stage in 0 3; do chosen+=("$recipe $n $stage"); done; done
  done
fi
for each in "${chosen[@]}"; do
  read -r recipe n stage <<<"$each"
  name=$recipe-$n-$stage
  run "$name" "$n" --model tiny --dtype bf16 --fp8 "$recipe" --zero-stage "$stage" --steps 4 --sample-every 2 --sample-tokens 20 \
    --eval-choices "$scratch/items.jsonl" "${less[@]}"
  check "$recipe, $n rank(s), stage $stage: all lines of the log" logged
  check "  it learns" learns
  check "  it exports" [ -s "$scratch/$name/export/model.safetensors" ]
  for length in "${lengths[@]}"; do check "  it continues a prompt of $length characters" continues "$length"; done
done

echo "-- o_proj and down_proj begin with zeros, and so do the gradients of what feeds them"
cp -r "$scratch/$name/export" "$scratch/zeroed"
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
options=(--model "$scratch/zeroed" --dtype bf16 --global-batch 8 --micro-batch 2 --seq-len 64 --lr 9e-4 --steps 5
  --warmup-steps 0 --val-every 0 --sample-every 0 --export off)
# keeps_to A B: the second loss, which says what the first update did, within 1%, and the others within 3%: such steps are
# chaotic, and with other scales they differ by 0.1% and up to 1.5%. With a scale of 1 the second is off by 20%, since
# weights of 9e-4 all become 0.
keeps_to() {
  paste -d' ' <(numbers "$1" loss) <(numbers "$2" loss) |
    awk '{ off = $4 / $2 - 1; most = NR <= 2 ? 0.01 : 0.03; printf "     step %d: %+.3f%%\n", NR, 100 * off
      if (!(off < most && off > -most)) bad = 1 } END { exit bad || NR != 5 }'
}
run zero-tensorwise 1 --fp8 tensorwise
run zero-delayed 1 --fp8 delayed --checkpoint-every 1 --keep-checkpoints 0
check "delayed keeps to tensorwise" keeps_to zero-tensorwise zero-delayed
check "  no tensor underflows" [ "$(numbers zero-delayed fp8_underflows | cut -d' ' -f2 | tr '\n' ' ')" = "0 0 0 0 0 " ]
resume zero-resumed 1 "$(checkpoint zero-delayed 1)"
check "  resumed after the first step: the same bits" cmp <(log zero-delayed | tail -n 4) <(log zero-resumed)
run zero-shared 2 --fp8 delayed --zero-stage 3 --fp8-all-gather
check "  on 2 ranks that gather weights in FP8" keeps_to zero-tensorwise zero-shared
run zero-tensor 2 --fp8 delayed --tensor-parallel-degree 2
check "  on 2 ranks that share products" keeps_to zero-tensorwise zero-tensor
echo "$checks checks passed"

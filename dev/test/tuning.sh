#!/usr/bin/env bash
# Covers: tuning: --tune-products leaves no trace but its choices, which --tuning and a resumed run take over, to the last bit, on one
# rank and on several, with FP8, shards and offloading; what does not fit is refused
# Timeout: 600
# Alone: its ranks take all cores
#
# TUNING=every: on one rank and two in more ways.
set -euo pipefail
# shellcheck source=dev/test/lib.bash
source "$(dirname "$0")/lib.bash"
in_own_tree

odd_model
others=(--model "$scratch/odd.json" --train-data "$scratch/letters.txt" --global-batch 24 --seq-len 32 --steps 4 --lr 6e-3
  --warmup-steps 2 --val-every 2 --sample-every 0)
options=("${others[@]}" --micro-batch 4)
run() { # NAME RANKS ARGUMENTS…
  ranks "$2" "$train" --out "$scratch/$1" "${@:3}" >"$scratch/$1.txt" 2>&1 || { cat "$scratch/$1.txt" && fail "the run $1"; }
}
file() { echo "$scratch/$1/tuning.json"; }
says() { grep -qF -- "$2" "$scratch/$1.txt"; }
hash_of() { sed -n 's/^ *"hash": "\(.*\)",$/\1/p' "$1"; }
same_hash() { [ -n "$(hash_of "$1")" ] && [ "$(hash_of "$1")" = "$(hash_of "$2")" ]; }
same() { # A B
  cmp "$scratch/$1/export/model.safetensors" "$scratch/$2/export/model.safetensors" &&
    cmp <(without_times "$scratch/$1/train.jsonl") <(without_times "$scratch/$2/train.jsonl")
}
not() { ! "$@"; }
ends_alike() { # A B: B began after step 2 of A
  cmp <(without_times "$scratch/$1/train.jsonl" | tail -n 4) <(without_times "$scratch/$2/train.jsonl" | tail -n 4) &&
    cmp "$scratch/$1/export/model.safetensors" "$scratch/$2/export/model.safetensors"
}
near() { # A B: the same losses within 1e-5, and not all to the last bit
  paste -d' ' <(losses "$scratch/$1/train.jsonl") <(losses "$scratch/$2/train.jsonl") |
    awk '{ d = ($2 - $4) / $2; if (d < 0) d = -d; if (d > w) w = d } END { exit !(NR == 4 && w > 0 && w <= 1e-5) }'
}

echo "-- the choices of one run are another's"
meshes=("one 1" "fp8 2 --zero-stage 3 --fp8 delayed --fp8-all-gather --fp8-stats 1")
if [ "${TUNING:-}" = every ]; then
  meshes+=("two 2" "zero3 2 --zero-stage 3 --recompute mlp"
    "host 1 --fp8 tensorwise --offload-optimizer --offload-gradients --activation-offload all --moment-dtype bf16")
fi
for mesh in "${meshes[@]}"; do
  # shellcheck disable=SC2086  # words
  set -- $mesh
  run "$1" "$2" "${options[@]}" --tune-products --checkpoint-every 2 "${@:3}"
  shapes=$(grep -c '"choice"' "$(file "$1")")
  check "$1: the banner says what was tuned" says "$1" "tuned: $shapes shapes, "
  check "$1: nothing that was tuned is left unused" not says "$1" "none of this run's"
  run "$1-again" "$2" "${options[@]}" --tuning "$(file "$1")" "${@:3}"
  check "$1: with --tuning the same bits, of log and weights" same "$1" "$1-again"
  check "$1: and the same choices in its folder" same_hash "$(file "$1")" "$(file "$1-again")"
  run "$1-on" "$2" --resume "$scratch/$1/checkpoints/step-00000002"
  check "$1: gone on, the same bits and choices" ends_alike "$1" "$1-on"
  check "$1:   in its folder too" same_hash "$(file "$1")" "$(file "$1-on")"
  check "$1:   which is no change" not says "$1-on" "sums are rounded otherwise"
done

echo "-- choices reach the products"
run default 1 "${options[@]}" --checkpoint-every 2
check "without --tune-products there is no file" [ ! -e "$(file default)" ]
"$build/test/retune" "$(file one)" choice "pieces of 16 x 16" >"$scratch/small.json"
run small 1 "${options[@]}" --checkpoint-every 2 --tuning "$scratch/small.json"
if says default "products   OpenBLAS"; then check "other choices, other roundings" near default small; fi # plain loops have one order

echo "-- what a run that goes on is told"
on() { run "$1" 1 --resume "$scratch/$2/checkpoints/step-00000002" "${@:3}"; }
on small-on small
check "nothing, where nothing changes: the bits go on" ends_alike small small-on
on to-default one --tuning none
check "--tuning none after --tune-products" says to-default "products by the defaults (were computed tuned ($(hash_of "$(file one)"))): sums are rounded otherwise"
check "  is a run without choices" [ ! -e "$(file to-default)" ]
on to-small one --tuning "$scratch/small.json"
check "--tuning FILE after --tune-products" says to-small "products tuned ($(hash_of "$scratch/small.json")) (were computed tuned ($(hash_of "$(file one)")))"
on to-tuned default --tune-products
check "--tune-products of a run that was not tuned" says to-tuned "(were computed by the defaults): sums are rounded otherwise"
cp -r "$scratch/one" "$scratch/in-place"
rm -r "$scratch/in-place/checkpoints/step-00000004" "$(file in-place)"
run in-place 1 --resume auto
check "--resume auto, its tuning.json gone: the checkpoint has the choices" ends_alike one in-place
check "  and they are in its folder again" same_hash "$(file one)" "$(file in-place)"
rm -r "$scratch/in-place/checkpoints/step-00000004" "$scratch/in-place/export.before-step-2"
run in-place 1 --resume auto --tune-products
check "--resume auto --tune-products: the same command again, the same bits" ends_alike one in-place
check "  nothing is timed again" not says in-place "timing the algorithms"
on anew one --tune-products
check "--resume DIR --tune-products times again" says anew "timing the algorithms"
run other-batch 1 "${others[@]}" --micro-batch 8 --tuning "$(file one)"
check "choices for another micro-batch are told" says other-batch "products that were tuned are none of this run's"
run whole-micro-steps 1 "${others[@]}" --micro-batch 24 --tune-products
check "one micro-batch a step: all that was tuned is needed" not says whole-micro-steps "none of this run's"

echo "-- where there is nothing to time"
"$train" "${options[@]}" --dry-run --tune-products >"$scratch/dry.txt"
check "--dry-run --tune-products" says dry "--tune-products changes nothing: a dry run computes nothing"
"$train" --model "$scratch/odd.json" --dry-run --nodes 1 --dtype bf16 --tune-products >"$scratch/cluster.txt"
check "a cluster that is not here" says cluster "--tune-products changes nothing: a dry run computes nothing"
"$train" --model "$scratch/one/export" --sample-only --sample-tokens 5 --prompt '1 2' --tune-products >"$scratch/sample.txt"
check "--sample-only --tune-products" says sample "--tune-products changes nothing: --sample-only trains nothing"

echo "-- what is refused"
retuned() { "$build/test/retune" "$(file one)" "$1" "$2" >"$scratch/$1.json"; }
retuned device "NVIDIA H100"
retuned library "OpenBLAS 9"
retuned choice "pieces of 4096 x 4096"
sed 's/"choice": "pieces/"choice": "Pieces/' "$(file one)" >"$scratch/changed.json"
head -c 200 "$(file one)" >"$scratch/cut.json"
for n in 1 2; do
  on=(ranks "$n" "$train" "${options[@]}" --out "$scratch/refused-run")
  refused_file() { # WHAT TEXT FILE
    refused "$1, $n rank(s)" "$2" "${on[@]}" --tuning "$scratch/$3"
  }
  refused_file "no file" "nothing.json" nothing.json
  refused_file "cut off" "cut.json" cut.json
  refused_file "another kind of file" "no tuning, or one of another version" odd.json
  refused_file "changed by hand" "it was damaged or changed" changed.json
  refused_file "another device" "chosen on NVIDIA H100 with OpenBLAS" device.json
  refused_file "another library" "chosen on CPU with OpenBLAS 9" library.json
  check "  these made no folder" [ ! -e "$scratch/refused-run" ]
  refused_file "a choice that the library has not" "--tune-products writes a new one" choice.json
  check "  nor did this" [ ! -e "$scratch/refused-run" ]
done
refused "a name that mpirun takes for itself" "did you mean --tune-products?" "$train" --tune
refused "both at once" "leave one of the two away" "$train" --tune-products --tuning x.json
cp -r "$scratch/one" "$scratch/elsewhere"
python3 - "$scratch/elsewhere/checkpoints/step-00000002" <<'PYTHON'
import json, os, sys
state, manifest = sys.argv[1] + "/state.json", sys.argv[1] + "/manifest.json"
text = json.load(open(state))
text["tuning"]["device"] = "NVIDIA H100"
json.dump(text, open(state, "w"))
files = json.load(open(manifest))
del files["files"]["state.json"]
json.dump(files, open(manifest, "w"))
PYTHON
moved=("$train" --resume "$scratch/elsewhere/checkpoints/step-00000002")
refused "a checkpoint of another device" "compute with the defaults: --tuning none" "${moved[@]}" --out "$scratch/moved"
quietly() { "$@" >"$scratch/quiet.txt"; }
check "  gone on as it says" quietly "${moved[@]}" --out "$scratch/moved" --tuning none
check "  or tuned anew" quietly "${moved[@]}" --out "$scratch/moved-anew" --tune-products
check "  or measured only" quietly "${moved[@]}" --eval-only
echo "$checks checks passed"

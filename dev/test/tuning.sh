#!/usr/bin/env bash
# Covers: tuning: --tune-products leaves no trace but its choices, which --tuning and a resumed run take over, to the last
# bit, on one rank and on several, with FP8, shards and offloading; what does not fit is refused
# Timeout: 600
# Turn: 2
#
# TUNING=every: on one rank and two in more ways; a run that was not tuned goes on tuned.
set -euo pipefail
# shellcheck source=dev/test/lib.bash
source "$(dirname "$0")/lib.bash"
in_own_tree

odd_model layers=2
others=(--model "$scratch/odd.json" --train-data "$scratch/letters.txt" --global-batch 8 --seq-len 16 --steps 4 --lr 6e-3
  --warmup-steps 2 --val-every 2 --val-tokens 256 --sample-every 0 --checkpoint-every 2)
options=("${others[@]}" --micro-batch 4)
file() { echo "$scratch/$1/tuning.json"; }
hash_of() { sed -n 's/^ *"hash": "\(.*\)",$/\1/p' "$1"; }
same_hash() { [ -n "$(hash_of "$1")" ] && [ "$(hash_of "$1")" = "$(hash_of "$2")" ]; }
of_default="sums are rounded otherwise"

echo "-- the choices of one run are another's"
# On two ranks a step has one micro-batch. With statistics the log has a line more for each step.
meshes=("one 1" "fp8 2 --zero-stage 3 --fp8 delayed --fp8-all-gather --fp8-stats 1")
if [ "${TUNING:-}" = every ]; then
  meshes+=("two 2" "zero3 2 --zero-stage 3 --recompute mlp"
    "host 1 --fp8 tensorwise --offload-optimizer --offload-gradients --activation-offload all --moment-dtype bf16")
fi
for mesh in "${meshes[@]}"; do
  # shellcheck disable=SC2086  # words
  set -- $mesh
  lines=4
  if [[ $mesh == *--fp8-stats* ]]; then lines=6; fi
  run "$1" "$2" --tune-products "${@:3}"
  check "$1: the banner says what was tuned" says "$1" "tuned: $(grep -c '"choice"' "$(file "$1")") shapes, "
  check "$1: nothing that was tuned is left unused" says_not "$1" "none of this run's"
  run "$1-again" "$2" --tuning "$(file "$1")" "${@:3}"
  check "$1: with --tuning the same bits, of log and weights" same "$1" "$1-again"
  check "$1: and the same choices in its folder" same_hash "$(file "$1")" "$(file "$1-again")"
  resume "$1-on" "$2" "$(checkpoint "$1" 2)"
  check "$1: gone on, the same bits and choices" ends_alike "$1" "$1-on" $lines
  check "$1:   in its folder too" same_hash "$(file "$1")" "$(file "$1-on")"
  check "$1:   which is no change" says_not "$1-on" "$of_default"
done

echo "-- choices reach the products"
${CC:-cc} -shared -fPIC -O1 -o "$scratch/products.so" "$root/dev/test/product_preload.c"
# counted NAME ARGUMENTS…: a run that writes the rows and columns of its largest product to $scratch/NAME.products.
counted() { LD_PRELOAD=$scratch/products.so PRODUCTS_LOG=$scratch/$1.products run "$1" 1 "${@:2}"; }
# largest NAME ROWS COLUMNS: the largest product that OpenBLAS was asked for.
largest() { grep -qx "$2 $3" "$scratch/$1.products" || { cat "$scratch/$1.products" && return 1; }; }
counted default
check "without --tune-products there is no file" [ ! -e "$(file default)" ]
"$build/test/edit_tuning" "$(file one)" choice "pieces of 16 x 16" >"$scratch/small.json"
counted small --tuning "$scratch/small.json"
check "other choices, other roundings at most" near default small 4 1e-5 1e-5
if says default "products   OpenBLAS"; then # plain loops tell nobody
  # The default cuts no product of this size; queries, keys and values together are (6 + 2 + 2) x 16 numbers.
  check "  the default: whole products" largest default 160 160
  check "  every product is cut as it was chosen" largest small 16 16
fi

echo "-- what a run that goes on is told"
on() { resume "$1" 1 "$(checkpoint "$2" 2)" "${@:3}"; }
on small-on small
check "nothing, where nothing changes: the bits go on" ends_alike small small-on 4
on to-default one --tuning none
tuned="tuned ($(hash_of "$(file one)"))"
check "--tuning none after --tune-products" says to-default "products by the defaults (were computed $tuned): $of_default"
check "  is a run without choices" [ ! -e "$(file to-default)" ]
on to-small one --tuning "$scratch/small.json"
check "--tuning FILE after --tune-products" says to-small "products tuned ($(hash_of "$scratch/small.json")) (were computed $tuned)"
if [ "${TUNING:-}" = every ]; then
  on to-tuned default --tune-products
  check "--tune-products of a run that was not tuned" says to-tuned "(were computed by the defaults): $of_default"
fi
cp -r "$scratch/one" "$scratch/in-place"
rm -r "$(checkpoint in-place 4)" "$(file in-place)"
resume in-place 1 auto
check "--resume auto, its tuning.json gone: the checkpoint has the choices" same one in-place
check "  and they are in its folder again" same_hash "$(file one)" "$(file in-place)"
rm -r "$(checkpoint in-place 4)" "$scratch/in-place/export.before-step-2"
resume in-place 1 auto --tune-products
check "--resume auto --tune-products: the same command again, the same bits" same one in-place
check "  nothing is timed again" says_not in-place "timing the algorithms"
tells "choices for another micro-batch are told" "products that were tuned are none of this run's" resume other-batch 1 none "${others[@]}" --micro-batch 8 --tuning "$(file one)"

echo "-- where there is nothing to time"
nothing="--tune-products changes nothing: a dry run computes nothing"
tells "--dry-run --tune-products" "$nothing" run dry 1 --dry-run --tune-products
tells "a cluster that is not here" "$nothing" resume cluster 1 none --model "$scratch/odd.json" --dry-run --nodes 1 --dtype bf16 --tune-products
tells "--sample-only --tune-products" "--tune-products changes nothing: --sample-only trains nothing" resume sample 1 none --model "$scratch/one/export" --sample-only --sample-tokens 5 --prompt '1 2' --tune-products

echo "-- what is refused"
for what in "device NVIDIA H100" "library OpenBLAS 9" "choice pieces of 4096 x 4096"; do
  "$build/test/edit_tuning" "$(file one)" "${what%% *}" "${what#* }" >"$scratch/${what%% *}.json"
done
sed 's/"choice": "pieces/"choice": "Pieces/' "$(file one)" >"$scratch/changed.json"
head -c 200 "$(file one)" >"$scratch/cut.json"
# A file, what is said of it, and on how many ranks.
while IFS='|' read -r file text counts; do
  for n in $counts; do
    refused "$file.json, $n rank(s)" "$text" ranks "$n" "$train" "${options[@]}" --out "$scratch/refused-run" \
      --tuning "$scratch/$file.json" </dev/null
  done
done <<'END'
nothing|nothing.json|1
cut|cut.json|1 2
odd|no tuning, or one of another version|1
changed|it was damaged or changed|1
device|chosen on NVIDIA H100 with OpenBLAS|1 2
library|chosen on CPU with OpenBLAS 9|1
choice|--tune-products writes a new one|1 2
END
check "none of these made a folder" [ ! -e "$scratch/refused-run" ]
refused "a name that mpirun takes for itself" "did you mean --tune-products?" "$train" --tune
refused "both at once" "leave one of the two away" "$train" --tune-products --tuning x.json
cp -r "$scratch/one" "$scratch/elsewhere"
python3 dev/test/edit_json.py "$(checkpoint elsewhere 2)/state.json" 'j["tuning"]["device"] = "NVIDIA H100"'
refused "a checkpoint of another device" "compute with the defaults: --tuning none" \
  "$train" --resume "$(checkpoint elsewhere 2)" --out "$scratch/moved"
on moved elsewhere --tuning none # as it says
on anew elsewhere --tune-products
check "  tuned anew" says anew "timing the algorithms"
on measured elsewhere --eval-only
check "  or measured only" says measured "held-out loss"
echo "$checks checks passed"

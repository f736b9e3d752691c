#!/usr/bin/env bash
# Covers: promise 1: on 2 and 4 tensor-parallel ranks, on 2 that share sequences out, and on both, every dump agrees with
# PyTorch within the limits of one rank; a dump whose heads cannot be shared so is refused with the degrees that would do
# Timeout: 600
#
# PARITY=every: each dump on each mesh; else some, chosen by the commit.
#
# Of some thousand lines these lie beyond a limit, each the update of one norm, on tensor-parallel ranks alone: their
# products are rounded before they are summed, and AdamW makes a whole update of a gradient near 0, of whichever sign. In
# wide_head one of 32 numbers, whose first gradient is a hundredth of the others', has 91% to 94% of the error. Over all
# dumps the classes' errors are on one, two and four ranks the same within 5%, and below PyTorch's. Any other line is an
# error.
beyond="wide_head update.model.layers.1.input_layernorm.weight
older_config update.model.layers.1.post_attention_layernorm.weight
fp8_rowwise update.model.layers.0.input_layernorm.weight
fp8_rowwise-hp-wgrad update.model.layers.0.input_layernorm.weight"
set -euo pipefail
# shellcheck source=dev/test/lib.bash
source "$(dirname "$0")/lib.bash"
cd "$root"

# as_listed DUMP: what failed is listed.
as_listed() {
  grep -q '^[0-9]* passed' "$scratch/out" && ! sed -n 's/^  FAIL \([^ ]*\) .*/'"$1"' \1/p' "$scratch/out" | grep -qvxF "$beyond"
}
# agrees TENSOR CONTEXT DUMP
agrees() {
  local code=0
  ranks $(($1 * $2)) "$build/test_llama" "$3" --tensor-parallel-degree "$1" --context-parallel-degree "$2" >"$scratch/out" 2>&1 || code=$?
  checks=$((checks + 1))
  if [ $code = 0 ] || { [ "$1" -gt 1 ] && as_listed "$(basename "$3")"; }; then
    echo "ok   $3 on $1 x $2 ranks: $(grep '^[0-9]* passed' "$scratch/out")$([ $code = 0 ] || echo ", as listed")"
    agreed=$((agreed + 1))
  elif degrees=$(sed -n 's/^  choose one of: //p' "$scratch/out") && [ -n "$degrees" ] && ! grep -qw "$1" <<<"$degrees"; then
    echo "ok   $3 on $1 x $2 ranks: refused, it takes $degrees"
  else
    grep -vE '^  ok' "$scratch/out"
    fail "$3 on $1 x $2 ranks: exit code $code"
  fi
}
agreed=0
ways=()
for dump in dev/reference/dumps/*; do for mesh in "2 1" "4 1" "1 2" "2 2"; do ways+=("$mesh $dump"); done; done
if [ "${PARITY:-}" != every ]; then
  mapfile -t ways < <(printf '%s\n' "${ways[@]}" | shuf --random-source=<(git rev-parse HEAD 2>/dev/null | sha512sum | head -c 100; yes) | head -n 8)
  ways+=("2 2 dev/reference/dumps/packed" "4 1 dev/reference/dumps/gqa4")
fi
for way in "${ways[@]}"; do
  read -r tensor context dump <<<"$way"
  agrees "$tensor" "$context" "$dump"
done
check "most of them can be shared so" [ $((2 * agreed)) -gt ${#ways[@]} ]

# Seen failing: one wrong number; and more ranks than a dump has batches for.
cp -r dev/reference/dumps/gqa4 "$scratch/dump"
sed -i 's/"learning_rate": 0.001/"learning_rate": 0.00101/' "$scratch/dump/recipe.json"
check "another learning rate is seen" eval '! ranks 2 "$build/test_llama" "$scratch/dump" --dtype fp32 --tensor-parallel-degree 2 >"$scratch/out" 2>&1 && grep -q "^  FAIL update" "$scratch/out"'
refused "two data ranks" "one batch, for one data rank" ranks 2 "$build/test_llama" dev/reference/dumps/gqa4
echo "$checks checks passed"

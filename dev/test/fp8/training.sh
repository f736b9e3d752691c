#!/usr/bin/env bash
# Covers: promise 1: in bf16 and each FP8 recipe the losses of 100 training steps are those of PyTorch's emulation, also
# with two ranks that share the weights out and gather them in FP8
# Timeout: 600
#
# The short variant of dev/bench/fp8_losses, which says what is asked for; PyTorch's losses are stored.
set -euo pipefail
# shellcheck source=dev/test/lib.bash
source "$(dirname "$0")/../lib.bash"
in_own_tree
runs=$scratch/runs
short() { dev/bench/fp8_losses --steps 100 --seeds 1 --jobs 2 --build "$build" --runs "$runs" "$@" >"$scratch/out.txt" 2>&1; }

# other NAME RECIPE: 20 steps of a faulty program on the data of seed 1.
other() { LLMC_THREADS=1 "$build/bench/train_batches" train "$runs/data-1" "$2" 20 "$scratch/$1.jsonl"; }
mkdir "$runs"
"$build/bench/train_batches" make "$runs/data-1" 1
(other saturating '{"recipe": "delayed", "margin": -1}' && other e4m3 '{"recipe": "tensorwise", "gradient": "e4m3"}') &
short || { cat "$scratch/out.txt" && fail "dev/bench/fp8_losses"; }
wait $! || fail "the faulty runs"
cat "$scratch/out.txt"
check "as PyTorch's emulation" grep -q "all is as asked for" "$scratch/out.txt"
check "gathered in FP8, tensorwise weights train to the same bits" cmp \
  <(sed 's/,"ms".*//' "$runs/tensorwise-1.jsonl") <(sed 's/,"ms".*//' "$runs/tensorwise+gather-1.jsonl")

# Seen failing: another program's first steps in the place of a recipe's.
seen() { # WHAT LINES VARIANT
  tail -n 80 "$runs/$3-1.jsonl" >"$scratch/rest"
  cat <(head -n 20 "$2") "$scratch/rest" >"$runs/$3-1.jsonl"
  check "$1 is seen" eval '! short --variants '"$3"' && grep -q "^FAIL: '"$3"'" "$scratch/out.txt"'
  grep "^FAIL" "$scratch/out.txt" | sed 's/^/     /'
}
seen "a delayed scale twice as large, so that the largest numbers are cut off" "$scratch/saturating.jsonl" delayed
seen "tensorwise with output gradients in e4m3" "$scratch/e4m3.jsonl" tensorwise
seen "bf16 in place of tensorwise" "$runs/bf16-1.jsonl" tensorwise
seen "blockwise in place of tensorwise" "$runs/blockwise-1.jsonl" tensorwise
echo "$checks checks passed"

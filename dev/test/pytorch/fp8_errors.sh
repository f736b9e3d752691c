#!/usr/bin/env bash
# Covers: promise 1: in each FP8 recipe logits and gradients of 24 random batches are as far from float64 as those of
# PyTorch's emulation, and nearer to it than a program with other scales, formats or products comes
# Timeout: 900
set -euo pipefail
# shellcheck source=dev/test/lib.bash
source "$(dirname "$0")/../lib.bash"
cd "$root"
export LLMC_THREADS=1

compare() { # DIR RESULTS: the output's last lines say what matters
  "$PYTHON" dev/reference/compare_batches.py "$@" >"$scratch/out.txt"
}
for recipe in tensorwise delayed rowwise rowwise-hp-wgrad blockwise; do
  # Of 6 batches a right program's gradients of norms are 0.93 to 1.16 of the emulation's errors, of 24 0.97 to 1.04.
  batches=build/fp8_errors/$recipe
  "$PYTHON" dev/reference/make_batches.py dev/reference/dumps/gqa4 --fp8 "$recipe" --batches 24 --out "$batches" >"$scratch/make.txt"
  "$build/test/fp8_errors" "$batches" "$batches/results.safetensors"
  compare "$batches" "$batches/results.safetensors" || { cat "$scratch/out.txt" && fail "$recipe"; }
  checks=$((checks + 1))
  echo "ok   $recipe: $(tail -n 1 "$scratch/out.txt")"
done

# Seen failing: this program in other settings than the emulation's. Not seen are other powers of two as scales, which
# move the exponents of what is quantized and hardly anything else: the recipes with such scales have nearly the same
# results, whatever shares a scale. check_operands.py sees them.
wrong() { # RECIPE WHAT SED
  mkdir -p "$scratch/wrong"
  cp "build/fp8_errors/$1"/{config.json,model.safetensors,batches.safetensors,settings.json} "$scratch/wrong"
  sed -i -E "$3" "$scratch/wrong/settings.json"
  ! cmp -s "build/fp8_errors/$1/settings.json" "$scratch/wrong/settings.json" || fail "$2: nothing changed"
  "$build/test/fp8_errors" "$scratch/wrong" "$scratch/wrong/results.safetensors"
  check "$1 with $2 is seen" eval '! compare build/fp8_errors/'"$1"' "$scratch/wrong/results.safetensors" && grep -q "^FAIL" "$scratch/out.txt"'
  grep '^ratios' "$scratch/out.txt" | sed 's/^/     /'
}
wrong tensorwise "output gradients in e4m3" 's/"e5m2"/"e4m3"/'
wrong tensorwise "powers of two as scales" 's/"pow2": false/"pow2": true/'
wrong rowwise "exact scales" 's/"pow2": true/"pow2": false/'
wrong blockwise "the o of one block in bf16" 's/"skip": \[\]/"skip": ["layers.0.o"]/'
echo "$checks checks passed"

#!/usr/bin/env bash
# Covers: promise 1, the reference of FP8: the emulation's bytes and scales are torchao's and those of plain arithmetic, its
# model is Hugging Face's in float64; check_operands.py passes right runs of every recipe and sees 32 faults
# Timeout: 300
set -euo pipefail
cd "$(dirname "$0")/../../.."
"$PYTHON" dev/reference/test_fp8.py
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
"$PYTHON" dev/reference/make_batches.py dev/reference/dumps/fp8_rowwise --batches 2 --out "$scratch"
cp dev/reference/dumps/fp8_rowwise/recipe.json "$scratch"
"$PYTHON" dev/reference/train_fp8.py "$scratch" --out "$scratch/losses.jsonl"
[ "$(wc -l <"$scratch/losses.jsonl")" = 2 ]

#!/usr/bin/env bash
# Covers: promise 1: quantization to FP8 has the bytes and scales of PyTorch's casts, bit for bit, of random and of hostile
# matrices, by rows and by columns, in every grouping and format
# Timeout: 300
set -euo pipefail
# shellcheck source=dev/test/lib.bash
source "$(dirname "$0")/../lib.bash"
cd "$root"
"$PYTHON" dev/reference/compare_quantize.py "$build/test/quantize_matrices"

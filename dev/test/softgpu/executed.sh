#!/usr/bin/env bash
# Covers: the software GPU's list of what was executed: kernels, launches, opcodes, lines that no thread reached
# Programs: kernels/swiglu
set -euo pipefail
# shellcheck source=dev/test/lib.bash
source "$(dirname "$0")/../lib.bash"
export LLMC_SOFTGPU_EXECUTED=$scratch/executed LLMC_SIZES=few LLMC_ONE_ORDER=1
list() { "$root/dev/softgpu/executed.py" "$LLMC_SOFTGPU_EXECUTED" "$@" >"$scratch/out.txt" 2>&1; }

check "kernels/swiglu runs" "$build/kernels/swiglu" check >/dev/null
list --opcodes --lines || fail "the list says that a kernel was not launched: $(cat "$scratch/out.txt")"
check "  all 8 kernels were executed" said "8 of 8 kernels were executed"
check "  with exponentials" said "ex2.approx"
check "  a launch is told with its threads" grep -q $'^launch\t256\t0$' -r "$LLMC_SOFTGPU_EXECUTED"

echo "-- a kernel that nobody launched"
sed -i '0,/^launch/{/^launch/d}' "$LLMC_SOFTGPU_EXECUTED"/*
if list; then fail "a kernel that was not launched is no failure"; fi
check "  is told" said "never launched"
check "  and counted" said "7 of 8 kernels were executed"
echo "$checks checks passed"

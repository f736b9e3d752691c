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
kernels=$(grep -ch '^kernel' "$LLMC_SOFTGPU_EXECUTED"/*)
check "  all kernels were executed" said "$kernels of $kernels kernels were executed"
check "  with exponentials" said "ex2.approx"
check "  a launch is told with its threads" grep -q $'^launch\t256\t0$' -r "$LLMC_SOFTGPU_EXECUTED"

echo "-- a kernel that nobody launched"
sed -i '0,/^launch/{/^launch/d}' "$LLMC_SOFTGPU_EXECUTED"/*
if list; then fail "a kernel that was not launched is no failure"; fi
check "  is told" said "never launched"
check "  and counted" said "$((kernels - 1)) of $kernels kernels were executed"

echo "-- a line that no thread reached, and a folder without a program's notes"
sed -i '0,/^executed/s/^executed\(.*:\)[0-9]*$/not\1987654/' "$LLMC_SOFTGPU_EXECUTED"/*
if list --lines; then fail "a kernel that was not launched is no failure"; fi
check "  is told" grep -qE ":987654 +1 instructions were not executed" "$scratch/out.txt"
mkdir "$scratch/nothing"
refused "no notes" "no program of the software GPU has written there" "$root/dev/softgpu/executed.py" "$scratch/nothing"
echo "$checks checks passed"

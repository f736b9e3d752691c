#!/usr/bin/env bash
# Covers: a program that was built for another processor says so, and what to build with, before it executes anything else
# Timeout: 60
# Programs: train_llama
set -euo pipefail
# shellcheck source=dev/test/lib.bash
source "$(dirname "$0")/lib.bash"
cd "$root"

cat >"$scratch/main.cpp" <<'END'
#include <cstdio>
#include "llmc/base/processor.h"
struct Global {
  Global() { puts("a global object was made"); }
} global;
int main() {
  require_processor();
  puts("main was reached");
}
END
# built_for MACROS: a small program for which the compiler may use the instructions of these.
built_for() {
  ${CXX:-g++} -std=c++20 -I. -DLLMC_CPU_FEATURES="\"$1\"" "$scratch/main.cpp" llmc/base/processor.cpp -o "$scratch/program"
}
built_for "__SSE__ __SSE2__"
check "a program for this processor runs" exits 0 "$scratch/program"
check "  to its main" said "main was reached"
if [ "$(uname -m)" != x86_64 ]; then # they have one set of instructions
  echo "$checks checks passed"
  exit
fi
built_for "__SSE2__ __AVX5124FMAPS__" # Xeon Phi of 2017 alone has them
check "one for another ends with code 1" exits 1 "$scratch/program"
check "  says what is missing" said "instructions that this one lacks: avx5124fmaps"
check "  and what to build with" said "CPU_ARCH=x86-64-v3"
check "  before it has done anything" not grep -qE "object|main" "$scratch/out.txt"

object=$build/obj/llmc/base/processor.cpp.o
check "train_llama looks before it begins" grep -q check_before_main <(nm -C "$train")
check "  in code that every x86-64 has" not grep -qE '%[yz]mm' <(objdump -d "$object")
echo "$checks checks passed"

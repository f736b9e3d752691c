#!/usr/bin/env bash
# Covers: mistakes in a kernel: a CPU build refuses __shared__ and atomicAdd and names what stands for them; the failures
# of a kernel's checks stand once more at their end
# Timeout: 180
#
# Builds small programs with the project's Makefile, in a tree that has this one's library.
set -euo pipefail
# shellcheck source=dev/test/lib.bash
source "$(dirname "$0")/lib.bash"
mkdir -p "$scratch/tree/dev/kernels" "$scratch/tree/dev/test"
cd "$scratch/tree"
ln -s "$root"/{llmc,scripts,Makefile} .
ln -s "$root"/dev/kernels/*.h dev/kernels/

# builds NAME: compiles the program of standard input's check.
builds() {
  { printf '#include "dev/kernels/check.h"\n#include "llmc/device/kernel.cuh"\nvoid bench(Bencher&) {}\n' && cat; } >"dev/kernels/$1.cu"
  env -u MAKEFLAGS make DEVICE=cpu OPTIMIZE=-O0 BUILD=b LIBRARY_SOURCES=llmc/base/text.cpp KERNEL_SOURCES="dev/kernels/$1.cu" \
    LIBS="$build/libllmc.a $(sed -n 's/^LIBS := //p' "$build/config.mk")" "b/kernels/$1" >out 2>&1
}
says() { grep -qF -- "$1" out || { cat out && return 1; }; }
refuses() { ! builds "$1"; }

check "__shared__ is refused" refuses shared <<'CPP'
__global__ void sums(float* out) {
  __shared__ float part[32];
  part[threadIdx.x] = 1;
  out[0] = part[0];
}
void check(Checker& checker) { checker.that("is compiled", true, ""); }
CPP
check "with what stands for it" says "shared memory is declared by shared_memory<T>() (llmc/device/kernel.cuh)"
check "and its place" says "shared.cu:5:"
check "extern __shared__, too" refuses extern_shared <<'CPP'
__global__ void sums(float* out) {
  extern __shared__ float part[];
  out[0] = part[0];
}
void check(Checker& checker) { checker.that("is compiled", true, ""); }
CPP
check "with what stands for it" says "shared memory is declared by shared_memory<T>() (llmc/device/kernel.cuh)"
check "atomicAdd of integers is refused" refuses integers <<'CPP'
__global__ void count(unsigned long long* out) { atomicAdd(out, 1); }
void check(Checker& checker) { checker.that("is compiled", true, ""); }
CPP
check "with what stands for it" says "integers are added by atomic_add (llmc/device/kernel.cuh)"
check "and its place" says "integers.cu:4:"
check "atomicAdd of floats is refused" refuses floats <<'CPP'
__global__ void sum(float* out, float x) { atomicAdd(out, x); }
void check(Checker& checker) { checker.that("is compiled", true, ""); }
CPP
check "with the reason" says "the order in which atomicAdd adds floats is not deterministic"
check "and what stands for it" says "add with block_sum (llmc/device/kernel.cuh)"

check "a program of checks is built" builds checks <<'CPP'
void check(Checker& checker) {
  checker.that("first", true, "fine");
  checker.that("second", false, "3 instead of 4");
  Checker other(checker.stream.device());
  other.that("inner", false, "on another device");
  checker.all_of("another device", other);
  checker.that("last", true, "fine");
}
CPP
check "it ends with code 1" eval '! b/kernels/checks check >out 2>&1'
cat >expected <<'END'
Failed:
FAIL second: 3 instead of 4
FAIL inner: on another device
FAIL another device: 0 passed, 1 failed
2 passed, 3 failed
END
check "and with the failures and the counts" diff expected <(tail -n 5 out)
echo "$checks checks passed"

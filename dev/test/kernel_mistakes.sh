#!/usr/bin/env bash
# Covers: mistakes in a kernel: a CPU build refuses __shared__ and atomicAdd and names what stands for them; the failures
# of a kernel's checks stand once more at their end; a launch that writes what it does not declare ends them
# Timeout: 180
# Turn: 2
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

check "a kernel whose launch declares too little is compiled" builds undeclared <<'CPP'
#include "llmc/device/launch.cuh"
__global__ void twice_kernel(float* twice, float* sum, const float* x) {
  twice[threadIdx.x] = 2 * x[threadIdx.x];
  if (threadIdx.x == 5) sum[0] += x[5];
}
void check(Checker& checker) {
  Array<float> x(checker.stream, std::vector<float>(32, 1)), twice(checker.stream, 32), sum(checker.stream, std::vector<float>{1});
  float value = 1;
  const auto run = [&](std::initializer_list<Access> accesses) {
    x.upload(std::vector<float>(32, value *= 1.1f));  // a value that was there already is not seen
    launch<twice_kernel>({checker.stream, "twice", accesses}, 1, 32, 0, twice.data(), sum.data(), x.data());
    checker.stream.synchronize();
  };
  const Access input = reads(x.data(), 32), output = writes(twice.data(), 32), total = updates(sum.data(), 1);
  run({input, output, total});
  checker.refused("nothing declared", "wrote byte 256 of a buffer of 640 bytes, and did not declare it\n  it declares there: nothing", [&] { run({input, total}); });
  checker.refused("a part", "wrote byte 320 of a buffer of 640 bytes, and did not declare it\n  it declares there: writes bytes 256 to 319", [&] { run({input, writes(twice.data(), 16), total}); });
  checker.refused("read only", "it declares there: reads bytes 256 to 259", [&] { run({input, output, reads(sum.data(), 1)}); });
}
CPP
check "what it writes nonetheless is told" eval 'env -u LLMC_CPU_WRITES b/kernels/undeclared check >out 2>&1 || { cat out && false; }'
check "with the kernel, the place of its launch and the way out" says "twice (dev/kernels/undeclared.cu:14) wrote byte 256"
check "LLMC_CPU_WRITES=free does not look" eval '! LLMC_CPU_WRITES=free b/kernels/undeclared check >out 2>&1'
check "  and finds nothing" says "nothing was thrown"

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

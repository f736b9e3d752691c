#!/usr/bin/env bash
# Covers: the Makefile: new files are found, only what changed is rebuilt, variants side by side, make without news < 1 s,
# a failed build leaves no old program, warnings end the build with WERROR=1 alone
# Timeout: 120
#
# Works on a copy of the Makefile in a small tree of its own.
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
cd "$scratch"
mkdir -p scripts llmc/base llmc/kernels dev/kernels dev/test
cp "$root/Makefile" .
cp "$root/scripts/doctor" scripts/
checks=0

check() { # WHAT COMMAND...
  checks=$((checks + 1))
  if "${@:2}"; then return; fi
  echo "makefile: $1: not so. The output was:"
  cat out
  exit 1
}
says() { grep -q -e "$1" out; }
says_not() { ! says "$1"; }
# makes CODE ARGUMENTS...
makes() {
  local code=0
  make -j1 "${@:2}" >out 2>&1 || code=$?
  check "make ${*:2} ends with code $1 (it was $code)" [ "$code" = "$1" ]
}
compiled() { [ "$(sed -n 's/^  compile //p' out | sort | paste -sd' ')" = "$1" ]; }
prints() { [ "$("${@:2}")" = "$1" ]; }

echo '#pragma once
int answer();' >llmc/base/answer.h
echo '#include "llmc/base/answer.h"
int answer() { return 42; }' >llmc/base/answer.cpp
echo '#pragma once
#include "llmc/base/answer.h"
inline int twice() { return 2 * answer(); }' >llmc/kernels/twice.cuh
echo '#include "llmc/kernels/twice.cuh"
int four_times() { return 2 * twice(); }' >llmc/kernels/twice.cu
# A program that prints the answer, and with what it was built.
cat >train_llama.cu <<'CPP'
#include <cstdio>
#include "llmc/base/answer.h"
int main() {
#if LLMC_FAULTS
  printf("faults ");
#endif
#if LLMC_DEVICE_CPU
  printf("cpu ");
#else
  printf("cuda ");
#endif
  printf("%d\n", answer());
}
CPP
cp train_llama.cu test_llama.cu
cp train_llama.cu dev/kernels/twice.cu
cp "$root/dev/test/doctest_main.cpp" dev/test/
echo '#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>
#include "llmc/base/answer.h"
TEST_CASE("the answer") { CHECK(answer() == 42); }' >dev/test/test_answer.cpp
export DEVICE=cpu
unset WERROR # CI's

makes 0
check "it says for which device" says 'Building for the CPU in build/cpu'
check "and why" says 'because DEVICE=cpu asks for it'
check "the programs are built, not the tests" compiled \
  "llmc/base/answer.cpp llmc/kernels/twice.cu test_llama.cu train_llama.cu"
check "./train_llama is the one just built" prints "cpu 42" ./train_llama
check "and ./test_llama" prints "cpu 42" ./test_llama
makes 0 kernels tests
check "the rest is built" compiled "dev/kernels/twice.cu dev/test/doctest_main.cpp dev/test/test_answer.cpp"
check "a kernel's program has its noun's name" prints "cpu 42" build/cpu/kernels/twice
check "a test's program has its name, and passes" build/cpu/test/test_answer --minimal

begin=$EPOCHREALTIME
makes 0 all kernels tests
took=$(awk "BEGIN { print int(1000 * ($EPOCHREALTIME - $begin)) }")
check "nothing is compiled again" compiled ""
check "make without news takes less than 1 s (took $took ms)" [ "$took" -lt 1000 ]

touch llmc/kernels/twice.cuh
makes 0 all kernels tests
check "a header's users are compiled again, nobody else" compiled "llmc/kernels/twice.cu"
echo 'int answer() { return 43; }' >llmc/base/answer.cpp
makes 0 build/cpu/kernels/twice
check "one program alone is built anew" prints "cpu 43" build/cpu/kernels/twice
makes 0 CPPFLAGS=-DUNUSED build/cpu/kernels/twice
check "other flags compile again" compiled "dev/kernels/twice.cu llmc/base/answer.cpp llmc/kernels/twice.cu"
makes 0

echo 'int other() { return 1; }' >llmc/kernels/other.cu
makes 0
check "a new file needs no change of the Makefile" compiled "llmc/kernels/other.cu"
rm llmc/kernels/other.cu
makes 0
check "a deleted file leaves the library" prints 0 grep -c other build/cpu/libllmc.a

# What is broken leaves no program behind that holds the older code, and no other goes.
makes 0 all kernels tests
good=$(<llmc/kernels/twice.cu)
echo "wrong" >>llmc/kernels/twice.cu
makes 2
check "a library file that does not compile: train_llama is gone" eval '! ./train_llama 2>/dev/null'
check "and the kernel's program, which this make did not build" [ ! -e build/cpu/kernels/twice ]
check "and each test" [ ! -e build/cpu/test/test_answer ]
echo "$good" >llmc/kernels/twice.cu
makes 0 all kernels tests
check "mended, one file is compiled again" compiled "llmc/kernels/twice.cu"
check "and the programs are back" prints "cpu 43" ./train_llama
echo "wrong" >>dev/kernels/twice.cu
makes 2 kernels
check "a kernel's checks that do not compile: their program is gone" [ ! -e build/cpu/kernels/twice ]
check "and no other" prints "cpu 43" ./train_llama
cp train_llama.cu dev/kernels/twice.cu
good=$(<llmc/base/answer.cpp)
echo 'int another() { return 43; }' >llmc/base/answer.cpp
makes 2
check "a program that does not link" says 'undefined reference'
check "is gone, too" eval '! ./train_llama 2>/dev/null'
echo "$good" >llmc/base/answer.cpp
makes 0 all kernels tests

makes 0 FAULTS=1
check "variants stand side by side" prints "faults cpu 43" build/cpu-faults/train_llama
makes 0 EMULATOR=env
check "what an emulator runs stands beside, too" prints "cpu 43" "build/cpu-$(g++ -dumpmachine | cut -d- -f1)/train_llama"
check "./train_llama is not for an emulator" prints build/cpu/train_llama readlink train_llama
check "./train_llama is never a variant" prints "cpu 43" ./train_llama
makes 0 SANITIZE=address build/cpu-address/kernels/twice
check "the sanitizer is in" says_not error
check "and its symbols" grep -q __asan build/cpu-address/kernels/twice

if command -v nvcc >/dev/null; then
  makes 0 DEVICE=cuda ARCH=90a build/cuda/train_llama
  check "the GPU's build stands beside the CPU's" prints "cuda 43" build/cuda/train_llama
  check "and only ./train_llama follows the last make" prints "cpu 43" ./train_llama
  makes 0 DEVICE=cuda ARCH=90a
  check "after make DEVICE=cuda it is the GPU's" prints "cuda 43" ./train_llama
  makes 0
  check "after make DEVICE=cpu it is the CPU's again" prints "cpu 43" ./train_llama
  check "with nothing to compile" compiled ""
fi

makes 0 headers
echo '#pragma once
inline std::string name() { return ""; }' >llmc/base/name.h
makes 2 headers
check "a header that does not stand alone is named" says 'llmc/base/name.h'
rm llmc/base/name.h
printf 'int  badly( int formatted );\n' >llmc/base/name.h
if command -v clang-format >/dev/null; then
  makes 2 format-check
  makes 0 format
  makes 0 format-check
fi
echo 'int answer() { int unused; return 43; }' >llmc/base/answer.cpp
makes 0
check "a warning is seen" says 'unused variable'
check "and the program is built" prints "cpu 43" ./train_llama
makes 0 WERROR=1
check "WERROR=1 compiles nothing again" compiled ""
touch llmc/base/answer.cpp
makes 2 WERROR=1
check "but what it compiles must not warn" says 'error: unused variable'
makes 0 -j2 -n test
check "-j counts in the makes inside, too" says_not 'forced in makefile'
makes 2 clean all
check "make clean stands alone" says 'stands alone'
makes 0 clean
check "clean leaves no program" [ ! -L train_llama ]
echo "makefile: $checks checks passed"

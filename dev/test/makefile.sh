#!/usr/bin/env bash
# Covers: the Makefile: new files are found, only what changed is rebuilt, variants side by side, make without news takes
# less than a second of the processor, a failed build leaves no old program, warnings end the build with WERROR=1 alone,
# a new goal is one rule: make and its help find it,
# programs know their commit, and another one links train_llama alone again
# Timeout: 120
# Turn: 2
#
# Works on a copy of the Makefile in a small tree of its own.
set -euo pipefail
# shellcheck source=dev/test/lib.bash
source "$(dirname "$0")/lib.bash"
mkdir "$scratch/tree"
cd "$scratch/tree"
mkdir -p scripts llmc/base llmc/kernels dev/kernels dev/test
cp "$root/Makefile" .
cp "$root/scripts/doctor" scripts/
echo "#include <vector>" >llmc/base/standard.h

makes() { check "make ${*:2}" exits "$1" make -j1 "${@:2}"; } # CODE ARGUMENTS…
compiles() { # FILES ARGUMENTS…: make compiles these files, and no other
  makes 0 "${@:2}"
  check "  compiles $1" [ "$(sed -n 's/^  compile //p' "$scratch/out.txt" | sort | paste -sd' ')" = "$1" ]
}
prints() { check "  ${*:2} prints $1" [ "$("${@:2}")" = "$1" ]; }
gone() { check "  $1 is gone" [ ! -e "$1" ]; }

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
echo 'int fails();
int main() { return fails(); }' >dev/test/doctest_main.cpp
echo '#include "llmc/base/answer.h"
int fails() { return answer() != 42; }' >dev/test/test_answer.cpp
export DEVICE=cpu
unset WERROR # CI's

compiles "llmc/base/answer.cpp llmc/kernels/twice.cu test_llama.cu train_llama.cu"
check "  it says for which device, and why" said 'Building for the CPU in build/cpu' 'because DEVICE=cpu asks for it'
built='built ./train_llama; try: ./train_llama --steps 20'
check "  it ends with what was built, and what to try" [ "$(tail -n 1 "$scratch/out.txt")" = "$built" ]
prints "cpu 42" ./train_llama
prints "cpu 42" ./test_llama
compiles "dev/kernels/twice.cu dev/test/doctest_main.cpp dev/test/test_answer.cpp" kernels tests
prints "cpu 42" build/cpu/kernels/twice
check "  a test passes" build/cpu/test/test_answer

compiles ""
check "  nothing was built, and nothing is said of it" not said "$built"
compiles "" all kernels tests
# Milliseconds of the processor, because other processes may slow this test down.
took=$(TIMEFORMAT='%U %S' && { time make -j1 all kernels tests >/dev/null; } 2>&1 | awk '{ print int(1000 * ($1 + $2)) }')
check "make without news takes less than 1 s of the processor (took $took ms)" [ "$took" -lt 1000 ]
touch llmc/kernels/twice.cuh
compiles "llmc/kernels/twice.cu" all kernels tests
echo 'int answer() { return 43; }' >llmc/base/answer.cpp
compiles "llmc/base/answer.cpp" build/cpu/kernels/twice
makes 0 all kernels
check "  of programs among other goals nothing is said" not said "$built"
prints "cpu 43" build/cpu/kernels/twice
compiles "dev/kernels/twice.cu llmc/base/answer.cpp llmc/kernels/twice.cu" CPPFLAGS=-DUNUSED build/cpu/kernels/twice
makes 0
echo 'int other() { return 1; }' >llmc/kernels/other.cu
compiles "llmc/kernels/other.cu"
rm llmc/kernels/other.cu
compiles ""
prints 0 grep -c other build/cpu/libllmc.a

echo 'int answer() { return 44; }' >llmc/base/answer.cpp
compiles "llmc/base/answer.cpp" train_llama
prints "cpu 44" ./train_llama
compiles "" test_llama
prints "cpu 44" ./test_llama
echo 'int answer() { return 43; }' >llmc/base/answer.cpp
makes 0

echo "-- what is broken leaves no program behind that holds the older code, and no other goes"
makes 0 all kernels tests
good=$(<llmc/kernels/twice.cu)
echo "wrong" >>llmc/kernels/twice.cu
makes 2
for program in train_llama build/cpu/kernels/twice build/cpu/test/test_answer; do gone $program; done
echo "$good" >llmc/kernels/twice.cu
compiles "llmc/kernels/twice.cu" all kernels tests
prints "cpu 43" ./train_llama
echo "wrong" >>dev/kernels/twice.cu
makes 2 kernels
gone build/cpu/kernels/twice
prints "cpu 43" ./train_llama
cp train_llama.cu dev/kernels/twice.cu
good=$(<llmc/base/answer.cpp)
echo 'int another() { return 43; }' >llmc/base/answer.cpp
makes 2
check "  a program does not link" said 'undefined reference'
gone train_llama
echo "$good" >llmc/base/answer.cpp

echo "-- the commit"
git_here() { git -c user.name=test -c user.email=test@example.org "$@"; }
printf '#pragma once\nextern const char* const kBuildCommit;\n' >llmc/base/build.h
printf '#include "llmc/base/build.h"\nconst char* const kBuildCommit = LLMC_COMMIT;\n' >llmc/base/build.cpp
plain=$(<train_llama.cu)
sed -i 's/.*answer());/  printf("%d %s\\n", answer(), kBuildCommit);/; s/#include <cstdio>/&\n#include "llmc\/base\/build.h"/' train_llama.cu
cp train_llama.cu dev/kernels/twice.cu
compiles "dev/kernels/twice.cu llmc/base/answer.cpp llmc/base/build.cpp train_llama.cu" all kernels tests
prints "cpu 43 unknown" ./train_llama
printf 'build\ntrain_llama\ntest_llama\n' >.gitignore
git_here init -q && git_here add . && git_here commit -q -m "first"
first=$(git rev-parse --short=12 HEAD)
compiles "llmc/base/build.cpp" all kernels tests
prints "cpu 43 $first" ./train_llama
prints "cpu 43 unknown" build/cpu/kernels/twice # as it was when it was linked
compiles "" all kernels tests
echo "a word" >README.md && git_here add . && git_here commit -q -m "second"
second=$(git rev-parse --short=12 HEAD)
touch .now && compiles "llmc/base/build.cpp" all kernels tests
prints "cpu 43 $second" ./train_llama
check "  nothing else is linked" [ -z "$(find build/cpu -maxdepth 2 -newer .now -type f -perm -u+x ! -name train_llama)" ]
echo "another word" >README.md
compiles "" all
echo "// changed" >>llmc/base/answer.h
makes 0
prints "cpu 43 $second+changes" ./train_llama
check "  LLMC_COMMIT names another" env LLMC_COMMIT=0a1b2c3 make -j1 train_llama
prints "cpu 43 0a1b2c3" ./train_llama
rm -rf .git llmc/base/build.* && echo "$plain" >train_llama.cu && cp train_llama.cu dev/kernels/twice.cu
makes 0

echo "-- variants stand side by side"
makes 0 EMULATOR=env
prints "cpu 43" "build/cpu-$(g++ -dumpmachine | cut -d- -f1)/train_llama"
prints build/cpu/train_llama readlink train_llama # which is of none of these
makes 0
prints "cpu 43" ./train_llama
makes 0 BUILD=build/cpu-own CPU_ARCH= build/cpu-own/train_llama
prints "cpu 43" build/cpu-own/train_llama
check "  a folder of its own has what the tests read" cmp build/cpu/config.mk build/cpu-own/config.mk
makes 0 SANITIZE=address build/cpu-address/kernels/twice
check "  the sanitizer's symbols are in" grep -q __asan build/cpu-address/kernels/twice
if command -v nvcc >/dev/null; then
  makes 0 DEVICE=cuda ARCH=90a build/cuda/train_llama
  prints "cuda 43" build/cuda/train_llama
  prints "cpu 43" ./train_llama
  makes 0 DEVICE=cuda ARCH=90a
  prints "cuda 43" ./train_llama
  compiles ""
  prints "cpu 43" ./train_llama
fi

echo "-- headers, formats, warnings"
makes 0 headers
echo '#pragma once
inline std::string name() { return ""; }' >llmc/base/name.h
makes 2 headers
check "  a header that does not stand alone is named" said 'llmc/base/name.h'
printf 'int  badly( int formatted );\n' >llmc/base/name.h
if command -v clang-format >/dev/null; then
  makes 2 format-check
  makes 0 format
  makes 0 format-check
fi
echo 'int answer() { int unused; return 43; }' >llmc/base/answer.cpp
makes 0
check "  a warning is seen" said 'unused variable'
prints "cpu 43" ./train_llama
compiles "" WERROR=1
touch llmc/base/answer.cpp
makes 2 WERROR=1
check "  what it compiles must not warn" said 'error: unused variable'
makes 0 -j2 -n test
check "  -j counts in the makes inside, too" not grep -q 'forced in makefile' "$scratch/out.txt"
# With MAKE=echo the makes inside print their goals.
makes 0 -n MAKE=echo -C "$root" softgpu T=kernels/swiglu
check "  builds this kernel alone for the software GPU" grep -qE '^DEVICE=cuda .* BUILD=build/softgpu build/softgpu/kernels/swiglu$' "$scratch/out.txt"
# shellcheck disable=SC2016  # for make
sed -i 's/^# ---- slow checks -*$/&\ntest-new: ## something new\n\t@echo $(PLAIN_GOALS)/' Makefile
touch test-new
makes 0 test-new
check "  a new goal builds nothing itself, whatever file has its name" said ' test-new '
makes 0 help
check "  make help names it" grep -qE "^make test-new +something new$" "$scratch/out.txt"
rm test-new
makes 2 clean all
check "  make clean stands alone" said 'stands alone'
makes 0 clean
check "  no program is left" [ ! -L train_llama ]
echo "$checks checks passed"

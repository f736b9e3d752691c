#!/usr/bin/env bash
# Covers: the test runner itself: failing, hanging, empty, missing and undeclared tests are each counted as failures
# Timeout: 60
# shellcheck disable=SC2016  # the little programs expand their own variables
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
mkdir -p "$scratch"/dev/test/pytorch "$scratch"/dev/kernels "$scratch"/b/test "$scratch"/b/kernels
checks=0

# program PATH SOURCE BODY COVERS: a test program that is a script, and the head of its source
program() {
  printf '#!/bin/sh\n%s\n' "$3" >"$scratch/$1"
  chmod +x "$scratch/$1"
  printf '// A test.\n%s\n' "$4" >"$scratch/$2"
}
run() { # CODE ARGUMENTS...
  local code=0
  LLMC_TEST_ROOT=$scratch "$root/dev/test/run" "${@:2}" >"$scratch/out" 2>&1 || code=$?
  check "dev/test/run ${*:2} ends with code $1 (it was $code)" [ "$code" = "$1" ]
}
check() { # WHAT COMMAND...
  checks=$((checks + 1))
  if "${@:2}"; then return; fi
  echo "runner: $1: not so. The output was:"
  cat "$scratch/out"
  exit 1
}
says() { grep -qE -e "$1" "$scratch/out"; }
last_line() { [ "$(tail -n 1 "$scratch/out")" = "$1" ]; }

run 1 b
check "no tests at all is a failure" last_line "0 passed, 0 failed"

program b/test/test_good dev/test/test_good.cpp 'echo "assertions: 10 | 10 passed"' '// Covers: promises 2 and 5: sums'
program b/kernels/rope dev/kernels/rope.cu '[ "$1" = check ] && echo 3 shapes ok' '// Covers: promise 7: rope'
printf '#!/bin/sh\n# Covers: words\n# and words\n# Covers: promise 5: more\n# Timeout: 9\n#include\necho "$LLMC_BUILD"\n' >"$scratch/dev/test/script.sh"
chmod +x "$scratch/dev/test/script.sh"
run 0 b
check "good tests pass" last_line "3 passed, 0 failed"
check "what is covered is printed" says '^ok +test_good +[0-9.]+ s  promises 2 and 5: sums$'
check "two lines are joined" says '^ok +script +[0-9.]+ s  words and words; promise 5: more$'
check "promises are counted" says 'promises covered .*: 2 \(1\), 5 \(2\), 7 \(1\)$'
check "a script knows the build" grep -qx b "$scratch"/build/test-logs/*/script.log
run 0 b rope
check "the filter leaves one" last_line "1 passed, 0 failed"
run 1 b nothing_of_that_name
check "a filter that leaves none is a failure" last_line "0 passed, 0 failed"

# fails NAME REASON: among the good tests, the one just written fails, alone, for that reason.
fails() {
  run 1 b
  check "$1 fails" says "^FAIL +$1 "
  check "$1 fails because: $2" says "$1: .*$2"
  check "the others pass" last_line "3 passed, 1 failed"
  rm "$scratch/dev/test/$1.cpp"
}
program b/test/test_bad dev/test/test_bad.cpp 'echo "got 1 want 2"; exit 3' '// Covers: x'
fails test_bad "exit code 3"
check "its log is shown" says 'got 1 want 2'
program b/test/test_hangs dev/test/test_hangs.cpp 'echo on; sleep 30' $'// Covers: x\n// Timeout: 1'
fails test_hangs "limit of 1 s"
program b/test/test_empty dev/test/test_empty.cpp 'echo "[doctest] assertions: 0 | 0 passed | 0 failed |"' '// Covers: x'
fails test_empty "made no assertion"
program b/test/test_silent dev/test/test_silent.cpp 'true' '// Covers: x'
fails test_silent "said nothing"
program b/test/test_undeclared dev/test/test_undeclared.cpp 'echo fine' '// Something else.'
fails test_undeclared 'no line "Covers: ..."'
echo '// Covers: x' >"$scratch/dev/test/test_absent.cpp"
fails test_absent "exit code 127"

printf '#!/bin/sh\n# Covers: torch\necho fine\n' >"$scratch/dev/test/pytorch/export.sh"
chmod +x "$scratch/dev/test/pytorch/export.sh"
run 0 --with pytorch b
check "the PyTorch tests stand apart" last_line "1 passed, 0 failed"
echo "runner: $checks checks passed"

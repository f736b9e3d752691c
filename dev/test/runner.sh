#!/usr/bin/env bash
# Covers: the test runner itself: failing, hanging, empty, missing and undeclared tests are each counted as failures;
# logs that differ are told by their lines
# Timeout: 60
# shellcheck disable=SC2016  # the little programs expand their own variables
set -euo pipefail
# shellcheck source=dev/test/lib.bash
source "$(dirname "$0")/lib.bash"
mkdir -p "$scratch"/dev/test/pytorch "$scratch"/dev/kernels "$scratch"/b/test "$scratch"/b/kernels

# program PATH SOURCE BODY COVERS: a test program that is a script, and the head of its source
program() {
  printf '#!/bin/sh\n%s\n' "$3" >"$scratch/$1"
  chmod +x "$scratch/$1"
  printf '// A test.\n%s\n' "$4" >"$scratch/$2"
}
run() { # CODE ARGUMENTS...
  check "dev/test/run ${*:2}" exits "$1" env PATIENCE=1 LLMC_TEST_ROOT="$scratch" "$root/dev/test/run" "${@:2}"
}
says() { grep -qE -e "$1" "$scratch/out.txt" || { cat "$scratch/out.txt" && return 1; }; }
last_line() { [ "$(tail -n 1 "$scratch/out.txt")" = "$1" ]; }

run 2 b
check "no tests at all is a failure" last_line 'dev/test/run: no test has a name with ""; dev/test, dev/kernels and dev/test/*/ have their files'

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
run 0 --programs b rope
check "  and make is told what it needs" last_line b/kernels/rope
run 2 b nothing_of_that_name
check "a filter that leaves none is a failure" says 'no test has a name with "nothing_of_that_name"'

# turns EXPECTED ENVIRONMENT… -- FILTER…: which of three tests with a turn run.
for i in 1 2 3; do program b/test/test_long$i dev/test/test_long$i.cpp 'echo "assertions: 1 | 1 passed"' $'// Covers: x\n// Turn: 3'; done
turns() {
  check "dev/test/run with $2" exits 0 env "$2" LLMC_TEST_ROOT="$scratch" "$root/dev/test/run" b "${@:3}"
  check "  runs $1" [ "$(sed -nE 's/^ok +(test_[a-z0-9]+) .*/\1/p' "$scratch/out.txt" | sort | xargs)" = "$1" ]
}
turns "test_good test_long1" TURN=0x0
turns "test_good test_long3" TURN=0x1
check "  and says that some wait" says '^2 long tests have their turn at other commits; all of them: make test-long$'
turns "test_good test_long2" TURN=5
turns "test_long1 test_long2 test_long3" TURN=long
turns "test_good test_long1 test_long2 test_long3" TURN=
turns "test_long2" TURN=0 long2
rm "$scratch"/dev/test/test_long*

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

program b/test/test_bad dev/test/test_bad.cpp 'exit 3' '// Covers: x'
program b/test/test_hangs dev/test/test_hangs.cpp 'sleep 30' '// Covers: x'
check "one that is ended from outside" exits 124 env LLMC_TEST_ROOT="$scratch" timeout 5 "$root/dev/test/run" b test_
check "says what had failed" grep -qx "1 passed, 1 failed" "$scratch"/build/test-logs/*/summary
rm "$scratch"/dev/test/test_{bad,hangs}.cpp

printf '#!/bin/sh\n# Covers: torch\necho fine\n' >"$scratch/dev/test/pytorch/export.sh"
chmod +x "$scratch/dev/test/pytorch/export.sh"
run 0 --with pytorch b
check "the PyTorch tests stand apart" last_line "1 passed, 0 failed"
# Logs that are not alike are told by their lines.
mkdir -p "$scratch"/whole/export "$scratch"/rest/export
touch "$scratch"/{whole,rest}/export/model.safetensors
printf '{"step":%d}\n' 1 2 3 4 >"$scratch/whole/train.jsonl"
printf '{"step":%d}\n' 3 4 >"$scratch/rest/train.jsonl"
check "the end of a log is another log" ends_alike whole rest 2
not ends_alike whole rest 3 >"$scratch/out.txt"
check "a line too many: both counts" says "the end of whole's log has 3 lines, rest's log 2"
check "  and the line" says '^< .*"step":2'
echo "$checks checks passed"

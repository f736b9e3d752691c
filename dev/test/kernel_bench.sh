#!/usr/bin/env bash
# Covers: a kernel program's bench --vs: it runs an earlier build in turn, or reads what one printed and says that this was
# another time; the ratios follow from the figures; what is neither is refused
# Timeout: 120
set -euo pipefail
# shellcheck source=dev/test/lib.bash
source "$(dirname "$0")/lib.bash"
cd "$scratch"
export LLMC_SIZES=few # one call of each kernel
program=$build/kernels/accumulate

"$program" bench >saved.txt
check "bench tells commit and compiler" grep -q '^commit .* built for the CPU.* by ' saved.txt
lines=$(grep -c ' us ' saved.txt)
# ratios SAVED COUNT: so many lines, whose ratio is that of their two times; they are printed to 0.1 us and to 0.01.
ratios() {
  awk -v count="$1" '$NF != "us" && match($0, /[0-9.]+ us +[0-9.]+ us +[0-9.]+/) {
      split(substr($0, RSTART, RLENGTH), figure); n++
      d = figure[5] - figure[3] / figure[1]; if (d * d > (0.0051 + 0.1 * (1 + figure[5]) / figure[1]) ^ 2) bad = 1 }
    END { exit bad || n != count }' out.txt
}
sed -E 's/[0-9.]+ us/  1000.0 us/' saved.txt >slower.txt
check "with what an earlier build printed" exits 0 "$program" bench --vs slower.txt
check "  it says so" said "slower.txt was measured at another time"
check "  each line has its ratio" ratios "$lines"
check "  before is the file's" [ "$(grep -c ' 1000.0 us ' out.txt)" = "$lines" ]
{ sed 1,4d slower.txt && echo "another_kernel bf16 N=64    12.5 us"; } >others.txt
check "with a file that has other lines, too" exits 0 "$program" bench --vs others.txt
check "  they are told" said "it is not in this program"

# A program that counts its runs, in the place of an earlier build.
cat >earlier.cpp <<'CPP'
#include <cstdlib>
int main(int count, char** words) {
  return count != 2 || words[1][0] != 'b' || std::system("echo run >>runs.txt; cat slower.txt");
}
CPP
"${CXX:-g++}" earlier.cpp -o earlier
check "with an earlier build" exits 0 "$program" bench --vs earlier
check "  it is run in turn" said "in turn with earlier, 5 rounds of each"
check "  five times" [ "$(wc -l <runs.txt)" = 5 ]
check "  before is its time" [ "$(grep -c ' 1000.0 us ' out.txt)" = "$lines" ]
check "  all rounds have a ratio" [ "$(grep -cE '[0-9.]+ to [0-9.]+' out.txt)" = "$lines" ]

mkdir folder && echo "nothing" >nothing.txt && rm slower.txt
refused "no such file" "cannot read it" "$program" bench --vs nowhere
refused "a folder" "cannot read it" "$program" bench --vs folder
refused "a text of something else" "has no line of a benchmark" "$program" bench --vs nothing.txt
echo "rope_forward bf16 N=64    12.5 us" >nothing.txt
refused "another kernel's figures" 'it times other things: "rope_forward bf16 N=64"' "$program" bench --vs nothing.txt
refused "a program that fails" "bench ended with code 1" "$program" bench --vs earlier
refused "a program that times nothing" "bench timed nothing" "$program" bench --vs "$(type -P true)"
refused "a word that is no option" "usage: " "$program" bench --with saved.txt
echo "$checks checks passed"

#!/usr/bin/env bash
# Covers: a kernel program's bench --vs: it runs an earlier build in turn, or reads what one printed and says that this was
# another time; the ratios follow from the figures of one round; a busy machine is told; what is neither is refused
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
check "with so many rounds as asked" exits 0 "$program" bench --vs earlier --rounds 3
check "  so many" [ "$(wc -l <runs.txt)" = 8 ]
check "  they are named" said "in turn with earlier, 3 rounds of each"
"$program" bench --vs earlier >out.txt
check "  all rounds have a ratio" [ "$(grep -cE '[0-9.]+ to [0-9.]+' out.txt)" = "$lines" ]

# The table of given times, in microseconds: what is printed follows from them.
cat >table.cpp <<'CPP'
#include "dev/kernels/bench_comparison.h"
int main() {
  const double before[] = {100, 200, 400, 50, 150}, now[] = {210, 300, 100, 50, 330};
  std::vector<BenchTimes> old_times, new_times;
  for (int round = 0; round < 5; ++round) {
    old_times.push_back({{"uneven", before[round]}, {"faster", 100}, {"hardly faster", 1000}});
    new_times.push_back({{"uneven", now[round]}, {"faster", 80.0 + round}, {"hardly faster", round ? 900 : 999.0}});
  }
  print_comparison(old_times, new_times);
  const std::vector<BenchTimes> steady(15, {{"one slow round", 100}});
  new_times.assign(15, {{"one slow round", 90}});
  new_times[3][0].second = 170;
  print_comparison(steady, new_times);
}
CPP
check "a table of given times is built" "${CXX:-g++}" -std=c++20 -I"$root" table.cpp "$build/libllmc.a" -o table
./table >out.txt
check "the times are those of the round whose ratio is printed" grep -q '^uneven  *200.0 us  *300.0 us  *1.50   0.25 to 2.20: no clear difference$' out.txt
check "a difference in all rounds is clear" grep -q '^faster  *100.0 us  *82.0 us  *0.82   0.80 to 0.84$' out.txt
check "one that rounds to 1.00 is not" grep -q '^hardly faster .* 0.90 to 1.00: no clear difference$' out.txt
check "times that differ twofold mean that the machine is busy" said "up to 8.0 times as long in another round" "--rounds 21"
check "of many rounds the outermost do not count" grep -q '^one slow round .* 0.90   0.90 to 0.90$' out.txt
check "and steady times mean no such thing" [ "$(grep -c busy out.txt)" = 1 ]

mkdir folder && echo "nothing" >nothing.txt && rm slower.txt
refused "no such file" "cannot read it" "$program" bench --vs nowhere
refused "a folder" "cannot read it" "$program" bench --vs folder
refused "a text of something else" "has no line of a benchmark" "$program" bench --vs nothing.txt
echo "rope_forward bf16 N=64    12.5 us" >nothing.txt
refused "another kernel's figures" 'it times other things: "rope_forward bf16 N=64"' "$program" bench --vs nothing.txt
refused "a program that fails" "bench ended with code 1" "$program" bench --vs earlier
refused "a program that times nothing" "bench timed nothing" "$program" bench --vs "$(type -P true)"
refused "no number of rounds" "usage: " "$program" bench --vs saved.txt --rounds 0
refused "an even number, which has no median" "usage: " "$program" bench --vs saved.txt --rounds 2
refused "a word after it" "usage: " "$program" bench --vs saved.txt --rounds 5x
check "--help is no error" exits 0 "$program" --help
check "  and says what may be given" eval 'said "[--rounds N]" && ! said "error"'
refused "a word that is no option" "usage: " "$program" bench --with saved.txt
echo "$checks checks passed"

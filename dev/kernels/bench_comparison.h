// Compares a kernel program's benchmark with an earlier build of it:
//
//   cp build/cpu/kernels/rope /tmp/rope.before      # then change the kernel, and make
//   build/cpu/kernels/rope bench --vs /tmp/rope.before
//
// runs both programs in turn, so that clocks, heat and other processes meet both alike; --rounds N runs each N times
// instead of 5. FILE may also be what an earlier bench printed. Such figures were not measured in turn, and the table
// says so.
#pragma once

#include <sys/wait.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "llmc/base/error.h"
#include "llmc/base/text.h"

// The lines of a benchmark in their order: what was timed, and its microseconds.
using BenchTimes = std::vector<std::pair<std::string, double>>;

// Reads "rope_forward bf16 N=64     213.3 us  6.30 GB/s …" and passes over all other lines.
inline BenchTimes read_times(const std::string& printed) {
  BenchTimes times;
  std::istringstream lines(printed);
  for (std::string line; std::getline(lines, line);) {
    const size_t unit = line.rfind(" us");
    if (unit == line.npos || unit == 0) continue;
    const size_t figure = line.rfind(' ', unit - 1);
    if (figure == line.npos) continue;
    char* end = nullptr;
    const double microseconds = strtod(&line[figure], &end);
    const size_t name_end = line.find_last_not_of(' ', figure);
    if (end == &line[unit] && microseconds > 0 && name_end != line.npos)
      times.emplace_back(line.substr(0, name_end + 1), microseconds);
  }
  return times;
}

// Runs `program bench` and returns what it timed. Throws with what it printed if it fails or times nothing.
inline BenchTimes times_of_program(const std::string& program) {
  FILE* pipe = popen((shell_quoted(program) + " bench 2>&1").c_str(), "r");
  REQUIRE(pipe, "cannot start %s", program.c_str());
  std::string printed;
  char part[4096];
  for (size_t bytes; (bytes = fread(part, 1, sizeof part, pipe)) > 0;) printed.append(part, bytes);
  const int status = pclose(pipe);
  BenchTimes times = read_times(printed);
  REQUIRE(status == 0 && !times.empty(), "%s bench %s:\n%s", program.c_str(),
          status ? format("ended with code %d", WEXITSTATUS(status)).c_str() : "timed nothing", printed.c_str());
  return times;
}

// One kernel's times in each round, in microseconds, of an earlier build and of this one.
class RoundTimes {
 public:
  RoundTimes(std::vector<double> before, std::vector<double> now) : before_(std::move(before)), now_(std::move(now)) {
    for (size_t round = 0; round < now_.size(); ++round) by_ratio_.push_back(round);
    std::sort(by_ratio_.begin(), by_ratio_.end(), [&](size_t a, size_t b) { return ratio(a) < ratio(b); });
  }
  // Prints the two times of the round whose ratio is the median, and the ratios of all rounds but the lowest and the
  // highest tenth. The difference is clear if these are below 1, or above 1, in the two digits that are printed.
  void print(const std::string& name) const {
    const size_t rounds = by_ratio_.size(), median = by_ratio_[rounds / 2], left_out = rounds / 10;
    printf("%-56s %10.1f us %10.1f us %11.2f", name.c_str(), before_[median], now_[median], ratio(median));
    if (rounds > 1) {
      const double least = ratio(by_ratio_[left_out]), most = ratio(by_ratio_[rounds - 1 - left_out]);
      const bool clear = std::lround(100 * most) < 100 || std::lround(100 * least) > 100;
      printf("   %.2f to %.2f%s", least, most, clear ? "" : ": no clear difference");
    }
    printf("\n");
  }
  // How many times the shortest round one build's longest round took; the larger of both builds.
  double spread() const { return std::max(spread(before_), spread(now_)); }

 private:
  double ratio(size_t round) const { return now_[round] / before_[round]; }
  static double spread(const std::vector<double>& times) {
    const auto [least, most] = std::minmax_element(times.begin(), times.end());
    return *most / *least;
  }

  std::vector<double> before_, now_;
  std::vector<size_t> by_ratio_;  // the rounds, from the least ratio to the largest
};

// Prints a line for each name that all rounds have. `before` and `now` have the same number of rounds.
inline void print_comparison(const std::vector<BenchTimes>& before, const std::vector<BenchTimes>& now) {
  const auto times_of = [](const std::vector<BenchTimes>& rounds, const std::string& name) {
    std::vector<double> times;
    for (const BenchTimes& round : rounds) {
      const auto found = std::find_if(round.begin(), round.end(), [&](const auto& line) { return line.first == name; });
      if (found != round.end()) times.push_back(found->second);
    }
    return times;
  };
  printf("%-56s %13s %13s %11s   %s\n", "", "before", "now", "now/before", now.size() > 1 ? "of the rounds" : "");
  double spread = 1;
  for (const auto& [name, microseconds] : now[0]) {
    const std::vector<double> old_times = times_of(before, name), new_times = times_of(now, name);
    if (old_times.size() != before.size() || new_times.size() != now.size()) {
      printf("%-56s %13s %10.1f us   it is not in the other\n", name.c_str(), "", microseconds);
      continue;
    }
    const RoundTimes times(old_times, new_times);
    times.print(name);
    spread = std::max(spread, times.spread());
  }
  for (const auto& [name, microseconds] : before[0])
    if (times_of(now, name).empty())
      printf("%-56s %10.1f us   it is not in this program\n", name.c_str(), microseconds);
  if (spread >= 2)
    printf(
        "the machine is busy: the same kernel of the same build took up to %.1f times as long in another round\n"
        "  run it again when less else runs, or with more rounds: --rounds %zu\n",
        spread, 4 * now.size() + 1);
}

// Compares the benchmark of this program (its path is `self`) with `file`: an earlier build of the same program, or
// what one printed. Programs run `rounds` times each. Throws if they time nothing in common.
inline void compare_benchmarks(const std::string& self, const std::string& file, int rounds) {
  std::ifstream stream(file, std::ios::binary);
  REQUIRE(
      stream && !std::filesystem::is_directory(file),
      "bench --vs %s: cannot read it\n  name an earlier build of this program, or a file with what its bench printed",
      file.c_str());
  const std::string content{std::istreambuf_iterator<char>(stream), {}};
  const bool is_program = content.starts_with("\177ELF");
  std::vector<BenchTimes> before, now;
  if (is_program) {
    const std::string path = std::filesystem::absolute(file);
    for (int round = 0; round < rounds; ++round) {  // the other one begins every second round
      if (round % 2) now.push_back(times_of_program(self));
      before.push_back(times_of_program(path));
      if (round % 2 == 0) now.push_back(times_of_program(self));
    }
    printf("in turn with %s, %d rounds of each: the times of the round with the median ratio, and %s\n", file.c_str(),
           rounds, rounds < 10 ? "all ratios" : "the ratios of all rounds but the lowest and highest tenth");
  } else {
    before.push_back(read_times(content));
    REQUIRE(!before[0].empty(), "bench --vs %s: it has no line of a benchmark, and is no program", file.c_str());
    now.push_back(times_of_program(self));
    printf(
        "%s was measured at another time, when clocks and load may have been others: to compare in turn, keep a\n"
        "copy of the program and name that\n",
        file.c_str());
  }
  const auto in_common = [&](const auto& line) {
    return std::any_of(before[0].begin(), before[0].end(),
                       [&](const auto& other) { return other.first == line.first; });
  };
  REQUIRE(std::any_of(now[0].begin(), now[0].end(), in_common),
          "bench --vs %s: it times other things: \"%s\", not \"%s\"", file.c_str(), before[0][0].first.c_str(),
          now[0][0].first.c_str());
  print_comparison(before, now);
}

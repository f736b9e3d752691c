// Compares a kernel program's benchmark with an earlier build of it:
//
//   cp build/cpu/kernels/rope /tmp/rope.before      # then change the kernel, and make
//   build/cpu/kernels/rope bench --vs /tmp/rope.before
//
// runs both programs in turn, so that clocks, heat and other processes meet both alike. FILE may also be what an
// earlier bench printed. Such figures were not measured in turn, and the table says so.
#pragma once

#include <sys/wait.h>

#include <algorithm>
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

inline double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return (values[(values.size() - 1) / 2] + values[values.size() / 2]) / 2;
}

// Prints a line for each name that all rounds have. `before` and `now` have the same number of rounds.
inline void print_comparison(const std::vector<BenchTimes>& before, const std::vector<BenchTimes>& now) {
  const auto find = [](const BenchTimes& times, const std::string& name) {
    const auto found = std::find_if(times.begin(), times.end(), [&](const auto& line) { return line.first == name; });
    return found == times.end() ? 0.0 : found->second;
  };
  printf("%-56s %13s %13s %11s   %s\n", "", "before", "now", "now/before", "of the rounds");
  for (const auto& [name, unused] : now[0]) {
    std::vector<double> old_times, new_times, ratios;
    for (size_t round = 0; round < now.size(); ++round) {
      old_times.push_back(find(before[round], name)), new_times.push_back(find(now[round], name));
      ratios.push_back(new_times.back() / old_times.back());
    }
    if (old_times[0] == 0) {
      printf("%-56s %13s %10.1f us   it is not in the other\n", name.c_str(), "", median(new_times));
      continue;
    }
    const auto [least, most] = std::minmax_element(ratios.begin(), ratios.end());
    printf("%-56s %10.1f us %10.1f us %11.2f", name.c_str(), median(old_times), median(new_times), median(ratios));
    if (ratios.size() > 1)
      printf("   %.2f to %.2f%s", *least, *most, *least < 1 && *most > 1 ? ": no clear difference" : "");
    printf("\n");
  }
  for (const auto& [name, microseconds] : before[0])
    if (find(now[0], name) == 0) printf("%-56s %10.1f us   it is not in this program\n", name.c_str(), microseconds);
}

// Compares the benchmark of this program (its path is `self`) with `file`: an earlier build of the same program, or
// what one printed. Throws if they time nothing in common.
inline void compare_benchmarks(const std::string& self, const std::string& file) {
  constexpr int kRounds = 5;
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
    for (int round = 0; round < kRounds; ++round) {  // the other one begins every second round
      if (round % 2) now.push_back(times_of_program(self));
      before.push_back(times_of_program(path));
      if (round % 2 == 0) now.push_back(times_of_program(self));
    }
    printf("in turn with %s, %d rounds of each: medians, and the least and the largest ratio of a round\n",
           file.c_str(), kRounds);
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

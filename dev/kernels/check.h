// The harness of the kernel programs: `build/<backend>/kernels/<noun> check` compares kernels with plain references in
// higher precision, `bench` times them with bytes, FLOPs and rates. The same inputs in both backends. `bench --vs FILE`
// compares with an earlier build (bench_comparison.h).
//
// A file defines `void check(Checker&)` and `void bench(Bencher&)`.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "dev/kernels/array.h"
#include "dev/kernels/bench.h"
#include "dev/kernels/bench_comparison.h"
#include "llmc/base/build.h"

class Checker {
 public:
  explicit Checker(Device& device) : stream(device, "compute") {}
  Stream stream;

  // Every |got - want| <= relative * |want| + absolute; `shape` names the coordinates of the worst one in the line that
  // is printed. Each call has a comment with the tolerance's reason.
  template <class T>
  void close(const std::string& name, const std::vector<T>& got, const std::vector<double>& want,
             const std::vector<int>& shape, double relative, double absolute) {
    size_t worst = 0;
    double worst_ratio = -1;
    if (got.size() != want.size()) return failed(name, format("%zu values instead of %zu", got.size(), want.size()));
    for (size_t i = 0; i < got.size(); ++i) {
      const double limit = relative * std::fabs(want[i]) + absolute;
      const double error = std::fabs(to_double(got[i]) - want[i]);
      double ratio = error <= limit ? (limit > 0 ? error / limit : 0) : std::max(error / limit, 1.0000001);
      if (!(error <= limit) && !(ratio > 1)) ratio = INFINITY;  // NaN
      if (ratio > worst_ratio) worst_ratio = ratio, worst = i;
    }
    if (got.empty()) return failed(name, "nothing to compare");
    const double limit = relative * std::fabs(want[worst]) + absolute;
    report(name + coordinates(worst, shape), worst_ratio <= 1,
           format("got %.9g want %.9g (error %.2g, limit %.2g)", to_double(got[worst]), want[worst],
                  std::fabs(to_double(got[worst]) - want[worst]), limit));
  }

  // The same bits.
  template <class T>
  void same_bits(const std::string& name, const std::vector<T>& a, const std::vector<T>& b) {
    size_t different = 0, first = 0;
    const size_t count = std::min(a.size(), b.size());
    for (size_t i = count; i-- > 0;)
      if (std::memcmp(&a[i], &b[i], sizeof(T))) ++different, first = i;
    report(name, a.size() == b.size() && different == 0,
           different ? format("%zu of %zu differ, the first at %zu: %.9g and %.9g", different, count, first,
                              to_double(a[first]), to_double(b[first]))
                     : format("%zu equal bit for bit", count));
  }

  void that(const std::string& name, bool ok, const std::string& details) { report(name, ok, details); }

  // Names what is tried next, for whoever reads the last line after a hang.
  void trying(const std::string& what) { printf("try  %s\n", what.c_str()); }

  // `call` must throw an Error whose text contains `expected`.
  void refused(const std::string& name, const std::string& expected, const std::function<void()>& call) {
    std::string message = "nothing was thrown";
    try {
      call();
      stream.synchronize();
    } catch (const Error& error) {
      message = error.what();
    }
    report(name, message.find(expected) != std::string::npos, message);
  }

  // All that another device's checker found, as one check.
  void all_of(const std::string& name, const Checker& other) {
    failures_.insert(failures_.end(), other.failures_.begin(), other.failures_.end());
    report(name, other.failures_.empty() && other.passed_, other.counts());
  }

  // The lines of what failed once more, since a check prints hundreds, and the counts. The program's exit code.
  int finish() const {
    if (!failures_.empty()) printf("\nFailed:\n");
    for (const std::string& line : failures_) printf("%s\n", line.c_str());
    printf("%s\n", counts().c_str());
    return !failures_.empty() || !passed_;
  }

 private:
  std::string counts() const { return format("%d passed, %zu failed", passed_, failures_.size()); }
  void failed(const std::string& name, const std::string& details) { report(name, false, details); }
  void report(const std::string& name, bool ok, const std::string& details) {
    std::string line = (ok ? "ok   " : "FAIL ") + name + ": " + details;
    std::replace(line.begin(), line.end(), '\n', ';');  // an error's text may have several lines
    printf("%s\n", line.c_str());
    if (ok) ++passed_;
    else failures_.push_back(line);
  }
  static std::string coordinates(size_t index, const std::vector<int>& shape) {
    std::string text;
    for (size_t d = shape.size(); d-- > 0;) {
      text = std::to_string(index % size_t(shape[d])) + (text.empty() ? "" : ",") + text;
      index /= size_t(shape[d]);
    }
    return "[" + text + "]";
  }

  int passed_ = 0;
  std::vector<std::string> failures_;  // their lines
};

void check(Checker& checker);
void bench(Bencher& bencher);

int main(int argc, char** argv) try {
  const std::vector<std::string> words(argv + 1, argv + argc);
  const std::string what = words.empty() ? "" : words[0];
  const std::string usage = format(
      "usage: %s check | bench [--vs FILE [--rounds N]]\n"
      "  check  compares the kernels with plain references, and ends with code 1 if one differs\n"
      "  bench  times them\n"
      "  FILE   an earlier build of this program, run in turn with it; or what its bench printed\n"
      "  N      so many times each, an odd number up to 999 (5)\n",
      argv[0]);
  if (what == "--help") {
    printf("%s", usage.c_str());
    return 0;
  }
  const bool compares = what == "bench" && words.size() >= 3 && words[1] == "--vs";
  const bool counts = compares && words.size() == 5 && words[3] == "--rounds";
  const int rounds = counts ? atoi(words[4].c_str()) : 5;
  REQUIRE((words.size() == 1 && (what == "check" || what == "bench")) || (compares && words.size() == 3) ||
              (counts && words[4] == std::to_string(rounds) && rounds >= 1 && rounds <= 1000 && rounds % 2),
          "%s", usage.c_str());
  setvbuf(stdout, nullptr, _IOLBF, 0);  // after a crash or a hang the last line tells how far it came
  if (compares) {
    compare_benchmarks(std::filesystem::canonical("/proc/self/exe"), words[2], rounds);
    return 0;
  }
  // On the CPU a check also finds what a launch writes without declaring it (cpu_write_check.h).
  if (what == "check") setenv("LLMC_CPU_WRITES", "checked", 0);
  Device device(0);
  printf("%s on %s\n", argv[0], device.info().name.c_str());
  if (what == "bench") {
    printf("commit %s, built for %s by %s\n", kBuildCommit, kBuildTarget, kBuildCompiler);
    Bencher bencher(device);
    bench(bencher);
    return 0;
  }
  Checker checker(device);
  check(checker);
  return checker.finish();
} catch (const Error& error) {
  fprintf(stderr, "error: %s\n", error.what());
  return 1;
}

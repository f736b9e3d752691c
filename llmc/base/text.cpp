#include "llmc/base/text.h"

#include <glob.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>

#include "llmc/base/error.h"

namespace {

// Returns three significant digits of a value in [0, 1000).
std::string three_digits(double value) { return format("%.*f", value >= 99.95 ? 0 : value >= 9.995 ? 1 : 2, value); }

// Divides by `base` until three digits hold the value. For example, 999.6 thousands round to 1000, which is 1.00 of the
// next unit.
int scale(double& value, double base, int units) {
  int unit = 0;
  while (unit + 1 < units && std::round(value) >= base) {
    value /= base;
    ++unit;
  }
  return unit;
}

}  // namespace

std::string human_bytes(uint64_t bytes) {
  static const char* const kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  double value = double(bytes);
  const int unit = scale(value, 1024, 7);
  if (unit == 0) return format("%d B", int(bytes));
  return (value >= 999.5 ? format("%.0f", value) : three_digits(value)) + " " + kUnits[unit];
}

uint64_t parse_bytes(const std::string& name, const std::string& text) {
  constexpr double kLargest = 1e18;
  char* end = nullptr;
  double value = strtod(text.c_str(), &end);
  std::string unit = lower_case(end);
  while (!unit.empty() && unit[0] == ' ') unit.erase(0, 1);
  if (unit != "b") {
    const size_t power = unit.empty() ? 0 : std::string("kmgtp").find(unit[0]) + 1;  // 0: no such unit
    const std::string rest = unit.substr(power > 0);
    const bool known = power > 0 && (rest == "ib" || rest == "b" || rest.empty());
    value = known ? value * std::pow(rest == "b" ? 1000.0 : 1024.0, double(power)) : -1;
  }
  REQUIRE(end != text.c_str() && value > 0 && value <= kLargest,
          "%s %s: expected a size with its unit, as 80GiB, 80GB, 512MiB or 4096B", name.c_str(), text.c_str());
  return uint64_t(value);
}

std::string human_count(double count) {
  static const char* const kUnits[] = {"", "k", "M", "B", "T"};
  if (!std::isfinite(count)) return "?";
  if (count < 0) return "-" + human_count(-count);
  double value = count;
  const int unit = scale(value, 1000, 5);
  if (unit == 0) return value == std::floor(value) ? format("%.0f", value) : format("%.3g", value);
  return (value >= 999.5 ? format("%.0f", value) : three_digits(value)) + kUnits[unit];
}

std::string human_duration(double seconds) {
  if (!std::isfinite(seconds) || seconds < 0 || seconds > 1e12) return "?";
  if (seconds < 9.95) return format("%.1fs", seconds);
  const int64_t s = int64_t(std::llround(seconds));
  const int64_t m = s / 60, h = m / 60, d = h / 24;
  if (m < 1) return format("%ds", int(s));
  if (m < 10) return format("%dm%02ds", int(m), int(s % 60));
  if (h < 1) return format("%dm", int(m));
  if (d < 1) return format("%dh%02dm", int(h), int(m % 60));
  return format("%ldd%02dh", long(d), int(h % 24));
}

std::string counted(int64_t count, const std::string& noun, const char* plural) {
  return std::to_string(count) + " " + noun + (count == 1 ? "" : plural);
}

std::string shell_quoted(std::string word) {
  if (!word.empty() &&
      word.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./+,:@%=") == word.npos)
    return word;
  for (size_t at = 0; (at = word.find('\'', at)) != word.npos; at += 4) word.replace(at, 1, "'\\''");
  return "'" + word + "'";
}

std::string shortest(double value) {
  char text[64];
  const auto result = std::to_chars(text, text + sizeof text, value);
  return std::string(text, result.ptr);
}

int edit_distance(const std::string& a, const std::string& b) {
  const size_t columns = b.size() + 1;
  std::vector<int> before(columns), above(columns), row(columns);
  for (size_t j = 0; j < columns; ++j) row[j] = int(j);
  for (size_t i = 1; i <= a.size(); ++i) {
    std::swap(before, above);
    std::swap(above, row);
    row[0] = int(i);
    for (size_t j = 1; j < columns; ++j) {
      row[j] = std::min({above[j] + 1, row[j - 1] + 1, above[j - 1] + (a[i - 1] != b[j - 1])});
      const bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (swapped) row[j] = std::min(row[j], before[j - 2] + 1);
    }
  }
  return row[b.size()];
}

std::string nearest(const std::string& word, const std::vector<std::string>& candidates) {
  int limit = std::max(2, int(word.size()) / 3) + 1;
  std::string best;
  for (const std::string& candidate : candidates) {
    const size_t longer = std::max(word.size(), candidate.size()), shorter = std::min(word.size(), candidate.size());
    if (longer - shorter >= size_t(limit)) continue;  // so many insertions at least
    const int distance = edit_distance(word, candidate);
    // A candidate in which every letter is replaced is not near: "x" is one edit from every other letter.
    const bool unlike = distance >= int(std::max(word.size(), candidate.size()));
    if (distance < limit && !unlike) {
      limit = distance;
      best = candidate;
    }
  }
  return best;
}

std::string lower_case(std::string text) {
  for (char& c : text)
    if (c >= 'A' && c <= 'Z') c = char(c - 'A' + 'a');
  return text;
}

std::string download_command(const std::string& name) {
  const auto is_word = [](const std::string& word) {
    return !word.empty() &&
           word.find_first_not_of("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-") == word.npos &&
           word[0] != '.' && word[0] != '-';
  };
  const size_t slash = name.find('/');
  if (slash == name.npos || !is_word(name.substr(0, slash)) || !is_word(name.substr(slash + 1))) return "";
  return "hf download " + name + " --local-dir " + name.substr(slash + 1);
}

std::vector<std::string> glob(const std::string& pattern) {
  if (access(pattern.c_str(), F_OK) == 0) return {pattern};
  std::vector<std::string> paths;
  glob_t matches = {};
  const int result = ::glob(pattern.c_str(), GLOB_NOSORT | GLOB_BRACE | GLOB_TILDE, nullptr, &matches);
  if (result == 0) paths.assign(matches.gl_pathv, matches.gl_pathv + matches.gl_pathc);
  globfree(&matches);
  REQUIRE(result != GLOB_NOSPACE, "out of memory while looking for files named %s", pattern.c_str());
  std::sort(paths.begin(), paths.end());
  return paths;
}

std::string literally(const std::string& path) {
  std::string pattern;
  for (const char c : path) pattern += std::string(strchr("[]*?{}~\\", c) ? "\\" : "") + c;
  return pattern;
}

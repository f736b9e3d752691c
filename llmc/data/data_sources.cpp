#include "llmc/data/data_sources.h"

#include <algorithm>
#include <cctype>
#include <numeric>
#include <string_view>

#include "llmc/base/error.h"
#include "llmc/base/text.h"
#include "llmc/data/mixture.h"

namespace {

constexpr int kShareDigits = 9;  // most digits of a share before its point, and after it

// Returns the length of the NAME with which a text begins if '=' follows it; else 0.
size_t name_length(std::string_view text) {
  const auto in_name = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '-' || c == '.';
  };
  const auto end = std::ranges::find_if_not(text, in_name);
  return end != text.end() && *end == '=' ? size_t(end - text.begin()) : 0;
}

bool is_mixture(const std::string& text) { return name_length(text) > 0 && glob(text).empty(); }

// Returns where "@SHARE" begins at the end of a text; npos if there is none, or a '\' is before it.
size_t share_begin(const std::string& text) {
  const size_t at = text.rfind('@');
  if (at == text.npos || (at > 0 && text[at - 1] == '\\')) return text.npos;
  const std::string_view share = std::string_view(text).substr(at + 1);
  const bool digits = share.find_first_of("0123456789") != share.npos;
  const bool number =
      digits && share.find_first_not_of("0123456789.") == share.npos && std::ranges::count(share, '.') <= 1;
  return number ? at : text.npos;
}

// Splits at the commas that are outside of braces and have no '\' before them, which the others lose.
std::vector<std::string> split_sources(const std::string& text) {
  std::vector<std::string> parts(1);
  int depth = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == ',' && depth == 0) {
      parts.emplace_back();
      while (i + 1 < text.size() && text[i + 1] == ' ') ++i;
      continue;
    }
    depth += (text[i] == '{') - (text[i] == '}' && depth > 0);
    const bool escapes = text[i] == '\\' && i + 1 < text.size();
    if (!escapes || text[i + 1] != ',' || depth > 0) parts.back() += text[i];
    if (escapes) parts.back() += text[++i];
  }
  return parts;
}

// The inverse for one part.
std::string escaped(const std::string& pattern) {
  std::string text;
  int depth = 0;
  for (size_t i = 0; i < pattern.size(); ++i) {
    depth += (pattern[i] == '{') - (pattern[i] == '}' && depth > 0);
    if ((pattern[i] == ',' && depth == 0) || i == share_begin(pattern)) text += '\\';
    text += pattern[i];
    if (pattern[i] == '\\' && i + 1 < pattern.size()) text += pattern[++i];
  }
  return text;
}

// Splits "NAME=FILES@SHARE"; what is missing is "".
NamedSource parse_source(const std::string& part) {
  const size_t length = name_length(part), at = std::min(share_begin(part), part.size());
  NamedSource source{part.substr(0, length), "", part.substr(std::min(at + 1, part.size()))};
  if (length == 0 || at <= length) return source;
  source.pattern = part.substr(length + 1, at - length - 1);
  for (size_t escape; (escape = source.pattern.find("\\@")) != source.pattern.npos;) source.pattern.erase(escape, 1);
  return source;
}

std::vector<NamedSource> sources_in(const std::string& text, const char* option, const char* form) {
  if (!is_mixture(text)) return {{"", text, ""}};
  std::vector<NamedSource> sources;
  for (const std::string& part : split_sources(text)) {
    const NamedSource source = parse_source(part);
    REQUIRE(!source.pattern.empty(),
            "--%s: '%s' is no source of a mixture\n  expected %s, with commas between them; the comma of a file name "
            "is written '\\,', and several patterns of one source are '{a,b}'",
            option, part.c_str(), form);
    for (const NamedSource& other : sources)
      REQUIRE(other.name != source.name,
              "--%s: the source %s is named twice\n  give each a name of its own, or make them one: "
              "%s={PATTERN,PATTERN}",
              option, source.name.c_str(), source.name.c_str());
    sources.push_back(source);
  }
  return sources;
}

// Returns where the files end if what is meant as their share follows, as in "web/*.bin@50%", "web/*.bin@5e-1" and
// "web/*.bin:0.5".
size_t end_of_files(const std::string& pattern) {
  const size_t end = std::min(pattern.find_last_of("@:"), pattern.size());
  return pattern.find_first_not_of("0123456789.%+- eEnNaAiIfF", end + 1) == pattern.npos ? end : pattern.size();
}

// Returns a share times 10^kShareDigits.
int64_t whole_share(const NamedSource& source) {
  const size_t point = std::min(source.share.find('.'), source.share.size());
  std::string digits = source.share.substr(0, point),
              fraction = source.share.substr(std::min(point + 1, source.share.size()));
  while (!fraction.empty() && fraction.back() == '0') fraction.pop_back();
  digits.erase(0, std::min(digits.find_first_not_of('0'), digits.size()));
  REQUIRE(int(digits.size()) <= kShareDigits && int(fraction.size()) <= kShareDigits,
          "--train-data: the source %s has the share %s\n  expected at most %d digits before the point, and as many "
          "after it",
          source.name.c_str(), source.share.c_str(), kShareDigits);
  fraction.resize(kShareDigits, '0');
  const int64_t share = std::stoll("0" + digits + fraction);
  REQUIRE(share > 0, "--train-data: the source %s has the share %s\n  expected more than 0: leave the source out",
          source.name.c_str(), source.share.c_str());
  return share;
}

}  // namespace

std::vector<NamedSource> training_sources(const std::string& train_data) {
  std::vector<NamedSource> sources = sources_in(train_data, "train-data", "NAME=FILES@SHARE");
  if (sources[0].name.empty()) return sources;
  std::vector<int64_t> weights;
  for (NamedSource& source : sources) {
    if (source.share.empty()) {
      const size_t end = end_of_files(source.pattern);
      const std::string files = source.pattern.substr(0, end), rest = source.pattern.substr(end);
      fail(
          "--train-data: the source %s has no share%s\n  say in digits which share of the tokens of the training is "
          "from it, as %s=%s@0.25",
          source.name.c_str(), rest.empty() ? "" : (": '" + rest + "' is none").c_str(), source.name.c_str(),
          files.c_str());
    }
    weights.push_back(whole_share(source));
  }
  weights = Mixture::reduced(weights);
  for (size_t i = 0; i < sources.size(); ++i) sources[i].weight = weights[i];
  return sources;
}

std::vector<NamedSource> held_out_sources(const std::string& val_data) {
  std::vector<NamedSource> sources = sources_in(val_data, "val-data", "NAME=FILES");
  for (const NamedSource& source : sources)
    REQUIRE(source.share.empty(),
            "--val-data: the source %s has the share %s\n  each source of held-out data is measured by itself: remove "
            "@%s; the @ of a file name is written '\\@'",
            source.name.c_str(), source.share.c_str(), source.share.c_str());
  return sources;
}

std::vector<std::string> patterns_of(const std::string& data) {
  if (!is_mixture(data)) return {data};
  std::vector<std::string> patterns;
  for (const std::string& part : split_sources(data)) patterns.push_back(parse_source(part).pattern);
  return patterns;
}

std::string text_of(const std::vector<NamedSource>& sources) {
  std::string text;
  for (const auto& [name, pattern, share, _] : sources)
    text += (text.empty() ? "" : ",") + (name.empty() ? pattern : name + "=" + escaped(pattern)) +
            (share.empty() ? "" : "@" + share);
  return text;
}

int64_t tokens_of(const DataSources& sources) {
  return std::accumulate(sources.begin(), sources.end(), int64_t(0),
                         [](int64_t sum, const DataSource& source) { return sum + source.tokens.size(); });
}

bool have_masks(const DataSources& sources) {
  return std::ranges::any_of(sources, [](const DataSource& source) { return source.tokens.has_masks(); });
}

std::string error_prefix(const DataSource& source) { return source.name.empty() ? "" : "source " + source.name + ": "; }

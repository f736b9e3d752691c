#include "llmc/tokenizer/pattern.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>

#include "llmc/base/error.h"
#include "llmc/base/utf8.h"
#include "llmc/tokenizer/file_parts.h"

namespace {

// Returns the step limit of a search. It is many times what a pattern needs to pass over the text once, and it stops an
// exponential search.
uint32_t step_limit(size_t text_bytes) { return uint32_t(std::min<size_t>(10'000'000 + 8 * text_bytes, UINT32_MAX)); }

// A search that takes no more is not counted: their number is limited by the text.
constexpr uint32_t kFreeSteps = 250;
constexpr size_t kStepsOfText = 10'000, kStepsOfByte = 1000;
constexpr size_t kGrowthOfText = 1024, kGrowthOfByte = 16;

constexpr size_t kLongestPattern = 1 << 16;  // bytes
constexpr uint32_t kHeapLimitKiB = 256 << 10;
constexpr size_t kSmallestStack = 32 << 10, kLargestStack = 4 << 20;

std::string message_of(int code) {
  PCRE2_UCHAR text[256];
  pcre2_get_error_message(code, text, sizeof text);
  return reinterpret_cast<const char*>(text);
}

struct Free {
  void operator()(pcre2_code* p) const { pcre2_code_free(p); }
  void operator()(pcre2_match_data* p) const { pcre2_match_data_free(p); }
  void operator()(pcre2_match_context* p) const { pcre2_match_context_free(p); }
  void operator()(pcre2_jit_stack* p) const { pcre2_jit_stack_free(p); }
};
template <class T>
using Owned = std::unique_ptr<T, Free>;

}  // namespace

struct PatternScratch::Memory {
  size_t steps = 0, growth = 0;  // that are left
  // Null until the first search: many scratches see none.
  Owned<pcre2_match_data> match;
  Owned<pcre2_match_context> context;
  Owned<pcre2_jit_stack> stack;

  void create() {
    match.reset(pcre2_match_data_create(1, nullptr));  // for the whole match, no groups
    context.reset(pcre2_match_context_create(nullptr));
    stack.reset(pcre2_jit_stack_create(kSmallestStack, kLargestStack, nullptr));
    REQUIRE(match && context && stack, "PCRE2: no memory for matching");
    pcre2_set_heap_limit(context.get(), kHeapLimitKiB);
    pcre2_jit_stack_assign(context.get(), nullptr, stack.get());
  }
};

PatternScratch::PatternScratch() : memory_(std::make_unique<Memory>()) { begin_text(1 << 20); }
PatternScratch::~PatternScratch() = default;
PatternScratch::PatternScratch(PatternScratch&&) noexcept = default;

void PatternScratch::begin_text(size_t bytes) {
  memory_->steps = kStepsOfText, memory_->growth = kGrowthOfText;
  more_text(bytes);
}

void PatternScratch::more_text(size_t bytes) {
  memory_->steps += kStepsOfByte * bytes, memory_->growth += kGrowthOfByte * bytes;
}

void PatternScratch::grow(size_t bytes, const std::string& name) {
  REQUIRE(bytes <= memory_->growth,
          "%s: the text grows to more than %zu times its length\n  replacements as those of this file would fill the "
          "memory",
          name.c_str(), kGrowthOfByte);
  memory_->growth -= bytes;
}

void PatternScratch::shrink(size_t bytes) { memory_->growth += bytes; }

struct Pattern::Compiled {
  Owned<pcre2_code> code;
};

Pattern::Pattern(const std::string& expression, const std::string& name) : name_(name) {
  int error = 0;
  size_t at = 0;
  pcre2_code* code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(expression.data()), expression.size(),
                                   PCRE2_UTF | PCRE2_UCP, &error, &at, nullptr);
  REQUIRE(code, "%s: PCRE2 does not take the pattern: %s\n  at byte %zu of %s", name.c_str(), message_of(error).c_str(),
          at, beginning(expression).c_str());
  compiled_ = std::make_unique<Compiled>(Compiled{Owned<pcre2_code>(code)});
  // This fails on systems that forbid memory that is both writable and executable. The interpreter then finds the same
  // matches, more slowly.
  pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);
}

Pattern::Pattern(const Json& json) : name_(json.where()) {
  only_keys(json, {"String", "Regex"});
  for (const auto& [key, value] : json.items())
    REQUIRE(!value.is_string() || value.as_string().size() <= kLongestPattern,
            "%s has %zu bytes\n  expected at most %zu", value.where().c_str(), value.as_string().size(),
            kLongestPattern);
  REQUIRE(json.size() == 1, "%s has %zu keys\n  expected \"String\" or \"Regex\"", name_.c_str(), json.size());
  if (json.contains("String")) {
    literal_ = json.get_string("String");
    REQUIRE(!literal_.empty(), "%s is an empty string, which is everywhere", json.at("String").where().c_str());
  } else {
    const std::string name = json.at("Regex").where();
    *this = Pattern(pcre2_expression(json.get_string("Regex"), name), name);
  }
}

Pattern::~Pattern() = default;
Pattern::Pattern(Pattern&&) noexcept = default;
Pattern& Pattern::operator=(Pattern&&) noexcept = default;

std::optional<Pattern::Match> Pattern::find(std::string_view text, size_t from, PatternScratch& scratch) const {
  if (!compiled_) {
    const size_t at = text.find(literal_, from);
    if (at == text.npos) return {};
    return Match{at, at + literal_.size()};
  }
  PatternScratch::Memory& memory = *scratch.memory_;
  if (!memory.stack) memory.create();
  // Without this option, each search would check the whole text for invalid UTF-8.
  uint32_t options = PCRE2_NO_UTF_CHECK;
  const auto match = [&](size_t steps) {
    pcre2_set_match_limit(memory.context.get(), uint32_t(steps));
    return pcre2_match(compiled_->code.get(), reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), from, options,
                       memory.match.get(), memory.context.get());
  };
  // PCRE2 does not say how many steps it took: the limit rises until the search ends within it.
  const size_t most = std::min<size_t>(step_limit(text.size()), memory.steps);
  size_t steps = kFreeSteps;
  int result = match(steps);
  for (bool again = true; again;) {
    again = false;
    if (result == PCRE2_ERROR_JIT_STACKLIMIT) {  // the interpreter keeps its frames on the heap
      options |= PCRE2_NO_JIT;
      again = true;
    } else if (result == PCRE2_ERROR_MATCHLIMIT && steps < most) {
      steps = std::min(4 * steps, most);
      again = true;
    }
    if (again) result = match(steps);
  }
  if (steps > kFreeSteps) memory.steps -= std::min(steps, memory.steps);
  if (result == PCRE2_ERROR_NOMATCH) return {};
  REQUIRE(result >= 0,
          "%s: gave up matching a text of %zu bytes at byte %zu: %s\n"
          "  the pattern goes back over the same text again and again; shorten the text, or write it another way",
          name_.c_str(), text.size(), from, message_of(result).c_str());
  const size_t* span = pcre2_get_ovector_pointer(memory.match.get());
  return Match{span[0], span[1]};
}

void Pattern::replace(std::string& text, const std::string& replacement, PatternScratch& scratch) const {
  std::string replaced;
  size_t done = 0;
  for_each(text, scratch, [&](Match match) {
    const size_t bytes = match.end - match.begin;
    if (replacement.size() > bytes) scratch.grow(replacement.size() - bytes, name_);
    replaced.append(text, done, match.begin - done);
    replaced += replacement;
    done = match.end;
  });
  if (done == 0 && replaced.empty()) return;
  replaced.append(text, done);
  text = std::move(replaced);
}

size_t Pattern::next_character(std::string_view text, size_t at) {
  return at + (at < text.size() ? utf8_start(text.substr(at)).bytes : 1);
}

std::string pattern_unicode_version() {
  char version[64] = "";
  pcre2_config(PCRE2_CONFIG_UNICODE_VERSION, version);
  return version;
}

std::string pattern_library() {
  char version[64] = "";
  pcre2_config(PCRE2_CONFIG_VERSION, version);  // "10.42 2022-12-11"
  return std::string("PCRE2 ") + std::string(version).substr(0, std::string(version).find(' '));
}

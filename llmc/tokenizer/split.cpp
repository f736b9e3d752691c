#include "llmc/tokenizer/split.h"

#include <optional>

#include "llmc/base/error.h"
#include "llmc/tokenizer/file_parts.h"

namespace {

// Says what happens to a delimiter: it is a word of its own, is dropped, is merged into the word before or after it, or
// is merged with adjacent delimiters.
enum class Behavior { kIsolated, kRemoved, kMergedWithPrevious, kMergedWithNext, kContiguous };

Behavior behavior_of(const Json& json) {
  const std::string& name = json.as_string();
  if (name == "Isolated") return Behavior::kIsolated;
  if (name == "Removed") return Behavior::kRemoved;
  if (name == "MergedWithPrevious") return Behavior::kMergedWithPrevious;
  if (name == "MergedWithNext") return Behavior::kMergedWithNext;
  if (name == "Contiguous") return Behavior::kContiguous;
  fail("%s is %s\n  expected Isolated, Removed, MergedWithPrevious, MergedWithNext or Contiguous", json.where().c_str(),
       json.found().c_str());
}

// Receives the spans of a text, which are delimiters and the text between them, and visits the words.
class WordBuilder {
 public:
  WordBuilder(Behavior behavior, TextPart part, const PartVisitor& visit)
      : behavior_(behavior), part_(part), visit_(visit) {}

  void add(size_t begin, size_t end, bool delimiter) {
    if (joins(delimiter)) {
      end_ = end;
    } else {
      flush();
      begin_ = begin, end_ = end;
    }
    was_delimiter_ = delimiter;
    any_ = true;
  }

  void flush() {
    const bool removed = behavior_ == Behavior::kRemoved && was_delimiter_;
    if (begin_ < end_ && !removed) {
      visit_({part_.text.substr(begin_, end_ - begin_), part_.at_start && begin_ == 0});
    }
  }

 private:
  // Returns true if this span extends the open word. There is an open word if any_ is set.
  bool joins(bool delimiter) const {
    if (!any_) return false;
    switch (behavior_) {
      case Behavior::kMergedWithPrevious:
        return delimiter && !was_delimiter_;
      case Behavior::kMergedWithNext:
        return !delimiter && was_delimiter_;
      case Behavior::kContiguous:
        return delimiter == was_delimiter_;
      default:
        return false;
    }
  }

  Behavior behavior_;
  TextPart part_;
  const PartVisitor& visit_;
  size_t begin_ = 0, end_ = 0;
  bool was_delimiter_ = false, any_ = false;
};

void split_at(const Pattern& pattern, Behavior behavior, bool invert, TextPart part, PatternScratch& scratch,
              const PartVisitor& visit) {
  WordBuilder words(behavior, part, visit);
  size_t done = 0;
  pattern.for_each(part.text, scratch, [&](Pattern::Match match) {
    if (done < match.begin) words.add(done, match.begin, invert);
    words.add(match.begin, match.end, !invert);
    done = match.end;
  });
  if (done < part.text.size()) words.add(done, part.text.size(), invert);
  words.flush();
}

// True for the expressions of Llama 3 and Qwen 2, which differ only in the length of numbers. The first alternatives
// that can match a newline are ` ?[^\s\p{L}\p{N}]+[\r\n]*` and `\s*[\r\n]+`. Both take all newlines that follow and no
// character after them.
bool is_words_of_llama3_or_qwen2(const Json& pattern) {
  const Json* regex = pattern.find("Regex");
  for (const char* numbers : {"{1,3}", ""})
    if (regex && regex->is_string() &&
        regex->as_string() == R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N})" + std::string(numbers) +
                                  R"(| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)")
      return true;
  return false;
}

class Split : public Splitter {
 public:
  explicit Split(const Json& json)
      : pattern_(json.at("pattern")),
        behavior_(behavior_of(json.at("behavior"))),
        invert_(json.get_bool("invert", false)) {
    only_keys(json, {"type", "pattern", "behavior", "invert"});
    // Matches cover all of a text, so that it is the same to drop what is between them (OLMo 2).
    const bool keeps_matches = behavior_ == (invert_ ? Behavior::kRemoved : Behavior::kIsolated);
    if (keeps_matches && is_words_of_llama3_or_qwen2(json.at("pattern"))) newline_ = Newline::kEndsWord;
  }
  Newline newline() const override { return newline_; }
  void split(TextPart part, PatternScratch& scratch, const PartVisitor& visit) const override {
    split_at(pattern_, behavior_, invert_, part, scratch, visit);
  }

 private:
  Pattern pattern_;
  Behavior behavior_;
  bool invert_;
  Newline newline_ = Newline::kUnknown;
};

// Makes each number a word of its own, or each character of a number.
class Digits : public Splitter {
 public:
  explicit Digits(const Json& json)
      : pattern_("\\p{N}", json.where()),
        behavior_(json.get_bool("individual_digits", false) ? Behavior::kIsolated : Behavior::kContiguous) {
    only_keys(json, {"type", "individual_digits"});
  }
  Newline newline() const override { return Newline::kAnyWord; }
  void split(TextPart part, PatternScratch& scratch, const PartVisitor& visit) const override {
    split_at(pattern_, behavior_, false, part, scratch, visit);
  }

 private:
  Pattern pattern_;
  Behavior behavior_;
};

constexpr char kGpt2Words[] = R"('(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

// The alphabet itself is applied when a word is looked up.
class ByteLevel : public Splitter {
 public:
  explicit ByteLevel(const Json& json) : prefix_space_(json.get_bool("add_prefix_space")) {
    only_keys(json, {"type", "add_prefix_space", "trim_offsets", "use_regex"});
    const std::string name = json.where();
    if (json.get_bool("use_regex", true)) pattern_.emplace(pcre2_expression(kGpt2Words, name), name);
  }
  Newline newline() const override {
    if (prefix_space_) return Newline::kUnknown;
    return pattern_ ? Newline::kOwnWord : Newline::kAnyWord;
  }
  void split(TextPart part, PatternScratch& scratch, const PartVisitor& visit) const override {
    std::string with_space;
    if (prefix_space_ && part.text[0] != ' ') {
      scratch.grow(1, "pre_tokenizer: ByteLevel");
      part.text = with_space = " " + std::string(part.text);
    }
    if (pattern_) {
      split_at(*pattern_, Behavior::kIsolated, false, part, scratch, visit);
    } else {
      visit(part);
    }
  }

 private:
  bool prefix_space_;
  std::optional<Pattern> pattern_;
};

// Replaces spaces by a visible character, which begins each word.
class Metaspace : public Splitter {
 public:
  explicit Metaspace(const Json& json)
      : replacement_(one_character(json, "replacement")),
        scheme_(json.get_string("prepend_scheme", "always")),
        split_(json.get_bool("split", true)),
        space_(Json::object().set("String", " ")),
        delimiter_(Json::object().set("String", replacement_)) {
    only_keys(json, {"type", "replacement", "prepend_scheme", "split", "add_prefix_space", "str_rep"});
    REQUIRE(scheme_ == "always" || scheme_ == "first" || scheme_ == "never",
            "%s is \"%s\"\n  expected always, first or never", json.at("prepend_scheme").where().c_str(),
            scheme_.c_str());
    REQUIRE(scheme_ == "never" || json.get_bool("add_prefix_space", true),
            "%s: \"add_prefix_space\" is false and \"prepend_scheme\" is \"%s\"\n  say \"never\" if that is meant",
            json.where().c_str(), scheme_.c_str());
  }

  void split(TextPart part, PatternScratch& scratch, const PartVisitor& visit) const override {
    std::string text(part.text);
    space_.replace(text, replacement_, scratch);
    const bool prepend = scheme_ == "always" || (scheme_ == "first" && part.at_start);
    if (prepend && !text.starts_with(replacement_)) {
      scratch.grow(replacement_.size(), "pre_tokenizer: Metaspace");
      text.insert(0, replacement_);
    }
    part.text = text;
    if (split_) {
      split_at(delimiter_, Behavior::kMergedWithNext, false, part, scratch, visit);
    } else {
      visit(part);
    }
  }

 private:
  std::string replacement_, scheme_;
  bool split_;
  Pattern space_, delimiter_;
};

}  // namespace

PreTokenizer::PreTokenizer(const Json* json) {
  if (json && !json->is_null()) add(*json);
}

void PreTokenizer::add(const Json& json) {
  REQUIRE(!byte_level_, "%s stands after ByteLevel, which is not supported\n  ByteLevel must be the last",
          json.where().c_str());
  require_few_steps(json, steps_.size());
  const std::string& type = json.get_string("type");
  if (type == "Sequence") {
    only_keys(json, {"type", "pretokenizers"});
    for (const Json& step : json.at("pretokenizers").elements()) add(step);
  } else if (type == "Split") {
    steps_.push_back(std::make_unique<Split>(json));
  } else if (type == "Digits") {
    steps_.push_back(std::make_unique<Digits>(json));
  } else if (type == "ByteLevel") {
    steps_.push_back(std::make_unique<ByteLevel>(json));
    byte_level_ = true;
  } else if (type == "Metaspace") {
    steps_.push_back(std::make_unique<Metaspace>(json));
  } else {
    refuse_type(json, "Sequence, Split, Digits, ByteLevel, Metaspace");
  }
}

Newline PreTokenizer::newline() const {
  Newline all = Newline::kAnyWord;
  for (const auto& step : steps_) {
    if (step->newline() == Newline::kAnyWord) continue;
    if (all != Newline::kAnyWord) return Newline::kUnknown;
    all = step->newline();
  }
  return all == Newline::kAnyWord ? Newline::kUnknown : all;
}

void PreTokenizer::split_from(size_t step, TextPart part, PatternScratch& scratch, const PartVisitor& visit) const {
  if (step == steps_.size()) return visit(part);
  if (step + 1 == steps_.size()) return steps_[step]->split(part, scratch, visit);
  steps_[step]->split(part, scratch, [&](TextPart next) { split_from(step + 1, next, scratch, visit); });
}

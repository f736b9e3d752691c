// tokenizer.json files whose steps are put together by chance, and what reads them: for fuzz_readers.cpp.
#pragma once

#include <stdexcept>
#include <string>
#include <vector>

#include "dev/test/fuzz_document.h"
#include "dev/test/token_files.h"
#include "llmc/tokenizer/tokenizer.h"

namespace fuzz {

// An expression by chance: of a few characters and sets, with groups, alternatives and repeats in one another, as those
// whose search takes exponential time.
inline std::string some_expression(Chance& chance, int depth = 4) {
  static const std::vector<std::string> atoms = {"a",      "b",   "c",       "aa",     " ",      ".",      "\\s",
                                                 "\\S",    "\\d", "[ab]",    "[^b]",   "[^\\s]", "\\p{L}", "\\P{L}",
                                                 "\\p{N}", "\\n", "\\x{e9}", "(?i:s)", "$",      ""};
  static const std::vector<std::string> repeats = {"*",  "+",   "?",      "*?",   "+?",
                                                   "*+", "{2}", "{1,20}", "{0,}", "{3,1000}"};
  static const std::vector<std::string> groups = {"(?:", "(?=", "(?!", "(?>", "(?<=", "(?<!", "("};
  static const std::vector<std::string> wrong = {"[",        ")",     "(",           "\\",      "\\p{",  "^", "\\w",
                                                 "a{99999}", "[z-a]", "\\x{110000}", "\\ud800", "(?<n>", "*"};
  if (depth == 0) return chance.one_in(60) ? chance.of(wrong) : chance.of(atoms);
  std::string text;
  for (size_t parts = 1 + chance.below(3); parts > 0; --parts) {
    const bool grouped = chance.one_in(2);
    std::string part = some_expression(chance, depth - 1);
    if (grouped) part = chance.of(groups) + part + ")";
    if (chance.one_in(2) && !part.empty()) part += chance.of(repeats);
    text += part + (parts > 1 && chance.one_in(3) ? "|" : "");
  }
  return text;
}

inline std::string some_pattern(Chance& chance) {
  if (chance.one_in(3)) return R"({"String":)" + (chance.one_in(3) ? odd_string(chance) : R"("a")") + "}";
  if (!chance.one_in(20)) return R"({"Regex":)" + json_string(some_expression(chance)) + "}";
  static const std::vector<std::string> parts = {"(", "(?:a|", "a?", "[a", "{", "\\p{L}"};
  const std::string& part = chance.of(parts);
  std::string expression;
  for (const size_t size = size_t(64) << chance.below(11); expression.size() < size;) expression += part;
  return R"({"Regex":)" + json_string(expression) + "}";
}

// A text that replaces others: often longer than they are.
inline std::string some_content(Chance& chance) {
  return chance.one_in(3) ? odd_string(chance) : "\"" + std::string(chance.below(4), 'a') + "\"";
}

inline std::string sequence_of(const char* list, Chance& chance, std::string (*step)(Chance&)) {
  static const std::vector<size_t> counts = {0, 1, 2, 3, 5, 31, 32, 33, 1000};
  const std::string first = step(chance);
  std::string steps;
  for (size_t i = chance.of(counts); i > 0; --i)
    steps += (steps.empty() ? "" : ",") + (chance.one_in(2) ? first : step(chance));
  return format(R"({"type":"Sequence","%s":[)", list) + steps + "]}";
}

inline std::string some_replace(Chance& chance) {
  return R"({"type":"Replace","pattern":)" + some_pattern(chance) + R"(,"content":)" + some_content(chance) + "}";
}

inline std::string some_metaspace(Chance& chance) {
  static const std::vector<std::string> marks = {"_", "a", " ", "\xe2\x96\x81"}, schemes = {"always", "first", "never"};
  return R"({"type":"Metaspace","replacement":")" + chance.of(marks) + R"(","prepend_scheme":")" + chance.of(schemes) +
         (chance.one_in(2) ? R"(","split":true})" : R"(","split":false})");
}

inline std::string some_normalizer(Chance& chance) {
  static const std::vector<std::string> types = {"NFC", "NFD", "NFKC", "NFKD", "Lowercase"};
  if (chance.one_in(3)) return R"({"type":")" + chance.of(types) + "\"}";
  return chance.one_in(3) ? R"({"type":"Prepend","prepend":)" + some_content(chance) + "}" : some_replace(chance);
}

inline std::string some_splitter(Chance& chance) {
  static const std::vector<std::string> behaviors = {"Isolated", "Removed", "MergedWithPrevious", "MergedWithNext",
                                                     "Contiguous"};
  const size_t kind = chance.below(8);
  if (kind == 0) return R"({"type":"Digits","individual_digits":true})";
  if (kind == 1) return R"({"type":"ByteLevel","add_prefix_space":true,"use_regex":true})";
  if (kind < 4) return some_metaspace(chance);
  return R"({"type":"Split","pattern":)" + some_pattern(chance) + R"(,"behavior":")" + chance.of(behaviors) +
         (chance.one_in(2) ? R"(","invert":true})" : R"("})");
}

inline std::string some_decoder(Chance& chance) {
  static const std::vector<std::string> others = {
      R"({"type":"Fuse"})",
      R"({"type":"ByteFallback"})",
      R"({"type":"ByteLevel"})",
      R"({"type":"Strip","content":"a","start":0,"stop":256})",
      R"({"type":"Strip","content":" ","start":1,"stop":0})",
      R"({"type":"Strip","content":"a","start":-1,"stop":9223372036854775807})"};
  const size_t kind = chance.below(4);
  return kind == 0 ? some_metaspace(chance) : kind == 1 ? chance.of(others) : some_replace(chance);
}

// A sound file with every part.
inline const Document& sound_tokenizer() {
  static const Document sound(parsed(R"({"version":"1.0","truncation":null,"padding":null,
    "added_tokens":[
      {"id":9,"content":"<s>","special":true,"single_word":false,"lstrip":true,"rstrip":true,"normalized":false},
      {"id":10,"content":"aaa","special":false,"single_word":true,"lstrip":false,"rstrip":false,"normalized":true},
      {"id":2,"content":" ","special":false,"single_word":false,"lstrip":true,"rstrip":true,"normalized":false}],
    "normalizer":{"type":"Sequence","normalizers":[{"type":"NFKC"},{"type":"Prepend","prepend":"_"},
      {"type":"Replace","pattern":{"String":" "},"content":"_"}]},
    "pre_tokenizer":{"type":"Sequence","pretokenizers":[
      {"type":"Split","pattern":{"Regex":"a+|b"},"behavior":"Isolated","invert":false},
      {"type":"Digits","individual_digits":true},
      {"type":"Metaspace","replacement":"_","prepend_scheme":"first","split":true}]},
    "post_processor":{"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"<s>"}},{"Sequence":{"id":"A"}}],
      "special_tokens":{"<s>":{"ids":[9]}}},
    "decoder":{"type":"Sequence","decoders":[{"type":"Replace","pattern":{"String":"_"},"content":" "},
      {"type":"ByteFallback"},{"type":"Fuse"},{"type":"Strip","content":" ","start":1,"stop":0}]},
    "model":{"type":"BPE","dropout":null,"unk_token":"?","continuing_subword_prefix":"","end_of_word_suffix":"",
      "fuse_unk":true,"byte_fallback":true,"ignore_merges":false,
      "vocab":{"a":0,"b":1," ":2,"ab":3,"aab":4,"_":5,"?":6,"aa":7,"<0x61>":8},"merges":["a b",["a","ab"],"a a"]}})"));
  return sound;
}

inline void make_tokenizer(Chance& chance, const std::string& folder) {
  static const std::string samples = "dev/test/tokenizers/";
  static const std::vector<Document> real = {Json::read(samples + "llama3.json"), Json::read(samples + "llama2.json")};
  static const std::vector<std::string> words = {
      R"("a b")",
      R"("ab a")",
      R"(" a")",
      R"("a ")",
      R"(["","a"])",
      R"(["a",""])",
      R"("a a")",
      R"("#version")",
      "\"Removed\"",
      "\"Contiguous\"",
      "16777215",
      "16777216",
      "\"<0x61>\"",
      "\"ab\"",
      R"({"a":0,"":1,"b":2,"ab":3})",
      R"({"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"a"}},{"Sequence":{"id":"A"}}],"special_tokens":{"a":{"ids":[0]}}})"};
  const bool composed = chance.one_in(2);
  Document document = composed || !chance.one_in(5) ? sound_tokenizer() : chance.of(real);
  for (auto& [key, part] : document.children) {
    if (!composed || chance.one_in(2)) continue;
    if (key == "\"normalizer\"") part = Document(sequence_of("normalizers", chance, some_normalizer));
    if (key == "\"pre_tokenizer\"") part = Document(sequence_of("pretokenizers", chance, some_splitter));
    if (key == "\"decoder\"") part = Document(sequence_of("decoders", chance, some_decoder));
  }
  const std::string text = document.written();
  const bool as_it_is = composed && !chance.one_in(4) && text.size() < 1'000'000;
  write_file(folder + "/tokenizer.json", as_it_is ? text : changed_text(document, words, chance));
}

inline std::vector<std::string> texts() {
  std::vector<std::string> all = {"",
                                  "a",
                                  "Hello world's 123",
                                  std::string(4000, 'a'),
                                  std::string(2000, ' '),
                                  "a\n\n b\r\n\xc3\xa9\xe4\xb8\xad\xf0\x9f\x91\x8d \x80\xff",
                                  "<s> aaa <|begin_of_text|>aaab",
                                  "a\xcc\x81\xcc\xa3\n\xcc\x81 \xef\xb7\xba\xe1\x84\x80\xe1\x85\xa1\xc4\xb0"};
  for (const char* part : {"aaaaaaaaaaaaaaaaaaaaaaac ", " a b", "aa<s>", "1a\n", "\xcc\x81\xcc\xa3", "\xef\xb7\xba"}) {
    std::string& text = all.emplace_back();
    while (text.size() < 3000) text += part;
  }
  return all;
}

inline void read_tokenizer(const std::string& folder) {
  const Tokenizer tokenizer = Tokenizer::open(folder);
  TextEncoder encoder(tokenizer);
  std::string refused;  // one text may be refused, and the next one not
  for (const std::string& text : texts()) {
    try {
      const std::vector<int32_t> ids = encoder.encode(text, true);
      StreamingDecoder decoder(tokenizer, false);
      std::string streamed;
      for (const int32_t id : ids) streamed += decoder.take(id);
      if (streamed + decoder.finish() != tokenizer.decode(ids, false)) throw std::logic_error("streamed otherwise");
      for (size_t at = 0; at < text.size();) at = tokenizer.next_cut(text, at);
    } catch (const Error& error) {
      refused = error.what();
    }
  }
  for (int32_t id = 0; id < std::min(tokenizer.vocabulary_size(), 2000); ++id) tokenizer.bytes_of(id);
  if (!refused.empty()) throw Error(refused);
}

}  // namespace fuzz

// The tokenizer on files, for comparison with another program's:
//
//   tokenize encode TOKENIZER DOCUMENTS IDS [special]   with "special" the begin and end tokens too
//   tokenize parts TOKENIZER DOCUMENTS IDS              with special tokens as letters, cut wherever a text can be cut
//   tokenize decode TOKENIZER IDS DOCUMENTS [skip]      with "skip" without special tokens
//   tokenize stream TOKENIZER IDS DOCUMENTS [skip]      the same, token by token
//   tokenize unassigned                                 the code points that the linked PCRE2 does not know, a line each
//
// DOCUMENTS holds bytes, IDS int32; in both each document is preceded by its number of elements (uint32).
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "llmc/base/clock.h"
#include "llmc/base/error.h"
#include "llmc/base/mapped_file.h"
#include "llmc/base/new_file.h"
#include "llmc/base/utf8.h"
#include "llmc/tokenizer/pattern.h"
#include "llmc/tokenizer/tokenizer.h"

namespace {

template <class T>
std::vector<std::vector<T>> read(const std::string& path) {
  const MappedFile file(path);
  std::vector<std::vector<T>> documents;
  for (size_t at = 0; at < file.size();) {
    uint32_t count = 0;
    REQUIRE(file.size() - at >= 4, "%s ends within a count", path.c_str());
    std::memcpy(&count, file.data() + at, 4);
    at += 4;
    REQUIRE((file.size() - at) / sizeof(T) >= count, "%s ends within a document", path.c_str());
    documents.emplace_back(count);
    std::memcpy(documents.back().data(), file.data() + at, count * sizeof(T));
    at += count * sizeof(T);
  }
  return documents;
}

template <class Documents>
void write(const std::string& path, const Documents& documents) {
  NewFile file(path);
  for (const auto& document : documents) {
    const auto count = uint32_t(document.size());
    file.write(&count, 4);
    file.write(document.data(), count * sizeof document[0]);
  }
  file.publish();
}

void encode(const Tokenizer& tokenizer, const std::string& from, const std::string& to, bool special) {
  const std::vector<std::vector<char>> documents = read<char>(from);
  std::vector<std::vector<int32_t>> ids;
  size_t bytes = 0;
  const double begin = seconds();
  TextEncoder encoder(tokenizer);
  for (const std::vector<char>& document : documents) {
    ids.push_back(encoder.encode({document.data(), document.size()}, special));
    bytes += document.size();
  }
  printf("seconds %.6f bytes %zu\n", seconds() - begin, bytes);
  write(to, ids);
}

void encode_parts(const Tokenizer& tokenizer, const std::string& from, const std::string& to) {
  std::vector<std::vector<int32_t>> ids;
  TextEncoder encoder(tokenizer, true);
  size_t parts = 0;
  for (const std::vector<char>& document : read<char>(from)) {
    ids.emplace_back();
    for (std::string_view left(document.data(), document.size()); !left.empty(); ++parts) {
      const size_t bytes = tokenizer.next_cut(left, 0);
      encoder.encode(left.substr(0, bytes), false, ids.back());
      left.remove_prefix(bytes);
    }
  }
  printf("parts %zu\n", parts);
  write(to, ids);
}

void decode(const Tokenizer& tokenizer, const std::string& from, const std::string& to, bool streaming, bool skip) {
  std::vector<std::string> documents;
  StreamingDecoder decoder(tokenizer, skip);
  for (const std::vector<int32_t>& ids : read<int32_t>(from)) {
    std::string text;
    for (int32_t id : streaming ? ids : std::vector<int32_t>()) text += decoder.take(id);
    documents.push_back(streaming ? text + decoder.finish() : tokenizer.decode(ids, skip));
  }
  write(to, documents);
}

void unassigned() {
  const Pattern pattern("\\p{Cn}", "unassigned");
  PatternScratch scratch;
  for (char32_t c = 0; c < 0x110000; ++c) {
    if (c >= 0xd800 && c < 0xe000) continue;
    std::string text;
    append_utf8(text, c);
    if (pattern.find(text, 0, scratch)) printf("%x\n", unsigned(c));
  }
}

int run(const std::vector<std::string>& words) {
  const std::string verb = words.empty() ? "" : words[0];
  if (verb == "unassigned") return unassigned(), 0;
  REQUIRE(words.size() >= 4, "usage: tokenize encode|parts|decode|stream TOKENIZER FROM TO [special|skip]");
  const double begin = seconds();
  const Tokenizer tokenizer = Tokenizer::open(words[1]);
  const bool flag = words.size() > 4;
  printf("opened %.6f\n", seconds() - begin);
  if (verb == "encode") {
    encode(tokenizer, words[2], words[3], flag);
  } else if (verb == "parts") {
    encode_parts(tokenizer, words[2], words[3]);
  } else {
    decode(tokenizer, words[2], words[3], verb == "stream", flag);
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(std::vector<std::string>(argv + 1, argv + argc));
  } catch (const Error& error) {
    fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}

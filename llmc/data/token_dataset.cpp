#include "llmc/data/token_dataset.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <filesystem>

#include "llmc/base/error.h"
#include "llmc/base/foreign_file.h"
#include "llmc/base/text.h"
#include "llmc/data/vocabulary.h"

static_assert(std::endian::native == std::endian::little, "shards are little-endian and are read as they are");

namespace {

constexpr size_t kHeaderBytes = 1024;
// If a dataset has more files, each is open only while it is read: on most machines a process may have 1024 open files.
constexpr size_t kMostOpenFiles = 256;
constexpr int64_t kCheckedTogether = 1 << 18;  // tokens: their buffer stays in the cache
constexpr int32_t kMagic16 = 20240520, kVersion16 = 1;
constexpr int32_t kMagic32 = 20240801, kVersion32 = 7;
constexpr int32_t kMagicMask = 20241121, kVersionMask = 1;

// Returns NAME.mask for NAME.bin.
std::string mask_path(const std::string& path) { return path.substr(0, path.size() - 4) + ".mask"; }

bool ends_with_bin(const std::string& path) { return path.ends_with(".bin"); }

// The first bytes of a file; 0 beyond its end.
struct Header {
  int32_t magic, version, tokens;
  int32_t masked;  // dev/data: 1 if a mask belongs to the shard
  unsigned char rest[kHeaderBytes - 16];
};

Header read_header(const InputFile& file) {
  Header header = {};
  file.read(0, std::min(file.size(), kHeaderBytes), &header);
  return header;
}

// True for printable ASCII, white space and bytes of UTF-8 only. A header never looks like that: its unused words are
// zero.
bool looks_like_text(const InputFile& file, const Header& header) {
  const auto* bytes = reinterpret_cast<const unsigned char*>(&header);
  return std::all_of(bytes, bytes + std::min(file.size(), kHeaderBytes),
                     [](unsigned char c) { return c >= 32 ? c != 127 : (c >= '\t' && c <= '\r'); });
}

constexpr int kLastOfGpt2 = 50256;  // its end-of-text token

// Returns the largest token of the first 1024 bytes of a file that has uint16 tokens and no header, as nanoGPT writes
// it; -1 if it is no such file. Most words of a header are zero, and few tokens of a text are. nanoGPT's tokens are
// GPT-2's, or fewer. In a file of uint32 tokens each second word is the high half of a token, which is 0 or 1.
int largest_raw_token(const InputFile& file, const Header& header) {
  const auto* tokens = reinterpret_cast<const uint16_t*>(&header);
  const size_t count = sizeof header / 2;
  const auto swapped = int32_t(__builtin_bswap32(uint32_t(header.magic)));
  if (swapped == kMagic16 || swapped == kMagic32 || looks_like_text(file, header) || file.size() % 2) return -1;
  if (size_t(std::count(tokens, tokens + count, 0)) > count / 2) return -1;
  bool halves = true;
  for (size_t i = 1; i < count; i += 2) halves = halves && tokens[i] <= 1;
  const int largest = *std::max_element(tokens, tokens + count);
  return halves || largest > kLastOfGpt2 ? -1 : largest;
}

// Throws if the tokens of a file without a header cannot be those of the model.
void require_raw_tokens(const InputFile& file, int largest, int vocab_size) {
  const std::string& path = file.path();
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  std::error_code error;
  REQUIRE(!std::filesystem::exists(folder / "meta.pkl", error),
          "shard %s has no header: it is nanoGPT's, and meta.pkl next to it says that its tokens are numbers of "
          "characters, which no tokenizer here knows\n  train on the text itself: --train-data %s",
          path.c_str(), (folder / "input.txt").c_str());
  REQUIRE(largest < vocab_size,
          "shard %s has no header: uint16 tokens, as nanoGPT writes them, would be up to %d in its first 1024 bytes, "
          "and the model has %d\n  name a model of that vocabulary, GPT-2's as a rule: --vocab-size 50304 with random "
          "weights, and --tokenizer DIR; if the file is none of nanoGPT's, write it with dev/data/prepare",
          path.c_str(), largest, vocab_size);
}

[[noreturn]] void fail_magic(const InputFile& file, const Header& header) {
  const int32_t magic = header.magic;
  const auto expected = format("expected %d (uint16 tokens) or %d (uint32 tokens)", kMagic16, kMagic32);
  const int32_t swapped = int32_t(__builtin_bswap32(uint32_t(magic)));
  if (swapped == kMagic16 || swapped == kMagic32)
    fail("shard %s: magic %d is %d with its bytes swapped\n  %s: the shard is big-endian; write it again little-endian",
         file.path().c_str(), magic, swapped, expected.c_str());
  if (looks_like_text(file, header))
    fail("shard %s: magic %d, and the file looks like plain text\n  %s: rename it to .txt to train on its bytes",
         file.path().c_str(), magic, expected.c_str());
  const std::string foreign = foreign_file({reinterpret_cast<const char*>(&header), sizeof header});
  fail("shard %s: wrong magic %d\n  %s: %s", file.path().c_str(), magic, expected.c_str(),
       foreign.empty() ? "this is no shard; dev/data/prepare writes shards of text" : foreign.c_str());
}

// Calls f with the shard's tokens as a pointer to their own type.
template <class F>
void with_tokens(const std::byte* first, int token_bytes, F&& f) {
  if (token_bytes == 1) f(reinterpret_cast<const uint8_t*>(first));
  if (token_bytes == 2) f(reinterpret_cast<const uint16_t*>(first));
  if (token_bytes == 4) f(reinterpret_cast<const uint32_t*>(first));
}

// Returns the index of the first token that is not below `limit`, or `count`. Each block of a fixed length is reduced
// to its largest token without a branch. The compiler vectorizes this even at -O2, so that the scan runs at the speed
// of the memory.
template <class Token>
int64_t find_not_below(const Token* tokens, int64_t count, uint32_t limit) {
  constexpr int64_t kBlock = 4096;
  int64_t start = 0;
  for (; start + kBlock <= count; start += kBlock) {
    Token largest = 0;
    for (int64_t i = 0; i < kBlock; i++) largest = std::max(largest, tokens[start + i]);
    if (largest >= limit) break;
  }
  return std::find_if(tokens + start, tokens + count, [limit](Token token) { return token >= limit; }) - tokens;
}

// Returns what may be meant by a name that matches no file: "; …", or "".
std::string hint_about_name(const std::string& name) {
  constexpr const char* kPrepared[] = {"tinyshakespeare", "tinystories", "fineweb-edu"};  // names that dev/data knows
  const bool prepared = std::count(std::begin(kPrepared), std::end(kPrepared), name) > 0;
  if (prepared || !download_command(name).empty())
    return format("; %s: dev/data/prepare %s --tokenizer MODEL --out data/NAME, then --train-data data/NAME",
                  prepared ? "dev/data knows this data set, and makes shards of it"
                           : "if it is a data set of the Hugging Face hub, fetch it first",
                  name.c_str());
  if (name.find('@') != name.npos)
    return "; the sources of a mixture are NAME=FILES@SHARE, with commas between them, and a name has no spaces";
  return name.find(',') == name.npos ? "" : format("; several files are one pattern: '{%s}'", name.c_str());
}

}  // namespace

TokenDataset::File TokenDataset::open_bin(std::shared_ptr<InputFile> file, int vocab_size) {
  const char* path = file->path().c_str();
  const Header header = read_header(*file);
  if (file->size() < kHeaderBytes && looks_like_text(*file, header))
    fail(
        "shard %s: %zu bytes of what looks like plain text\n  expected a header of %zu bytes: rename it to .txt to "
        "train on its bytes",
        path, file->size(), kHeaderBytes);
  REQUIRE(
      file->size() >= kHeaderBytes,
      "shard %s: the file has %zu bytes\n  expected a header of %zu bytes and tokens: the copy was cut short; fetch it "
      "again",
      path, file->size(), kHeaderBytes);
  const int32_t magic = header.magic, version = header.version, tokens = header.tokens;
  if (magic != kMagic16 && magic != kMagic32) {
    const int largest = largest_raw_token(*file, header);
    if (largest < 0) fail_magic(*file, header);
    require_raw_tokens(*file, largest, vocab_size);
    const auto raw = int64_t(file->size() / 2);
    return {std::move(file), 0, 2, raw};
  }

  const int known_version = magic == kMagic16 ? kVersion16 : kVersion32;
  REQUIRE(version == known_version,
          "shard %s: magic %d with version %d\n  expected version %d: written by another version of the data scripts; "
          "write it again with llm.c's",
          path, magic, version, known_version);
  REQUIRE(tokens > 0, "shard %s: header says %d tokens\n  expected at least 1: write the shard again", path, tokens);

  const int token_bytes = magic == kMagic16 ? 2 : 4;
  const size_t found = file->size(), expected = kHeaderBytes + size_t(tokens) * size_t(token_bytes);
  if (found != expected)
    fail("shard %s: header says %d tokens, file holds %zu\n  expected %zu bytes, found %zu: %s", path, tokens,
         (found - kHeaderBytes) / size_t(token_bytes), expected, found,
         found < expected ? "the copy was cut short; fetch it again"
                          : "the file is longer than its header says; write or fetch it again");
  REQUIRE(!header.masked || std::filesystem::exists(mask_path(file->path())),
          "shard %s was written with a mask, and %s is not there: every token would be learnt\n  fetch the .mask files "
          "too, or write the shards again",
          path, mask_path(file->path()).c_str());
  return {std::move(file), kHeaderBytes, token_bytes, tokens};
}

void TokenDataset::open_mask(File& shard, const std::string& path) {
  auto file = std::make_shared<InputFile>(path);
  const Header header = read_header(*file);
  const int32_t magic = header.magic, version = header.version, tokens = header.tokens;
  REQUIRE(file->size() >= kHeaderBytes && magic == kMagicMask && version == kVersionMask,
          "mask %s: %zu bytes, magic %d, version %d\n  expected a header of %zu bytes with magic %d, version %d: write "
          "it again with dev/data, or move it away to learn every token",
          path.c_str(), file->size(), magic, version, kHeaderBytes, kMagicMask, kVersionMask);
  REQUIRE(tokens == shard.tokens && file->size() == kHeaderBytes + size_t(shard.tokens),
          "mask %s: header says %d tokens, file holds %zu\n  expected %lld, as %s has: they were not written together",
          path.c_str(), tokens, file->size() - kHeaderBytes, (long long)shard.tokens, shard.file->path().c_str());
  shard.mask = std::move(file);
}

void TokenDataset::read_checked_mask(const File& shard, int64_t start, int64_t count, uint8_t* out) {
  shard.mask->read(kHeaderBytes + size_t(shard.first + start), size_t(count), out);
  const int64_t at = find_not_below(out, count, 2);
  REQUIRE(at == count, "mask %s: token %lld has the byte %d\n  expected 1 (learnt) or 0", shard.mask->path().c_str(),
          (long long)(shard.first + start + at), out[at]);
}

void TokenDataset::fail_token(const File& shard, int64_t at, int64_t token) const {
  const std::string& path = shard.file->path();
  fail_beyond_vocabulary(
      format("%s %s: token %lld", is_text_ ? "text" : "shard", path.c_str(), (long long)(shard.first + at)), token,
      vocab_size_, vocabulary_of_shard(path, shard.token_bytes, token));
}

// Reads tokens [start, start+count), checks all of them, and only then calls f with them: f may use each as an index.
template <class F>
void TokenDataset::with_checked_tokens(const File& shard, int64_t start, int64_t count, F&& f) const {
  std::vector<std::byte> bytes(size_t(count) * size_t(shard.token_bytes));
  shard.file->read(shard.header_bytes + size_t(shard.first + start) * size_t(shard.token_bytes), bytes.size(),
                   bytes.data());
  with_tokens(bytes.data(), shard.token_bytes, [&](const auto* tokens) {
    const int64_t at = find_not_below(tokens, count, uint32_t(vocab_size_));
    if (at < count) fail_token(shard, start + at, tokens[at]);
    f(tokens);
  });
}

std::string TokenDataset::where(int64_t start, int64_t count) const {
  REQUIRE(start >= 0 && start < size(), "token %lld of %lld", (long long)start, (long long)size());
  std::string text;
  for (int64_t n; count > 0; count -= n, start = (start + n) % size()) {
    const auto next = std::upper_bound(begins_.begin(), begins_.end(), start);
    const File& shard = shards_[size_t(next - begins_.begin()) - 1];
    n = std::min(count, *next - start);
    const int64_t first = shard.first + shard.tokens - (*next - start);
    text += (text.empty() ? "" : ", ") +
            (n == 1 ? format("token %lld", (long long)first)
                    : format("tokens %lld to %lld", (long long)first, (long long)(first + n - 1))) +
            " of " + shard.file->path();
  }
  return text;
}

void TokenDataset::add(File shard) {
  begins_.push_back(begins_.back() + shard.tokens);
  shards_.push_back(std::move(shard));
}

TokenDataset TokenDataset::open(const std::string& pattern, int vocab_size) {
  REQUIRE(vocab_size >= 1, "cannot open '%s' for a vocabulary of %d tokens\n  expected at least 1", pattern.c_str(),
          vocab_size);
  const std::vector<std::string> paths = glob(pattern);
  REQUIRE(!paths.empty(),
          "no data: nothing matches '%s'\n  expected at least one file: check the path, and quote a pattern "
          "('data/*.bin')%s",
          pattern.c_str(), hint_about_name(pattern).c_str());

  TokenDataset data;
  data.vocab_size_ = vocab_size;
  data.is_text_ = !ends_with_bin(paths[0]);
  const auto masked = [&](const std::string& path) {
    return !data.is_text_ && std::filesystem::exists(mask_path(path));
  };
  const bool first_masked = masked(paths[0]);
  for (const std::string& path : paths) {
    REQUIRE(ends_with_bin(path) == !data.is_text_,
            "'%s' matches shards and text: %s and %s\n  expected only .bin files or none: their tokens mean different "
            "things; name one kind ('*.bin')",
            pattern.c_str(), paths[0].c_str(), path.c_str());
    auto file = std::make_shared<InputFile>(path);
    File shard = data.is_text_ ? File{file, 0, 1, int64_t(file->size())} : open_bin(file, vocab_size);
    const bool has_mask = masked(path);
    REQUIRE(has_mask == first_masked,
            "%s has no .mask, and %s has one\n  write the missing one with dev/data, or name the two kinds "
            "apart",
            (has_mask ? paths[0] : path).c_str(), (has_mask ? path : paths[0]).c_str());
    if (has_mask) open_mask(shard, mask_path(path));
    if (paths.size() * (has_mask ? 2 : 1) > kMostOpenFiles) {
      shard.file->close();
      if (has_mask) shard.mask->close();
    }
    data.add(std::move(shard));
  }
  return data;
}

void TokenDataset::read(int shard, int64_t start, int64_t count, int32_t* out) const {
  REQUIRE(shard >= 0 && shard < shards(), "shard %d of a dataset of %d shards", shard, shards());
  REQUIRE(start >= 0 && count >= 0 && start <= shard_size(shard) && count <= shard_size(shard) - start,
          "%lld tokens from token %lld of %s, of which %lld are in this dataset", (long long)count, (long long)start,
          shard_path(shard).c_str(), (long long)shard_size(shard));
  with_checked_tokens(shards_[size_t(shard)], start, count,
                      [&](const auto* tokens) { std::copy_n(tokens, count, out); });
}

// Calls f(shard, start in it, count) for each shard's part of tokens [start, start+count) of the concatenation.
template <class F>
void TokenDataset::for_each_part(int64_t start, int64_t count, F&& f) const {
  REQUIRE(start >= 0 && count >= 0 && start <= size() && count <= size() - start,
          "%lld tokens from token %lld of a dataset of %lld", (long long)count, (long long)start, (long long)size());
  auto shard = size_t(std::upper_bound(begins_.begin(), begins_.end(), start) - begins_.begin()) - 1;
  for (; count > 0; shard++) {
    const int64_t part = std::min(count, begins_[shard + 1] - start);
    f(shards_[shard], start - begins_[shard], part);
    start += part, count -= part;
  }
}

void TokenDataset::read(int64_t start, int64_t count, int32_t* out) const {
  for_each_part(start, count, [&](const File& shard, int64_t at, int64_t part) {
    with_checked_tokens(shard, at, part, [&](const auto* tokens) { out = std::copy_n(tokens, part, out); });
  });
}

void TokenDataset::read_mask(int64_t start, int64_t count, uint8_t* out) const {
  for_each_part(start, count, [&](const File& shard, int64_t at, int64_t part) {
    REQUIRE(shard.mask, "%s has no mask", shard.file->path().c_str());
    read_checked_mask(shard, at, part, out);
    out += part;
  });
}

void TokenDataset::expect(int shard, std::shared_ptr<BlockChecksums> tokens, std::shared_ptr<BlockChecksums> mask) {
  shards_[size_t(shard)].checksums = std::move(tokens);
  shards_[size_t(shard)].mask_checksums = std::move(mask);
}

void TokenDataset::verify(int64_t start, int64_t count) const {
  for_each_part(start, count, [](const File& shard, int64_t at, int64_t part) {
    const size_t first = size_t(shard.first + at), width = size_t(shard.token_bytes);
    if (shard.checksums) shard.checksums->verify(*shard.file, shard.header_bytes + first * width, size_t(part) * width);
    if (shard.mask && shard.mask_checksums)
      shard.mask_checksums->verify(*shard.mask, kHeaderBytes + first, size_t(part));
  });
}

void TokenDataset::check(int64_t start, int64_t count) const {
  verify(start, count);
  std::vector<uint8_t> mask(has_masks() ? size_t(std::min(count, kCheckedTogether)) : 0);
  for_each_part(start, count, [&](const File& shard, int64_t first, int64_t part) {
    for (int64_t done = 0; done < part; done += kCheckedTogether) {
      const int64_t now = std::min(kCheckedTogether, part - done);
      with_checked_tokens(shard, first + done, now, [](const auto*) {});
      if (shard.mask) read_checked_mask(shard, first + done, now, mask.data());
    }
  });
}

std::pair<TokenDataset, TokenDataset> TokenDataset::split(int64_t first_tokens) const {
  REQUIRE(first_tokens > 0 && first_tokens < size(),
          "cannot split %lld tokens into %lld and %lld\n  expected more than 0 in both", (long long)size(),
          (long long)first_tokens, (long long)(size() - first_tokens));
  std::pair<TokenDataset, TokenDataset> parts;
  for (TokenDataset* part : {&parts.first, &parts.second}) {
    part->is_text_ = is_text_;
    part->vocab_size_ = vocab_size_;
  }
  int64_t left = first_tokens;  // tokens that still go to the first part
  for (const File& shard : shards_) {
    const int64_t head = std::min(left, shard.tokens);
    left -= head;
    File first = shard, second = shard;
    first.tokens = head;
    second.tokens -= head;
    second.first += head;
    if (first.tokens) parts.first.add(std::move(first));
    if (second.tokens) parts.second.add(std::move(second));
  }
  return parts;
}

std::pair<TokenDataset, TokenDataset> hold_out_last_tenth(const TokenDataset& text, const std::string& pattern) {
  const int64_t size = text.size();
  REQUIRE(size >= 10,
          "the text '%s' has %lld %s\n  expected at least 10, a tenth of which is held out: train on more text",
          pattern.c_str(), (long long)size, text.is_text() ? "bytes" : "tokens");
  return text.split(size - size / 10);
}

std::string bundled_text() {
  std::error_code error;
  for (std::filesystem::path at = std::filesystem::read_symlink("/proc/self/exe", error); at.has_relative_path();
       at = at.parent_path()) {
    const std::filesystem::path text = at.parent_path() / "dev/data/tinyshakespeare.txt";
    if (std::filesystem::exists(text, error)) return text.string();
  }
  fail(
      "the bundled text dev/data/tinyshakespeare.txt is not in the program's folder\n  name your own with "
      "--train-data");
}

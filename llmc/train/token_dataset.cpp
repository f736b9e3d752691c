#include "llmc/train/token_dataset.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <filesystem>

#include "llmc/base/error.h"
#include "llmc/base/text.h"

static_assert(std::endian::native == std::endian::little, "shards are little-endian and are read in place");

namespace {

constexpr size_t kHeaderBytes = 1024;
constexpr int32_t kMagic16 = 20240520, kVersion16 = 1;
constexpr int32_t kMagic32 = 20240801, kVersion32 = 7;
constexpr int32_t kMagicMask = 20241121, kVersionMask = 1;

// NAME.mask of NAME.bin.
std::string mask_path(const std::string& path) { return path.substr(0, path.size() - 4) + ".mask"; }

bool ends_with_bin(const std::string& path) { return path.ends_with(".bin"); }

// Printable ASCII, white space and bytes of UTF-8 only: a header, whose unused words are zero, never looks like that.
bool looks_like_text(const MappedFile& file) {
  const auto* bytes = reinterpret_cast<const unsigned char*>(file.data());
  return std::all_of(bytes, bytes + std::min(file.size(), kHeaderBytes),
                     [](unsigned char c) { return c >= 32 ? c != 127 : (c >= '\t' && c <= '\r'); });
}

[[noreturn]] void fail_magic(const MappedFile& file, int32_t magic) {
  const auto expected = format("expected %d (uint16 tokens) or %d (uint32 tokens)", kMagic16, kMagic32);
  const int32_t swapped = int32_t(__builtin_bswap32(uint32_t(magic)));
  if (swapped == kMagic16 || swapped == kMagic32)
    fail("shard %s: magic %d is %d with its bytes swapped\n  %s: the shard is big-endian; write it again little-endian",
         file.path().c_str(), magic, swapped, expected.c_str());
  if (looks_like_text(file))
    fail("shard %s: magic %d, and the file looks like plain text\n  %s: rename it to .txt to train on its bytes",
         file.path().c_str(), magic, expected.c_str());
  fail("shard %s: wrong magic %d\n  %s: this is no shard of llm.c's; write it with llm.c's dev/data scripts",
       file.path().c_str(), magic, expected.c_str());
}

// Calls f with the shard's tokens as a pointer to their own type.
template <class F>
void with_tokens(const std::byte* first, int token_bytes, F&& f) {
  if (token_bytes == 1) f(reinterpret_cast<const uint8_t*>(first));
  if (token_bytes == 2) f(reinterpret_cast<const uint16_t*>(first));
  if (token_bytes == 4) f(reinterpret_cast<const uint32_t*>(first));
}

// The first token that is not below `limit`, or `count`. Blocks of a fixed length, each reduced to its largest token
// without a branch, become vector instructions also at -O2: the scan runs at the speed of the memory.
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

}  // namespace

TokenDataset::Shard TokenDataset::open_bin(std::shared_ptr<const MappedFile> file) {
  const char* path = file->path().c_str();
  if (file->size() < kHeaderBytes && looks_like_text(*file))
    fail(
        "shard %s: %zu bytes of what looks like plain text\n  expected a header of %zu bytes: rename it to .txt to "
        "train on "
        "its bytes",
        path, file->size(), kHeaderBytes);
  REQUIRE(
      file->size() >= kHeaderBytes,
      "shard %s: the file has %zu bytes\n  expected a header of %zu bytes and tokens: the copy was cut short; fetch it "
      "again",
      path, file->size(), kHeaderBytes);
  int32_t header[3];
  std::memcpy(header, file->data(), sizeof header);
  const auto [magic, version, tokens] = header;
  if (magic != kMagic16 && magic != kMagic32) fail_magic(*file, magic);

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
  return {std::move(file), kHeaderBytes, tokens, token_bytes};
}

void TokenDataset::open_mask(Shard& shard, const std::string& path) {
  auto file = std::make_shared<const MappedFile>(path);
  int32_t header[3] = {};
  std::memcpy(header, file->data(), std::min(sizeof header, file->size()));
  const auto [magic, version, tokens] = header;
  REQUIRE(file->size() >= kHeaderBytes && magic == kMagicMask && version == kVersionMask,
          "mask %s: %zu bytes, magic %d, version %d\n  expected a header of %zu bytes with magic %d, version %d: write "
          "it again with dev/data, or move it away to learn every token",
          path.c_str(), file->size(), magic, version, kHeaderBytes, kMagicMask, kVersionMask);
  REQUIRE(tokens == shard.tokens && file->size() == kHeaderBytes + size_t(shard.tokens),
          "mask %s: header says %d tokens, file holds %zu\n  expected %lld, as %s has: they were not written together",
          path.c_str(), tokens, file->size() - kHeaderBytes, (long long)shard.tokens, shard.file->path().c_str());
  shard.mask = std::move(file);
  shard.first_mask_byte = kHeaderBytes;
}

const uint8_t* TokenDataset::checked_mask(const Shard& shard, int64_t start, int64_t count) {
  const auto* mask = reinterpret_cast<const uint8_t*>(shard.mask->data()) + shard.first_mask_byte + start;
  const int64_t at = find_not_below(mask, count, 2);
  REQUIRE(at == count, "mask %s: token %lld has the byte %d\n  expected 1 (learnt) or 0", shard.mask->path().c_str(),
          (long long)(start + at), mask[at]);
  return mask;
}

void TokenDataset::fail_token(const Shard& shard, int64_t at, int64_t token) const {
  fail("%s %s: token %lld is %lld\n  expected tokens below the model's vocabulary of %d: %s",
       is_text_ ? "text" : "shard", shard.file->path().c_str(), (long long)at, (long long)token, vocab_size_,
       is_text_ ? "bytes need a model of 256 tokens; choose one, or tokenize the text"
                : "train a model with a larger vocabulary, or tokenize the data with this model's tokenizer");
}

// One pass over tokens [start, start+count), and only then f: what it gets can be an index.
template <class F>
void TokenDataset::with_checked_tokens(const Shard& shard, int64_t start, int64_t count, F&& f) const {
  with_tokens(shard.file->data() + shard.first_byte, shard.token_bytes, [&](const auto* tokens) {
    const int64_t at = start + find_not_below(tokens + start, count, uint32_t(vocab_size_));
    if (at < start + count) fail_token(shard, at, tokens[at]);
    f(tokens + start);
  });
}

TokenDataset TokenDataset::open(const std::string& pattern, int vocab_size, int rank, int ranks) {
  REQUIRE(vocab_size >= 1, "cannot open '%s' for a vocabulary of %d tokens\n  expected at least 1", pattern.c_str(),
          vocab_size);
  REQUIRE(ranks >= 1 && rank >= 0 && rank < ranks, "cannot open '%s' as rank %d of %d\n  expected a rank from 0 to %d",
          pattern.c_str(), rank, ranks, ranks - 1);
  const std::vector<std::string> paths = glob(pattern);
  REQUIRE(!paths.empty(),
          "no data: nothing matches '%s'\n  expected at least one file: check the path, and quote a pattern "
          "('data/*.bin')",
          pattern.c_str());

  TokenDataset data;
  data.vocab_size_ = vocab_size;
  data.is_text_ = !ends_with_bin(paths[0]);
  for (const std::string& path : paths) {
    REQUIRE(ends_with_bin(path) == !data.is_text_,
            "'%s' matches shards and text: %s and %s\n  expected only .bin files or none: their tokens mean different "
            "things; name one kind ('*.bin')",
            pattern.c_str(), paths[0].c_str(), path.c_str());
    auto file = std::make_shared<const MappedFile>(path);
    data.shards_.push_back(data.is_text_ ? Shard{file, 0, int64_t(file->size()), 1} : open_bin(file));
  }
  if (!data.is_text_) {
    const auto masked = [](const std::string& path) { return std::filesystem::exists(mask_path(path)); };
    for (size_t i = 0; i < paths.size(); ++i) {
      REQUIRE(masked(paths[i]) == masked(paths[0]),
              "%s has no .mask beside it, and %s has one\n  write the missing one with dev/data, or name the two kinds "
              "apart",
              (masked(paths[i]) ? paths[0] : paths[i]).c_str(), (masked(paths[i]) ? paths[i] : paths[0]).c_str());
      if (masked(paths[i])) open_mask(data.shards_[i], mask_path(paths[i]));
    }
  }
  // After all headers: a wrong one shows at once, not after minutes of scanning its predecessors.
  for (size_t i = size_t(rank); i < data.shards_.size(); i += size_t(ranks)) {
    const Shard& shard = data.shards_[i];
    data.with_checked_tokens(shard, 0, shard.tokens, [](const auto*) {});
    if (shard.mask) checked_mask(shard, 0, shard.tokens);
  }
  return data;
}

int64_t TokenDataset::size() const {
  int64_t tokens = 0;
  for (const Shard& shard : shards_) tokens += shard.tokens;
  return tokens;
}

void TokenDataset::check_range(int shard, int64_t start, int64_t count) const {
  REQUIRE(shard >= 0 && shard < shards(), "shard %d of a dataset of %d shards", shard, shards());
  REQUIRE(start >= 0 && count >= 0 && start <= shard_size(shard) && count <= shard_size(shard) - start,
          "%lld tokens from token %lld of %s, of which %lld are in this dataset", (long long)count, (long long)start,
          shard_path(shard).c_str(), (long long)shard_size(shard));
}

void TokenDataset::read(int shard, int64_t start, int64_t count, int32_t* out) const {
  check_range(shard, start, count);
  with_checked_tokens(shards_[size_t(shard)], start, count, [&](const auto* tokens) {
    for (int64_t i = 0; i < count; i++) out[i] = int32_t(tokens[i]);
  });
}

void TokenDataset::read_mask(int shard, int64_t start, int64_t count, uint8_t* out) const {
  check_range(shard, start, count);
  const Shard& s = shards_[size_t(shard)];
  REQUIRE(s.mask, "%s has no mask", s.file->path().c_str());
  std::memcpy(out, checked_mask(s, start, count), size_t(count));
}

void TokenDataset::count(int shard, int64_t start, int64_t count, std::vector<int64_t>& counts) const {
  check_range(shard, start, count);
  REQUIRE(counts.size() == size_t(vocab_size_), "counts for %zu tokens of a vocabulary of %d", counts.size(),
          vocab_size_);
  with_checked_tokens(shards_[size_t(shard)], start, count, [&](const auto* tokens) {
    for (int64_t i = 0; i < count; i++) counts[tokens[i]]++;
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
  int64_t left = first_tokens;  // still to go to the first part
  for (const Shard& shard : shards_) {
    const int64_t head = std::min(left, shard.tokens);
    left -= head;
    Shard first = shard, second = shard;
    first.tokens = head;
    second.tokens -= head;
    second.first_byte += size_t(head) * size_t(shard.token_bytes);
    second.first_mask_byte += size_t(head);
    if (first.tokens) parts.first.shards_.push_back(first);
    if (second.tokens) parts.second.shards_.push_back(second);
  }
  return parts;
}

TrainingData open_training_data(const std::string& train_pattern, const std::string& val_pattern, int vocab_size,
                                int rank, int ranks) {
  TokenDataset train = TokenDataset::open(train_pattern, vocab_size, rank, ranks);
  if (!val_pattern.empty()) return {std::move(train), TokenDataset::open(val_pattern, vocab_size, rank, ranks)};
  if (!train.is_text()) return {std::move(train), std::nullopt};

  const int64_t size = train.size();
  REQUIRE(size >= 10,
          "the text '%s' has %lld bytes\n  expected at least 10, a tenth of which is held out: train on more text",
          train_pattern.c_str(), (long long)size);
  auto [first, last] = train.split(size - size / 10);
  return {std::move(first), std::move(last)};
}

namespace {

// How often each token occurs in `data`, or in evenly spread stretches of about max_tokens tokens together; and how
// many tokens were counted.
std::pair<std::vector<int64_t>, int64_t> count_tokens(const TokenDataset& data, int64_t max_tokens) {
  constexpr int64_t kStretch = 4096;
  std::vector<int64_t> counts(size_t(data.vocab_size()));
  const int64_t size = data.size();
  const int64_t stride = size <= max_tokens ? kStretch : int64_t(double(size) / double(max_tokens) * kStretch);
  int64_t counted = 0;
  for (int shard = 0; shard < data.shards(); shard++)
    for (int64_t start = 0; start < data.shard_size(shard); start += stride) {
      const int64_t count = std::min(kStretch, data.shard_size(shard) - start);
      data.count(shard, start, count, counts);
      counted += count;
    }
  return {std::move(counts), counted};
}

}  // namespace

double unigram_cross_entropy(const TokenDataset& train, const TokenDataset& held_out, int64_t max_tokens) {
  REQUIRE(max_tokens >= 1, "a unigram from %lld tokens\n  expected at least 1", (long long)max_tokens);
  REQUIRE(
      train.vocab_size() == held_out.vocab_size(),
      "the training data has a vocabulary of %d tokens, the held-out data one of %d\n  open both for the same model",
      train.vocab_size(), held_out.vocab_size());
  const auto [train_counts, train_tokens] = count_tokens(train, max_tokens);
  const auto [held_counts, held_tokens] = count_tokens(held_out, max_tokens);
  double nats = 0;
  for (size_t token = 0; token < held_counts.size(); token++) {
    const double p = double(train_counts[token] + 1) / double(train_tokens + train.vocab_size());
    if (held_counts[token] > 0) nats -= double(held_counts[token]) * std::log(p);
  }
  return nats / double(held_tokens);
}

std::string bundled_text() {
  std::error_code error;
  for (std::filesystem::path at = std::filesystem::read_symlink("/proc/self/exe", error); at.has_relative_path();
       at = at.parent_path()) {
    const std::filesystem::path text = at.parent_path() / "dev/data/tinyshakespeare.txt";
    if (std::filesystem::exists(text, error)) return text.string();
  }
  fail("the bundled text dev/data/tinyshakespeare.txt is not beside the program\n  name your own with --train-data");
}

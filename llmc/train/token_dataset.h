// Tokens on disk: llm.c's `.bin` shards, or plain text read byte by byte, behind one interface.
//
//   .bin        256 int32 header (1024 bytes): magic, version, number of tokens, 1 if a mask belongs to it, rest
//               unused; then the tokens, in little-endian. magic 20240520 version 1: uint16 tokens; magic 20240801
//               version 7: uint32 tokens. Both may be mixed.
//   .mask       beside NAME.bin, NAME.mask says which tokens are learnt: magic 20241121 version 1, the same number of
//               tokens, then a byte for each, 1 or 0. All shards have one, or none.
//   otherwise   text: each byte is a token, the vocabulary has 256 entries.
//
// Opening reads headers and sizes only, so that it costs the same for any number of tokens. Tokens are read, and
// checked, where they are needed. A copy of a dataset or a part of it shares the open files.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "llmc/base/input_file.h"

class TokenDataset {
 public:
  // Opens the files that match `pattern`, in the order of their names, for a model of `vocab_size` tokens. Every header
  // and size is checked, of masks too; tokens are checked where they are read. Fails with the file, the values found
  // and expected, and what to do next.
  static TokenDataset open(const std::string& pattern, int vocab_size);

  int64_t size() const { return begins_.back(); }  // tokens in all shards
  int shards() const { return int(shards_.size()); }
  int64_t shard_size(int shard) const { return shards_[size_t(shard)].tokens; }
  int64_t shard_begin(int shard) const { return begins_[size_t(shard)]; }  // of its first token in the concatenation
  const std::string& shard_path(int shard) const { return shards_[size_t(shard)].file->path(); }
  bool is_text() const { return is_text_; }
  int vocab_size() const { return vocab_size_; }

  // Tokens [start, start+count) of one shard into out[count]; fails where they are not all inside it, or one is not
  // below the vocabulary.
  void read(int shard, int64_t start, int64_t count, int32_t* out) const;
  // The same of the concatenation of all shards.
  void read(int64_t start, int64_t count, int32_t* out) const;

  bool has_masks() const { return !shards_.empty() && shards_[0].mask; }
  // What the masks say of tokens [start, start+count) of the concatenation, 1 = learnt; only where there are masks.
  void read_mask(int64_t start, int64_t count, uint8_t* out) const;

  // Adds the number of times that each token occurs in tokens [start, start+count) of the concatenation to
  // counts[vocab_size]; fails as read does.
  void count(int64_t start, int64_t count, std::vector<int64_t>& counts) const;

  // Reads tokens [start, start+count) of the concatenation, and their masks, only to fail as the reads above do.
  void check(int64_t start, int64_t count) const;

  // The first part of `first_tokens` tokens and the rest, cut in the concatenation of the shards. Neither may be empty.
  std::pair<TokenDataset, TokenDataset> split(int64_t first_tokens) const;

 private:
  struct Shard {
    std::shared_ptr<InputFile> file;
    size_t header_bytes;
    int token_bytes;  // 1, 2 or 4
    int64_t tokens;
    int64_t first = 0;  // of them in the file
    std::shared_ptr<InputFile> mask = nullptr;
  };

  static Shard open_bin(std::shared_ptr<InputFile> file);
  static void open_mask(Shard& shard, const std::string& path);
  void add(Shard shard);
  template <class F>
  void with_checked_tokens(const Shard& shard, int64_t start, int64_t count, F&& f) const;
  template <class F>
  void for_each_part(int64_t start, int64_t count, F&& f) const;
  static void read_checked_mask(const Shard& shard, int64_t start, int64_t count, uint8_t* out);
  [[noreturn]] void fail_token(const Shard& shard, int64_t at, int64_t token) const;

  std::vector<Shard> shards_;
  std::vector<int64_t> begins_ = {0};  // (shards+1): of each shard in the concatenation; last, the size
  bool is_text_ = false;
  int vocab_size_ = 0;
};

// The text that is committed with the program: beside the binary or above it. Throws if it is not there.
std::string bundled_text();

// What a run trains on, and what it is measured with.
struct TrainingData {
  TokenDataset train;
  std::optional<TokenDataset> held_out;
};

// With a val_pattern, held_out is what it names. Without one, held_out is the last tenth (rounded down) of a text,
// which is then not trained on; `.bin` shards are all trained on and nothing is held out: the caller tells the user so.
TrainingData open_training_data(const std::string& train_pattern, const std::string& val_pattern, int vocab_size);

// Mean of -log p(token) over `held_out`, in nats a token, where p is how often each token occurs in `train`, counted
// with one added for every token of the vocabulary: what a model reaches that knows the frequencies and no context.
struct Unigram {
  double nats;
  int64_t tokens;  // counted, if that is not all; else 0
};

// A dataset of more than `max_tokens` tokens is represented by stretches of it, evenly spread: reading a terabyte for
// this one figure would not be worth the wait.
Unigram unigram_cross_entropy(const TokenDataset& train, const TokenDataset& held_out, int64_t max_tokens = 10'000'000);

// Tokens on disk: llm.c's `.bin` shards, or plain text read byte by byte, behind one interface.
//
//   .bin        256 int32 header (1024 bytes): magic, version, number of tokens, 1 if a mask belongs to it; the rest is
//               unused. Then the tokens, in little-endian. magic 20240520 version 1: uint16 tokens; magic 20240801 version 7:
//               uint32 tokens. Both may be mixed.
//   .bin        without a header: nanoGPT's uint16 tokens alone. The program takes a file for one if its first 1024
//               bytes have no magic number, are tokens of the model, and are not mostly zeros, as a header is.
//   .mask       NAME.mask says of which tokens of NAME.bin the loss counts: magic 20241121 version 1, the same number
//               of tokens, then one byte per token: 1, the loss counts, or 0. Either all shards have a mask or none has.
//   otherwise   text: each byte is a token, the vocabulary has 256 entries.
//
// Opening reads only headers and sizes, so that it costs the same for any number of tokens. Tokens are read and checked
// when they are needed. A copy of a dataset, or a part of it, shares the open files and what is known to be unaltered.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "llmc/base/block_checksums.h"
#include "llmc/base/input_file.h"

class TokenDataset {
 public:
  // Opens the files that match `pattern`, in the order of their names, for a model of `vocab_size` tokens. Checks every
  // header and size, also those of masks; tokens are checked when they are read. Throws with the file, the values found
  // and expected, and what to do next.
  static TokenDataset open(const std::string& pattern, int vocab_size);

  int64_t size() const { return begins_.back(); }  // tokens in all shards
  int shards() const { return int(shards_.size()); }
  int64_t shard_size(int shard) const { return shards_[size_t(shard)].tokens; }
  int64_t shard_begin(int shard) const { return begins_[size_t(shard)]; }  // its first token in the concatenation
  const std::string& shard_path(int shard) const { return shards_[size_t(shard)].file->path(); }
  bool is_text() const { return is_text_; }
  bool has_header(int shard) const { return shards_[size_t(shard)].header_bytes > 0; }
  int vocab_size() const { return vocab_size_; }

  // Reads tokens [start, start+count) of one shard into out[count]. Throws if they are not all inside the shard, or if
  // one is not below the vocabulary.
  void read(int shard, int64_t start, int64_t count, int32_t* out) const;
  // The same for the concatenation of all shards.
  void read(int64_t start, int64_t count, int32_t* out) const;

  // Gives the checksums of a shard's file and of its mask's; null: none is known.
  void expect(int shard, std::shared_ptr<BlockChecksums> tokens, std::shared_ptr<BlockChecksums> mask);
  // Verifies the blocks of the files that have tokens [start, start+count) of the concatenation and their masks, if
  // there are checksums and this was not done before. Throws if a file was altered.
  void verify(int64_t start, int64_t count) const;

  bool has_masks() const { return !shards_.empty() && shards_[0].mask; }
  // Reads the masks of tokens [start, start+count) of the concatenation: 1, the loss counts, or 0. Throws if there are
  // no masks.
  void read_mask(int64_t start, int64_t count, uint8_t* out) const;

  // Verifies and reads tokens [start, start+count) of the concatenation, and their masks, only to check them: throws as
  // verify() and the reads do.
  void check(int64_t start, int64_t count) const;

  // Returns where tokens [start, start+count) of the concatenation are, as "tokens 512 to 639 of data/a.bin": they
  // count from 0 in each file, and go on at the first file after the last one. Throws unless start < size().
  std::string where(int64_t start, int64_t count) const;

  // Returns the first `first_tokens` tokens of the concatenation, and the rest. Throws if either is
  // empty.
  std::pair<TokenDataset, TokenDataset> split(int64_t first_tokens) const;

 private:
  struct File {
    std::shared_ptr<InputFile> file;
    size_t header_bytes;
    int token_bytes;  // 1, 2 or 4
    int64_t tokens;
    int64_t first = 0;  // where in the file the first of them is
    std::shared_ptr<InputFile> mask = nullptr;
    std::shared_ptr<BlockChecksums> checksums = nullptr, mask_checksums = nullptr;
  };

  static File open_bin(std::shared_ptr<InputFile> file, int vocab_size);
  static void open_mask(File& shard, const std::string& path);
  void add(File shard);
  template <class F>
  void with_checked_tokens(const File& shard, int64_t start, int64_t count, F&& f) const;
  template <class F>
  void for_each_part(int64_t start, int64_t count, F&& f) const;
  static void read_checked_mask(const File& shard, int64_t start, int64_t count, uint8_t* out);
  [[noreturn]] void fail_token(const File& shard, int64_t at, int64_t token) const;

  std::vector<File> shards_;
  std::vector<int64_t> begins_ = {0};  // (shards+1): start of each shard in the concatenation; last, the size
  bool is_text_ = false;
  int vocab_size_ = 0;
};

// Returns the path of the text that is committed with the program, in the folder of the binary or above it. Throws if
// it is not there.
std::string bundled_text();

// Returns the text that `pattern` names without its last tenth (rounded down), and that tenth, which is held out.
// Throws if there are fewer than 10 tokens.
std::pair<TokenDataset, TokenDataset> hold_out_last_tenth(const TokenDataset& text, const std::string& pattern);

// Tokenizes text files into shards. It does this once and keeps the shards in a folder (--cache) for
// later runs, under a checksum of everything that they are made of.
//
//   runs/cache/2f7d…/text_000001.bin …    the tokens, as dev/data/prepare writes them: 1e8 per shard, uint16 if the
//                                         vocabulary has at most 65,536 entries
//   runs/cache/2f7d…/manifest.json        as dev/data/prepare writes it: tokens and checksums of each shard
//   runs/cache/2f7d…/made_of.json         the files and the tokenizer; how many shards and tokens, the largest token, and
//                                         how many special tokens the text spells
//
// Each file is a document. It begins with the tokenizer's begin-of-text, else its end-of-text, if there is one. Special
// tokens that are spelled out in the text are read as letters, or as themselves with --special-tokens parse. Bytes that
// are not UTF-8 become U+FFFD. The folder appears whole or not at all; it can be deleted at any time.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "llmc/base/console.h"
#include "llmc/base/disk.h"
#include "llmc/base/options.h"
#include "llmc/comm/communicator.h"
#include "llmc/data/special_tokens.h"
#include "llmc/data/text_codec.h"

// Returns whether the files that match are text: none ends in .bin. Throws on JSON lines, on a compressed file and on
// one whose first kilobytes are binary; with `as_utf8`, also if these are not mostly UTF-8.
bool is_text(const std::string& pattern, bool as_utf8);

struct TextShards {
  std::string pattern;  // matches the shards
  std::string about;    // "my.txt: text, cut into 303k tokens by DIR/tokenizer.json (cached in runs/cache/2f7d…)"
  std::string remark;   // about special tokens that became letters; "" if there are none
};

// Returns the folder of the option --cache. By default it is `cache` in the folder that --out is in, where it can be
// written; without --out it is runs/cache.
std::string cache_folder(const Options& options);

// The first rank tokenizes, unless the cache has the shards already, and shows its progress. The others wait. If it
// fails, all ranks throw. `codec` must have a tokenizer.
TextShards tokenize_text(const std::string& pattern, const TextCodec& codec, SpelledTokens spelled,
                         const std::string& cache, Communicator& communicator, Device& device, Console& console);

// The same on one rank. Returns a folder below `cache`. Counts into `done` the bytes of text that are read for the
// checksum, and then again those that are tokenized. If another run makes the same folder meanwhile, that one is taken.
// An incomplete folder, from which a file was removed, is replaced. Throws if the folder cannot be made or replaced.
inline constexpr int64_t kTokensPerShard = 100'000'000;
std::string tokenize_into_cache(const std::vector<std::string>& paths, const TextCodec& codec, SpelledTokens spelled,
                                const std::string& cache, int threads, std::atomic<int64_t>& done,
                                int64_t tokens_per_shard = kTokensPerShard, size_t bytes_per_part = size_t(1) << 20,
                                Disk& disk = Disk::real());

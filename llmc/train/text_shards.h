// Text files as shards of a tokenizer's tokens: cut once and kept in runs/cache, under a checksum of what they are made
// of, for the runs that come later.
//
//   runs/cache/2f7d…/text_000001.bin …    the tokens, as dev/data/prepare writes them: 1e8 a shard, uint16 if the
//                                         vocabulary has at most 65,536 entries
//   runs/cache/2f7d…/made_of.json         of which files and tokenizer; how many shards and tokens
//
// Each file is a document. It begins with the tokenizer's begin-of-text, else its end-of-text, where it has one.
// Special tokens that the text spells are letters; what is not UTF-8 becomes U+FFFD. The folder appears whole or not at
// all; it can be deleted at any time.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "llmc/comm/communicator.h"
#include "llmc/train/report.h"
#include "llmc/train/text_codec.h"

// Whether the files that match are text: none ends in .bin. Throws where one is compressed, or its first kilobytes are
// binary; with `as_utf8` also where they are no UTF-8.
bool is_text(const std::string& pattern, bool as_utf8);

struct TextShards {
  std::string pattern;  // of the shards
  std::string about;    // "my.txt: text, cut into 303k tokens by DIR/tokenizer.json (cached in runs/cache/2f7d…)"
};

// The first rank cuts, unless the cache has the shards already, and shows its progress; the others wait. All ranks
// throw what it could not do. `codec` has a tokenizer.
TextShards cut_text(const std::string& pattern, const TextCodec& codec, Communicator& communicator, Device& device,
                    Console& console);

// The same on one rank: a folder below `cache`. Counts into `done` the bytes of text that are read for the checksum,
// and then again those that are cut.
inline constexpr int64_t kTokensPerShard = 100'000'000;
std::string cut_into_cache(const std::vector<std::string>& paths, const TextCodec& codec, const std::string& cache,
                           int threads, std::atomic<int64_t>& done, int64_t tokens_per_shard = kTokensPerShard,
                           size_t bytes_per_part = size_t(1) << 20);

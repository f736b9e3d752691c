// Byte-pair encoding (R. Sennrich et al., ACL 2016). A word's characters are merged pair by pair. Each time, the pair
// that comes first in the file's list of merges is merged, and among equal pairs the leftmost, until no pair is in the
// list.
//
//   "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": ["a b"], "byte_fallback": false, …}
//
// A word of n characters takes O(n log n). This matters because a whole document is one word if nothing splits the
// text.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "llmc/base/json.h"

// Maps ids to tokens and tokens to ids.
class Vocabulary {
 public:
  static constexpr int64_t kMostIds = 1 << 24;

  Vocabulary() = default;
  Vocabulary(const Vocabulary&) = delete;  // a copy's tokens_ would point into the original

  // Throws if the token or the id is taken, or if the id is not in [0, kMostIds).
  void add(const std::string& token, int64_t id, const Json& where);

  std::optional<int32_t> id_of(const std::string& token) const;
  const std::string* token_of(int64_t id) const;  // nullptr if there is none
  int32_t count() const { return int32_t(ids_.size()); }
  int32_t end() const { return int32_t(tokens_.size()); }  // the largest id + 1

 private:
  std::unordered_map<std::string, int32_t> ids_;
  std::vector<const std::string*> tokens_;  // the keys of ids_; null for an id without a token
};

class Bpe {
 public:
  // Reads the "model" of a tokenizer.json. Throws, with the place in the file, on anything unsupported (dropout) or
  // wrong.
  explicit Bpe(const Json& model);

  // The working memory of one thread.
  class Scratch {
    friend class Bpe;
    struct Symbol {
      int32_t id, left, right;  // indices of the neighbours, -1 at the ends; id -1: merged into its left neighbour
    };
    struct Candidate {
      uint64_t order;  // rank of the merge, then index of the left symbol
      int32_t joined;  // the id of the merged pair
      // The comparison is reversed, so that the least order is at the top of the heap.
      bool operator<(const Candidate& other) const { return order > other.order; }
    };
    std::vector<Symbol> symbols;
    std::vector<Candidate> heap;
  };

  // Appends the ids of `word`, which must be nonempty UTF-8 of less than 2^31 - 1 bytes. A character that is not in the
  // vocabulary becomes the tokens of its bytes (byte_fallback), or else the unknown token, or else nothing.
  void encode(std::string_view word, Scratch& scratch, std::vector<int32_t>& ids) const;

  // Returns the bytes of the first part of `word` that no merge can join to the rest. Encoding part by part gives the
  // same ids, and short parts recur, so their ids can be cached. If spaces are only at the ends of the vocabulary's
  // tokens, such a part is a word in the usual sense.
  size_t first_part(std::string_view word) const;

  const Vocabulary& vocabulary() const { return vocabulary_; }

 private:
  struct Merge {
    uint32_t rank;
    int32_t joined;
  };

  // A hash table from (left, right) to Merge, with open addressing and at most half full. A lookup usually touches one
  // cache line.
  class PairTable {
   public:
    void reserve(size_t pairs);
    void put(int32_t left, int32_t right, Merge merge);
    const Merge* find(int32_t left, int32_t right) const;

   private:
    struct Slot {
      uint64_t pair = kFree;
      Merge merge = {};
    };
    static constexpr uint64_t kFree = UINT64_MAX;
    Slot& slot(uint64_t pair);
    std::vector<Slot> slots_;
    int shift_ = 64;
  };

  void read_merges(const Json& model);
  void note_boundary(const std::string& left, const std::string& right);
  int32_t id_for_merge(const std::string& token, const Json& merge) const;
  void first_symbols(std::string_view word, Scratch& scratch) const;
  bool add_fallback_bytes(const std::string& character, Scratch& scratch) const;
  int32_t unknown_id() const;
  void merge_all(Scratch& scratch) const;
  void consider(int32_t left, Scratch& scratch) const;

  std::string place_;  // the model's place in the file, for messages
  Vocabulary vocabulary_;
  PairTable merges_;  // keyed by ids
  // Keyed by pairs of code points: some merge joins a token that ends in the first to a token that begins with the
  // second.
  PairTable joined_characters_;
  std::vector<bool> is_character_;  // by code point: true if it is in the vocabulary
  std::optional<std::string> unknown_;
  std::string prefix_, suffix_;  // added to characters that do not begin a word; added to the one that ends it
  bool fuse_unknown_, byte_fallback_, ignore_merges_;
};

// Byte-pair encoding: a word's characters are joined pair by pair, always the pair that comes first in the file's list
// of merges, of equal ones the leftmost, until no pair is in the list (R. Sennrich et al., ACL 2016).
//
//   "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": ["a b"], "byte_fallback": false, …}
//
// O(n log n) for a word of n characters: where nothing splits the text, a whole document is one word.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "llmc/base/json.h"

// Tokens by id and ids by token.
class Vocabulary {
 public:
  static constexpr int64_t kMostIds = 1 << 24;

  Vocabulary() = default;
  Vocabulary(const Vocabulary&) = delete;  // a copy's tokens_ would point into the original

  void add(const std::string& token, int64_t id, const Json& where);  // fails if either is taken, or id out of range

  std::optional<int32_t> id_of(const std::string& token) const;
  const std::string* token_of(int64_t id) const;  // nullptr if there is none
  int32_t count() const { return int32_t(ids_.size()); }
  int32_t end() const { return int32_t(tokens_.size()); }  // the largest id, and one

 private:
  std::unordered_map<std::string, int32_t> ids_;
  std::vector<const std::string*> tokens_;  // the keys of ids_; null for an id that no token has
};

class Bpe {
 public:
  // The "model" of a tokenizer.json. Fails, naming the place, on what is not supported (dropout) or wrong.
  explicit Bpe(const Json& model);

  // The working memory of one thread.
  class Scratch {
    friend class Bpe;
    struct Symbol {
      int32_t id, left, right;  // its neighbours' places, -1 at the ends; id -1: joined to the left one
    };
    struct Candidate {
      uint64_t order;  // rank of the merge, then place of the left symbol
      int32_t joined;  // the id that the pair becomes
      bool operator<(const Candidate& other) const { return order > other.order; }  // the heap's top is the least
    };
    std::vector<Symbol> symbols;
    std::vector<Candidate> heap;
  };

  // Appends the ids of `word`, which must be UTF-8 of less than 2^31 characters and not empty. A character that the
  // vocabulary does not have becomes its bytes' tokens (byte_fallback), else the unknown token, else nothing.
  void encode(std::string_view word, Scratch& scratch, std::vector<int32_t>& ids) const;

  // Bytes of the part of `word`, from its beginning, that no merge can join to what follows: encoded part by part the
  // ids are the same, and parts come again where a whole text does not. Where the vocabulary has no token with a space
  // in the middle, that is a word as people know it.
  size_t first_part(std::string_view word) const;

  const Vocabulary& vocabulary() const { return vocabulary_; }

 private:
  struct Merge {
    uint32_t rank;
    int32_t joined;
  };

  // (left, right) → Merge. Open addressing, half empty: a look-up touches one cache line, mostly.
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

  std::string place_;  // of the model, for messages
  Vocabulary vocabulary_;
  PairTable merges_;                // of ids
  PairTable joined_characters_;     // a merge joins a token that ends in the one to a token that begins with the other
  std::vector<bool> is_character_;  // by code point: the vocabulary has it
  std::optional<std::string> unknown_;
  std::string prefix_, suffix_;  // of characters that do not begin a word, and of the one that ends it
  bool fuse_unknown_, byte_fallback_, ignore_merges_;
};

#include "llmc/tokenizer/bpe.h"

#include <algorithm>
#include <bit>
#include <climits>

#include "llmc/base/error.h"
#include "llmc/base/utf8.h"
#include "llmc/tokenizer/file_parts.h"

// ---- vocabulary ---------------------------------------------------------------------------------------------------

void Vocabulary::add(const std::string& token, int64_t id, const Json& where) {
  REQUIRE(id >= 0 && id < kMostIds, "%s is the id %ld\n  expected one from 0 to %ld", where.where().c_str(), long(id),
          long(kMostIds - 1));
  REQUIRE(!token_of(id), "%s has the id %ld, which the token \"%s\" has already", where.where().c_str(), long(id),
          token_of(id)->c_str());
  const auto [place, is_new] = ids_.emplace(token, int32_t(id));
  REQUIRE(is_new, "%s: the token \"%s\" has the id %d already", where.where().c_str(), token.c_str(), place->second);
  if (size_t(id) >= tokens_.size()) tokens_.resize(size_t(id) + 1);
  tokens_[size_t(id)] = &place->first;
}

std::optional<int32_t> Vocabulary::id_of(const std::string& token) const {
  const auto found = ids_.find(token);
  if (found == ids_.end()) return {};
  return found->second;
}

const std::string* Vocabulary::token_of(int64_t id) const {
  return id >= 0 && id < end() ? tokens_[size_t(id)] : nullptr;
}

// ---- merges -------------------------------------------------------------------------------------------------------

namespace {

uint64_t pair_of(int32_t left, int32_t right) { return uint64_t(uint32_t(left)) << 32 | uint32_t(right); }

}  // namespace

void Bpe::PairTable::reserve(size_t pairs) {
  slots_.assign(std::bit_ceil(2 * pairs + 2), {});
  shift_ = 64 - std::countr_zero(slots_.size());
}

Bpe::PairTable::Slot& Bpe::PairTable::slot(uint64_t pair) {
  size_t at = pair * 0x9E3779B97F4A7C15u >> shift_;
  while (slots_[at].pair != kFree && slots_[at].pair != pair) at = (at + 1) & (slots_.size() - 1);
  return slots_[at];
}

void Bpe::PairTable::put(int32_t left, int32_t right, Merge merge) {
  slot(pair_of(left, right)) = {pair_of(left, right), merge};
}

const Bpe::Merge* Bpe::PairTable::find(int32_t left, int32_t right) const {
  const Slot& found = const_cast<PairTable*>(this)->slot(pair_of(left, right));
  return found.pair == kFree ? nullptr : &found.merge;
}

// ---- the file -----------------------------------------------------------------------------------------------------

Bpe::Bpe(const Json& model)
    : place_(model.where()),
      prefix_(model.get_string("continuing_subword_prefix", "")),
      suffix_(model.get_string("end_of_word_suffix", "")),
      fuse_unknown_(model.get_bool("fuse_unk", false)),
      byte_fallback_(model.get_bool("byte_fallback", false)),
      ignore_merges_(model.get_bool("ignore_merges", false)) {
  if (model.get_string("type", "BPE") != "BPE") refuse_type(model, "BPE");
  only_keys(model, {"type", "vocab", "merges", "dropout", "unk_token", "continuing_subword_prefix",
                    "end_of_word_suffix", "fuse_unk", "byte_fallback", "ignore_merges"});
  if (model.contains("dropout") && !model.at("dropout").is_null()) {
    REQUIRE(model.get_double("dropout") == 0, "%s is %s\n  expected null: ids must not depend on chance",
            model.at("dropout").where().c_str(), model.at("dropout").found().c_str());
  }
  for (const char* affix : {"continuing_subword_prefix", "end_of_word_suffix"})
    if (const Json* value = model.find(affix); value && value->is_string()) require_short(*value);
  if (model.contains("unk_token") && !model.at("unk_token").is_null()) unknown_ = model.get_string("unk_token");
  is_character_.resize(0x110000);
  for (const auto& [token, id] : model.at("vocab").items()) {
    vocabulary_.add(token, id.as_int(), id);
    if (!token.empty() && utf8_start(token).bytes == token.size()) is_character_[code_point(token)] = true;
  }
  read_merges(model);
}

int32_t Bpe::id_for_merge(const std::string& token, const Json& merge) const {
  const std::optional<int32_t> id = vocabulary_.id_of(token);
  REQUIRE(id, "%s merges to or from \"%s\", which the vocabulary does not have", merge.where().c_str(), token.c_str());
  return *id;
}

// Follows the `tokenizers` library: if a pair occurs twice, its last position counts, and a "#version" line is skipped.
void Bpe::read_merges(const Json& model) {
  const Json::Array& merges = model.at("merges").elements();
  merges_.reserve(merges.size());
  joined_characters_.reserve(merges.size());
  uint32_t rank = 0;
  for (const Json& merge : merges) {
    std::string left, right;
    if (merge.is_string()) {
      const std::string& both = merge.as_string();
      if (both.starts_with("#version")) continue;
      const size_t space = both.find(' ');
      REQUIRE(space != both.npos && both.find(' ', space + 1) == both.npos,
              "%s is %s\n  expected two tokens with one space between them", merge.where().c_str(),
              merge.found().c_str());
      left = both.substr(0, space), right = both.substr(space + 1);
    } else {
      REQUIRE(merge.is_array() && merge.size() == 2, "%s is %s\n  expected two tokens", merge.where().c_str(),
              merge.found().c_str());
      left = merge.at(size_t(0)).as_string(), right = merge.at(1).as_string();
    }
    const int32_t left_id = id_for_merge(left, merge), right_id = id_for_merge(right, merge);
    REQUIRE(right.starts_with(prefix_), "%s: \"%s\" does not begin with the continuing_subword_prefix \"%s\"",
            merge.where().c_str(), right.c_str(), prefix_.c_str());
    merges_.put(left_id, right_id, {rank++, id_for_merge(left + right.substr(prefix_.size()), merge)});
    note_boundary(left, right);
  }
}

void Bpe::note_boundary(const std::string& left, const std::string& right) {
  if (left.empty() || right.empty()) return;
  const char32_t last = code_point(last_character(left));
  const char32_t first = code_point(std::string_view(right).substr(0, utf8_start(right).bytes));
  joined_characters_.put(int32_t(last), int32_t(first), {});
}

// There is no cut next to a character that is not in the vocabulary, because unknown characters may fuse and bytes may
// merge. There is also no cut if the ids of a word depend on where it begins and ends.
size_t Bpe::first_part(std::string_view word) const {
  if (ignore_merges_ || !prefix_.empty() || !suffix_.empty()) return word.size();
  char32_t before = 0;
  for (size_t at = 0, bytes = 0; at < word.size(); at += bytes) {
    bytes = utf8_start(word.substr(at)).bytes;
    const char32_t c = code_point(word.substr(at, bytes));
    const bool known = is_character_[c] && is_character_[before];
    if (at > 0 && known && !joined_characters_.find(int32_t(before), int32_t(c))) return at;
    before = c;
  }
  return word.size();
}

// ---- encoding -----------------------------------------------------------------------------------------------------

void Bpe::encode(std::string_view word, Scratch& scratch, std::vector<int32_t>& ids) const {
  REQUIRE(word.size() < INT_MAX, "a text of %zu bytes without a place to split it\n  expected less than 2 GiB",
          word.size());
  if (ignore_merges_) {
    if (const std::optional<int32_t> whole = vocabulary_.id_of(std::string(word))) {
      ids.push_back(*whole);
      return;
    }
  }
  first_symbols(word, scratch);
  merge_all(scratch);
  for (const Scratch::Symbol& symbol : scratch.symbols) {
    if (symbol.id >= 0) ids.push_back(symbol.id);
  }
}

// An unknown character is held back, because it may fuse with unknown characters that follow. The bytes of a fallback
// are added before one that is held back. The `tokenizers` library does the same.
void Bpe::first_symbols(std::string_view word, Scratch& scratch) const {
  scratch.symbols.clear();
  const auto add = [&](int32_t id) {
    const auto place = int32_t(scratch.symbols.size());
    scratch.symbols.push_back({id, place - 1, place + 1});
  };
  bool waiting = false;
  std::string character;
  for (size_t at = 0, bytes = 0; at < word.size(); at += bytes) {
    bytes = utf8_start(word.substr(at)).bytes;
    character = at > 0 ? prefix_ : "";
    character += word.substr(at, bytes);
    if (at + bytes == word.size()) character += suffix_;
    if (const std::optional<int32_t> id = vocabulary_.id_of(character)) {
      if (waiting) add(unknown_id());
      waiting = false;
      add(*id);
    } else if (byte_fallback_ && add_fallback_bytes(character, scratch)) {
      continue;
    } else if (unknown_) {
      if (waiting && !fuse_unknown_) add(unknown_id());
      waiting = true;
    }
  }
  if (waiting) add(unknown_id());
  if (!scratch.symbols.empty()) scratch.symbols.back().right = -1;
}

// Adds the tokens "<0xE2>" and the like. Returns false if the vocabulary lacks any of those needed.
bool Bpe::add_fallback_bytes(const std::string& character, Scratch& scratch) const {
  std::vector<int32_t> bytes;
  for (char byte : character) {
    const std::optional<int32_t> id = vocabulary_.id_of(format("<0x%02X>", (unsigned char)byte));
    if (!id) return false;
    bytes.push_back(*id);
  }
  for (int32_t id : bytes) {
    const auto place = int32_t(scratch.symbols.size());
    scratch.symbols.push_back({id, place - 1, place + 1});
  }
  return true;
}

int32_t Bpe::unknown_id() const {
  const std::optional<int32_t> id = vocabulary_.id_of(*unknown_);
  REQUIRE(id, "%s: the unk_token \"%s\" is needed, and the vocabulary does not have it", place_.c_str(),
          unknown_->c_str());
  return *id;
}

// Puts the pair of the symbol at `left` and its right neighbour into the heap, if it can be merged.
void Bpe::consider(int32_t left, Scratch& scratch) const {
  if (left < 0) return;
  const Scratch::Symbol& symbol = scratch.symbols[size_t(left)];
  if (symbol.right < 0) return;
  const Merge* merge = merges_.find(symbol.id, scratch.symbols[size_t(symbol.right)].id);
  if (!merge) return;
  scratch.heap.push_back({uint64_t(merge->rank) << 32 | uint32_t(left), merge->joined});
  std::push_heap(scratch.heap.begin(), scratch.heap.end());
}

void Bpe::merge_all(Scratch& scratch) const {
  std::vector<Scratch::Symbol>& symbols = scratch.symbols;
  scratch.heap.clear();
  for (int32_t place = 0; place < int32_t(symbols.size()); ++place) consider(place, scratch);
  while (!scratch.heap.empty()) {
    std::pop_heap(scratch.heap.begin(), scratch.heap.end());
    const Scratch::Candidate top = scratch.heap.back();
    scratch.heap.pop_back();
    const auto place = int32_t(uint32_t(top.order));
    Scratch::Symbol& left = symbols[size_t(place)];
    // One of the two symbols may have been merged since the pair was queued. The pair no longer exists then.
    if (left.id < 0 || left.right < 0) continue;
    Scratch::Symbol& right = symbols[size_t(left.right)];
    const Merge* merge = merges_.find(left.id, right.id);
    if (!merge || merge->joined != top.joined) continue;
    left.id = top.joined;
    left.right = right.right;
    right.id = -1;
    if (left.right >= 0) symbols[size_t(left.right)].left = place;
    consider(left.left, scratch);
    consider(place, scratch);
  }
}

#include "llmc/data/text_shards.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <memory>
#include <optional>
#include <thread>

#include "llmc/base/block_checksums.h"
#include "llmc/base/checksum.h"
#include "llmc/base/clock.h"
#include "llmc/base/error.h"
#include "llmc/base/mapped_file.h"
#include "llmc/base/new_file.h"
#include "llmc/base/text.h"
#include "llmc/base/utf8.h"
#include "llmc/device/thread_pool.h"
#include "llmc/tokenizer/pattern.h"
#include "llmc/tokenizer/unicode_form.h"

namespace fs = std::filesystem;

// ---- what is text -------------------------------------------------------------------------------------------------

namespace {

struct Signature {
  std::string_view bytes;
  const char *name, *remedy;
  size_t place = 0;
};
using namespace std::string_view_literals;
constexpr const char* kPrepare = "dev/data/prepare writes shards of what is in it";
constexpr Signature kSignatures[] = {
    {"\x1f\x8b"sv, "is compressed with gzip", "unpack it: gunzip"},
    {"\x28\xb5\x2f\xfd"sv, "is compressed with zstd", "unpack it: unzstd"},
    {"\xfd"
     "7zXZ\0"sv,
     "is compressed with xz", "unpack it: unxz"},
    {"1AY&SY"sv, "is compressed with bzip2", "unpack it: bunzip2", 4},
    {"PK\x03\x04"sv, "is a zip archive", "unpack it: unzip"},
    {"PAR1\x15"sv, "is a parquet file", kPrepare},
    {"ARROW1"sv, "is an arrow file", kPrepare},
    {"\xff\xfe"sv, "is UTF-16", "write it as UTF-8: iconv -f utf-16 -t utf-8"},
    {"\xfe\xff"sv, "is UTF-16", "write it as UTF-8: iconv -f utf-16 -t utf-8"},
    {"%PDF-"sv, "is a PDF", "take the text out of it: pdftotext"},
};

// Latin-1 has few bytes that begin no character of UTF-8; most other encodings and binary files have many.
bool is_mostly_utf8(std::string_view text) {
  size_t broken = 0;
  for (size_t at = 0; at < text.size();) {
    const Utf8Start start = utf8_start(text.substr(at));
    broken += start.kind == Utf8Start::kBroken;
    at += start.bytes;
  }
  return text.size() < 64 || broken <= text.size() / 4;
}

void require_text(const std::string& path, bool as_utf8) {
  const MappedFile file(path);
  const std::string_view start(reinterpret_cast<const char*>(file.data()), std::min<size_t>(file.size(), 4096));
  const bool lines = path.ends_with(".jsonl") || path.ends_with(".ndjson");
  const bool chats = start.find("\"messages\"") != start.npos || start.find("\"conversations\"") != start.npos;
  REQUIRE(!lines || !chats,
          "%s holds conversations as JSON lines\n  make them tokens, of which the answers are learnt, with the model's "
          "tokenizer: dev/data/prepare %s --chat --tokenizer MODEL --out data/NAME",
          path.c_str(), shell_quoted(path).c_str());
  REQUIRE(!lines,
          "%s holds JSON lines, whose braces and keys would be trained on\n  expected plain text, or shards (*.bin): "
          "dev/data/prepare writes shards of the texts in it; to train on the file as it is, name it .txt",
          path.c_str());
  for (const Signature& signature : kSignatures)
    REQUIRE(start.size() < signature.place || !start.substr(signature.place).starts_with(signature.bytes),
            "%s %s\n  expected plain text, or shards (*.bin): %s", path.c_str(), signature.name, signature.remedy);
  const size_t zero = start.find('\0');
  REQUIRE(zero == start.npos,
          "%s is binary: byte %zu is 0\n  expected plain text, or shards (*.bin): leave it out, or write its text as "
          "UTF-8 (without bytes of 0)",
          path.c_str(), zero);
  REQUIRE(!as_utf8 || is_mostly_utf8(start),
          "%s is binary, or text in another encoding: more than a quarter of its first %zu bytes begin no character of "
          "UTF-8\n  expected plain text, or shards (*.bin): leave it out, or write it as UTF-8: iconv",
          path.c_str(), start.size());
}

}  // namespace

bool is_text(const std::string& pattern, bool as_utf8) {
  const std::vector<std::string> paths = glob(pattern);
  if (paths.empty() || std::any_of(paths.begin(), paths.end(), [](const auto& path) { return path.ends_with(".bin"); }))
    return false;
  for (const std::string& path : paths) require_text(path, as_utf8);
  return true;
}

// ---- the shards ---------------------------------------------------------------------------------------------------

namespace {

constexpr char kMadeOf[] = "made_of.json";

bool is_complete(const fs::path& folder) {
  std::error_code error;
  if (!fs::exists(folder / kMadeOf, error)) return false;
  const int64_t shards = Json::read(folder / kMadeOf).get_int("shards");
  const auto is_shard = [](const fs::directory_entry& entry) { return entry.path().extension() == ".bin"; };
  return std::count_if(fs::directory_iterator(folder, error), fs::directory_iterator(), is_shard) == shards;
}

class ShardWriter {
 public:
  ShardWriter(const fs::path& folder, bool four_bytes, int64_t tokens_per_shard)
      : folder_(folder), four_bytes_(four_bytes), tokens_per_shard_(tokens_per_shard) {}

  void write(const std::vector<int32_t>& ids) {
    for (const int32_t id : ids) {
      tokens_.append(reinterpret_cast<const char*>(&id), four_bytes_ ? 4 : 2);
      if (++count_ == tokens_per_shard_) finish_shard();
    }
  }
  void finish() {
    if (count_ > 0) finish_shard();
  }
  int64_t tokens() const { return total_; }
  const Json& shards() const { return shards_; }  // entries of the manifest

 private:
  void finish_shard() {
    const std::string name = format("text_%06zu.bin", shards_.size() + 1);
    NewFile file(folder_ / name);
    const int32_t header[256] = {four_bytes_ ? 20240801 : 20240520, four_bytes_ ? 7 : 1, int32_t(count_)};
    file.write(header, sizeof header);
    file.write(tokens_);
    file.publish();
    Json sums = Json::array();
    for (const std::string& sum : block_checksums({{reinterpret_cast<const char*>(header), sizeof header}, tokens_}))
      sums.push_back(sum);
    shards_.push_back(Json::object().set("name", name).set("split", "text").set("tokens", count_).set("xxh64", sums));
    tokens_.clear();
    total_ += std::exchange(count_, 0);
  }

  fs::path folder_;
  bool four_bytes_;
  int64_t tokens_per_shard_, count_ = 0, total_ = 0;  // limit per shard; in the shard begun; in shards written
  Json shards_ = Json::array();
  std::string tokens_;
};

// A folder under a temporary name, which is removed unless publish() renames it.
class NewFolder {
 public:
  NewFolder(const fs::path& path, Disk& disk) : path_(path), partial_(path.string() + ".XXXXXX"), disk_(disk) {
    std::error_code error;
    fs::create_directories(path.parent_path(), error);
    REQUIRE(!error && mkdtemp(partial_.data()),
            "cannot create %s: %s\n  the tokens of a text are kept there: name another folder with --cache DIR",
            partial_.c_str(), error ? error.message().c_str() : strerror(errno));
    fs::permissions(partial_, fs::perms(0755), error);  // mkdtemp lets only the owner in
  }
  ~NewFolder() {
    std::error_code error;
    fs::remove_all(partial_, error);
    fs::remove_all(aside(), error);
  }
  NewFolder(const NewFolder&) = delete;

  fs::path path() const { return partial_; }
  // Gives the folder its name. If another run has made the same folder meanwhile, that one stays. An incomplete one is
  // moved aside first, so that a complete one is never removed.
  void publish() {
    while (disk_.rename(partial_, path_) != 0) {
      REQUIRE(errno == EEXIST || errno == ENOTEMPTY, "cannot rename %s to %s: %s", partial_.c_str(), path_.c_str(),
              strerror(errno));
      if (is_complete(path_)) return;
      REQUIRE(disk_.rename(path_, aside()) == 0 || errno == ENOENT,
              "%s is incomplete, and cannot be moved away: %s\n  remove it, or name another folder with --cache DIR",
              path_.c_str(), strerror(errno));
      if (is_complete(aside())) disk_.rename(aside(), path_);  // another run completed it at this moment
    }
    disk_.sync_folder(path_.parent_path());
  }

 private:
  std::string aside() const { return partial_ + ".old"; }

  fs::path path_;
  std::string partial_;
  Disk& disk_;
};

std::string_view text_of(const MappedFile& file) { return {reinterpret_cast<const char*>(file.data()), file.size()}; }

// Returns a checksum of everything that decides about the tokens.
std::string key_of(const std::vector<std::string>& paths, const TextCodec& codec, SpelledTokens spelled,
                   int64_t tokens_per_shard, std::atomic<int64_t>& done) {
  constexpr size_t kChunk = size_t(16) << 20;
  Checksum sum;
  const auto add = [&](const MappedFile& file, std::atomic<int64_t>* count) {
    const uint64_t size = file.size();
    sum.add(&size, sizeof size);
    for (size_t at = 0; at < size; at += kChunk) {
      const size_t bytes = std::min<size_t>(kChunk, size - at);
      sum.add(file.data() + at, bytes);
      if (count) *count += int64_t(bytes);
    }
  };
  const std::string rules = format(
      "text shards 3, Unicode %s and %s, token %d before each document, special tokens are %s, %lld tokens a shard",
      pattern_unicode_version().c_str(), unicode_form_version().c_str(), codec.document_token().value_or(-1),
      spelled == SpelledTokens::letters ? "letters" : "tokens", (long long)tokens_per_shard);
  sum.add(rules.data(), rules.size());
  add(MappedFile(codec.file()), nullptr);
  for (const std::string& path : paths) add(MappedFile(path), &done);
  return sum.text();
}

// A part of a file, which is encoded by itself.
struct Part {
  std::shared_ptr<const MappedFile> file;
  std::string_view text;
  bool begins;  // it is the file's first part
  std::vector<int32_t> ids = {};
  std::string error = {};
  int64_t special = 0;                  // special tokens that it spells
  std::string_view first_special = {};  // the first of them
};

// How texts become tokens.
struct CutRules {
  const TextCodec& codec;
  const SpecialTokens& special;
  SpelledTokens spelled;

  size_t next_cut(std::string_view text, size_t from) const {
    return spelled == SpelledTokens::letters ? codec.tokenizer().next_cut(text, from) : special.next_cut(text, from);
  }
};

// Returns the parts of all files, one after the other.
class Parts {
 public:
  Parts(const std::vector<std::string>& paths, const CutRules& rules, size_t bytes)
      : paths_(paths), rules_(rules), bytes_(bytes) {}

  std::optional<Part> next() {
    if (!file_ && next_path_ == paths_.size()) return {};
    const bool begins = !file_;
    if (begins) {
      file_ = std::make_shared<const MappedFile>(paths_[next_path_++]);
      left_ = text_of(*file_);
    }
    // A small rest is not left for a part of its own.
    const size_t bytes = left_.size() < 2 * bytes_ ? left_.size() : rules_.next_cut(left_, bytes_);
    Part part{file_, left_.substr(0, bytes), begins};
    left_.remove_prefix(bytes);
    if (left_.empty()) file_.reset();
    return part;
  }

 private:
  const std::vector<std::string>& paths_;
  const CutRules& rules_;
  size_t bytes_, next_path_ = 0;
  std::shared_ptr<const MappedFile> file_;  // the file whose rest is `left_`
  std::string_view left_;
};

// Works in rounds: the threads encode a few parts each, which are then written in order.
class TextCutter {
 public:
  TextCutter(const CutRules& rules, int threads) : rules_(rules), begin_(rules.codec.document_token()), pool_(threads) {
    for (int i = 0; i < threads; ++i)
      encoders_.emplace_back(rules.codec.tokenizer(), rules.spelled == SpelledTokens::letters);
  }

  void cut(Parts parts, size_t bytes_per_part, ShardWriter& writer, std::atomic<int64_t>& done) {
    const size_t bytes_per_round = 4 * size_t(pool_.size()) * bytes_per_part;
    constexpr size_t kMostParts = 4096;  // each may map a file, and a system lets a process map about 65,000
    for (std::optional<Part> next = parts.next(); next;) {
      std::vector<Part> round;
      for (size_t bytes = 0; next && bytes < bytes_per_round && round.size() < kMostParts; next = parts.next()) {
        bytes += next->text.size();
        round.push_back(std::move(*next));
      }
      pool_.run(round.size(), [&](size_t i, int worker) {
        encode(round[i], encoders_[size_t(worker)]);
        done += int64_t(round[i].text.size());
      });
      for (const Part& part : round) {
        REQUIRE(part.error.empty(), "%s: %s", part.file->path().c_str(), part.error.c_str());
        writer.write(part.ids);
        if (!part.ids.empty()) largest_ = std::max(largest_, std::ranges::max(part.ids));
        if (special_ == 0) first_special_ = part.first_special;
        special_ += part.special;
      }
    }
    writer.finish();
  }
  int32_t largest() const { return largest_; }  // token
  int64_t special() const { return special_; }  // special tokens that the texts spell
  const std::string& first_special() const { return first_special_; }

 private:
  void encode(Part& part, TextEncoder& encoder) const {
    try {
      if (part.begins && begin_) {
        part.ids.push_back(*begin_);
        rules_.codec.require_in_model(part.ids, "the document's first token");
      }
      encoder.encode(part.text, false, part.ids);
      rules_.codec.require_in_model(part.ids);
      const std::vector<SpecialTokens::Found> special = rules_.special.all(part.text);
      part.special = int64_t(special.size());
      if (!special.empty()) part.first_special = part.text.substr(special[0].at, special[0].bytes);
    } catch (const std::exception& error) {
      part.error = error.what();
    }
  }

  const CutRules& rules_;
  std::optional<int32_t> begin_;  // begins each document
  int32_t largest_ = 0;
  int64_t special_ = 0;
  std::string first_special_;
  ThreadPool pool_;
  std::vector<TextEncoder> encoders_;  // one per thread: each remembers the words it has seen
};

}  // namespace

std::string tokenize_into_cache(const std::vector<std::string>& paths, const TextCodec& codec, SpelledTokens spelled,
                                const std::string& cache, int threads, std::atomic<int64_t>& done,
                                int64_t tokens_per_shard, size_t bytes_per_part, Disk& disk) {
  const fs::path folder = fs::path(cache) / key_of(paths, codec, spelled, tokens_per_shard, done);
  if (is_complete(folder)) return folder;
  NewFolder made(folder, disk);
  ShardWriter writer(made.path(), codec.tokenizer().vocabulary_size() > 65536, tokens_per_shard);
  const SpecialTokens special(codec.tokenizer());
  const CutRules rules{codec, special, spelled};
  TextCutter cutter(rules, threads);
  cutter.cut(Parts(paths, rules, bytes_per_part), bytes_per_part, writer, done);
  REQUIRE(writer.tokens() > 0, "%s has no tokens", paths[0].c_str());
  const std::optional<int32_t> token = codec.document_token();
  const Json delimiter = token ? Json::object()
                                     .set("place", "before")
                                     .set("token", codec.tokenizer().token_of(*token).value_or(""))
                                     .set("id", *token)
                               : Json();
  write_file(made.path() / "manifest.json", Json::object()
                                                    .set("format", "train_llama shards 1")
                                                    .set("delimiter", delimiter)
                                                    .set("xxh64_block_bytes", kChecksumBlockBytes)
                                                    .set("shards", writer.shards())
                                                    .dump(1) +
                                                "\n");
  Json files = Json::array();
  for (const std::string& path : paths) files.push_back(path);
  write_file(made.path() / kMadeOf, Json::object()
                                            .set("text", files)
                                            .set("tokenizer", codec.file())
                                            .set("shards", writer.shards().size())
                                            .set("tokens", writer.tokens())
                                            .set("largest_token", cutter.largest())
                                            .set("special_tokens", cutter.special())
                                            .set("first_special_token", cutter.first_special())
                                            .dump(1) +
                                        "\n");
  made.publish();
  return folder;
}

std::string cache_folder(const Options& options) {
  if (!options.cache.empty()) return options.cache;
  if (options.out.empty()) return "runs/cache";
  fs::path out = fs::path(options.out).lexically_normal();
  if (!out.has_filename()) out = out.parent_path();  // "runs/mine/"
  if (out == "." || out.filename() == "..") out = fs::weakly_canonical(out);
  return out.parent_path() / "cache";
}

// Returns a sentence about the special tokens that became letters; "" if there are none.
static std::string remark_about_letters(const std::string& pattern, const Json& made_of) {
  const int64_t count = made_of.get_int("special_tokens");
  if (count == 0) return "";
  return format(
      "%s spells %s, first %s, cut into letters like the rest\n  for the tokens themselves: "
      "--special-tokens parse",
      pattern.c_str(), counted(count, "special token").c_str(), made_of.get_string("first_special_token").c_str());
}

TextShards tokenize_text(const std::string& pattern, const TextCodec& codec, SpelledTokens spelled,
                         const std::string& cache, Communicator& communicator, Device& device, Console& console) {
  const std::vector<std::string> paths = glob(pattern);
  double total = 0;
  for (const std::string& path : paths) total += double(fs::file_size(path));
  std::atomic<int64_t> done = 0;
  std::string folder;
  const double begin = seconds();
  double shown = begin;
  const auto show = [&] {
    if (seconds() - shown < 2) return;
    shown = seconds();
    const double bytes = double(done);
    const bool cuts = bytes >= total;  // the first time, the text was read for the checksum
    console.progress(
        format("%s text: %s of %s", cuts ? "cutting the" : "reading the",
               human_bytes(uint64_t(cuts ? bytes - total : bytes)).c_str(), human_bytes(uint64_t(total)).c_str()),
        bytes / (2 * total));
  };
  Stream stream(device, "text");
  const auto cut = [&] {
    const int threads = std::max(1, int(std::thread::hardware_concurrency()));
    if (communicator.rank() == 0) folder = tokenize_into_cache(paths, codec, spelled, cache, threads, done);
  };
  const WorkError error = work_with_heartbeats(communicator, stream, cut, show);
  const std::string why = broadcast_text(communicator, stream, error.text);
  const auto code = ExitCode(broadcast_number(communicator, stream, int64_t(error.code)));
  if (code != ExitCode::done) throw Error(why, code);
  folder = broadcast_text(communicator, stream, folder);
  std::error_code ignored;
  const bool here = fs::exists(fs::path(folder) / kMadeOf, ignored);
  REQUIRE(sum_number(communicator, stream, !here) == 0,
          "%s: %s does not see the folder\n  the first rank writes a text's tokens there: name a folder that all "
          "machines share with --cache DIR",
          folder.c_str(), here ? "another rank" : "this rank");
  const Json made_of = Json::read(fs::path(folder) / kMadeOf);
  codec.require_in_model(std::vector{int32_t(made_of.get_int("largest_token"))},
                         (pattern + ": the text's token").c_str());
  const int64_t special = made_of.get_int("special_tokens");
  const bool letters = spelled == SpelledTokens::letters;
  const std::string of_these =
      letters || special == 0 ? "" : ", of which " + counted(special, "special token") + " that it spells";
  return {literally(folder) + "/text_*.bin",
          format("%s: text, cut into %s tokens by %s%s (cached in %s)", pattern.c_str(),
                 human_count(double(made_of.get_int("tokens"))).c_str(), codec.file().c_str(), of_these.c_str(),
                 folder.c_str()),
          letters ? remark_about_letters(pattern, made_of) : ""};
}

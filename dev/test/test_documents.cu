// Covers: data: packed documents: where they begin, what is not predicted, and that each is computed as if it stood
// alone; masks of what is learnt
#include <cmath>
#include <vector>

#include "dev/test/test.h"
#include "dev/test/tiny_trainer.h"
#include "dev/test/token_files.h"
#include "llmc/data/documents.h"
#include "llmc/data/sampler.h"
#include "llmc/kernels/classifier.h"

namespace {

using Tokens = std::vector<int32_t>;
constexpr int kNo = kIgnoredLabel;

struct Row {
  Tokens labels, positions;
};
Row cut(const DocumentRule& rule, const Tokens& stream) {
  const int T = int(stream.size()) - 1;
  Row row{Tokens(stream.begin() + 1, stream.end()), Tokens(size_t(T))};
  split_documents(rule, stream.data(), row.labels.data(), row.positions.data(), T);
  return row;
}

std::string rule_error(const std::string& pattern, int64_t token, int bos) {
  ModelConfig config = ModelConfig::preset("tiny");
  config.bos = bos;
  return error_of([&] { document_rule(pattern, token, config); });
}

}  // namespace

TEST_CASE("documents that begin with a token") {
  const Row row = cut({9, true}, {5, 6, 9, 7, 9, 9, 8, 9});
  CHECK(row.positions == Tokens{0, 1, 0, 1, 0, 0, 1});
  CHECK(row.labels == Tokens{6, kNo, 7, kNo, kNo, 8, kNo});
  CHECK(cut({9, true}, {9, 1, 2}).positions == Tokens{0, 1});
}

TEST_CASE("documents that end with a token") {
  const Row row = cut({9, false}, {5, 6, 9, 7, 9, 9, 8, 9});
  CHECK(row.positions == Tokens{0, 1, 2, 0, 1, 0, 0});
  CHECK(row.labels == Tokens{6, 9, kNo, 9, kNo, kNo, 9});  // the end is predicted, what follows it is not
}

TEST_CASE("the token that tells documents apart: asked for, the shards' manifest's, the model's") {
  TemporaryFolder folder;
  const std::string shard = write_shard(folder / "a.bin", std::vector<uint16_t>{1, 2, 3});
  ModelConfig config = ModelConfig::preset("tiny");
  config.bos = 3;
  CHECK(document_rule(shard, -1, config).token == 3);
  const std::optional<DocumentRule> before = rule_of(json_of(DocumentRule{8, false}));  // of a run that goes on
  CHECK(document_rule(shard, -1, config, before).token == 8);
  CHECK(!document_rule(shard, -1, config, before).begins);
  CHECK(document_rule(shard, 5, config, before).token == 5);
  write_file(
      folder / "manifest.json",
      std::string(R"({"format": "train_llama shards 1", "delimiter": {"place": "after", "token": "<end>", "id": 7}})"));
  CHECK(document_rule(shard, -1, config).token == 7);
  CHECK(!document_rule(shard, -1, config).begins);
  CHECK(document_rule(shard, -1, config, before).token == 7);  // it is compared with the one before
  CHECK(document_rule(shard, 5, config).token == 5);
  CHECK(document_rule(shard, 5, config).begins);
  write_file(folder / "manifest.json", std::string(R"({"format": "train_llama shards 1", "delimiter": null})"));
  says(rule_error(shard, -1, 3), "were written with --delimiter none");
  says(rule_error(shard, 256, 3), "token 256 tells the documents of");
  says(rule_error(shard, (int64_t(1) << 32) + 2, 3), "token 4294967298 tells");
  says(rule_error("/nowhere/*.bin", -1, -1), "name it with --document-token");
  const auto manifest = [](const std::string& delimiter) {
    return R"({"format": "train_llama shards 1", "delimiter": )" + delimiter + "}";
  };
  write_file(folder / "manifest.json",
             manifest(R"({"place": "both", "token": "<s>", "id": 4, "end_token": "</s>", "end_id": 5})"));
  CHECK(document_rule(shard, -1, config).token == 4);
  CHECK(document_rule(shard, -1, config).begins);
  // Several folders must say the same; files of another program say nothing.
  TemporaryFolder other;
  write_shard(other / "b.bin", std::vector<uint16_t>{1, 2, 3});
  CHECK(document_rule(other / "b.bin", -1, config).token == 3);
  write_file(other / "manifest.json", std::string(R"({"delimiter": "x"})"));
  CHECK(document_rule(other / "b.bin", -1, config).token == 3);
}

TEST_CASE("the tokens before and after documents end the texts of a model that has no end of its own") {
  TemporaryFolder folder;
  write_shard(folder / "a.bin", std::vector<uint16_t>{1, 2, 3});
  const auto named = [&](const std::string& delimiter) {
    write_file(folder / "manifest.json", R"({"format": "train_llama shards 1", "delimiter": )" + delimiter + "}");
    return delimiter_of(folder / "*.bin", 256);
  };
  const auto ends = [](const Delimiter& delimiter, ModelConfig config) {
    end_at_documents(delimiter, config);
    return config.generation.is_null() ? "null" : config.generation.dump();
  };
  const ModelConfig none = ModelConfig::preset("tiny");
  ModelConfig own = none;
  own.eos = {9};
  CHECK(!delimiter_of(folder / "*.bin", 256).known());
  CHECK(!named("null").known());
  CHECK(!named(R"({"place": "before", "token": "<s>", "id": 256})").known());  // the model has no such token
  const Delimiter before = named(R"({"place": "before", "token": "<s>", "id": 4})");
  CHECK(before.begins_text() == 4);
  CHECK(ends(before, none) == R"({"eos_token_id":4,"bos_token_id":4})");
  const Delimiter after = named(R"({"place": "after", "token": "</s>", "id": 5})");
  CHECK(after.begins_text() == 5);
  CHECK(ends(after, none) == R"({"eos_token_id":5})");
  const Delimiter both = named(R"({"place": "both", "token": "<s>", "id": 4, "end_token": "</s>", "end_id": 5})");
  CHECK(both.begins_text() == 4);
  CHECK(ends(both, none) == R"({"eos_token_id":5,"bos_token_id":4})");
  CHECK(ends(both, own) == "null");
  CHECK(ends({}, none) == "null");
}

TEST_CASE("the token that tells documents apart is looked for") {
  TemporaryFolder folder;
  std::vector<uint16_t> tokens(3000, 1);
  write_shard(folder / "a.bin", tokens);
  tokens[2999] = 7;
  write_shard(folder / "b.bin", tokens);
  const auto missing = [&](int64_t token, const std::string& pattern) {
    return missing_documents({token, true}, TokenDataset::open(folder / pattern, 10));
  };
  CHECK(missing(7, "a.bin") ==
        "token 7, which should begin each document, is not among the 3.00k tokens that were looked at in " +
            (folder / "a.bin"));
  CHECK(missing(7, "*.bin") == "");
  says(missing(8, "*.bin"), "6.00k tokens that were looked at in " + (folder / "a.bin") + " and the files after it");
  says(missing_documents({7, false}, TokenDataset::open(folder / "a.bin", 10)), "which should end each");
  // One document, though a token begins it: nothing is told apart.
  tokens.assign(3000, 1);
  tokens[0] = 7;
  write_shard(folder / "a.bin", tokens);
  says(missing(7, "a.bin"), "token 7, which should begin each document, is the first and no other of the 3.00k tokens");
  // Documents of more than a million tokens, far from the start.
  tokens.assign(3 << 20, 1);
  for (size_t i = 0; i < tokens.size(); i += 6143) tokens[tokens.size() - 1 - i / 4] = 7;
  write_shard(folder / "c.bin", tokens);
  CHECK(missing(7, "c.bin") == "");
  says(missing(8, "c.bin"), "token 8");
}

TEST_CASE("shards in several folders are told apart in the same way") {
  TemporaryFolder folder;
  ModelConfig config = ModelConfig::preset("tiny");
  for (const char* name : {"a", "b"}) {
    std::filesystem::create_directory(folder / name);
    write_shard(folder / name + "/x.bin", std::vector<uint16_t>{1, 2, 3});
    write_file(folder / name + "/manifest.json",
               R"({"format": "train_llama shards 1", "delimiter": {"place": "before", "token": "s", "id": )" +
                   std::string(name == std::string("a") ? "1" : "2") + "}}");
  }
  CHECK(document_rule(folder / "a/*.bin", -1, config).token == 1);
  says(rule_error(folder / "*/*.bin", -1, -1), "were written with different --delimiter");
  CHECK(document_rule(folder / "*/*.bin", 3, config).token == 3);
  const std::string a = "token 1 before each document", b = "token 2 before each document";
  CHECK(different_rules(folder / "*/*.bin") == (folder / "a") + " has " + a + ", and " + (folder / "b") + " has " + b +
                                                   ": they were not prepared for one training");
  CHECK(different_rules(folder / "a/*.bin") == "");
  std::filesystem::remove(folder / "b/manifest.json");
  says(different_rules(folder / "*/*.bin"), (folder / "b") + " has no manifest.json that says");
  std::filesystem::copy_file(folder / "a/manifest.json", folder / "b/manifest.json");
  CHECK(different_rules(folder / "*/*.bin") == "");
}

TEST_CASE("a token that the shard's mask excludes has no label") {
  TemporaryFolder folder;
  const std::string shard = write_shard(folder / "a.bin", std::vector<uint16_t>{1, 2, 3, 4, 5, 6, 7, 8});
  const auto mask = [&](const std::string& bytes, int32_t tokens = 8) {
    write_file(folder / "a.mask", header_bytes(20241121, 1, tokens) + bytes);
  };
  const auto error = [&] { return error_of([&] { TokenDataset::open(folder / "*.bin", 10); }); };
  mask({0, 1, 1, 0, 0, 1, 0, 1});
  TokenDataset data = TokenDataset::open(shard, 10);
  CHECK(data.has_masks());
  Tokens inputs(3), labels(3);
  Windows(data, 3).read({2, 3}, inputs.data(), labels.data());
  CHECK(inputs == Tokens{3, 4, 5});
  CHECK(labels == Tokens{kNo, kNo, 6});
  Windows(data.split(4).second, 3).read({0, 3}, inputs.data(), labels.data());
  CHECK(labels == Tokens{6, kNo, 8});

  mask({0, 1, 1, 0, 0, 1, 0}, 7);
  says(error(), "a.mask: header says 7 tokens, file holds 7\n  expected 8");
  mask({0, 1, 1, 0, 0, 1, 0});
  says(error(), "a.mask: header says 8 tokens, file holds 7");
  mask({0, 1, 1, 0, 0, 2, 0, 1});
  data = TokenDataset::open(shard, 10);  // masks are checked where they are read
  says(error_of([&] { data.check(0, 8); }), "a.mask: token 5 has the byte 2");
  says(error_of([&] { Windows(data, 3).read({2, 3}, inputs.data(), labels.data()); }), "token 5 has the byte 2");
  says(error_of([&] { data.split(4).second.check(0, 4); }), "token 5 has the byte 2");
  write_file(folder / "a.mask", std::string(""));
  says(error(), "a.mask");
  write_file(folder / "a.mask", std::string("short"));
  says(error(), "a.mask: 5 bytes");
  mask({0, 1, 1, 0, 0, 1, 0, 1});
  write_shard(folder / "b.bin", std::vector<uint16_t>{1, 2});
  says(error(), "has no .mask, and");
}

TEST_CASE("positions that are none are refused") {
  World world;
  TrainerSettings settings;
  settings.T = 6;
  Training trainer(world, tiny(), settings);
  const Tokens tokens = {1, 2, 3, 4, 5, 6};
  const auto error = [&](const Tokens& positions) {
    return error_of([&] { trainer->logits(tokens, 1, 6, {}, positions); });
  };
  CHECK(error({0, 1, 0, 1, 2, 3}) == "");
  CHECK(error({2, 3, 0, 1, 2, 3}) == "");
  says(error({0, 1, 2, 2, 3, 4}), "position 2 at token 3 of row 0, after 2");
  says(error({5, 6, 0, 1, 2, 3}), "position 6 at token 1");
  says(error({-1, 0, 1, 2, 3, 4}), "position -1 at token 0");
  says(error({0, 1}), "2 positions of 6 tokens");
}

TEST_CASE("each of several documents in a row has the logits that it has alone") {
  World world;
  TrainerSettings settings;
  settings.B = 2, settings.T = 40;
  const ModelConfig config = tiny();
  Training trainer(world, config, settings);
  const std::vector<std::vector<int>> lengths = {{1, 17, 22}, {40}};
  Tokens tokens, positions;
  for (const auto& row : lengths)
    for (const int length : row)
      for (int t = 0; t < length; ++t) tokens.push_back(int32_t(tokens.size() * 37 % 97)), positions.push_back(t);
  const std::vector<float> packed = trainer->logits(tokens, 2, 40, {}, positions);
  size_t first = 0;
  for (const auto& row : lengths)
    for (const int length : row) {
      const Tokens alone(tokens.begin() + ptrdiff_t(first), tokens.begin() + ptrdiff_t(first) + length);
      const std::vector<float> want = trainer->logits(alone, 1, length);
      double difference = 0, norm = 0;
      for (size_t i = 0; i < want.size(); ++i) {
        const double d = double(packed[first * size_t(config.V) + i]) - want[i];
        difference += d * d, norm += double(want[i]) * want[i];
      }
      CAPTURE(length);
      // fp32 products of another number of rows may add in another order, over a few layers: some 1e-7 each.
      CHECK(std::sqrt(difference / norm) < 3e-6);
      first += size_t(length);
    }
}

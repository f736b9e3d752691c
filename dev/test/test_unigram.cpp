// Covers: data: the unigram loss: labels alone are counted, of the measured windows, and of all of a large dataset; how
// many tokens of data with masks are learnt
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "dev/test/test.h"
#include "dev/test/token_files.h"
#include "llmc/data/unigram.h"
#include "llmc/run/description.h"

TEST_CASE("unigram cross entropy") {
  TemporaryFolder folder;
  const auto text = [&](const std::string& name, const std::string& bytes, int vocab_size) {
    return TokenDataset::open(write_file(folder / name, bytes), vocab_size);
  };
  const auto loss = [](const TokenDataset& train, const TokenDataset& held_out, int64_t most = 10'000'000) {
    return unigram_cross_entropy(count_labels(train, {}, most), count_labels(held_out, {}, most));
  };
  SUBCASE("by hand, with one added to every count; the first token of all is no label") {
    const TokenDataset train = text("train.txt", "xaaab", 256), held_out = text("held.txt", "xabc", 256);
    const double expected = -(std::log(4.0 / 260) + std::log(2.0 / 260) + std::log(1.0 / 260)) / 3;
    CHECK(loss(train, held_out).nats == doctest::Approx(expected).epsilon(1e-12));
    CHECK(loss(train, held_out).tokens == 0);  // all of them
  }
  SUBCASE("what begins another document is no label, nor what a mask leaves out") {
    const TokenDataset data = text("documents.txt", "|ab|a|", 256);
    CHECK(count_labels(data, {}).of_token['|'] == 2);
    CHECK(count_labels(data, DocumentRule{'|', true}).of_token['|'] == 0);
    CHECK(count_labels(data, DocumentRule{'|', true}).labels == 3);
    const LabelCounts after = count_labels(data, DocumentRule{'|', false});
    CHECK(after.of_token['a'] == 0);
    CHECK(after.of_token['|'] == 2);
    write_shard(folder / "m.bin", std::vector<uint16_t>{5, 6, 7, 6});
    write_file(folder / "m.mask", header_bytes(20241121, 1, 4) + std::string("\1\1\0\0", 4));
    const LabelCounts masked = count_labels(TokenDataset::open(folder / "m.bin", 10), {});
    CHECK(masked.of_token[6] == 1);
    CHECK(masked.labels == 1);
    CHECK(masked.tokens == 4);
    CHECK(describe_masks(masked) == "learns 1 of 4 tokens (25%)");
  }
  SUBCASE("how many tokens of data with masks are learnt, also of a last window that is not full") {
    const size_t N = 40001;
    std::string mask(N, '\1');
    for (size_t i = 0; i < N; i += 2) mask[i] = '\0';
    write_shard(folder / "m.bin", std::vector<uint16_t>(N, 7));
    write_file(folder / "m.mask", header_bytes(20241121, 1, int32_t(N)) + mask);
    const TokenDataset data = TokenDataset::open(folder / "m.bin", 10);
    CHECK(describe_masks(count_labels(data, {})) == "learns 20.0k of 40.0k tokens (50%)");
    CHECK(describe_masks(count_labels(data, {}, 16384)) == "learns about 50% of the tokens");
  }
  SUBCASE("the labels of some windows are those that are measured") {
    const TokenDataset data = text("windows.txt", "0aaaabbbbcccc", 256);
    const LabelCounts first = count_labels(ValidationWindows(data, 4, 1), {});
    CHECK(first.of_token['a'] == 4);
    CHECK(first.labels == 4);
    CHECK(first.all);
  }
  SUBCASE("a large dataset is represented by chunks from all of it") {
    // 8 MiB of a, then 8 MiB of b: chunks from the beginning alone would know nothing of b.
    const TokenDataset data = text("half.txt", std::string(8 << 20, 'a') + std::string(8 << 20, 'b'), 256);
    const Unigram most = loss(data, data);
    CHECK(most.nats == doctest::Approx(std::log(2.0)).epsilon(1e-4));
    CHECK(most.tokens <= 10'000'000);
    CHECK(most.tokens > 5'000'000);
    for (const int64_t limit : {1, 16384, 16385, 1 << 18}) {
      CAPTURE(limit);
      const Unigram part = loss(data, data, limit);
      CHECK(part.tokens <= std::max<int64_t>(limit, 16384));
      if (limit > 100000) CHECK(part.nats == doctest::Approx(std::log(2.0)).epsilon(0.1));
    }
  }
  SUBCASE("two vocabularies are refused") {
    const TokenDataset a = text("a.txt", "aaab", 256), b = text("b.txt", "aaab", 200);
    says(error_of([&] { loss(a, b); }), "a vocabulary of 256 tokens, the held-out data one of 200");
  }
}

TEST_CASE("of the bundled text") {
  const std::string path = "dev/data/tinyshakespeare.txt";
  const auto [train, held_out] = hold_out_last_tenth(TokenDataset::open(path, 256), path);
  // Counted by an independent script, without the first token of each, which nothing predicts.
  const Unigram unigram = unigram_cross_entropy(count_labels(train, {}), count_labels(held_out, {}));
  CHECK(unigram.nats == doctest::Approx(3.347494989649397).epsilon(1e-12));
}

// Covers: checksums of files are XXH64, in whatever pieces the bytes come
#include <random>

#include "dev/test/test.h"
#include "llmc/base/checksum.h"

namespace {

std::string checksum_of(const std::string& bytes) {
  Checksum checksum;
  checksum.add(bytes.data(), bytes.size());
  return checksum.text();
}

}  // namespace

TEST_CASE("the checksums that the xxhash library gives") {
  std::string thousand;
  for (int i = 0; i < 1000; ++i) thousand += char(i * 7 + 3);
  CHECK(checksum_of("") == "ef46db3751d8e999");
  CHECK(checksum_of("a") == "d24ec4f1a98c6e5b");
  CHECK(checksum_of("abc") == "44bc2cf5ad770999");
  CHECK(checksum_of(std::string(31, 'x')) == "60dd0d01083b99f0");
  CHECK(checksum_of(std::string(32, 'y')) == "64da1f1d3495ce66");
  CHECK(checksum_of("Nobody inspects the spammish repetition") == "fbcea83c8a378bf1");
  CHECK(checksum_of(thousand) == "5f235fa033f1a3fb");
}

TEST_CASE("the same in pieces of any size, and asked in between") {
  std::mt19937 random(1);
  std::string bytes(5000, 0);
  for (char& c : bytes) c = char(random());
  for (int round = 0; round < 200; ++round) {
    const size_t largest = 1 + random() % 100;
    Checksum checksum;
    for (size_t done = 0, n; done < bytes.size(); done += n) {
      n = std::min(bytes.size() - done, size_t(random() % (largest + 1)));
      checksum.add(bytes.data() + done, n);
      if (random() % 8 == 0) CHECK(checksum.text() == checksum_of(bytes.substr(0, done + n)));
    }
    CHECK(checksum.text() == checksum_of(bytes));
  }
}

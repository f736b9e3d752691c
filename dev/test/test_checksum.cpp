// Covers: checksums of files are XXH64, in whatever chunks the bytes arrive, also of blocks; SHA-256
#include <random>

#include "dev/test/test.h"
#include "llmc/base/block_checksums.h"
#include "llmc/base/checksum.h"
#include "llmc/base/sha256.h"

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

TEST_CASE("the same in chunks of any size, and asked in between") {
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

TEST_CASE("checksums of blocks are those of the bytes, wherever its parts end") {
  std::string bytes;
  for (int i = 0; i < 1000; ++i) bytes += char(i * 11 + 5);
  for (const size_t block : {1, 7, 100, 999, 1000, 5000}) {
    std::vector<std::string> want;
    for (size_t at = 0; at < bytes.size(); at += block) want.push_back(checksum_of(bytes.substr(at, block)));
    for (const size_t cut : {0, 1, 100, 250, 1000})
      CHECK(block_checksums({std::string_view(bytes).substr(0, cut), std::string_view(bytes).substr(cut)}, block) ==
            want);
  }
  CHECK(block_checksums({}).empty());
}

TEST_CASE("SHA-256 of the examples of FIPS 180-4, and around the ends of blocks") {
  const auto sha256 = [](const std::string& bytes, size_t chunk) {
    Sha256 sum;
    for (size_t at = 0; at < bytes.size(); at += chunk) sum.add(bytes.data() + at, std::min(chunk, bytes.size() - at));
    return sum.text();
  };
  for (const auto& [bytes, want] :
       {std::pair<std::string, const char*>{"", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"},
        std::pair<std::string, const char*>{"abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"},
        std::pair<std::string, const char*>{"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
                                            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1"},
        std::pair<std::string, const char*>{std::string(55, 'a'),
                                            "9f4390f8d30c2dd92ec9f095b65e2b9ae9b0a925a5258e241c9f1e910f734318"},
        std::pair<std::string, const char*>{std::string(56, 'a'),
                                            "b35439a4ac6f0948b6d6f9e3c6af0f5f590ce20f1bde7090ef7970686ec6738a"},
        std::pair<std::string, const char*>{std::string(57, 'a'),
                                            "f13b2d724659eb3bf47f2dd6af1accc87b81f09f59f2b75e5c0bed6589dfe8c6"},
        std::pair<std::string, const char*>{std::string(63, 'a'),
                                            "7d3e74a05d7db15bce4ad9ec0658ea98e3f06eeecf16b4c6fff2da457ddc2f34"},
        std::pair<std::string, const char*>{std::string(64, 'a'),
                                            "ffe054fe7ae0cb6dc65c3af9b61d5209f439851db43d0ba5997337df154668eb"},
        std::pair<std::string, const char*>{std::string(65, 'a'),
                                            "635361c48bb9eab14198e76ea8ab7f1a41685d6ad62aa9146d301d4f17eb0ae0"},
        std::pair<std::string, const char*>{std::string(119, 'a'),
                                            "31eba51c313a5c08226adf18d4a359cfdfd8d2e816b13f4af952f7ea6584dcfb"},
        std::pair<std::string, const char*>{std::string(120, 'a'),
                                            "2f3d335432c70b580af0e8e1b3674a7c020d683aa5f73aaaedfdc55af904c21c"},
        std::pair<std::string, const char*>{std::string(1000, 'a'),
                                            "41edece42d63e8d9bf515a9ba6932e1c20cbc9f5a5d134645adb5db1b9737ea3"}}) {
    CAPTURE(bytes.size());
    for (const size_t chunk : {1, 3, 63, 64, 65, 2000}) CHECK(sha256(bytes, chunk) == want);
  }
}

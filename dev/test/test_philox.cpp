// Covers: random numbers: Philox4x32-10 against its published answers, keys by name and seed
#include <bit>
#include <cmath>
#include <set>

#include "dev/test/test.h"
#include "llmc/base/philox.h"

namespace {

constexpr uint64_t pair(uint32_t low, uint32_t high) { return uint64_t(high) << 32 | low; }

}  // namespace

// kat_vectors of Random123, "philox4x32 10", also at compile time.
static_assert(philox(0, 0, 0) == PhiloxBlock{{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}});

TEST_CASE("philox: known answers") {
  CHECK(philox(0, 0, 0) == PhiloxBlock{{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}});
  CHECK(philox(~0ull, ~0ull, ~0ull) == PhiloxBlock{{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}});
  // Digits of pi, words in the order in which the vectors give them.
  CHECK(philox(pair(0xa4093822, 0x299f31d0), pair(0x243f6a88, 0x85a308d3), pair(0x13198a2e, 0x03707344)) ==
        PhiloxBlock{{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}});
}

TEST_CASE("philox: the word of an element") {
  for (uint64_t i : {uint64_t(0), uint64_t(1), uint64_t(6), uint64_t(4095), (uint64_t(1) << 34) + 3, ~uint64_t(0)}) {
    CHECK(philox_word(5, i, 9) == philox(5, i / 4, 9).words[i % 4]);
  }
  // Offsets beyond 32 bits reach the second counter word.
  CHECK(philox_word(5, (uint64_t(1) << 34) + 3, 9) != philox_word(5, 3, 9));
  CHECK(philox_word(5, 3, uint64_t(1) << 32) != philox_word(5, 3, 0));
}

TEST_CASE("philox: each bit of key and counter changes half of the output") {
  double changed = 0, least = 1, most = 0;
  for (int bit = 0; bit < 192; ++bit) {
    double flips = 0;
    for (uint64_t i = 0; i < 64; ++i) {
      uint64_t in[3] = {philox_key("key", i), philox_key("index", i), philox_key("stream", i)};
      const PhiloxBlock before = philox(in[0], in[1], in[2]);
      in[bit / 64] ^= uint64_t(1) << (bit % 64);
      const PhiloxBlock after = philox(in[0], in[1], in[2]);
      for (int w = 0; w < 4; ++w) flips += std::popcount(before.words[w] ^ after.words[w]);
    }
    const double rate = flips / (64 * 128);
    changed += rate / 192;
    least = std::min(least, rate);
    most = std::max(most, rate);
  }
  // 8192 flips a bit: standard deviation 0.0055, 5 of them for the worst of 192; their mean 0.0004.
  CHECK(std::abs(changed - 0.5) < 0.002);
  CHECK(least > 0.472);
  CHECK(most < 0.528);
}

TEST_CASE("hash: known answers") {
  static_assert(fnv1a("") == 0xcbf29ce484222325);
  CHECK(fnv1a("a") == 0xaf63dc4c8601ec8c);
  CHECK(fnv1a("foobar") == 0x85944171f73967e8);
  CHECK(fnv1a("\xff") == (0xcbf29ce484222325 ^ 0xff) * 0x100000001b3);  // bytes are unsigned
}

TEST_CASE("keys: names and seeds") {
  // Stable for all time: checkpoints and published runs depend on it.
  CHECK(philox_key("a", 0) == 0xaf63dc4c8601ec8c);
  CHECK(philox_key("model.embed_tokens.weight", 1337) == 0x160a9e21296ae992);
  std::set<uint64_t> keys;
  for (int layer = 0; layer < 126; ++layer) {
    for (const char* name : {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}) {
      for (uint64_t seed : {0, 1, 2, 42, 1337})
        keys.insert(philox_key(format("model.layers.%d.%s", layer, name), seed));
    }
  }
  CHECK(keys.size() == 126 * 7 * 5);
}

TEST_CASE("uniform: range, rounding, moments") {
  CHECK(uniform(0) == 0x1p-33f);
  CHECK(uniform(0) > 0);
  CHECK(uniform(0xffffffff) == 1.0f);
  CHECK(uniform(0x80000000) == 0.5f);
  for (uint32_t bits : {1u, 77u, 0x1000001u, 0x7fffffffu, 0xdeadbeefu, 0xfffffe00u}) {
    CHECK(uniform(bits) == std::fma(float(bits), 0x1p-32f, 0x1p-33f));
  }
  const int kCount = 1 << 20;
  const uint64_t key = philox_key("uniform", 1);
  double sum = 0, squares = 0, neighbours = 0, before = 0.5;
  int bins[64] = {};
  for (int i = 0; i < kCount; ++i) {
    const double u = uniform(philox_word(key, uint64_t(i), 0));
    sum += u;
    squares += (u - 0.5) * (u - 0.5);
    neighbours += (u - 0.5) * (before - 0.5);
    before = u;
    ++bins[std::min(63, int(u * 64))];
  }
  double chi2 = 0;
  for (int count : bins) chi2 += (count - kCount / 64.0) * (count - kCount / 64.0) / (kCount / 64.0);
  // Each within 4 standard deviations of what independent uniform numbers give.
  CHECK(std::abs(sum / kCount - 0.5) < 4 * std::sqrt(1 / 12.0 / kCount));
  CHECK(std::abs(squares / kCount - 1 / 12.0) < 4 * std::sqrt(1 / 180.0 / kCount));
  CHECK(std::abs(neighbours / kCount) < 4 / 12.0 / std::sqrt(kCount));
  CHECK(std::abs(chi2 - 63) < 4 * std::sqrt(2 * 63.0));
}

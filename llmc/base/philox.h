// Philox4x32-10: random numbers as a pure function of a key and a counter (J. Salmon, M. Moraes, R. Dror, D. Shaw:
// "Parallel random numbers: as easy as 1, 2, 3", SC 2011). There is no state: element i of a tensor gets the same
// number on any rank, in any order and on any number of ranks. All functions run on the host, on a device and at
// compile time.
//
//   const uint64_t key = philox_key("model.embed_tokens.weight", seed);
//   const float u = uniform(philox_word(key, i, step));   // i: offset in the unsharded tensor
#pragma once

#include <cstdint>
#include <string_view>

// A block of four 32-bit random words.
struct PhiloxBlock {
  uint32_t words[4];
  constexpr bool operator==(const PhiloxBlock&) const = default;
};

// Returns the block for a counter: words 0 and 1 are `index`, words 2 and 3 are `stream`. The low word comes first in
// each, as in the key.
constexpr PhiloxBlock philox(uint64_t key, uint64_t index, uint64_t stream) {
  uint32_t c0 = uint32_t(index), c1 = uint32_t(index >> 32), c2 = uint32_t(stream), c3 = uint32_t(stream >> 32);
  uint32_t k0 = uint32_t(key), k1 = uint32_t(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t(0xD2511F53u) * c0;
    const uint64_t p1 = uint64_t(0xCD9E8D57u) * c2;
    c0 = uint32_t(p1 >> 32) ^ c1 ^ k0;
    c1 = uint32_t(p1);
    c2 = uint32_t(p0 >> 32) ^ c3 ^ k1;
    c3 = uint32_t(p0);
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return {{c0, c1, c2, c3}};
}

// Returns the 32 bits of element `i`: word i % 4 of block i / 4. A caller that needs neighbouring elements should
// compute the block once.
constexpr uint32_t philox_word(uint64_t key, uint64_t i, uint64_t stream) {
  return philox(key, i / 4, stream).words[i % 4];
}

// FNV-1a, 64 bits. Unlike std::hash, it is the same on all machines and in all versions.
constexpr uint64_t fnv1a(std::string_view text) {
  uint64_t hash = 0xCBF29CE484222325u;
  for (char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3u;
  return hash;
}

// Returns the key of the stream of a tensor, or of any other named stream: FNV-1a of the name, XORed with the seed
// after SplitMix64's finalizer. The finalizer is a bijection, so one name has a different key for every seed.
constexpr uint64_t philox_key(std::string_view name, uint64_t seed) {
  uint64_t mixed = seed;
  mixed = (mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9u;
  mixed = (mixed ^ (mixed >> 27)) * 0x94D049BB133111EBu;
  return fnv1a(name) ^ mixed ^ (mixed >> 31);
}

// Returns (bits + 1/2) / 2^32 rounded to fp32. The result is in (0, 1] and never 0, so its logarithm is finite. The
// product is exact, so a fused multiply-add gives the same bits.
constexpr float uniform(uint32_t bits) { return float(bits) * 0x1p-32f + 0x1p-33f; }

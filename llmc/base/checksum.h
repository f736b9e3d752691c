// Computes XXH64 of bytes that arrive in chunks (Yann Collet's xxHash, https://xxhash.com, seed 0): `xxhsum -H64 FILE`
// prints the same 16 digits. The checksum detects corruption by a disk. It is not cryptographic, so it does not detect
// a forged file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

class Checksum {
 public:
  void add(const void* data, size_t bytes);
  uint64_t value() const;    // of all bytes added so far
  std::string text() const;  // 16 hexadecimal digits

 private:
  uint64_t lanes_[4] = {kPrime1 + kPrime2, kPrime2, 0, 0 - kPrime1};
  unsigned char waiting_[32];  // the start of a stripe that is not complete yet
  uint64_t bytes_ = 0;

  static constexpr uint64_t kPrime1 = 0x9e3779b185ebca87, kPrime2 = 0xc2b2ae3d27d4eb4f, kPrime3 = 0x165667b19e3779f9,
                            kPrime4 = 0x85ebca77c2b2ae63, kPrime5 = 0x27d4eb2f165667c5;
  static uint64_t round(uint64_t lane, uint64_t input);
  void add_stripe(const unsigned char* stripe);
};

// Computes SHA-256 of bytes that arrive in chunks (FIPS 180-4): `sha256sum FILE` prints the same 64 digits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

class Sha256 {
 public:
  void add(const void* data, size_t bytes);
  std::string text() const;  // 64 hexadecimal digits, of all bytes added so far

 private:
  void add_block(const unsigned char* block);

  uint32_t state_[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  unsigned char waiting_[64];  // the start of a block that is not complete yet
  uint64_t bytes_ = 0;
};

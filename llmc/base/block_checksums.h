// Checksums of a file's blocks, by which a reader verifies each block when it first reads from it. A file that was
// altered or damaged is then noticed before its contents are used, and nothing is read twice for it but those blocks.
//
// The cost, once for each block: reading it whole, and 0.4 ms of a core of an EPYC. Sequences are shuffled, so the
// first steps of a training read a block for each of their sequences: with 64 MiB, 8 ranks of a node that take 8
// sequences each would read 4 GiB a step. 100 GB have 25,000 blocks of 4 MiB, whose checksums take 0.5 MB of the
// manifest.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "llmc/base/input_file.h"

inline constexpr size_t kChecksumBlockBytes = size_t(4) << 20;

// Returns the XXH64 of each block of a file that has these parts, one after the other.
std::vector<std::string> block_checksums(const std::vector<std::string_view>& parts,
                                         size_t block_bytes = kChecksumBlockBytes);

class BlockChecksums {
 public:
  // `expected` has the XXH64 (16 hexadecimal digits) of each block of `block_bytes`; the last block may be shorter.
  // `remedy` says what to do about a file that differs.
  BlockChecksums(size_t block_bytes, std::vector<std::string> expected, std::string remedy);

  // Verifies the blocks that have bytes [offset, offset + bytes) of the file, except those verified before. Throws with
  // the file, the block and the remedy if one differs, or if there are fewer checksums than blocks.
  void verify(const InputFile& file, size_t offset, size_t bytes);

 private:
  const size_t block_bytes_;
  const std::vector<std::string> expected_;
  const std::string remedy_;
  std::vector<bool> verified_;
};

#include "llmc/base/block_checksums.h"

#include <algorithm>

#include "llmc/base/checksum.h"
#include "llmc/base/error.h"

namespace {

std::string checksum_of(const InputFile& file, size_t begin, size_t end) {
  std::vector<char> chunk(std::min<size_t>(end - begin, size_t(1) << 20));  // it stays in the processor's cache
  Checksum sum;
  for (size_t at = begin; at < end; at += chunk.size()) {
    const size_t bytes = std::min(chunk.size(), end - at);
    file.read(at, bytes, chunk.data());
    sum.add(chunk.data(), bytes);
  }
  return sum.text();
}

}  // namespace

std::vector<std::string> block_checksums(const std::vector<std::string_view>& parts, size_t block_bytes) {
  std::vector<std::string> sums;
  Checksum sum;
  size_t in_block = 0;
  for (std::string_view part : parts) {
    while (!part.empty()) {
      const size_t bytes = std::min(part.size(), block_bytes - in_block);
      sum.add(part.data(), bytes);
      part.remove_prefix(bytes), in_block += bytes;
      if (in_block < block_bytes) continue;
      sums.push_back(sum.text());
      sum = Checksum(), in_block = 0;
    }
  }
  if (in_block) sums.push_back(sum.text());
  return sums;
}

BlockChecksums::BlockChecksums(size_t block_bytes, std::vector<std::string> expected, std::string remedy)
    : block_bytes_(block_bytes),
      expected_(std::move(expected)),
      remedy_(std::move(remedy)),
      verified_(expected_.size()) {
  REQUIRE(block_bytes >= 1, "checksums of blocks of 0 bytes\n  expected at least 1");
}

void BlockChecksums::verify(const InputFile& file, size_t offset, size_t bytes) {
  if (!bytes) return;
  const size_t blocks = (file.size() + block_bytes_ - 1) / block_bytes_;
  REQUIRE(blocks == expected_.size(), "%s has %zu blocks of %zu bytes, and checksums of %zu are listed\n  %s",
          file.path().c_str(), blocks, block_bytes_, expected_.size(), remedy_.c_str());
  for (size_t block = offset / block_bytes_; block <= (offset + bytes - 1) / block_bytes_; ++block) {
    if (verified_.at(block)) continue;
    const size_t begin = block * block_bytes_, end = std::min(file.size(), begin + block_bytes_);
    const std::string found = checksum_of(file, begin, end);
    REQUIRE(found == expected_[block],
            "%s was altered or damaged: its bytes %zu to %zu have the XXH64 %s, and %s was listed when it was written\n"
            "  %s",
            file.path().c_str(), begin, end - 1, found.c_str(), expected_[block].c_str(), remedy_.c_str());
    verified_[block] = true;
  }
}

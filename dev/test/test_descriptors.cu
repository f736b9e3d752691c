// Covers: wgmma's descriptors: bits and places of elements are those of CuTe (dev/test/descriptors/golden.tsv)
// Timeout: 60
#include <fstream>
#include <set>
#include <sstream>
#include <string>
#include <tuple>
#include <vector>

#include "dev/test/test.h"
#include "llmc/base/philox.h"
#include "llmc/device/wgmma.cuh"

namespace {

constexpr uint32_t kTile = 1024;  // where the tiles begin

struct Golden {
  Major major;
  Swizzle swizzle;
  int lines, columns;  // of the tile; the columns are contiguous
  bool panels;         // patterns of the same columns follow one another, else those of the same lines
  int mn, mn0, k0;     // the slice
  uint64_t descriptor, digest;
  std::string text;
};

std::vector<Golden> golden() {
  std::ifstream file("dev/test/descriptors/golden.tsv");
  std::vector<Golden> rows;
  std::string line;
  std::getline(file, line);
  while (std::getline(file, line)) {
    std::istringstream in(line);
    std::string major, swizzle, order;
    Golden g;
    in >> major >> swizzle >> g.lines >> g.columns >> order >> g.mn >> g.mn0 >> g.k0 >> std::hex >> g.descriptor >>
        g.digest;
    REQUIRE(in, "golden.tsv: cannot read \"%s\"", line.c_str());
    g.major = major == "k" ? Major::k : Major::mn;
    g.swizzle = swizzle == "128"  ? Swizzle::bytes128
                : swizzle == "64" ? Swizzle::bytes64
                : swizzle == "32" ? Swizzle::bytes32
                                  : Swizzle::none;
    g.panels = order == "panels";
    g.text = line;
    rows.push_back(g);
  }
  return rows;
}

// By the rules at the head of matrix_descriptor.h.
uint64_t our_descriptor(const Golden& g) {
  const int line = int(line_bytes(g.swizzle)), elements = line / 2, pattern = 8 * line;
  const int next_lines = g.panels ? pattern : g.columns / elements * pattern;  // from 8 lines to the next 8
  const int next_columns = g.panels ? g.lines * line : pattern;                // from one line's columns to the next
  const bool k_major = g.major == Major::k;
  const int line0 = k_major ? g.mn0 : g.k0, column0 = k_major ? g.k0 : g.mn0;
  const int offset = line0 / 8 * next_lines + column0 / elements * next_columns + column0 % elements * 2;
  int leading, stride;
  if (k_major) leading = g.swizzle == Swizzle::none ? next_columns : 16, stride = next_lines;
  else if (g.swizzle == Swizzle::none) leading = next_lines, stride = next_columns;
  else leading = g.mn > elements ? next_columns : 0, stride = next_lines;
  return matrix_descriptor(kTile + offset, leading, stride, g.swizzle);
}

uint64_t digest_of(uint64_t descriptor, Major major, int mns) {
  std::string bytes;
  for (int mn = 0; mn < mns; ++mn) {
    for (int k = 0; k < 16; ++k) {
      const uint32_t address = element_address(MatrixDescriptor(descriptor), major, mn, k);
      for (int i = 0; i < 4; ++i) bytes += char(address >> 8 * i & 255);
    }
  }
  return fnv1a(bytes);
}

// Returns the descriptor that a WgmmaTile gives for the slice; 0 if it cannot give it.
template <int kLines, int kColumns>
uint64_t tile_descriptor(const Golden& g) {
  using Tile = WgmmaTile<kLines, kColumns>;
  if (g.lines != kLines || g.columns != kColumns || g.swizzle != Swizzle::bytes128 || !g.panels) return 0;
  if (g.major == Major::k) return Tile::k_major_at(kTile, g.mn0, g.k0);
  return g.mn == kColumns ? Tile::mn_major_at(kTile, g.k0) : 0;
}
uint64_t tile_descriptor(const Golden& g) {
  return tile_descriptor<64, 64>(g) | tile_descriptor<64, 128>(g) | tile_descriptor<128, 64>(g) |
         tile_descriptor<128, 128>(g) | tile_descriptor<192, 64>(g) | tile_descriptor<192, 128>(g);
}

}  // namespace

TEST_CASE("descriptors have CuTe's bits, and element_address finds CuTe's elements") {
  std::set<std::tuple<Major, Swizzle, bool, int>> kinds;
  const std::vector<Golden> rows = golden();
  CHECK(rows.size() == 876);
  for (const Golden& g : rows) {
    CAPTURE(g.text);
    CHECK(our_descriptor(g) == g.descriptor);
    CHECK(MatrixDescriptor(g.descriptor).reserved == 0);
    CHECK(MatrixDescriptor(g.descriptor).base_offset == 0);
    CHECK(digest_of(g.descriptor, g.major, g.mn) == g.digest);
    kinds.insert({g.major, g.swizzle, g.panels, g.mn});
  }
  CHECK(kinds.size() == 2 * 4 * 2 * 2);
}

TEST_CASE("the kernels' tiles give CuTe's descriptors") {
  std::set<std::tuple<Major, int, int>> shapes;
  int slices = 0;
  for (const Golden& g : golden()) {
    const uint64_t descriptor = tile_descriptor(g);
    if (descriptor == 0) continue;
    CAPTURE(g.text);
    CHECK(descriptor == g.descriptor);
    shapes.insert({g.major, g.lines, g.columns}), ++slices;
  }
  CHECK(shapes.size() == 2 * 3 * 2);
  CHECK(slices == 124);
  static_assert(sizeof(WgmmaTile<192, 128>) == 192 * 128 * 2 && alignof(WgmmaTile<64, 64>) == 1024);
}

TEST_CASE("what a descriptor is made of is read from it again") {
  for (const Swizzle swizzle : {Swizzle::none, Swizzle::bytes32, Swizzle::bytes64, Swizzle::bytes128}) {
    for (const uint32_t bytes : {0u, 16u, 1024u, 0x15550u, 0x2aaa0u, 0x3fff0u}) {
      const uint32_t other = bytes ^ 0x3fff0, third = (bytes >> 1 ^ other) & 0x3fff0;
      const MatrixDescriptor d(matrix_descriptor(bytes, other, third, swizzle));
      CHECK(std::tuple(d.start, d.leading, d.stride) == std::tuple(bytes, other, third));
      CHECK(std::tuple(d.swizzle, d.base_offset, d.reserved) == std::tuple(swizzle, 0u, 0u));
    }
  }
}

TEST_CASE("every bit of a descriptor belongs to one field, and the reserved ones are known") {
  const std::set<int> reserved = {14, 15, 30, 31, 46, 47, 48, 52, 53, 54, 55, 56, 57, 58, 59, 60, 61};
  for (int bit = 0; bit < 64; ++bit) {
    CAPTURE(bit);
    const MatrixDescriptor d(1ull << bit);
    CHECK(d.reserved == (reserved.count(bit) ? 1ull << bit : 0));
    CHECK(d.start == (bit < 14 ? 16u << bit : 0));
    CHECK(d.leading == (bit >= 16 && bit < 30 ? 16u << (bit - 16) : 0));
    CHECK(d.stride == (bit >= 32 && bit < 46 ? 16u << (bit - 32) : 0));
    CHECK(d.base_offset == (bit >= 49 && bit < 52 ? 1u << (bit - 49) : 0));
    CHECK(uint32_t(d.swizzle) == (bit >= 62 ? 1u << (bit - 62) : 0));
  }
}

TEST_CASE("chunks of 16 bytes change places within their line") {
  // Line r, chunk c of a pattern that begins at a multiple of 1024.
  for (uint32_t r = 0; r < 8; ++r) {
    for (uint32_t c = 0; c < 8; ++c) {
      CHECK(swizzled_byte(3072 + r * 128 + c * 16 + 6, Swizzle::bytes128) == 3072 + r * 128 + (c ^ r) * 16 + 6);
      CHECK(swizzled_byte(3072 + r * 64 + c % 4 * 16, Swizzle::bytes64) == 3072 + r * 64 + (c % 4 ^ r / 2) * 16);
      CHECK(swizzled_byte(3072 + r * 32 + c % 2 * 16, Swizzle::bytes32) == 3072 + r * 32 + (c % 2 ^ r / 4) * 16);
      CHECK(swizzled_byte(3072 + r * 16 + c, Swizzle::none) == 3072 + r * 16 + c);
    }
  }
}

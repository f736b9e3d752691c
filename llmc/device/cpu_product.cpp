#include "llmc/device/cpu_product.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "llmc/base/error.h"

namespace cpu_backend {
namespace {

using Floats = float __attribute__((vector_size(32)));
using Bits16 = uint16_t __attribute__((vector_size(16)));
using Bits32 = uint32_t __attribute__((vector_size(32)));
constexpr int kLanes = 8;

Floats widened(const std::byte* from) {
  Bits16 narrow;
  memcpy(&narrow, from, sizeof narrow);
  const Bits32 bits32 = __builtin_convertvector(narrow, Bits32) << 16;
  return std::bit_cast<Floats>(bits32);
}

float half_of(uint32_t pair, int which) { return bits_to_float(which ? pair & 0xffff0000u : pair << 16); }

// d = A * B, or d += A * B if `accumulate`: kWarpRows rows of kColumns. The sums of 2 rows and 32 columns at a time
// stay in registers.
template <int kColumns>
void multiply_add(float* d, const float (&A)[kWarpRows][kProductDepth],
                  const float (&B)[kProductDepth][kMostProductColumns], bool accumulate) {
  constexpr int kBlock = 4;
  for (int j = 0; j < kColumns / kLanes; j += kBlock)
    for (int i = 0; i < kWarpRows; i += 2) {
      Floats sum[2][kBlock] = {};
#pragma GCC unroll 16
      for (int k = 0; k < kProductDepth; ++k)
#pragma GCC unroll 4
        for (int c = 0; c < kBlock; ++c) {
          Floats b;
          memcpy(&b, &B[k][(j + c) * kLanes], sizeof b);
          sum[0][c] += A[i][k] * b;
          sum[1][c] += A[i + 1][k] * b;
        }
      for (int r = 0; r < 2; ++r)
        for (int c = 0; c < kBlock; ++c) {
          float* const to = d + (i + r) * kMostProductColumns + (j + c) * kLanes;
          if (accumulate) {
            Floats before;
            memcpy(&before, to, sizeof before);
            sum[r][c] = before + sum[r][c];
          }
          memcpy(to, &sum[r][c], sizeof(Floats));
        }
    }
}

}  // namespace

std::string operand_refused(const ProductOperand& operand) {
  const MatrixDescriptor& d = operand.descriptor;
  if (d.reserved) return format("bits that must be 0 are set: %016llx", static_cast<unsigned long long>(d.reserved));
  if (d.base_offset) return format("base offset %u, expected 0", d.base_offset);
  const uint32_t line = line_bytes(d.swizzle), pattern = 8 * line;
  const bool plain = d.swizzle == Swizzle::none;
  if (!plain && operand.major == Major::k) {
    if (d.start % pattern >= line)
      return format("start %u is %u bytes after a multiple of its pattern of %u bytes: within a line of %u at most",
                    d.start, d.start % pattern, pattern, line);
    if (d.start % line + 2 * kProductDepth > line)
      return format("start %u: 16 elements from byte %u of a line of %u bytes", d.start, d.start % line, line);
  }
  if (!plain && operand.major == Major::mn && d.start % pattern)
    return format("start %u is no multiple of its pattern of %u bytes", d.start, pattern);
  if (d.stride == 0) return "stride 0";
  const bool uses_leading = plain || (operand.major == Major::mn && operand.count * 2 > int(line));
  if (uses_leading && d.leading == 0) return "leading 0";
  return "";
}

const ProductUnit::Layout& ProductUnit::layout_of(const ProductOperand& operand) {
  const MatrixDescriptor& d = operand.descriptor;
  const uint32_t start = d.start % 1024;
  for (size_t i = 0; i < layouts_.size(); ++i) {
    const Layout& l = *layouts_[i];
    if (l.start == start && l.leading == d.leading && l.stride == d.stride && l.swizzle == d.swizzle &&
        l.major == operand.major && l.count == operand.count)
      return l;
  }
  auto layout = std::make_unique<Layout>(
      Layout{start, d.leading, d.stride, d.swizzle, operand.major, operand.count, {}, UINT32_MAX, 0});
  MatrixDescriptor near = d;
  near.start = start;
  const auto count = uint32_t(operand.count);
  const auto add = [&](uint32_t mn, uint32_t k) {
    const uint32_t at = element_address(near, operand.major, mn, k);
    layout->chunks.push_back(at);
    layout->lowest = std::min(layout->lowest, at);
    layout->highest = std::max(layout->highest, at);
  };
  if (operand.major == Major::k)
    for (uint32_t mn = 0; mn < count; ++mn)
      for (uint32_t k = 0; k < kProductDepth; k += kLanes) add(mn, k);
  else
    for (uint32_t k = 0; k < kProductDepth; ++k)
      for (uint32_t mn = 0; mn < count; mn += kLanes) add(mn, k);
  layouts_.push_back(std::move(layout));
  return *layouts_.back();
}

ProductUnit::Extent ProductUnit::extent(const ProductOperand& operand) {
  const Layout& layout = layout_of(operand);
  const size_t base = operand.descriptor.start / 1024 * 1024;
  return {base + layout.lowest, base + layout.highest + 16};
}

const ProductUnit::Gathered& ProductUnit::gathered(const std::byte* view, uint64_t version, const ProductOperand& b) {
  const Layout& layout = layout_of(b);
  for (const Gathered& g : gathered_)
    if (g.version == version && g.layout == &layout && g.start == b.descriptor.start) return g;
  Gathered& g = gathered_[next_gathered_++ % gathered_.size()];
  g.version = version;
  g.layout = &layout;
  g.start = b.descriptor.start;
  const std::byte* const base = view + b.descriptor.start / 1024 * 1024 - kSharedWindowBegin;
  const uint32_t* chunk = layout.chunks.data();
  if (b.major == Major::mn) {
    for (int k = 0; k < kProductDepth; ++k)
      for (int n = 0; n < b.count; n += kLanes) {
        const Floats x = widened(base + *chunk++);
        memcpy(&g.B[k][n], &x, sizeof x);
      }
  } else {
    for (int n = 0; n < b.count; ++n)
      for (int k = 0; k < kProductDepth; k += kLanes) {
        const Floats x = widened(base + *chunk++);
        for (int e = 0; e < kLanes; ++e) g.B[k + e][n] = x[e];
      }
  }
  return g;
}

void ProductUnit::multiply(float* d, int warp, const std::byte* view, uint64_t version, const ProductOperand* a,
                           const uint32_t* const* fragments, const ProductOperand& b, bool accumulate) {
  alignas(32) float A[kWarpRows][kProductDepth];
  if (fragments) {
    for (int l = 0; l < 32; ++l) {
      const int row = product_row(l, 0), k = l % 4 * 2;
      for (int h = 0; h < 2; ++h) {
        A[row][k + h] = half_of(fragments[l][0], h);
        A[row + 8][k + h] = half_of(fragments[l][1], h);
        A[row][k + 8 + h] = half_of(fragments[l][2], h);
        A[row + 8][k + 8 + h] = half_of(fragments[l][3], h);
      }
    }
  } else {
    const std::byte* const base = view + a->descriptor.start / 1024 * 1024 - kSharedWindowBegin;
    const uint32_t* const chunks = layout_of(*a).chunks.data();
    for (int i = 0; i < kWarpRows * kProductDepth / kLanes; ++i) {
      if (a->major == Major::k) {
        const Floats x = widened(base + chunks[warp * kWarpRows * 2 + i]);
        memcpy(&A[i / 2][i % 2 * kLanes], &x, sizeof x);
      } else {
        const Floats x = widened(base + chunks[i / 2 * (kProductRows / kLanes) + warp * 2 + i % 2]);
        for (int e = 0; e < kLanes; ++e) A[i % 2 * kLanes + e][i / 2] = x[e];
      }
    }
  }
  const Gathered& right = gathered(view, version, b);
  if (b.count == 64) multiply_add<64>(d, A, right.B, accumulate);
  else multiply_add<128>(d, A, right.B, accumulate);
}

}  // namespace cpu_backend

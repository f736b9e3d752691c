// The product that wgmma computes, in the CPU backend: D(64xN) = A(64x16) * B(16xN). Both operands lie in the async
// view of shared memory, or A lies in the registers of 128 threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "llmc/device/matrix_descriptor.h"

namespace cpu_backend {

inline constexpr int kProductRows = 64, kWarpRows = 16, kProductDepth = 16, kMostProductColumns = 128;
// wgmma takes addresses of the shared window. As on a GPU, the block's own shared memory begins at this address of the
// window.
inline constexpr uint32_t kSharedWindowBegin = 1024;

// An operand in shared memory: `count` rows of A or columns of B.
struct ProductOperand {
  MatrixDescriptor descriptor;
  Major major;
  int count;
};

// Returns "", or a description of what is wrong with the operand.
std::string operand_refused(const ProductOperand& operand);

// Return the row and the column of D that register r of a thread of the warpgroup holds (PTX ISA, wgmma.mma_async: the
// register fragment of D).
constexpr int product_row(int thread, int r) { return thread / 32 * 16 + thread % 32 / 4 + r / 2 % 2 * 8; }
constexpr int product_column(int thread, int r) { return r / 4 * 8 + thread % 4 * 2 + r % 2; }

class ProductUnit {
 public:
  // Computes the 16 rows of D of warp `warp`: d[row][column], rows of 128 floats, is assigned or, if `accumulate`,
  // added to. `view` is the async view of shared memory; `version` must change whenever its bytes do. A lies in
  // `fragments` (4 registers of each of 32 lanes); if `fragments` is null, `a` describes A. Each sum begins with 0,
  // takes k in rising order and is added to d last.
  void multiply(float* d, int warp, const std::byte* view, uint64_t version, const ProductOperand* a,
                const uint32_t* const* fragments, const ProductOperand& b, bool accumulate);
  // The addresses in the shared window where the operand begins and ends.
  struct Extent {
    size_t begin, end;
  };
  Extent extent(const ProductOperand& operand);
  // Calls f(address) for every 16 bytes of the operand, with the address of the first one in the shared window.
  template <class F>
  void each_chunk(const ProductOperand& operand, F&& f) {
    for (const uint32_t chunk : layout_of(operand).chunks) f(operand.descriptor.start / 1024 * 1024 + chunk);
  }

 private:
  // The places of an operand's chunks of 8 elements (16 bytes): byte offsets from the largest multiple of 1024 that is
  // not above the operand's start. The elements follow one another along k (k-major) or along mn (mn-major).
  struct Layout {
    uint32_t start, leading, stride;
    Swizzle swizzle;
    Major major;
    int count;
    std::vector<uint32_t> chunks;
    uint32_t lowest, highest;
  };
  const Layout& layout_of(const ProductOperand& operand);

  // B as floats, kept for the next warps that use it.
  struct Gathered {
    uint64_t version = 0;  // version of the view; 0: empty
    const Layout* layout = nullptr;
    uint32_t start = 0;
    alignas(32) float B[kProductDepth][kMostProductColumns];
  };
  const Gathered& gathered(const std::byte* view, uint64_t version, const ProductOperand& b);

  std::vector<std::unique_ptr<Layout>> layouts_;
  std::vector<Gathered> gathered_ = std::vector<Gathered>(8);
  size_t next_gathered_ = 0;
};

}  // namespace cpu_backend

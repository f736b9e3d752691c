// What wgmma computes, in the CPU world: D(64xN) = A(64x16) * B(16xN) with operands in the async view of shared memory
// or A in the registers of 128 threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "llmc/device/matrix_descriptor.h"

namespace cpu_world {

inline constexpr int kProductRows = 64, kWarpRows = 16, kProductDepth = 16, kMostProductColumns = 128;
// wgmma's addresses are those of the shared window, where the block's own memory begins here, as on a GPU.
inline constexpr uint32_t kSharedWindowBegin = 1024;

// An operand in shared memory: `count` rows of A or columns of B.
struct ProductOperand {
  MatrixDescriptor descriptor;
  Major major;
  int count;
};

// "" or what is wrong with it.
std::string operand_refused(const ProductOperand& operand);

// Which row and column of D lies in register r of a thread of the warpgroup.
constexpr int product_row(int thread, int r) { return thread / 32 * 16 + thread % 32 / 4 + r / 2 % 2 * 8; }
constexpr int product_column(int thread, int r) { return r / 4 * 8 + thread % 4 * 2 + r % 2; }

class ProductUnit {
 public:
  // The 16 rows of D that a warp has, d[row][column], rows of 128 floats: += or =. `view` is shared memory, whose
  // version changes when its bytes do. Each sum begins with 0, takes k in rising order and is added to d last.
  void multiply(float* d, int warp, const std::byte* view, uint64_t version, const ProductOperand* a,
                const uint32_t* const* fragments, const ProductOperand& b, bool accumulate);
  // Where in the window the operand begins and ends.
  struct Extent {
    size_t begin, end;
  };
  Extent extent(const ProductOperand& operand);
  // f(where 16 bytes of the operand begin in the window).
  template <class F>
  void each_chunk(const ProductOperand& operand, F&& f) {
    for (const uint32_t chunk : layout_of(operand).chunks) f(operand.descriptor.start / 1024 * 1024 + chunk);
  }

 private:
  // Where an operand's chunks of 8 elements lie, behind the multiple of 1024 below its start: they follow one another
  // along k or along mn.
  struct Layout {
    uint32_t start, leading, stride;
    Swizzle swizzle;
    Major major;
    int count;
    std::vector<uint32_t> chunks;
    uint32_t lowest, highest;
  };
  const Layout& layout_of(const ProductOperand& operand);

  // B as floats, for the warps that come next.
  struct Gathered {
    uint64_t version = 0;  // of the view; 0: none
    const Layout* layout = nullptr;
    uint32_t start = 0;
    alignas(32) float B[kProductDepth][kMostProductColumns];
  };
  const Gathered& gathered(const std::byte* view, uint64_t version, const ProductOperand& b);

  std::vector<std::unique_ptr<Layout>> layouts_;
  std::vector<Gathered> gathered_ = std::vector<Gathered>(8);
  size_t next_gathered_ = 0;
};

}  // namespace cpu_world

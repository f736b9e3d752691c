// What CuTe says of wgmma's operands of bf16: the descriptor that it makes for a slice of a tile in shared memory, and
// where it places the slice's elements. Prints golden.tsv (dev/test/descriptors/cute.sh); dev/test/test_descriptors.cu
// holds ours against it.
//
// A tile is `lines` by `columns`, the columns contiguous, in patterns of 8 lines of one swizzle. order: `panels`: the
// patterns of the same columns follow one another (as boxes of TMA leave them); `across`: those of the same lines do.
// major k: sums over columns, mn counts lines; mn: sums over lines, mn counts columns. The slice has `mn` by 16
// elements from (mn0, k0) on. The tile begins at 1024. digest: FNV-1a of the addresses, 4 bytes each, mn by mn.
#include <cstddef>
#include <cstdint>
#include <cstdio>

// On a GPU an instruction tells where a pointer to shared memory points; here the tile's memory stands for it.
alignas(1024) static std::byte memory[192 * 128 * 2];
static size_t __cvta_generic_to_shared(const void* pointer) {
  return 1024 + size_t(static_cast<const std::byte*>(pointer) - memory);
}
#define CUTE_CVTA_GENERIC_TO_SHARED_ACTIVATED 1

#include <cute/tensor.hpp>
//
#include <cute/atom/mma_traits_sm90_gmma.hpp>

using namespace cute;
using SM90::GMMA::Major;

template <Major kMajor, int kMn, class Tile>
static void print_slices(const Tile& tile, const char* head, int lines, int columns) {
  const bool k_major = kMajor == Major::K;
  const int mns = k_major ? lines : columns, ks = k_major ? columns : lines;
  for (int mn0 : {0, 8, 64, 128}) {
    if (mn0 + kMn > mns || (mn0 == 8 && !k_major)) continue;
    for (int k0 : {0, 16, 48, 64, 112, 176}) {
      if (k0 + 16 > ks) continue;
      const auto slice = local_tile(domain_offset(make_coord(mn0, k0), tile), Shape<Int<kMn>, _16>{}, make_coord(0, 0));
      const uint64_t descriptor = SM90::GMMA::make_gmma_desc<kMajor>(slice);
      uint64_t digest = 0xcbf29ce484222325u;
      for (int mn = 0; mn < kMn; ++mn) {
        for (int k = 0; k < 16; ++k) {
          const size_t address = __cvta_generic_to_shared(&slice(mn, k));
          for (int i = 0; i < 4; ++i) digest = (digest ^ (address >> 8 * i & 255)) * 0x100000001b3u;
        }
      }
      printf("%s\t%d\t%d\t%d\t%016llx\t%016llx\n", head, kMn, mn0, k0, static_cast<unsigned long long>(descriptor),
             static_cast<unsigned long long>(digest));
    }
  }
}

template <Major kMajor, class Atom, int kLines, int kColumns, bool kPanels>
static void print_tile(const char* swizzle) {
  constexpr bool kKMajor = kMajor == Major::K;
  using Extents = conditional_t<kKMajor, Shape<Int<kLines>, Int<kColumns>>, Shape<Int<kColumns>, Int<kLines>>>;
  using LinesFirst = conditional_t<kKMajor, Step<_1, _2>, Step<_2, _1>>;
  using ColumnsFirst = conditional_t<kKMajor, Step<_2, _1>, Step<_1, _2>>;
  const auto layout = tile_to_shape(Atom{}, Extents{}, conditional_t<kPanels, LinesFirst, ColumnsFirst>{});
  const auto tile = make_tensor(make_smem_ptr(reinterpret_cast<bfloat16_t*>(memory)), layout);
  char head[80];
  snprintf(head, sizeof head, "%s\t%s\t%d\t%d\t%s", kKMajor ? "k" : "mn", swizzle, kLines, kColumns,
           kPanels ? "panels" : "across");
  print_slices<kMajor, 64>(tile, head, kLines, kColumns);
  if constexpr ((kKMajor ? kLines : kColumns) >= 128) print_slices<kMajor, 128>(tile, head, kLines, kColumns);
}

template <Major kMajor, class Atom>
static void print_tiles(const char* swizzle) {
  print_tile<kMajor, Atom, 64, 64, true>(swizzle);
  print_tile<kMajor, Atom, 64, 128, true>(swizzle);
  print_tile<kMajor, Atom, 128, 64, true>(swizzle);
  print_tile<kMajor, Atom, 128, 128, true>(swizzle);
  print_tile<kMajor, Atom, 192, 64, true>(swizzle);
  print_tile<kMajor, Atom, 192, 128, true>(swizzle);
  print_tile<kMajor, Atom, 64, 128, false>(swizzle);
  print_tile<kMajor, Atom, 192, 128, false>(swizzle);
}

template <Major kMajor>
static void print_swizzles() {
  print_tiles<kMajor, SM90::GMMA::Layout_INTER_Atom<bfloat16_t, kMajor>>("none");
  print_tiles<kMajor, SM90::GMMA::Layout_SW32_Atom<bfloat16_t, kMajor>>("32");
  print_tiles<kMajor, SM90::GMMA::Layout_SW64_Atom<bfloat16_t, kMajor>>("64");
  print_tiles<kMajor, SM90::GMMA::Layout_SW128_Atom<bfloat16_t, kMajor>>("128");
}

int main() {
  printf("major\tswizzle\tlines\tcolumns\torder\tmn\tmn0\tk0\tdescriptor\tdigest\n");
  print_swizzles<Major::K>();
  print_swizzles<Major::MN>();
}

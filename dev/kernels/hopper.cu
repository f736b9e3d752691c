// Hopper's own instructions (llmc/device/wgmma, tma, mbarrier) against plain references: products
// with operands in every layout, boxes inside and beyond a tensor, and a small pipeline of warpgroups with roles.
//
// Covers: promise 7: Hopper's products, copies of boxes and barriers, whose meaning both backends share
// Timeout: 300
#include "dev/kernels/check.h"
#include "dev/kernels/other_schedules.h"
#include "llmc/device/launch.cuh"
#include "llmc/device/tensor_core.cuh"
#include "llmc/device/tma.cuh"
#include "llmc/device/wgmma.cuh"

namespace {

using Chunk = Vector<bf16, 8>;

__device__ __forceinline__ Chunk* chunk_at(void* tile, uint32_t byte) {
  return reinterpret_cast<Chunk*>(static_cast<char*>(tile) + byte);
}

// ---------------------------------------------------------------------------------------------- products

// An operand of `count` rows of A or columns of B and kDepth of k, in panels of lines of one swizzle. In device memory
// it is (count, kDepth) if k-major, (kDepth, count) if mn-major.
constexpr int kDepth = 64;

struct Layout {
  Swizzle swizzle;
  Major major;
  int count;

  __device__ int lines() const { return major == Major::k ? count : kDepth; }
  __device__ int line_elements() const { return int(line_bytes(swizzle)) / 2; }
  __device__ int row_elements() const { return major == Major::k ? kDepth : count; }
  __device__ uint32_t panel_bytes() const { return uint32_t(lines()) * line_bytes(swizzle); }
  // Returns the byte of the 8 elements from `element` on of a line; the operand begins at a multiple of 1024 bytes.
  __device__ uint32_t byte_of(int line, int element) const {
    const uint32_t panel = uint32_t(element / line_elements()), within = uint32_t(element % line_elements());
    return swizzled_byte(panel * panel_bytes() + uint32_t(line) * line_bytes(swizzle) + within * 2, swizzle);
  }
  // Returns the descriptor of the 16 k from k0 on.
  __device__ uint64_t descriptor(uint32_t begin, int k0) const {
    const uint32_t line = line_bytes(swizzle), k_bytes = uint32_t(k0) * 2;
    const bool plain = swizzle == Swizzle::none;
    if (major == Major::k)
      return matrix_descriptor(begin + k_bytes / line * panel_bytes() + k_bytes % line, plain ? panel_bytes() : 16,
                               8 * line, swizzle);
    return plain ? matrix_descriptor(begin + uint32_t(k0) * line, 8 * line, panel_bytes(), swizzle)
                 : matrix_descriptor(begin + uint32_t(k0) * line, count > line_elements() ? panel_bytes() : 0, 8 * line,
                                     swizzle);
  }
};

struct alignas(1024) Operands {
  bf16 a[64 * kDepth];
  bf16 b[128 * kDepth];
  Mbarrier full;
};

// By 128 threads, with ordinary stores.
__device__ __forceinline__ void stage_operand(bf16* tile, const bf16* from, const Layout& layout) {
  const int row_chunks = layout.row_elements() / 8;
  for (int i = int(threadIdx.x); i < layout.lines() * row_chunks; i += 128) {
    const int line = i / row_chunks, element = i % row_chunks * 8;
    const Chunk value = *reinterpret_cast<const Chunk*>(from + line * layout.row_elements() + element);
    store_for_async_proxy(chunk_at(tile, layout.byte_of(line, element)), value);
  }
}
// By one thread, box by box.
__device__ __forceinline__ void load_operand(bf16* tile, const TensorMap& map, Mbarrier& barrier,
                                             const Layout& layout) {
  for (int panel = 0; panel * layout.line_elements() < layout.row_elements(); ++panel)
    tma_load(chunk_at(tile, uint32_t(panel) * layout.panel_bytes()), map, barrier, panel * layout.line_elements(), 0, 0,
             0);
}

// D (64,kN) += A (64,kDepth) B, or = without `accumulate`.
template <int kN, bool kRegisters, Major kMajorA, Major kMajorB>
__global__ void __launch_bounds__(128)
    product_kernel(float* D, const bf16* A, const bf16* B, const __grid_constant__ TensorMap map_a,
                   const __grid_constant__ TensorMap map_b, Swizzle swizzle, bool boxes, bool accumulate) {
  Operands& operands = shared_memory<Operands>();
  const int thread = int(threadIdx.x);
  const Layout layout_a{swizzle, kMajorA, 64}, layout_b{swizzle, kMajorB, kN};
  if (thread == 0) {
    mbarrier_init(operands.full, 1);
    fence_mbarrier_init();
  }
  __syncthreads();
  if (boxes) {
    if (thread == 0) {
      mbarrier_arrive_expect_tx(operands.full, (kRegisters ? kN : 64 + kN) * kDepth * 2);
      if (!kRegisters) load_operand(operands.a, map_a, operands.full, layout_a);
      load_operand(operands.b, map_b, operands.full, layout_b);
    }
    mbarrier_wait(operands.full, 0);
  } else {
    if (!kRegisters) stage_operand(operands.a, A, layout_a);
    stage_operand(operands.b, B, layout_b);
    fence_async_proxy();
    __syncthreads();
  }

  const int row = thread / 32 * 16 + thread % 32 / 4, t = thread % 4 * 2;
  float d[kN / 2];
#pragma unroll
  for (int j = 0; j < kN / 2; ++j) d[j] = D[(row + j / 2 % 2 * 8) * kN + j / 4 * 8 + t + j % 2];
  uint32_t a[kDepth / 16][4];
  if constexpr (kRegisters) {
#pragma unroll
    for (int i = 0; i < kDepth / 16 * 4; ++i)
      a[i / 4][i % 4] =
          *reinterpret_cast<const uint32_t*>(A + (row + i % 2 * 8) * kDepth + i / 4 * 16 + t + i / 2 % 2 * 8);
#pragma unroll
    for (int k = 0; k < kDepth / 16; ++k) warpgroup_fence_operand(a[k]);
  }
  warpgroup_fence_operand(d);
  wgmma_fence();
#pragma unroll
  for (int k = 0; k < kDepth; k += 16) {
    const uint64_t b = layout_b.descriptor(smem_address(operands.b), k);
    if constexpr (kRegisters) wgmma<kN, kMajorB>(d, a[k / 16], b, accumulate || k);
    else wgmma<kN, kMajorA, kMajorB>(d, layout_a.descriptor(smem_address(operands.a), k), b, accumulate || k);
    if (k == 16) {  // two groups
      wgmma_commit_group();
      wgmma_fence();
    }
  }
  wgmma_commit_group();
  wgmma_wait_group<1>();
  wgmma_wait_group<0>();
  warpgroup_fence_operand(d);
#pragma unroll
  for (int j = 0; j < kN / 2; ++j) D[(row + j / 2 % 2 * 8) * kN + j / 4 * 8 + t + j % 2] = d[j];
}

// Small whole numbers: every sum is exact, so that only a wrong layout can make a difference.
std::vector<bf16> numbers(Generator& generator, size_t n, bool whole) {
  std::vector<bf16> values(n);
  for (bf16& v : values) v = from_float<bf16>(whole ? float(generator.integer(-4, 4)) : float(generator.normal()));
  return values;
}

// (rows, columns) → (columns, rows).
template <class T>
std::vector<T> transposed(const std::vector<T>& x, size_t rows, size_t columns) {
  std::vector<T> y(x.size());
  for (size_t i = 0; i < rows; ++i)
    for (size_t j = 0; j < columns; ++j) y[j * rows + i] = x[i * columns + j];
  return y;
}

// += of A (M,K) and B (N,K).
void add_product(std::vector<double>& C, const std::vector<bf16>& A, const std::vector<bf16>& B, size_t M, size_t N,
                 size_t K) {
  for (size_t m = 0; m < M; ++m)
    for (size_t n = 0; n < N; ++n)
      for (size_t k = 0; k < K; ++k) C[m * N + n] += to_double(A[m * K + k]) * to_double(B[n * K + k]);
}

// (rows, columns) of bf16, in boxes of box_rows x box_columns.
TensorMap matrix_map(Stream& stream, const bf16* data, int rows, int columns, int box_rows, int box_columns,
                     Swizzle swizzle) {
  TmaTensor view;
  view.data = data;
  view.sizes[0] = columns, view.sizes[1] = rows;
  for (int64_t& stride : view.strides) stride = columns * 2;
  view.box[0] = box_columns, view.box[1] = box_rows;
  view.swizzle = swizzle;
  return tensor_map(stream.device(), view, "check");
}
TensorMap operand_map(Stream& stream, const bf16* data, Major major, int count, Swizzle swizzle) {
  const int rows = major == Major::k ? count : kDepth, columns = major == Major::k ? kDepth : count;
  return matrix_map(stream, data, rows, columns, rows, int(line_bytes(swizzle)) / 2, swizzle);
}

const char* name(Major major) { return major == Major::k ? "k" : "mn"; }

// fp32 sums of K products of normal numbers: at worst K roundings (a tensor core's cut off, so 2^-23) at the size of
// the sum of magnitudes, about 0.64 K.
double rounding(int K) { return K * 0x1p-23 * K * 0.64 + 0x1p-22; }

template <int kN, bool kRegisters, Major kMajorA, Major kMajorB>
void check_product(Checker& checker) {
  Stream& stream = checker.stream;
  Generator generator(31);
  for (const Swizzle swizzle : {Swizzle::bytes128, Swizzle::bytes64, Swizzle::bytes32, Swizzle::none})
    for (const bool boxes : {false, true})
      for (const bool whole : {true, false}) {
        const bool accumulate = whole == boxes;
        const std::string title = format("wgmma<%d>, A %s %s-major, B %s-major, lines of %u bytes, %s, %s numbers", kN,
                                         kRegisters ? "in registers" : "shared", name(kMajorA), name(kMajorB),
                                         line_bytes(swizzle), boxes ? "boxes" : "stores", whole ? "whole" : "normal");
        checker.trying(title);
        const std::vector<bf16> a = numbers(generator, 64 * kDepth, whole), b = numbers(generator, kN * kDepth, whole);
        const Array<bf16> A(stream, kMajorA == Major::k ? a : transposed(a, 64, kDepth));
        const Array<bf16> B(stream, kMajorB == Major::k ? b : transposed(b, kN, kDepth));
        std::vector<float> d(64 * kN);
        for (size_t i = 0; i < d.size(); ++i) d[i] = float(int(i % 9) - 4);
        std::vector<double> want(64 * kN, 0);
        if (accumulate) want = to_doubles(d);
        add_product(want, a, b, 64, kN, kDepth);
        Array<float> D(stream, d);
        launch<product_kernel<kN, kRegisters, kMajorA, kMajorB>>(
            {stream, "product", {updates(D.data(), D.size()), reads(A.data(), A.size()), reads(B.data(), B.size())}}, 1,
            128, sizeof(Operands), D.data(), A.data(), B.data(), operand_map(stream, A.data(), kMajorA, 64, swizzle),
            operand_map(stream, B.data(), kMajorB, kN, swizzle), swizzle, boxes, accumulate);
        checker.close(title, D.download(), want, {64, kN}, 0, whole ? 0 : rounding(kDepth));
      }
}

template <int kN>
void check_products(Checker& checker) {
  check_product<kN, false, Major::k, Major::k>(checker);
  check_product<kN, false, Major::k, Major::mn>(checker);
  check_product<kN, false, Major::mn, Major::k>(checker);
  check_product<kN, false, Major::mn, Major::mn>(checker);
  check_product<kN, true, Major::k, Major::k>(checker);
  check_product<kN, true, Major::k, Major::mn>(checker);
}

// ---------------------------------------------------------------------------------------------- boxes

constexpr int kBoxBytes = 16 << 10;

struct alignas(1024) Boxes {
  bf16 loaded[kBoxBytes / 2];
  bf16 stored[kBoxBytes / 2];
  Mbarrier full;
};

struct BoxCorner {
  int c[4];
};

// The box at `corner` of one tensor to `out` in its plain order, and from there, if `stores`, the sum with 1 to the
// other tensor.
__global__ void __launch_bounds__(128)
    box_kernel(bf16* out, const __grid_constant__ TensorMap from, const __grid_constant__ TensorMap to, Swizzle swizzle,
               int box_elements, BoxCorner corner, bool stores) {
  Boxes& boxes = shared_memory<Boxes>();
  if (threadIdx.x == 0) {
    mbarrier_init(boxes.full, 1);
    fence_mbarrier_init();
    mbarrier_arrive_expect_tx(boxes.full, box_elements * 2);
    tma_load(boxes.loaded, from, boxes.full, corner.c[0], corner.c[1], corner.c[2], corner.c[3]);
  }
  __syncthreads();
  mbarrier_wait(boxes.full, 0);
  for (int i = int(threadIdx.x) * 8; i < box_elements; i += 128 * 8) {
    const uint32_t byte = swizzled_byte(uint32_t(i) * 2, swizzle);
    Chunk chunk = *chunk_at(boxes.loaded, byte);
    *reinterpret_cast<Chunk*>(out + i) = chunk;
    for (int e = 0; e < 8; ++e) chunk.v[e] = from_float<bf16>(to_float(chunk.v[e]) + 1);
    store_for_async_proxy(chunk_at(boxes.stored, byte), chunk);
  }
  fence_async_proxy();
  __syncthreads();
  if (threadIdx.x == 0 && stores) {
    tma_store(to, boxes.stored, corner.c[0], corner.c[1], corner.c[2], corner.c[3]);
    tma_store_commit_group();
    tma_store_wait_group_read();
  }
}

// A store takes rows of whole 16 bytes, and no negative coordinates; a load takes both.
void check_box(Checker& checker, Swizzle swizzle, const BoxCorner& corner, const char* where, bool stores = true) {
  const std::string title = format("box %s, lines of %u bytes", where, line_bytes(swizzle));
  checker.trying(title);
  Stream& stream = checker.stream;
  Generator generator(32);
  const int line = int(line_bytes(swizzle)) / 2;
  TmaTensor view;
  const int64_t sizes[4] = {line + (stores ? 16 : 11), 13, 3, 4};
  const int box[4] = {line, 9, 2, 3};
  // Rows and planes that lie apart, and dimension 1 outside of dimension 2.
  view.strides[1] = (line + 16 + 15) / 8 * 16;
  view.strides[0] = view.strides[1] * sizes[2] + 32;
  view.strides[2] = view.strides[0] * sizes[1] + 48;
  std::copy_n(sizes, 4, view.sizes);
  std::copy_n(box, 4, view.box);
  view.swizzle = swizzle;
  const size_t elements = size_t(view.strides[2] * sizes[3]) / 2;
  const std::vector<bf16> values = numbers(generator, elements, true);
  const Array<bf16> from(stream, values);
  Array<bf16> to(stream, values);
  const int box_elements = box[0] * box[1] * box[2] * box[3];
  Array<bf16> out(stream, size_t(box_elements));
  view.data = from.data();
  const TensorMap map_from = tensor_map(stream.device(), view, "check");
  view.data = to.data();
  const TensorMap map_to = tensor_map(stream.device(), view, "check");
  launch<box_kernel>(
      {stream, "box", {writes(out.data(), out.size()), reads(from.data(), from.size()), updates(to.data(), to.size())}},
      1, 128, sizeof(Boxes), out.data(), map_from, map_to, swizzle, box_elements, corner, stores);
  std::vector<bf16> want_out(size_t(box_elements), bf16{0}), want_to = values;
  size_t next = 0;
  for (int i3 = 0; i3 < box[3]; ++i3)
    for (int i2 = 0; i2 < box[2]; ++i2)
      for (int i1 = 0; i1 < box[1]; ++i1)
        for (int i0 = 0; i0 < box[0]; ++i0, ++next) {
          const int64_t c[4] = {corner.c[0] + i0, corner.c[1] + i1, corner.c[2] + i2, corner.c[3] + i3};
          bool inside = true;
          for (int d = 0; d < 4; ++d) inside = inside && c[d] >= 0 && c[d] < sizes[d];
          if (!inside) continue;
          const auto at = size_t(c[0] + (c[1] * view.strides[0] + c[2] * view.strides[1] + c[3] * view.strides[2]) / 2);
          want_out[next] = values[at];
          if (stores) want_to[at] = from_float<bf16>(to_float(values[at]) + 1);
        }
  checker.same_bits(title + ", loaded", out.download(), want_out);
  checker.same_bits(title + ", stored", to.download(), want_to);
}

void check_boxes(Checker& checker) {
  for (const Swizzle swizzle : {Swizzle::bytes128, Swizzle::bytes64, Swizzle::bytes32, Swizzle::none}) {
    check_box(checker, swizzle, {{0, 0, 0, 0}}, "inside");
    check_box(checker, swizzle, {{16, 4, 1, 1}}, "at the end");
    check_box(checker, swizzle, {{24, 7, 2, 2}}, "beyond the end");
    check_box(checker, swizzle, {{0, 0, 5, 0}}, "outside");
    check_box(checker, swizzle, {{16, 7, 2, 2}}, "beyond the end of ragged rows, loaded only", false);
    check_box(checker, swizzle, {{-8, -8, -1, -2}}, "before the beginning, loaded only", false);
  }
}

// ---------------------------------------------------------------------------------------------- pipeline

// C (M,N) = A (M,K) B with B (N,K), or (K,N) if kRows: tiles of 128 x 128. One warp of the first warpgroup brings boxes
// of 64 of K into a ring of two stages; two warpgroups multiply, 64 rows each, and write C as boxes of bf16.
constexpr int kStages = 2;

template <bool kRows>
struct Pipeline {
  WgmmaTile<128, 64> a[kStages];
  WgmmaTile<kRows ? 64 : 128, kRows ? 128 : 64> b[kStages];
  WgmmaTile<64, 128> c[2];
  Mbarrier full[kStages], empty[kStages];
};

template <bool kRows>
__global__ void __launch_bounds__(384, 1)
    pipeline_kernel(const __grid_constant__ TensorMap map_a, const __grid_constant__ TensorMap map_b,
                    const __grid_constant__ TensorMap map_c, int* tiles_done, int K) {
  Pipeline<kRows>& shared = shared_memory<Pipeline<kRows>>();
  const int warpgroup = int(threadIdx.x) / 128, thread = int(threadIdx.x) % 128;
  const int m0 = int(blockIdx.y) * 128, n0 = int(blockIdx.x) * 128;
  if (threadIdx.x == 0) {
    for (int s = 0; s < kStages; ++s) {
      mbarrier_init(shared.full[s], 1);
      mbarrier_init(shared.empty[s], 256);
    }
    fence_mbarrier_init();
  }
  __syncthreads();
  PipelineState<kStages> place;
  if (warpgroup == 0) {
    setmaxnreg_dec<40>();
    if (thread >= 32) return;
    if (thread == 0)
      for (int k = 0; k < K; k += 64, place.advance()) {
        const int s = place.slot;
        mbarrier_wait(shared.empty[s], place.parity ^ 1);
        mbarrier_arrive_expect_tx(shared.full[s], int(sizeof shared.a[s] + sizeof shared.b[s]));
        tma_load(shared.a[s].panel[0], map_a, shared.full[s], k, m0, 0, 0);
        if (kRows)
          for (int panel = 0; panel < 2; ++panel)
            tma_load(shared.b[s].panel[panel], map_b, shared.full[s], n0 + panel * 64, k, 0, 0);
        else tma_load(shared.b[s].panel[0], map_b, shared.full[s], k, n0, 0, 0);
      }
    __syncwarp();
    named_barrier_sync(5, 32 + 256);  // all tiles of C are in memory's hands
    if (thread == 0) tiles_done[blockIdx.y * gridDim.x + blockIdx.x] = 1;
    return;
  }
  setmaxnreg_inc<232>();
  const int half = warpgroup - 1;
  float d[64];
  for (int k = 0; k < K; k += 64, place.advance()) {
    const int s = place.slot;
    mbarrier_wait(shared.full[s], place.parity);
    warpgroup_fence_operand(d);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < 64; i += 16) {
      const uint64_t a = shared.a[s].k_major(half * 64, i);
      if constexpr (kRows) wgmma<128, Major::k, Major::mn>(d, a, shared.b[s].mn_major(i), k || i);
      else wgmma<128>(d, a, shared.b[s].k_major(0, i), k || i);
    }
    wgmma_commit_group();
    wgmma_wait_group<0>();
    warpgroup_fence_operand(d);
    mbarrier_arrive(shared.empty[s]);
  }
  const int row = thread / 32 * 16 + thread % 32 / 4;
#pragma unroll
  for (int j = 0; j < 64; j += 2) {
    const int column = j / 4 * 8 + thread % 4 * 2, r = row + j / 2 % 2 * 8;
    const uint32_t byte =
        swizzled_byte(uint32_t(column / 64 * 64 * 128 + r * 128 + column % 64 * 2), Swizzle::bytes128);
    store_for_async_proxy(reinterpret_cast<uint32_t*>(reinterpret_cast<char*>(shared.c[half].panel) + byte),
                          pair_of_bf16(d[j], d[j + 1]));
  }
  fence_async_proxy();
  named_barrier_sync(1 + half, 128);
  if (thread == 0) {
    for (int panel = 0; panel < 2; ++panel)
      tma_store(map_c, shared.c[half].panel[panel], n0 + panel * 64, m0 + half * 64, 0, 0);
    tma_store_commit_group();
    tma_store_wait_group_read();
  }
  named_barrier_arrive(5, 32 + 256);
}

template <bool kRows>
void check_pipeline(Checker& checker, OtherSchedules& others) {
  Generator generator(33);
  const int M = 200, N = 264, K = 328;
  const std::vector<bf16> a = numbers(generator, size_t(M) * K, false), b = numbers(generator, size_t(N) * K, false);
  const auto run = [&](Stream& stream) {
    const Array<bf16> A(stream, a), B(stream, kRows ? transposed(b, size_t(N), size_t(K)) : b);
    Array<bf16> C(stream, size_t(M) * N);
    const dim3 grid(blocks_for(size_t(N), 128), blocks_for(size_t(M), 128));
    Array<int> tiles_done(stream, grid.x * grid.y);
    const Swizzle swizzle = Swizzle::bytes128;
    launch<pipeline_kernel<kRows>>({stream,
                                    "pipeline",
                                    {reads(A.data(), A.size()), reads(B.data(), B.size()), writes(C.data(), C.size()),
                                     writes(tiles_done.data(), tiles_done.size())}},
                                   grid, 384, sizeof(Pipeline<kRows>),
                                   matrix_map(stream, A.data(), M, K, 128, 64, swizzle),
                                   kRows ? matrix_map(stream, B.data(), K, N, 64, 64, swizzle)
                                         : matrix_map(stream, B.data(), N, K, 128, 64, swizzle),
                                   matrix_map(stream, C.data(), M, N, 64, 64, swizzle), tiles_done.data(), K);
    return std::make_tuple(C.download(), tiles_done.download());
  };
  const std::string title = format("pipeline of warpgroups, B %s", kRows ? "(K,N)" : "(N,K)");
  checker.trying(title);
  const auto outputs = run(checker.stream);
  std::vector<double> want(size_t(M) * N, 0);
  add_product(want, a, b, size_t(M), size_t(N), size_t(K));
  // Rounded to bf16 once: half a unit of 8 bits.
  checker.close(title, std::get<0>(outputs), want, {M, N}, 0x1p-8, rounding(K));
  const std::vector<int>& done = std::get<1>(outputs);
  checker.that(title + ", tiles", done == std::vector<int>(done.size(), 1), format("%zu", done.size()));
  others.same_bits(checker, title, outputs, run);
}

void check_everything(Checker& checker) {
  check_products<64>(checker);
  check_products<128>(checker);
  check_boxes(checker);
}

}  // namespace

void check(Checker& checker) {
  const DeviceInfo& info = checker.stream.device().info();
  if (info.gpu && (info.compute_capability != 90 || !kBuildHasHopper)) {
    checker.that("Hopper's instructions", true,
                 kBuildHasHopper ? "not tried: this GPU is none" : "not tried: a build with ARCH=90a has them");
    return;
  }
  check_everything(checker);
  OtherSchedules others;
  check_pipeline<false>(checker, others);
  check_pipeline<true>(checker, others);
  check_in_other_schedules(checker, check_everything);
}

// ---------------------------------------------------------------------------------------------- bench

void bench(Bencher& bencher) {
  const DeviceInfo& info = bencher.stream.device().info();
  if (info.gpu && (info.compute_capability != 90 || !kBuildHasHopper)) return;
  Generator generator(34);
  const int M = bencher.gpu_sizes() ? 8192 : 256, N = M, K = M;
  Stream& stream = bencher.stream;
  const Array<bf16> A(stream, numbers(generator, size_t(M) * K, false)),
      B(stream, numbers(generator, size_t(N) * K, false));
  Array<bf16> C(stream, size_t(M) * N);
  const dim3 grid(blocks_for(size_t(N), 128), blocks_for(size_t(M), 128));
  Array<int> tiles_done(stream, size_t(grid.x) * grid.y);
  const Swizzle swizzle = Swizzle::bytes128;
  const TensorMap map_a = matrix_map(stream, A.data(), M, K, 128, 64, swizzle),
                  map_b = matrix_map(stream, B.data(), N, K, 128, 64, swizzle),
                  map_c = matrix_map(stream, C.data(), M, N, 64, 64, swizzle);
  bencher.time<bf16>("pipeline of warpgroups", 0, 2.0 * M * N * K, [&] {
    launch<pipeline_kernel<false>>({stream,
                                    "pipeline",
                                    {reads(A.data(), A.size()), reads(B.data(), B.size()), writes(C.data(), C.size()),
                                     writes(tiles_done.data(), tiles_done.size())}},
                                   grid, 384, sizeof(Pipeline<false>), map_a, map_b, map_c, tiles_done.data(), K);
  });
}

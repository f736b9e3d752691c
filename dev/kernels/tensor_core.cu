// Tensor-core tiles (llmc/device/tensor_core) against a plain product, and their fragments against the PTX ISA's text.
//
// Covers: promise 7: tensor-core products, the loads that feed them, and where swizzled tiles have what
#include "dev/kernels/check.h"
#include "dev/kernels/other_schedules.h"
#include "llmc/device/launch.cuh"
#include "llmc/device/tensor_core.cuh"

namespace {

struct Matrices {
  uint16_t element[32][8];  // four 8x8 matrices, one below the other
};

// Lane l gives row (5 l + 3) % 32, so that the matrices' rows lie scattered.
template <bool kTranspose>
__global__ void ldmatrix_kernel(uint32_t* out) {
  Matrices& matrices = shared_memory<Matrices>();
  const int lane = int(threadIdx.x), row = (5 * lane + 3) % 32;
  for (int c = 0; c < 8; ++c) matrices.element[row][c] = uint16_t(lane * 8 + c);
  __syncwarp();
  uint32_t r[4];
  ldmatrix_x4<kTranspose>(r, matrices.element[row]);
  for (int m = 0; m < 4; ++m) out[lane * 4 + m] = r[m];
}

template <bool kTranspose>
void check_ldmatrix(Checker& checker) {
  Array<uint32_t> out(checker.stream, 128);
  launch<ldmatrix_kernel<kTranspose>>({checker.stream, "ldmatrix", {writes(out.data(), 128)}}, 1, 32, sizeof(Matrices),
                                      out.data());
  const std::vector<uint32_t> got = out.download();
  std::string mismatch;
  for (uint32_t lane = 0; lane < 32; ++lane)
    for (uint32_t m = 0; m < 4; ++m) {
      const uint32_t a = lane / 4, b = lane % 4 * 2;
      const auto element = [&](uint32_t row, uint32_t column) { return (m * 8 + row) * 8 + column; };
      const uint32_t want =
          kTranspose ? element(b, a) | element(b + 1, a) << 16 : element(a, b) | element(a, b + 1) << 16;
      const uint32_t have = got[lane * 4 + m];
      if (have != want && mismatch.size() < 200)
        mismatch += format(" lane %u r[%u] has elements %u, %u, not %u, %u;", lane, m, have & 0xffff, have >> 16,
                           want & 0xffff, want >> 16);
    }
  checker.that(kTranspose ? "ldmatrix_x4 transposed" : "ldmatrix_x4", mismatch.empty(), mismatch);
}

__device__ uint32_t pair_of(bf16 low, bf16 high) { return uint32_t(low.bits) | uint32_t(high.bits) << 16; }

// D (16,8) += A (16,16) B (16,8), the fragments put together by hand as tensor_core.cuh says.
__global__ void mma_kernel(float* D, const bf16* A, const bf16* B) {
  const int g = int(threadIdx.x) / 4, t = int(threadIdx.x) % 4 * 2;
  const auto a_pair = [&](int row, int column) { return pair_of(A[row * 16 + column], A[row * 16 + column + 1]); };
  const auto b_pair = [&](int row) { return pair_of(B[row * 8 + g], B[(row + 1) * 8 + g]); };
  const uint32_t a[4] = {a_pair(g, t), a_pair(g + 8, t), a_pair(g, t + 8), a_pair(g + 8, t + 8)};
  const uint32_t b[2] = {b_pair(t), b_pair(t + 8)};
  float d[4] = {D[g * 8 + t], D[g * 8 + t + 1], D[(g + 8) * 8 + t], D[(g + 8) * 8 + t + 1]};
  mma_m16n8k16(d, a, b);
  D[g * 8 + t] = d[0], D[g * 8 + t + 1] = d[1];
  D[(g + 8) * 8 + t] = d[2], D[(g + 8) * 8 + t + 1] = d[3];
}

// C (M,N) = A (M,K) Bᵀ with B (N,K), or A B with B (K,N) if kTransposeB. Tiles of 64 x 64, 32 of K at a time in two
// stages; four warps, each with 32 x 32 of the tile.
template <bool kTransposeB>
struct ProductTiles {
  static constexpr int kRows = kTransposeB ? 32 : 64, kColumns = kTransposeB ? 64 : 32;
  bf16 a[2][64][32 + 8];  // 8 columns of padding keep ldmatrix free of bank conflicts
  bf16 b[2][kRows][kColumns + 8];
};

template <bool kTransposeB>
__global__ void __launch_bounds__(128) product_kernel(float* C, const bf16* A, const bf16* B, int N, int K) {
  using Tiles = ProductTiles<kTransposeB>;
  Tiles& tiles = shared_memory<Tiles>();
  const int warp = int(threadIdx.x) / 32, lane = int(threadIdx.x) % 32;
  const int m0 = int(blockIdx.y) * 64, n0 = int(blockIdx.x) * 64, warp_m = warp / 2 * 32, warp_n = warp % 2 * 32;

  const auto fetch = [&](int stage, int k0) {
    for (int chunk = int(threadIdx.x); chunk < 256; chunk += 128) {  // of 8 elements
      const int row = chunk / 4, column = chunk % 4 * 8;
      cp_async16(&tiles.a[stage][row][column], A + size_t(m0 + row) * K + k0 + column);
      constexpr int kChunks = Tiles::kColumns / 8;
      const int b_row = chunk / kChunks, b_column = chunk % kChunks * 8;
      cp_async16(&tiles.b[stage][b_row][b_column],
                 kTransposeB ? B + size_t(k0 + b_row) * N + n0 + b_column : B + size_t(n0 + b_row) * K + k0 + b_column);
    }
  };

  float d[2][4][4] = {};
  fetch(0, 0);
  cp_async_commit_group();
  for (int k0 = 0, stage = 0; k0 < K; k0 += 32, stage ^= 1) {
    if (k0 + 32 < K) fetch(stage ^ 1, k0 + 32);
    cp_async_commit_group();
    cp_async_wait_group<1>();
    __syncthreads();
    for (int k = 0; k < 32; k += 16) {
      uint32_t a[2][4], b[2][4];  // b: two blocks of 8 columns each
      for (int i = 0; i < 2; ++i)
        ldmatrix_x4<false>(a[i], &tiles.a[stage][warp_m + i * 16 + lane % 16][k + lane / 16 * 8]);
      for (int j = 0; j < 2; ++j) {
        const int n = warp_n + j * 16;
        if constexpr (kTransposeB) ldmatrix_x4<true>(b[j], &tiles.b[stage][k + lane % 16][n + lane / 16 * 8]);
        else ldmatrix_x4<false>(b[j], &tiles.b[stage][n + lane / 16 * 8 + lane % 8][k + lane / 8 % 2 * 8]);
      }
      for (int i = 0; i < 2; ++i)
        for (int j = 0; j < 4; ++j) {
          const uint32_t pair[2] = {b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1]};
          mma_m16n8k16(d[i][j], a[i], pair);
        }
    }
    __syncthreads();
  }
  for (int i = 0; i < 2; ++i)
    for (int j = 0; j < 4; ++j)
      for (int e = 0; e < 4; ++e) {
        const int row = m0 + warp_m + i * 16 + lane / 4 + e / 2 * 8,
                  column = n0 + warp_n + j * 8 + lane % 4 * 2 + e % 2;
        C[size_t(row) * N + column] = d[i][j][e];
      }
}

// Small whole numbers: every sum is exact, so that only a wrong layout can make a difference.
std::vector<bf16> whole_numbers(Generator& generator, size_t n) {
  std::vector<bf16> values(n);
  for (bf16& v : values) v = from_float<bf16>(float(generator.integer(-4, 4)));
  return values;
}

std::vector<double> product(const std::vector<bf16>& A, const std::vector<bf16>& B, int M, int N, int K,
                            bool transposed_b) {
  std::vector<double> C(size_t(M) * size_t(N), 0);
  for (int m = 0; m < M; ++m)
    for (int k = 0; k < K; ++k)
      for (int n = 0; n < N; ++n)
        C[size_t(m * N + n)] +=
            to_double(A[size_t(m * K + k)]) * to_double(B[size_t(transposed_b ? k * N + n : n * K + k)]);
  return C;
}

template <bool kTransposeB>
void check_product(Checker& checker) {
  Stream& stream = checker.stream;
  Generator generator(22);
  const int M = 128, N = 192, K = 256;
  for (const bool whole : {true, false}) {
    const auto make = [&](size_t n) { return whole ? whole_numbers(generator, n) : random_normal<bf16>(generator, n); };
    const std::vector<bf16> a = make(size_t(M) * K), b = make(size_t(N) * K);
    const Array<bf16> A(stream, a), B(stream, b);
    Array<float> C(stream, size_t(M) * N);
    launch<product_kernel<kTransposeB>>(
        {stream, "product", {writes(C.data(), C.size()), reads(A.data(), A.size()), reads(B.data(), B.size())}},
        dim3(unsigned(N) / 64, unsigned(M) / 64), 128, sizeof(ProductTiles<kTransposeB>), C.data(), A.data(), B.data(),
        N, K);
    // fp32 sums of 256 products: at worst 256 roundings (a tensor core's cut off, so 2^-23) at the size of the sum of
    // magnitudes, about 256 * 0.64.
    checker.close(
        format("tiled product, B %s, %s numbers", kTransposeB ? "(K,N)" : "(N,K)", whole ? "whole" : "normal"),
        C.download(), product(a, b, M, N, K, kTransposeB), {M, N}, 0, whole ? 0 : 256 * 0x1p-23 * 256 * 0.64);
  }
}

void check_mma(Checker& checker) {
  Generator generator(21);
  const std::vector<bf16> a = whole_numbers(generator, 256), b = whole_numbers(generator, 128);
  std::vector<float> d(128);
  for (size_t i = 0; i < d.size(); ++i) d[i] = float(i);
  std::vector<double> want = product(a, b, 16, 8, 16, true);
  for (size_t i = 0; i < d.size(); ++i) want[i] += double(d[i]);
  const Array<bf16> A(checker.stream, a), B(checker.stream, b);
  Array<float> D(checker.stream, d);
  launch<mma_kernel>({checker.stream, "mma", {updates(D.data(), 128), reads(A.data(), 256), reads(B.data(), 128)}}, 1,
                     32, 0, D.data(), A.data(), B.data());
  checker.close("mma_m16n8k16 of whole numbers", D.download(), want, {16, 8}, 0, 0);
}

// A tile of 64 rows written by ordinary stores, read by ldmatrix from the places that `further` reaches.
template <int kColumns>
struct SwizzledTile {
  bf16 element[64 * kColumns];
};

template <int kColumns>
__global__ void swizzled_kernel(uint32_t* out) {
  SwizzledTile<kColumns>& tile = shared_memory<SwizzledTile<kColumns>>();
  const int lane = int(threadIdx.x);
  for (int row = 0; row < 64; ++row)
    for (int column = lane; column < kColumns; column += 32)
      swizzled<kColumns>(tile.element, row, column / 8)[column % 8] = bf16{uint16_t(row * kColumns + column)};
  __syncwarp();
  const SharedAddress even = swizzled_address<kColumns>(tile.element, lane % 16, lane / 16);
  int i = 0;
  for (int row = 0; row < 64; row += 16)
    for (int chunk = 0; chunk < kColumns / 8; chunk += 2, ++i) {
      uint32_t r[4];
      ldmatrix_x4<false>(r, further<kColumns>(even, row, chunk));
      for (int m = 0; m < 4; ++m) out[(i * 32 + lane) * 4 + m] = r[m];
    }
}

template <int kColumns>
void check_swizzled(Checker& checker) {
  std::vector<uint32_t> want;
  for (uint32_t row = 0; row < 64; row += 16)
    for (uint32_t chunk = 0; chunk < kColumns / 8; chunk += 2)
      for (uint32_t lane = 0; lane < 32; ++lane)
        for (uint32_t m = 0; m < 4; ++m) {  // rows 0-7 and 8-15 of the first 8 columns, then of the next
          const uint32_t first = (row + m % 2 * 8 + lane / 4) * kColumns + (chunk + m / 2) * 8 + lane % 4 * 2;
          want.push_back(first | (first + 1) << 16);
        }
  Array<uint32_t> out(checker.stream, want.size());
  launch<swizzled_kernel<kColumns>>({checker.stream, "swizzled", {writes(out.data(), out.size())}}, 1, 32,
                                    sizeof(SwizzledTile<kColumns>), out.data());
  checker.that(format("swizzled tiles of %d columns", kColumns), out.download() == want,
               format("%zu fragments", want.size()));
}

__global__ void pairs_kernel(uint32_t* out, const float* in, int n) {
  const int i = int(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < n) out[i] = pair_of_bf16(in[2 * i], in[2 * i + 1]);
}

void check_pairs(Checker& checker) {
  Generator generator(23);
  std::vector<float> values = random_normal<float>(generator, 4000);
  for (const float x : {0.0f, -0.0f, INFINITY, -INFINITY, 3.4e38f, 1e-40f, 1.00390625f, 1.01171875f})
    values.push_back(x);
  std::vector<uint32_t> want;
  for (size_t i = 0; i < values.size(); i += 2)
    want.push_back(uint32_t(bf16_bits(values[i])) | uint32_t(bf16_bits(values[i + 1])) << 16);
  const Array<float> in(checker.stream, values);
  Array<uint32_t> out(checker.stream, want.size());
  launch<pairs_kernel>({checker.stream, "pairs", {writes(out.data(), out.size()), reads(in.data(), in.size())}},
                       blocks_for(want.size(), 128), 128, 0, out.data(), in.data(), int(want.size()));
  checker.that("pair_of_bf16", out.download() == want, format("%zu pairs", want.size()));
}

void check_everything(Checker& checker) {
  check_ldmatrix<false>(checker);
  check_ldmatrix<true>(checker);
  check_mma(checker);
  check_product<false>(checker);
  check_product<true>(checker);
  check_swizzled<64>(checker);
  check_swizzled<128>(checker);
  check_pairs(checker);
}

}  // namespace

void check(Checker& checker) {
  check_everything(checker);
  check_in_other_schedules(checker, check_everything);
}

// ---------------------------------------------------------------------------------------------- bench

namespace {

// Each warp multiplies what lies in its registers, `rounds` times 8 products that do not wait for each other.
__global__ void __launch_bounds__(256) mma_rate_kernel(float* out, int rounds) {
  float d[8][4] = {};
  uint32_t a[4], b[2];
  for (int i = 0; i < 4; ++i) a[i] = pair_of_bf16(float(threadIdx.x), float(i)), b[i % 2] = a[i];
  for (int r = 0; r < rounds; ++r)
#pragma unroll
    for (int i = 0; i < 8; ++i) mma_m16n8k16(d[i], a, b);
  float sum = 0;
  for (int i = 0; i < 8; ++i) sum += d[i][0];
  if (sum == 1.25f) out[threadIdx.x] = sum;
}

}  // namespace

void bench(Bencher& bencher) {
  Array<float> out(bencher.stream, 256);
  const int blocks = 4 * bencher.stream.device().info().multiprocessors, rounds = bencher.gpu_sizes() ? 4096 : 4;
  bencher.time<bf16>("mma_m16n8k16 from registers", 0, 2.0 * 16 * 8 * 16 * 8 * rounds * 8 * blocks, [&] {
    launch<mma_rate_kernel>({bencher.stream, "mma_rate", {writes(out.data(), out.size())}}, unsigned(blocks), 256, 0,
                            out.data(), rounds);
  });
}

// What kernels are written with, against its plain meaning: the wrappers of llmc/device on whatever device this runs.
//
// Covers: promise 7: the device's own wrappers: shuffles, sums, barriers, asynchronous copies, tensor-core tiles,
// numbers
#include "dev/kernels/check.h"
#include "dev/kernels/other_orders.h"
#include "llmc/device/async_copy.cuh"
#include "llmc/device/launch.cuh"
#include "llmc/device/tensor_core.cuh"

// ---------------------------------------------------------------------------------------------- warps

namespace {

enum class Shuffle { any, exclusive_or, down, up };
constexpr const char* kShuffleNames[] = {"shfl", "shfl_xor", "shfl_down", "shfl_up"};

template <class T, Shuffle kind, int kWidth>
__global__ void shuffle_kernel(T* out, const T* in, int operand) {
  const T value = in[threadIdx.x];
  if constexpr (kind == Shuffle::any) out[threadIdx.x] = __shfl_sync(~0u, value, operand, kWidth);
  else if constexpr (kind == Shuffle::exclusive_or) out[threadIdx.x] = __shfl_xor_sync(~0u, value, operand, kWidth);
  else if constexpr (kind == Shuffle::down) out[threadIdx.x] = __shfl_down_sync(~0u, value, unsigned(operand), kWidth);
  else out[threadIdx.x] = __shfl_up_sync(~0u, value, unsigned(operand), kWidth);
}

// The lane whose value comes, as the PTX ISA has it for shfl.sync: a lane beyond the group's end (or before its start,
// for up) gives the lane's own value; xor may reach into earlier groups.
int source_lane(Shuffle kind, int width, int lane, int operand) {
  const int first = lane & ~(width - 1), last = first + width - 1;
  if (kind == Shuffle::any) return first + (operand & (width - 1));
  if (kind == Shuffle::up) return lane - operand >= first ? lane - operand : lane;
  const int source = kind == Shuffle::down ? lane + operand : lane ^ operand;
  return source <= last ? source : lane;
}

template <class T, Shuffle kind, int kWidth>
void check_shuffle(Checker& checker) {
  std::vector<T> values(64);
  for (size_t i = 0; i < values.size(); ++i) values[i] = T(1.25 * double(i) + 3);
  const Array<T> in(checker.stream, values);
  int wrong = 0, first_operand = -1;
  for (int operand = 0; operand < 32; ++operand) {
    Array<T> out(checker.stream, values.size());
    launch<shuffle_kernel<T, kind, kWidth>>(
        {checker.stream, "shuffle", {writes(out.data(), out.size()), reads(in.data(), in.size())}}, 1, 64, 0,
        out.data(), in.data(), operand);
    const std::vector<T> got = out.download();
    for (int t = 0; t < 64; ++t) {
      const bool right = got[size_t(t)] == values[size_t(t / 32 * 32 + source_lane(kind, kWidth, t % 32, operand))];
      if (!right && first_operand < 0) first_operand = operand;
      wrong += !right;
    }
  }
  checker.that(format("%s, width %d, %zu bytes", kShuffleNames[int(kind)], kWidth, sizeof(T)), wrong == 0,
               wrong ? format("%d lanes are wrong, first with operand %d", wrong, first_operand) : "every operand");
}

template <Shuffle kind>
void check_shuffles(Checker& checker) {
  check_shuffle<float, kind, 32>(checker);
  check_shuffle<float, kind, 16>(checker);
  check_shuffle<float, kind, 8>(checker);
  check_shuffle<float, kind, 2>(checker);
  check_shuffle<float, kind, 1>(checker);
  check_shuffle<int, kind, 4>(checker);
  check_shuffle<double, kind, 32>(checker);
}

// Lanes 0 .. 15 and 16 .. 31 part: each half has collectives of its own; then all meet again.
__global__ void halves_kernel(int* out, uint32_t* ballots) {
  const int lane = int(threadIdx.x);
  int value;
  if (lane < 16) {
    value = __shfl_xor_sync(0x0000ffffu, lane, 1);
    ballots[lane] = __ballot_sync(0x0000ffffu, lane % 3 == 0);
  } else {
    value = __shfl_sync(0xffff0000u, lane, 31);
    value += __shfl_sync(0xffff0000u, lane, 16);
    ballots[lane] = __ballot_sync(0xffff0000u, lane % 5 == 0);
  }
  __syncwarp();
  out[lane] = value + __shfl_down_sync(~0u, 1000 * lane, 1);
}

__global__ void ballot_kernel(uint32_t* out, uint32_t bits) {
  const unsigned lane = threadIdx.x % 32;
  out[threadIdx.x] = __ballot_sync(~0u, int(bits >> lane & 1) << 7);
}

void check_parts(Checker& checker) {
  Array<int> out(checker.stream, 32);
  Array<uint32_t> ballots(checker.stream, 32);
  launch<halves_kernel>({checker.stream, "halves", {writes(out.data(), 32), writes(ballots.data(), 32)}}, 1, 32, 0,
                        out.data(), ballots.data());
  const std::vector<int> got = out.download();
  const std::vector<uint32_t> got_ballots = ballots.download();
  int wrong = 0, wrong_ballots = 0;
  for (int l = 0; l < 32; ++l) {
    wrong += got[size_t(l)] != (l < 16 ? (l ^ 1) : 31 + 16) + 1000 * (l < 31 ? l + 1 : l);
    wrong_ballots += got_ballots[size_t(l)] != (l < 16 ? 0x00009249u : 0x42100000u);
  }
  checker.that("shuffles of half warps", wrong == 0, format("%d lanes are wrong", wrong));
  checker.that("ballots of half warps", wrong_ballots == 0,
               format("%d lanes are wrong: %08x, %08x", wrong_ballots, got_ballots[0], got_ballots[31]));
  for (const uint32_t bits : {0u, ~0u, 1u, 0x80000000u, 0xdeadbeefu}) {
    Array<uint32_t> whole(checker.stream, 96);
    launch<ballot_kernel>({checker.stream, "ballot", {writes(whole.data(), 96)}}, 1, 96, 0, whole.data(), bits);
    int wrong_threads = 0;
    for (const uint32_t ballot : whole.download()) wrong_threads += ballot != bits;
    checker.that(format("ballot %08x", bits), wrong_threads == 0, format("%d of 96 threads are wrong", wrong_threads));
  }
}

// ---------------------------------------------------------------------------------------------- sums and maxima

template <class T>
__global__ void warp_sum_kernel(T* out, const T* in) {
  out[threadIdx.x] = warp_sum(in[threadIdx.x]);
}
__global__ void warp_max_kernel(float* out, const float* in) { out[threadIdx.x] = warp_max(in[threadIdx.x]); }
// Twice, so that the second sum reuses what the first one's slow threads may still read.
template <class T>
__global__ void block_sum_kernel(T* out, const T* in) {
  const int thread = int(threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z));
  const int threads = int(blockDim.x * blockDim.y * blockDim.z);
  const T once = block_sum(in[thread]);
  out[thread] = once + block_sum(in[threads - 1 - thread]);
}

// The documented order: lanes l and l+16 first, then 8, 4, 2, 1 apart.
template <class T>
T documented_warp_sum(std::vector<T> x) {
  for (int width = 16; width; width /= 2)
    for (int l = 0; l < width; ++l) x[size_t(l)] += x[size_t(l + width)];
  return x[0];
}

template <class T>
T documented_block_sum(const std::vector<T>& x) {
  std::vector<T> warps(32, T(0));
  for (size_t w = 0; w < x.size() / 32; ++w)
    warps[w] = documented_warp_sum(std::vector<T>(x.begin() + long(w) * 32, x.begin() + long(w + 1) * 32));
  return documented_warp_sum(warps);
}

template <class T>
void check_sums(Checker& checker) {
  Stream& stream = checker.stream;
  Generator generator(17);
  for (const int threads : {32, 64, 96, 256, 992, 1024}) {
    const size_t n = size_t(threads);
    std::vector<T> values(n);
    for (T& v : values) v = T(generator.normal() * std::exp(4 * generator.normal()));  // so that the order tells
    const Array<T> in(stream, values);
    const std::string name = format("%zu bytes, %d threads", sizeof(T), threads);

    Array<T> sums(stream, n);
    launch<warp_sum_kernel<T>>({stream, "warp_sum", {writes(sums.data(), n), reads(in.data(), n)}}, 1,
                               unsigned(threads), 0, sums.data(), in.data());
    std::vector<T> want(n);
    for (size_t t = 0; t < n; ++t) {
      const auto warp = values.begin() + long(t / 32 * 32);
      want[t] = documented_warp_sum(std::vector<T>(warp, warp + 32));
    }
    checker.same_bits("warp_sum, " + name, sums.download(), want);

    const std::vector<T> backwards(values.rbegin(), values.rend());
    const T total = documented_block_sum(values) + documented_block_sum(backwards);
    for (const dim3 shape :
         {dim3(unsigned(threads)), dim3(8, unsigned(threads) / 8), dim3(2, unsigned(threads) / 32, 16)}) {
      launch<block_sum_kernel<T>>({stream, "block_sum", {writes(sums.data(), n), reads(in.data(), n)}}, 1, shape, 0,
                                  sums.data(), in.data());
      checker.same_bits(format("block_sum, %s as %u x %u x %u", name.c_str(), shape.x, shape.y, shape.z),
                        sums.download(), std::vector<T>(n, total));
    }
  }
}

void check_maxima(Checker& checker) {
  Generator generator(18);
  std::vector<float> values = random_normal<float>(generator, 160);
  for (size_t l = 32; l < 64; ++l) values[l] = -std::fabs(values[l]);
  values[40] = NAN;  // gives way to numbers
  for (size_t l = 64; l < 96; ++l) values[l] = NAN;
  values[100] = INFINITY;
  for (size_t l = 128; l < 160; ++l) values[l] = -INFINITY;
  std::vector<double> want(160);
  for (size_t t = 0; t < 160; ++t) {
    float max = NAN;
    for (size_t l = 0; l < 32; ++l) max = std::fmax(max, values[t / 32 * 32 + l]);
    want[t] = double(max);
  }
  const Array<float> in(checker.stream, values);
  Array<float> out(checker.stream, 160);
  launch<warp_max_kernel>({checker.stream, "warp_max", {writes(out.data(), 160), reads(in.data(), 160)}}, 1, 160, 0,
                          out.data(), in.data());
  const std::vector<float> got = out.download();
  int wrong = 0;
  for (size_t t = 0; t < 160; ++t) wrong += std::isnan(want[t]) ? !std::isnan(got[t]) : double(got[t]) != want[t];
  checker.that("warp_max", wrong == 0, format("%d of 160 threads are wrong", wrong));
}

// ---------------------------------------------------------------------------------------------- blocks

struct Row {
  float values[256];
};

// Threads from `active` on return at once; the others turn their row around through shared memory.
__global__ void reverse_kernel(float* out, const float* in, int active) {
  if (int(threadIdx.x) >= active) return;
  Row& row = shared_memory<Row>();
  const size_t first = size_t(blockIdx.x) * size_t(active);
  for (int round = 0; round < 2; ++round) {
    row.values[threadIdx.x] = round ? out[first + threadIdx.x] + 1 : in[first + threadIdx.x];
    __syncthreads();
    out[first + threadIdx.x] = row.values[active - 1 - int(threadIdx.x)];
    __syncthreads();
  }
}

// A thread's coordinates, and again after a wait.
template <bool kWait>
__global__ void coordinates_kernel(int* out) {
  const int block = int(blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z));
  const int thread = int(threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z));
  const int threads = int(blockDim.x * blockDim.y * blockDim.z);
  int* mine = out + size_t(block * threads + thread) * 6;
  mine[0] = int(blockIdx.x), mine[1] = int(blockIdx.y), mine[2] = int(blockIdx.z);
  mine[3] = int(threadIdx.x), mine[4] = int(threadIdx.y), mine[5] = int(threadIdx.z);
  if constexpr (kWait) __syncthreads();
  mine[3] += 100 * int(threadIdx.x), mine[4] += 100 * int(threadIdx.y), mine[5] += 100 * int(threadIdx.z);
}

__global__ void aligned_kernel(int* out) { out[0] = int(reinterpret_cast<uintptr_t>(&shared_memory<Row>()) % 1024); }

void check_blocks(Checker& checker) {
  Stream& stream = checker.stream;
  Generator generator(19);
  for (const int active : {1, 31, 32, 33, 100, 255, 256}) {
    const size_t n = size_t(active) * 5;
    const std::vector<float> values = random_normal<float>(generator, n);
    std::vector<float> want(values);
    for (float& x : want) x += 1;
    const Array<float> in(stream, values);
    Array<float> out(stream, n);
    launch<reverse_kernel>({stream, "reverse", {writes(out.data(), n), reads(in.data(), n)}}, 5, 256, sizeof(Row),
                           out.data(), in.data(), active);
    checker.same_bits(format("turned around twice, %d threads stay", active), out.download(), want);
  }
  for (const dim3 block : {dim3(1), dim3(33), dim3(5, 7), dim3(3, 2, 11), dim3(1, 1, 64), dim3(1, 1024)}) {
    const dim3 grid(3, 5, 2);
    std::vector<int> want;
    for (unsigned b = 0; b < 30; ++b)
      for (unsigned z = 0; z < block.z; ++z)
        for (unsigned y = 0; y < block.y; ++y)
          for (unsigned x = 0; x < block.x; ++x)
            for (const unsigned i : {b % 3, b / 3 % 5, b / 15, 101 * x, 101 * y, 101 * z}) want.push_back(int(i));
    Array<int> out(stream, want.size());
    launch<coordinates_kernel<false>>({stream, "coordinates", {writes(out.data(), out.size())}}, grid, block, 0,
                                      out.data());
    const std::string name = format("coordinates in blocks of %u x %u x %u", block.x, block.y, block.z);
    checker.same_bits(name, out.download(), want);
    launch<coordinates_kernel<true>>({stream, "coordinates", {writes(out.data(), out.size())}}, grid, block, 0,
                                     out.data());
    checker.same_bits(name + ", waiting", out.download(), want);
  }
  Array<int> misalignment(stream, 1);
  launch<aligned_kernel>({stream, "aligned", {writes(misalignment.data(), 1)}}, 1, 1, sizeof(Row), misalignment.data());
  checker.same_bits("shared memory is 1024-byte aligned", misalignment.download(), {0});
}

// ---------------------------------------------------------------------------------------------- asynchronous copies

struct TwoStages {
  float values[2][128 * 4];
};

// out = 2 in, through two buffers: while one is read, the next piece of 512 floats arrives in the other.
__global__ void double_buffer_kernel(float* out, const float* in, int pieces) {
  TwoStages& stages = shared_memory<TwoStages>();
  const int mine = int(threadIdx.x) * 4, theirs = (127 - int(threadIdx.x)) * 4;
  cp_async16(&stages.values[0][mine], in + mine);
  cp_async_commit();
  for (int p = 0; p < pieces; ++p) {
    if (p + 1 < pieces) cp_async16(&stages.values[(p + 1) % 2][mine], in + size_t(p + 1) * 512 + mine);
    cp_async_commit();
    cp_async_wait<1>();
    __syncthreads();
    for (int i = 0; i < 4; ++i) out[size_t(p) * 512 + theirs + i] = 2 * stages.values[p % 2][theirs + i];
    __syncthreads();
  }
}

void check_async_copies(Checker& checker) {
  Generator generator(20);
  for (const int pieces : {1, 2, 3, 9}) {
    const size_t n = size_t(pieces) * 512;
    const std::vector<float> values = random_normal<float>(generator, n);
    std::vector<float> want(values);
    for (float& x : want) x *= 2;
    const Array<float> in(checker.stream, values);
    Array<float> out(checker.stream, n);
    launch<double_buffer_kernel>({checker.stream, "double_buffer", {writes(out.data(), n), reads(in.data(), n)}}, 1,
                                 128, sizeof(TwoStages), out.data(), in.data(), pieces);
    checker.same_bits(format("cp_async through two buffers, %d pieces", pieces), out.download(), want);
  }
}

// ---------------------------------------------------------------------------------------------- tensor cores

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
  cp_async_commit();
  for (int k0 = 0, stage = 0; k0 < K; k0 += 32, stage ^= 1) {
    if (k0 + 32 < K) fetch(stage ^ 1, k0 + 32);
    cp_async_commit();
    cp_async_wait<1>();
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

void check_everything(Checker& checker) {
  check_shuffles<Shuffle::any>(checker);
  check_shuffles<Shuffle::exclusive_or>(checker);
  check_shuffles<Shuffle::down>(checker);
  check_shuffles<Shuffle::up>(checker);
  check_parts(checker);
  check_sums<float>(checker);
  check_sums<double>(checker);
  check_maxima(checker);
  check_blocks(checker);
  check_async_copies(checker);
  check_ldmatrix<false>(checker);
  check_ldmatrix<true>(checker);
  check_mma(checker);
  check_product<false>(checker);
  check_product<true>(checker);
}

}  // namespace

void check(Checker& checker) {
  check_everything(checker);
  if (!OtherOrders::wanted()) return;
  // Once more with the threads of a block in other orders, and copies landing at other moments (on a GPU: just again).
  struct World {
    const char* name;
    CpuWorld::ThreadOrder order;
    CpuWorld::Landing landing;
    unsigned long seed;
  };
  using Order = CpuWorld::ThreadOrder;
  using Landing = CpuWorld::Landing;
  for (const World& world : {World{"reverse order, early copies", Order::reverse, Landing::early, 1},
                             World{"random order and copies, seed 1", Order::random, Landing::random, 1},
                             World{"random order and copies, seed 2", Order::random, Landing::random, 2},
                             World{"random order and copies, seed 3", Order::random, Landing::random, 3}}) {
    CpuWorld cpu = CpuWorld::from_environment();
    cpu.order = world.order;
    cpu.landing = world.landing;
    cpu.seed = world.seed;
    Device device(0, cpu);
    Checker other(device);
    check_everything(other);
    checker.that(world.name, other.failures() == 0, format("%d failed", other.failures()));
  }
}

// ---------------------------------------------------------------------------------------------- bench

namespace {

template <auto operation>
__global__ void rounds_kernel(float* out, int rounds) {
  float x = float(threadIdx.x);
  for (int i = 0; i < rounds; ++i) x = operation(x) * 0.03125f;
  if (threadIdx.x == 0) out[blockIdx.x] = x;
}
__device__ float one_warp_sum(float x) { return warp_sum(x); }
__device__ float one_warp_max(float x) { return warp_max(x); }
__device__ float one_block_sum(float x) { return block_sum(x); }
__device__ float one_barrier(float x) {
  __syncthreads();
  return x;
}

}  // namespace

void bench(Bencher& bencher) {
  Array<float> out(bencher.stream, 128);
  const auto time = [&]<auto operation>(const char* name, unsigned threads) {
    for (const int rounds : {0, 1, 20})
      bencher.time(format("%u x 32 threads, %d x %s", 64u, rounds, name), 0, 0, [&] {
        launch<rounds_kernel<operation>>({bencher.stream, name, {writes(out.data(), 64)}}, 64 * 32 / threads, threads,
                                         0, out.data(), rounds);
      });
  };
  time.template operator()<one_warp_sum>("warp_sum", 32);
  time.template operator()<one_warp_max>("warp_max", 32);
  time.template operator()<one_block_sum>("block_sum of 256 threads", 256);
  time.template operator()<one_barrier>("__syncthreads of 256 threads", 256);
}

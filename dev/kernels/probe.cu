// What kernels are written with, against its plain meaning: the wrappers of llmc/device on whatever device this runs.
//
// Covers: promise 7: the device's own wrappers: shuffles, sums, barriers, asynchronous copies
#include "dev/kernels/check.h"
#include "dev/kernels/other_schedules.h"
#include "llmc/device/async_copy.cuh"
#include "llmc/device/launch.cuh"

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

// ---------------------------------------------------------------------------------------------- named barriers

struct TwoWarps {
  float values[2][64];
};

// Warps 2i and 2i+1 exchange what they have, over and over: pair i so often as its number, and one round more. They
// wait at barrier i+1 from two places of the kernel.
__global__ void pairs_kernel(float* out) {
  const int pair = int(threadIdx.x) / 64, me = int(threadIdx.x) % 64;
  TwoWarps& shared = (&shared_memory<TwoWarps>())[pair];
  float x = float(threadIdx.x);
  for (int round = 0; round <= pair; ++round) {
    shared.values[round % 2][me] = x;
    if (me < 32) named_barrier_sync(pair + 1, 64);
    else named_barrier_sync(pair + 1, 64);
    x = 2 * shared.values[round % 2][63 - me] + 1;
  }
  out[threadIdx.x] = x;
}

void check_named_barriers(Checker& checker) {
  constexpr int kPairs = 15;
  Array<float> out(checker.stream, kPairs * 64);
  launch<pairs_kernel>({checker.stream, "pairs", {writes(out.data(), out.size())}}, 1, kPairs * 64,
                       kPairs * sizeof(TwoWarps), out.data());
  std::vector<float> want;
  for (int pair = 0; pair < kPairs; ++pair) {
    float x[64];
    for (int i = 0; i < 64; ++i) x[i] = float(pair * 64 + i);
    for (int round = 0; round <= pair; ++round) {
      float before[64];
      std::copy(x, x + 64, before);
      for (int i = 0; i < 64; ++i) x[i] = 2 * before[63 - i] + 1;
    }
    want.insert(want.end(), x, x + 64);
  }
  checker.same_bits("15 pairs of warps, a barrier each", out.download(), want);
}

// ---------------------------------------------------------------------------------------------- asynchronous copies

struct TwoStages {
  float values[2][128 * 4];
};

// out = 2 in, through two buffers: while one is read, the next chunk of 512 floats arrives in the other.
__global__ void double_buffer_kernel(float* out, const float* in, int chunks) {
  TwoStages& stages = shared_memory<TwoStages>();
  const int mine = int(threadIdx.x) * 4, theirs = (127 - int(threadIdx.x)) * 4;
  cp_async16(&stages.values[0][mine], in + mine);
  cp_async_commit_group();
  for (int p = 0; p < chunks; ++p) {
    if (p + 1 < chunks) cp_async16(&stages.values[(p + 1) % 2][mine], in + size_t(p + 1) * 512 + mine);
    cp_async_commit_group();
    cp_async_wait_group<1>();
    __syncthreads();
    for (int i = 0; i < 4; ++i) out[size_t(p) * 512 + theirs + i] = 2 * stages.values[p % 2][theirs + i];
    __syncthreads();
  }
}

void check_async_copies(Checker& checker) {
  Generator generator(20);
  for (const int chunks : {1, 2, 3, 9}) {
    const size_t n = size_t(chunks) * 512;
    const std::vector<float> values = random_normal<float>(generator, n);
    std::vector<float> want(values);
    for (float& x : want) x *= 2;
    const Array<float> in(checker.stream, values);
    Array<float> out(checker.stream, n);
    launch<double_buffer_kernel>({checker.stream, "double_buffer", {writes(out.data(), n), reads(in.data(), n)}}, 1,
                                 128, sizeof(TwoStages), out.data(), in.data(), chunks);
    checker.same_bits(format("cp_async through two buffers, %d chunks", chunks), out.download(), want);
  }
}

// Copies of 16 and of 4 bytes. Every third one has no source.
struct Copied {
  float sixteen[128][4], four[128];
};
__global__ void copies_or_zeros_kernel(float* out, const float* in) {
  Copied& copied = shared_memory<Copied>();
  const int i = int(threadIdx.x);
  const bool there = i % 3 != 1;
  cp_async16(copied.sixteen[i], there ? in + i * 4 : nullptr, there);
  cp_async4(&copied.four[i], there ? in + 511 - i : nullptr, there);
  cp_async_commit_group();
  cp_async_wait_group<0>();
  __syncthreads();
  const int other = 127 - i;
  for (int j = 0; j < 4; ++j) out[other * 5 + j] = copied.sixteen[other][j];
  out[other * 5 + 4] = copied.four[other];
}

void check_copies_or_zeros(Checker& checker) {
  Generator generator(21);
  const std::vector<float> values = random_normal<float>(generator, 512);
  std::vector<float> want;
  for (size_t i = 0; i < 128; ++i) {
    for (size_t j = 0; j < 4; ++j) want.push_back(i % 3 != 1 ? values[i * 4 + j] : 0);
    want.push_back(i % 3 != 1 ? values[511 - i] : 0);
  }
  const Array<float> in(checker.stream, values);
  Array<float> out(checker.stream, want.size());
  launch<copies_or_zeros_kernel>(
      {checker.stream, "copies_or_zeros", {writes(out.data(), out.size()), reads(in.data(), in.size())}}, 1, 128,
      sizeof(Copied), out.data(), in.data());
  checker.same_bits("cp_async of 16 and 4 bytes, or zeros", out.download(), want);
}

__global__ void again_kernel(int* out) {
  const int block = int(block_index_again());
  out[block * 32 + opaque(int(threadIdx.x))] = block * 100 + opaque(int(threadIdx.x));
}

void check_again(Checker& checker) {
  std::vector<int> want;
  for (int block = 0; block < 5; ++block)
    for (int thread = 0; thread < 32; ++thread) want.push_back(block * 100 + thread);
  Array<int> out(checker.stream, want.size());
  launch<again_kernel>({checker.stream, "again", {writes(out.data(), out.size())}}, 5, 32, 0, out.data());
  checker.same_bits("block_index_again and opaque", out.download(), want);
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
  checker.trying("barriers of blocks");
  check_blocks(checker);
  checker.trying("named barriers");
  check_named_barriers(checker);
  checker.trying("asynchronous copies");
  check_async_copies(checker);
  check_copies_or_zeros(checker);
  check_again(checker);
}

}  // namespace

void check(Checker& checker) {
  check_everything(checker);
  check_in_other_schedules(checker, check_everything);
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

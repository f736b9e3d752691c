// Predicts what attention kernels on an H100 should reach, from arithmetic alone: the clocks that a tile takes on each
// unit of a multiprocessor (SM), the tiles of a causal head, the blocks over 132 SMs. First for FlashAttention-3 and 2,
// as far as causal rates are public: a prediction that misses one by more than 15% is an error. Then, with the same
// constants and with the clocks that the machine code takes when it is simulated, for our kernels, next to what an H200
// measured.
//
//   build/cpu/bench/attention_rates
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <queue>
#include <sstream>
#include <string>
#include <vector>

#include "llmc/base/error.h"

namespace {

// What one SM does in a clock, from data sheets and programming guides.
constexpr int kSms = 132;
constexpr int kBlocksOfSm = 4;         // that a persistent kernel launches
constexpr double kTensorFlops = 4096;  // m64nNk16 in bf16: N/2 clocks
constexpr double kMmaSync = 0.62;      // mma.sync's part of that
constexpr double kSharedBytes = 128;
constexpr double kExp = 16;
constexpr double kLanes = 128;     // fp32; a conversion of two scores to bf16 and a maximum take two lanes
constexpr double kL2Bytes = 32;    // an SM's part of some 6.5 TB/s
constexpr double kPortBytes = 64;  // of one SM while others do not load

// Fitted to the public rates below, the same for every kernel.
constexpr double kClock = 1.6e9;  // under load
constexpr double kExposed = 0.4;  // of exp and fp32: what no product of another group of warps hides
constexpr double kWait = 100;  // clocks of a wait: for a product's end, another warp, or a third of a round trip to L2

constexpr double kNear = 0.15;  // of a public rate

constexpr int kGroup = 4;  // query heads that share keys and values

struct Launch {
  int T;                  // tokens of a sequence
  int tokens = 16384;     // of all sequences
  int hidden = 2048;      // channels of the query heads
  double clock = kClock;  // Hz
};

// C[M,N] += A[M,K] B[K,N], M and N shared among rows x columns of groups: warps (mma.sync), or warpgroups of 64 rows.
struct Projection {
  int M, N, K, rows, columns;
  bool a_shared = true;  // else A is in registers

  double flops() const { return 2.0 * M * N * K; }
  // Each group reads its rows of A and its columns of B.
  double shared_bytes() const { return 2.0 * K * (a_shared ? M * columns : 0) + 2.0 * K * N * rows; }
};

struct Kernel {
  std::string name;
  int HD, queries, keys;  // a tile
  bool by_keys;           // a block owns keys and walks queries; else the other way round
  std::vector<Projection> products;
  double useful;   // products that a rate counts
  double fp32;     // lanes a score
  int waits;       // a tile
  double written;  // shared memory, bytes a tile: what TMA or cp.async brings, what warps hand over
  double l2;       // bytes a tile
  double kept;     // bytes that a block loads at its start and writes at its end
  bool mma_sync = false;
  int group = 1;            // query heads that a block walks
  int packed = 1;           // query heads whose rows share a tile
  bool persistent = false;  // a block computes one range after another, and the next one's loads are under way
  double simulated = 0;     // clocks of a tile, by its machine code (kernel_budget.tsv); 0: by this model
};

struct Tile {
  double tensor, exp, fp32, shared, l2, waits, simulated;
  double rest() const { return exp + fp32; }
  double clocks() const {
    return simulated > 0 ? simulated : std::max({tensor, shared, l2}) + kExposed * rest() + waits;
  }
};

Tile tile_of(const Kernel& k) {
  double flops = 0, bytes = k.written;
  for (const Projection& p : k.products) flops += p.flops(), bytes += p.shared_bytes();
  const double scores = double(k.queries) * k.keys;
  return {flops / kTensorFlops / (k.mma_sync ? kMmaSync : 1),
          scores / kExp,
          scores * k.fp32 / kLanes,
          bytes / kSharedBytes,
          k.l2 / kL2Bytes,
          k.waits * kWait,
          k.simulated};
}

int tiles_of(int n, int tile) { return (n + tile - 1) / tile; }

// The clocks of a block's both ends, where nothing overlaps: 5 waits until memory answers, 3 for the last write, the
// bytes that are kept and half of the first tile's at the port's rate, what else is hidden of a tile's work on scores.
double ends_clocks(const Kernel& k, const Tile& tile) {
  return 8 * kWait + (k.kept + k.l2 / 2) / kPortBytes + (1 - kExposed) * tile.rest();
}

// The clocks of a block that has one range.
double block_clocks(const Kernel& k, const Tile& tile, int T, int block) {
  const int rows = k.by_keys ? k.keys : k.queries / k.packed, first = block * rows, end = std::min(T, first + rows);
  int tiles, masked = 0;
  if (k.by_keys) {
    tiles = tiles_of(T, k.queries) - first / k.queries;
    for (int q = first / k.queries * k.queries; q < std::min(T, end - 1); q += k.queries) masked++;
  } else {
    tiles = tiles_of(end, k.keys);
    for (int key = 0; key < end; key += k.keys) masked += key + k.keys - 1 > first;
  }
  const double mask = 2.0 * k.queries * k.keys / kLanes;  // a comparison and a choice a score
  return k.group * (tiles * tile.clocks() + masked * kExposed * mask) + ends_clocks(k, tile);
}

// Deals the ranges, longest first, to kBlocksOfSm blocks for each SM, forwards and backwards in turn. A block pays for
// the ends of its first range, and for the others waits for the last write.
std::vector<double> dealt(const std::vector<double>& ranges, double ends) {
  const size_t count = std::min(ranges.size(), size_t(kSms * kBlocksOfSm));
  std::vector<double> blocks(count);
  for (size_t i = 0; i < ranges.size(); i++) {
    const size_t at = i % count, turn = i / count;
    blocks[turn % 2 ? count - 1 - at : at] += ranges[i] - (turn ? ends - 3 * kWait : 0);
  }
  return blocks;
}

// Blocks in order, longest first, each on the SM that is free first.
double seconds(const Kernel& k, const Launch& launch) {
  const Tile tile = tile_of(k);
  std::vector<double> blocks;
  const int heads = launch.hidden / k.HD / k.group / k.packed * (launch.tokens / launch.T);
  for (int b = 0; b < tiles_of(launch.T, k.by_keys ? k.keys : k.queries / k.packed); b++)
    blocks.insert(blocks.end(), size_t(heads), block_clocks(k, tile, launch.T, b));
  std::sort(blocks.begin(), blocks.end(), std::greater<>());
  if (k.persistent) blocks = dealt(blocks, ends_clocks(k, tile));
  std::priority_queue<double, std::vector<double>, std::greater<>> free;
  for (int sm = 0; sm < kSms; sm++) free.push(0);
  double last = 0;
  for (const double clocks : blocks) {
    const double end = free.top() + clocks;
    free.pop(), free.push(end);
    last = std::max(last, end);
  }
  return last / launch.clock;
}

// Returns TFLOP/s of `products` products, half of each counted, as FlashAttention counts.
double tflops(double products, const Launch& launch, double seconds) {
  return products * 2.0 * launch.T * launch.tokens * launch.hidden / 2 / seconds * 1e-12;
}

Kernel forward(const std::string& name, int HD) {
  const int M = HD == 64 ? 192 : 128, N = 128, groups = M / 64;
  return {.name = name,
          .HD = HD,
          .queries = M,
          .keys = N,
          .by_keys = false,
          .products = {{M, N, HD, groups, 1}, {M, HD, N, groups, 1, false}},
          .useful = 2,
          .fp32 = 5 + double(HD) / N,  // scale and subtract, maximum (2), sum, bf16; the output's rescaling
          .waits = 2,                  // S, ping-pong; the output's product ends after the next S
          .written = 4.0 * N * HD,
          .l2 = 4.0 * N * HD,
          .kept = 4.0 * M * HD};
}

Kernel persistent(Kernel kernel) {
  kernel.persistent = true;
  return kernel;
}

Kernel packed(Kernel kernel) {
  kernel.packed = kGroup;
  return kernel;
}

// S and dP turned, so that P and dS feed dV and dK from registers; dS goes through shared memory to dQ,
// which leaves as fp32 through shared memory and is added in L2. Eight warps read lse and rowsum_dO_O: 2 clocks a
// query. Ordered: the time that a block waits for the one before it at the start is not counted.
Kernel single_backward(const std::string& name, int HD, bool ordered) {
  const int M = HD == 64 ? 128 : 64, N = 128, rows = M / 64, columns = 2 / rows;
  return {
      .name = name,
      .HD = HD,
      .queries = M,
      .keys = N,
      .by_keys = true,
      .products = {{N, M, HD, 2, 1},
                   {N, M, HD, 2, 1},
                   {N, HD, M, 2, 1, false},
                   {N, HD, M, 2, 1, false},
                   {M, HD, N, rows, columns}},
      .useful = 5,
      .fp32 = 5,                       // scale and subtract, dP - rowsum_dO_O, times P, P and dS in bf16
      .waits = 6 + (ordered ? 6 : 0),  // S, dP, dV with dK, dQ; dS is written, dQ's room is free; two round trips to L2
      .written = 4.0 * M * HD + 2.0 * M * N + 8.0 * M * HD + 2.0 * M * kSharedBytes,
      .l2 = 4.0 * M * HD + 4.0 * M * HD,
      .kept = 8.0 * N * HD};
}

Kernel mma_forward(int HD) {
  const int M = 128, N = HD == 64 ? 128 : 64;
  return {.name = "FA2 forward",
          .HD = HD,
          .queries = M,
          .keys = N,
          .by_keys = false,
          .products = {{M, N, HD, 4, 1}, {M, HD, N, 4, 1, false}},
          .useful = 2,
          .fp32 = 5 + double(HD) / N,
          .waits = 4,  // two tiles, each with a barrier of the block
          .written = 4.0 * N * HD,
          .l2 = 4.0 * N * HD,
          .kept = 4.0 * M * HD,
          .mma_sync = true};
}

// Ours: two kernels that compute S and dP twice and add nothing outside a block.
Kernel dq_kernel(int HD, int keys) {
  const int M = 128, N = keys;
  return {.name = format("dq, %d keys a tile", N),
          .HD = HD,
          .queries = M,
          .keys = N,
          .by_keys = false,
          .products = {{M, N, HD, 2, 1}, {M, N, HD, 2, 1}, {M, HD, N, 2, 1, false}},
          .useful = 3,
          .fp32 = 4,   // as single_backward, without P in bf16
          .waits = 3,  // S, dP, dQ
          .written = 4.0 * N * HD,
          .l2 = 4.0 * N * HD,
          .kept = 8.0 * M * HD};  // Q, dout, out; dQ
}

// `keys_in_registers`: K and V are operands in registers.
Kernel dkv_kernel(int HD, bool keys_in_registers) {
  const int M = 64, N = 128;
  return {.name = format("dkv, %d queries a tile", M),
          .HD = HD,
          .queries = M,
          .keys = N,
          .by_keys = true,
          .products = {{N, M, HD, 2, 1, !keys_in_registers},
                       {N, M, HD, 2, 1, !keys_in_registers},
                       {N, HD, M, 2, 1, false},
                       {N, HD, M, 2, 1, false}},
          .useful = 4,
          .fp32 = 5,
          .waits = 4,  // S, dK, dP, dV
          .written = 4.0 * M * HD + 2.0 * M * kSharedBytes,
          .l2 = 4.0 * M * HD,
          .kept = 8.0 * N * HD,
          .group = kGroup};
}

struct Published {
  int T;
  double rate;
};

void print_tile_header() {
  printf("%-24s %4s %9s %7s %6s %6s %7s %6s %6s %6s", "clocks a tile", "head", "tile", "tensor", "exp", "fp32",
         "shared", "L2", "waits", "sum");
}

void print_tile(const Kernel& k) {
  const Tile t = tile_of(k);
  printf("%-24s %4d %9s %7.0f %6.0f %6.0f %7.0f %6.0f %6.0f %6.0f", k.name.c_str(), k.HD,
         format("%dx%d", k.queries, k.keys).c_str(), t.tensor, t.exp, t.fp32, t.shared, t.l2, t.waits, t.clocks());
}

// Returns whether all of a kernel's public rates are near.
bool compare(const Kernel& k, const std::vector<Published>& published) {
  bool all_near = true;
  for (const auto& [T, rate] : published) {
    const double predicted = tflops(k.useful, {T}, seconds(k, {T})), ratio = predicted / rate;
    const bool near = std::abs(ratio - 1) <= kNear;
    all_near &= near;
    print_tile(k);
    printf(" %6d %9.0f %9.0f %6.2f%s\n", T, predicted, rate, ratio, near ? "" : "  missed");
  }
  return all_near;
}

bool compare_all() {
  print_tile_header();
  printf(" %6s %9s %9s %6s\n", "T", "predicted", "published", "ratio");
  bool near = compare(forward("FA3 forward", 128), {{2048, 521}, {4096, 579}, {8192, 602}, {16384, 616}});
  near &= compare(forward("FA3 forward", 64), {{2048, 371}, {4096, 420}, {8192, 460}, {16384, 473}});
  // FlashAttention-3's paper has backward without a causal mask alone. These are of pull request 1893 of its
  // repository.
  near &= compare(single_backward("FA3 backward", 128, false), {{8192, 575}});
  near &= compare(single_backward("FA3 backward, ordered", 128, true), {{8192, 474}});
  near &= compare(mma_forward(128), {{2048, 300}, {16384, 335}});
  return near;
}

// A shape that an H200 measured, alone and cool, with 32 query and 8 key heads (dev/docs/benchmarks.md): TFLOP/s.
struct Measured {
  int HD, B, T;
  double forward, backward;
};
constexpr Measured kMeasured[] = {{64, 8, 1024, 238, 248},  {64, 2, 4096, 439, 355},  {64, 1, 8192, 501, 373},
                                  {128, 8, 1024, 475, 341}, {128, 2, 4096, 648, 451}, {128, 1, 8192, 690, 533}};
constexpr double kHighestClock = 1.98e9;

// The simulated clocks a tile of the kernels that were measured, where they differ from today's.
double simulated_forward(int HD) { return HD == 64 ? 1852 : 2050; }
constexpr double kSimulatedDkv64 = 1209;

using Kernels = std::vector<Kernel>;

// The kernel with the clocks that a tile takes when the machine code of ours is simulated.
Kernel by_machine_code(Kernel kernel, const std::string& name) {
  const std::string wanted =
      format("attention_hopper_%s: attention_hopper_%s_kernel<%d>", name.c_str(), name.c_str(), kernel.HD);
  std::ifstream table("dev/bench/kernel_budget.tsv");
  long column = -1;
  for (std::string line; std::getline(table, line);) {
    std::vector<std::string> cells;
    std::istringstream rest(line);
    for (std::string cell; std::getline(rest, cell, '\t');) cells.push_back(cell);
    if (line[0] == '#') continue;
    if (column < 0) column = std::find(cells.begin(), cells.end(), "simulated") - cells.begin();
    if (cells.at(1) == wanted) kernel.simulated = atof(cells.at(size_t(column)).c_str());
  }
  if (kernel.simulated <= 0)
    fail("dev/bench/kernel_budget.tsv has no %s: start from the root of the tree", wanted.c_str());
  return kernel;
}

// Predictions, each divided by what was measured.
struct Ratios {
  std::vector<double> all = {};
  double add(double predicted, double measured) {
    all.push_back(predicted / measured);
    return all.back();
  }
  // The clock at which the GPU measured is not known: predictions are compared at the one that fits all of them best.
  void print(const char* name) const {
    double sum = 0, worst = 0;
    for (const double ratio : all) sum += std::log(ratio);
    const double mean = std::exp(sum / double(all.size()));
    for (const double ratio : all) worst = std::max(worst, std::abs(ratio / mean - 1));
    printf("%s: %.2f times the measured rates in the mean, as at %.2f GHz; from there the largest error is %.0f%%\n",
           name, mean, kHighestClock / mean * 1e-9, 100 * worst);
  }
};

void compare_with_measured() {
  printf("%-10s %-9s %-9s %9s %12s %9s %7s %12s\n", "head size", "shape", "", "predicted", "machine code", "measured",
         "ratio", "machine code");
  Ratios model, machine_code;
  for (const Measured& m : kMeasured) {
    const Launch launch{m.T, m.B * m.T, 32 * m.HD, kHighestClock};
    // The H200 measured tiles of one head each, a dq with a block for each range of queries, and a dkv with K and V in
    // shared memory.
    const Kernel forward = persistent(::forward("forward", m.HD)), dq = dq_kernel(m.HD, m.HD == 64 ? 128 : 64),
                 dkv = dkv_kernel(m.HD, false), dkv_now = dkv_kernel(m.HD, m.HD == 64);
    const auto rate = [&](const Kernels& kernels, double products) {
      double sum = 0;
      for (const Kernel& k : kernels) sum += seconds(k, launch);
      return tflops(products, launch, sum);
    };
    const auto print = [&](const char* pass, const Kernels& by_model, const Kernels& by_code, double products,
                           double measured) {
      const double predicted = rate(by_model, products), of_code = rate(by_code, products);
      printf("%-10d %-9s %-9s %9.0f %12.0f %9.0f %7.2f %12.2f", m.HD, format("%d x %d", m.B, m.T).c_str(), pass,
             predicted, of_code, measured, model.add(predicted, measured), machine_code.add(of_code, measured));
    };
    const Kernel dq_by_code = by_machine_code(dq, "dq"), dkv_now_by_code = by_machine_code(dkv_now, "dkv");
    Kernel dkv_by_code = dkv_now_by_code;
    if (m.HD == 64) dkv_by_code.simulated = kSimulatedDkv64;
    const Kernel forward_now_by_code = by_machine_code(forward, "forward");
    Kernel forward_by_code = forward;
    forward_by_code.simulated = simulated_forward(m.HD);
    print("forward", {forward}, {forward_by_code}, 2, m.forward);
    printf("   since then: %.0f, %.0f\n", rate({packed(forward)}, 2), rate({packed(forward_now_by_code)}, 2));
    print("backward", {dq, dkv}, {dq_by_code, dkv_by_code}, 5, m.backward);
    printf("   since then: %.0f, %.0f\n", rate({packed(persistent(dq)), dkv_now}, 5),
           rate({packed(persistent(dq_by_code)), dkv_now_by_code}, 5));
  }
  model.print("predicted");
  machine_code.print("machine code");
}

void print_tiles() {
  print_tile_header();
  printf(" %12s %9s\n", "machine code", "of tensor");
  for (const int HD : {64, 128})
    for (const auto& [kernel, name] : {std::pair(persistent(forward("forward", HD)), "forward"),
                                       std::pair(persistent(dq_kernel(HD, HD == 64 ? 128 : 64)), "dq"),
                                       std::pair(dkv_kernel(HD, HD == 64), "dkv")}) {
      print_tile(kernel);
      const Tile t = tile_of(kernel);
      printf(" %12.0f %8.0f%%\n", by_machine_code(kernel, name).simulated, 100 * t.tensor / t.clocks());
    }
}

}  // namespace

int main() try {
  printf(
      "A model, not a measurement. An SM in a clock: %.0f FLOPs of wgmma (mma.sync: %.0f%% of that), %.0f bytes of "
      "shared memory, %.0f exp,\n%.0f lanes of fp32, %.0f bytes of L2 (%.0f alone); %d SMs. Fitted, the same for all: "
      "%.2f GHz, %.0f%% of exp and fp32 not hidden, %.0f clocks\na wait. A tile takes the longest of tensor, shared "
      "and L2, plus that part of exp and fp32, plus its waits. TFLOP/s are of causal\nattention, diagonal counted "
      "half, 5 products backward. Others' kernels, %d tokens, %d channels:\n\n",
      kTensorFlops, 100 * kMmaSync, kSharedBytes, kExp, kLanes, kL2Bytes, kPortBytes, kSms, kClock * 1e-9,
      100 * kExposed, kWait, Launch{}.tokens, Launch{}.hidden);
  const bool near = compare_all();
  printf(
      "\nOurs. By machine code a tile takes the clocks that dev/bench/kernel_budget simulates, where a product begins "
      "as soon as the one\nbefore it ends: this is the most that the code can reach.\n\n");
  print_tiles();
  printf("\nOurs at %.2f GHz, next to a cool H200, whose clock was not recorded:\n\n", kHighestClock * 1e-9);
  compare_with_measured();
  if (!near) fail("a public rate is missed by more than %.0f%%: the model says nothing about ours", 100 * kNear);
  return 0;
} catch (const std::exception& error) {
  fprintf(stderr, "error: %s\n", error.what());
  return 1;
}

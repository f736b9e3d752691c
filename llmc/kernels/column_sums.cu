// Sums over the rows of matrices.  sum[G,C] += sum over P of part[G,P,C].  Deterministic: see column_sums.h.
#include "llmc/kernels/column_sums.h"

#include <climits>

#include "llmc/kernels/rows.cuh"

namespace {

constexpr int kLanes = 16, kGroups = 16;

struct GroupSums {
  float sum[kGroups][kLanes * 8];
};

// A block sums some columns of one matrix. Group g adds rows g, g + groups, …; then the sums of the groups are added in
// their order.
template <int width>
__global__ void __launch_bounds__(kLanes* kGroups)
    column_sums_kernel(float* __restrict__ sum, const float* __restrict__ part, int parts, int C) {
  auto& shared = shared_memory<GroupSums>();
  const int lane = threadIdx.x, group = threadIdx.y;
  const int c = (blockIdx.x * kLanes + lane) * width;
  part += size_t(blockIdx.y) * parts * C, sum += size_t(blockIdx.y) * C;
  float s[width] = {};
  for (int p = group; c < C && p < parts; p += kGroups) {
    float v[width];
    load_vector(v, part + size_t(p) * C + c);
#pragma unroll
    for (int j = 0; j < width; ++j) s[j] += v[j];
  }
  store_vector(shared.sum[group] + lane * width, s);
  __syncthreads();
  if (group != 0 || c >= C) return;
  for (int g = 1; g < kGroups; ++g) {
    float v[width];
    load_vector(v, shared.sum[g] + lane * width);
#pragma unroll
    for (int j = 0; j < width; ++j) s[j] += v[j];
  }
  float d[width];
  load_vector(d, sum + c);
#pragma unroll
  for (int j = 0; j < width; ++j) d[j] += s[j];
  store_vector(sum + c, d);
}

}  // namespace

void add_column_sums(Stream& stream, const char* who, const Tensor& sum, const Tensor& part) {
  REQUIRE(part.axes == 3 && part.size() >= 1 && part.shape[1] <= 65535 && part.shape[2] <= INT_MAX &&
              part.shape[3] <= INT_MAX,
          "%s: part is %s\n  expected (groups, rows, columns) with at least one of each, 65535 groups at most", who,
          part.text().c_str());
  const int64_t G = part.shape[1], P = part.shape[2], C = part.shape[3];
  require_tensor(who, "part", part, DType::fp32, {G, P, C});
  require_tensor(who, "sum", sum, DType::fp32, {G * C});
  require_apart(who, "sum", sum, "part", part);
  const Work work{stream, who, {updates(sum), reads(part)}};
  with_vector_width(who, int(C), {sum.data, part.data}, [&](auto width_constant) {
    constexpr int width = decltype(width_constant)::value;
    launch<column_sums_kernel<width>>(work, dim3(blocks_for(size_t(C), kLanes * width), unsigned(G)),
                                      dim3(kLanes, kGroups), sizeof(GroupSums), sum.as<float>(), part.as<float>(),
                                      int(P), int(C));
  });
}

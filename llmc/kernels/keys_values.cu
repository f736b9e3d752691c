// Moves keys and values between rows and heads (contract: keys_values.h). Limited by memory: each element is read and
// written once.
#include "llmc/kernels/keys_values.h"

#include <climits>

#include "llmc/base/error.h"
#include "llmc/device/kernel.cuh"
#include "llmc/device/launch.cuh"
#include "llmc/device/number.h"

namespace {

constexpr int kThreads = 256;
constexpr int kWidth = 8;  // elements that a thread moves

// A block moves blockDim.y tokens of head blockIdx.y. Thread x moves vectors x, x + blockDim.x, … of the token's key
// and value.
template <class T, bool kToHeads>
__global__ void __launch_bounds__(kThreads)
    keys_values_kernel(T* __restrict__ to, const T* __restrict__ from, int64_t stride, int N, int NKV, int HD) {
  const int token = blockIdx.x * blockDim.y + threadIdx.y, head = blockIdx.y;
  if (token >= N) return;
  using Elements = Vector<T, kWidth>;
  for (int i = threadIdx.x * kWidth; i < 2 * HD; i += blockDim.x * kWidth) {
    const int column = i < HD ? head * HD + i : (NKV + head) * HD + i - HD;
    const size_t by_row = size_t(token) * size_t(stride) + size_t(column);
    const size_t by_head = (size_t(head) * N + token) * 2 * HD + i;
    *reinterpret_cast<Elements*>(to + (kToHeads ? by_head : by_row)) =
        *reinterpret_cast<const Elements*>(from + (kToHeads ? by_row : by_head));
  }
}

template <bool kToHeads>
void move(Stream& stream, const char* who, const Tensor& by_head, const Tensor& rows) {
  require_tensor(who, "by_head", by_head, by_head.type, {-1, -1, 2, -1});
  const int64_t NKV = by_head.shape[0], N = by_head.shape[1], HD = by_head.shape[3];
  REQUIRE(N > 0 && N <= INT_MAX && NKV > 0 && NKV < (1 << 16) && HD > 0 && HD % 8 == 0 && HD <= (1 << 20),
          "%s: by_head is %s\n  expected (NKV, N, 2, HD) with at least one head and one token, and HD in steps of 8",
          who, by_head.text().c_str());
  require_view(who, "rows", rows, by_head.type, {N, 2 * NKV * HD});
  const int64_t stride = rows.row_stride();
  REQUIRE(stride >= rows.columns() && stride % 8 == 0,
          "%s: rows of %lld numbers lie %lld apart: expected a multiple of 8, and no less than their length", who,
          (long long)rows.columns(), (long long)stride);
  for (const void* data : {by_head.data, rows.data})
    REQUIRE(reinterpret_cast<uintptr_t>(data) % 16 == 0, "%s: the buffer at %p is not 16-byte aligned", who, data);
  require_apart(who, "by_head", by_head, "rows", rows);
  const Tensor &to = kToHeads ? by_head : rows, &from = kToHeads ? rows : by_head;
  const int vectors = std::min(2 * int(HD) / kWidth, kThreads);
  const dim3 block(vectors, std::max(kThreads / vectors, 1));
  with_type(who, rows.type, [&](auto number) {
    using T = decltype(number);
    launch<keys_values_kernel<T, kToHeads>>({stream, who, {writes(to), reads(from)}},
                                            dim3(blocks_for(size_t(N), block.y), unsigned(NKV)), block, 0, to.as<T>(),
                                            from.as<T>(), stride, int(N), int(NKV), int(HD));
  });
}

}  // namespace

void keys_values_by_head(Stream& stream, const Tensor& by_head, const Tensor& rows) {
  move<true>(stream, "keys_values_by_head", by_head, rows);
}

void keys_values_by_row(Stream& stream, const Tensor& rows, const Tensor& by_head) {
  move<false>(stream, "keys_values_by_row", by_head, rows);
}

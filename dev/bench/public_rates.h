// What kernels of other projects reach on Hopper, in public: to compare with, where nothing of ours was measured.
#pragma once

#include <string>

#include "llmc/base/error.h"
#include "llmc/train/roofline.h"

// Products: cuBLAS, the best of all shapes, bf16 and FP8. Memory: of 4.3 TB/s that an H200 reads plus writes at best
// (90% of its data sheet; the same is taken for others) good kernels reach 90 to 97%.
inline constexpr double kPublicProducts = 795e12, kPublicFp8Products = 1453e12;
inline constexpr double kPublicMemory = 0.935 * 4.3 / 4.8;

// FlashAttention-3, causal, H100 SXM; backward as 5 products.
struct AttentionRate {
  int HD, T;
  double forward, backward;
};
inline constexpr AttentionRate kFlashAttention3[] = {{64, 2048, 371e12, 422e12},  {64, 4096, 420e12, 453e12},
                                                     {64, 8192, 460e12, 472e12},  {64, 16384, 473e12, 474e12},
                                                     {128, 2048, 521e12, 501e12}, {128, 4096, 579e12, 542e12},
                                                     {128, 8192, 602e12, 559e12}, {128, 16384, 616e12, 561e12}};

// Ours on mma.sync: what it is to reach at least at head size 128 and T = 8192, not measured; taken for other sizes
// too.
inline constexpr double kPortableForward = 280e12, kPortableBackward = 220e12;

// Of the row that is next to T from below.
inline Ceilings public_rates(const DeviceInfo& device, int HD, int T) {
  const AttentionRate* attention = nullptr;
  for (const AttentionRate& rate : kFlashAttention3)
    if (rate.HD == HD && (!attention || rate.T <= T)) attention = &rate;
  REQUIRE(attention, "no public rate of attention is known here for head size %d: 64 and 128 are", HD);
  Ceilings c = Ceilings::data_sheet(device);
  c.name = "public rates";
  c.rates.flops = kPublicProducts, c.rates.fp8_flops = kPublicFp8Products;
  c.rates.memory_bytes = kPublicMemory * device.memory_bytes_per_second;
  c.rates.kernel_seconds = ReplayRates{}.kernel_seconds;
  c.attention_forward = attention->forward, c.attention_backward = attention->backward;
  return c;
}

inline Ceilings with_portable_attention(Ceilings c) {
  c.name += ", our attention";
  c.attention_forward = kPortableForward, c.attention_backward = kPortableBackward;
  return c;
}

// ReplayRates::of, and attention's: ours, or the public ones.
inline Ceilings training_rates(const DeviceInfo& device, int HD, int T, bool portable) {
  Ceilings c = public_rates(device, HD, T);
  c.rates = ReplayRates::of(device);
  return portable ? with_portable_attention(c) : c;
}

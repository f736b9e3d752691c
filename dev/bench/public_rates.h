// Published rates of other projects' kernels on Hopper. They are printed next to the rates that are predicted for ours
// (llmc/device/rates.cpp).
#pragma once

#include <cstdio>
#include <string>
#include <utility>

#include "llmc/base/error.h"
#include "llmc/base/text.h"
#include "llmc/device/rates.h"

// Products: cuBLAS, the best of all shapes, bf16 and FP8. Memory: of 4.3 TB/s that an H200 reads plus writes at best
// (90% of its data sheet; the same is taken for others) good kernels reach 90 to 97%.
inline constexpr double kPublicProducts = 795e12, kPublicFp8Products = 1453e12;
inline constexpr double kPublicMemory = 0.935 * 4.3 / 4.8;

// FlashAttention-3 on an H100 SXM; backward counted as 5 products. Forward is causal. The paper has backward without a
// causal mask alone (its Figure 6). One causal rate of backward is public: head size 128, T = 8192 (pull request 1893
// of flash-attention: 575, deterministic 474, cuDNN 470 TFLOP/s), which T = 16384 takes, too. For head size 64 none is.
struct AttentionRate {
  int HD, T;
  double forward, backward;
  const char* backward_source;
};
inline constexpr char kCausal[] = "published: FlashAttention-3, causal, T = 8192",
                      kNoMask[] = "published: FlashAttention-3 without a causal mask; a causal rate is not known";
inline constexpr AttentionRate kFlashAttention3[] = {
    {64, 2048, 371e12, 422e12, kNoMask},  {64, 4096, 420e12, 453e12, kNoMask},  {64, 8192, 460e12, 472e12, kNoMask},
    {64, 16384, 473e12, 474e12, kNoMask}, {128, 2048, 521e12, 501e12, kNoMask}, {128, 4096, 579e12, 542e12, kNoMask},
    {128, 8192, 602e12, 575e12, kCausal}, {128, 16384, 616e12, 575e12, kCausal}};

// These rates with public ones of attention: of the row that is next to T from below.
inline ReplayRates with_public_attention(ReplayRates rates, int HD, int T) {
  const AttentionRate* attention = nullptr;
  for (const AttentionRate& rate : kFlashAttention3)
    if (rate.HD == HD && (!attention || rate.T <= T)) attention = &rate;
  REQUIRE(attention, "no public rate of attention is known here for head size %d: 64 and 128 are", HD);
  rates.name += ", public attention";
  rates.set(kAttentionForward, attention->forward, "published: FlashAttention-3, causal");
  rates.set(kAttentionBackward, attention->backward, attention->backward_source);
  return rates;
}

inline ReplayRates public_rates(const DeviceInfo& device, int HD, int T) {
  ReplayRates rates = ReplayRates::data_sheet(device);
  rates.set({RateClass::product_bf16}, kPublicProducts, "published: cuBLAS");
  rates.set(kFp8Products, kPublicFp8Products, "published: cuBLAS");
  rates.memory_bytes = kPublicMemory * device.memory_bytes_per_second;
  rates.bytes_source = "published: memory as good kernels reach on an H200; links are assumed to reach 80%";
  rates.kernel_seconds = ReplayRates{}.kernel_seconds;
  rates = with_public_attention(std::move(rates), HD, T);
  rates.name = "public rates";
  return rates;
}

inline std::string attention_text(const ReplayRates& rates, int HD) {
  const Rate &forward = rates.rate(RateClass::attention_hopper_forward, HD),
             &backward = rates.rate(RateClass::attention_hopper_backward, HD);
  return format("%.0f forward, %.0f backward%s", forward.flops * 1e-12, backward.flops * 1e-12,
                backward.source == kNoMask ? " without a causal mask" : "");
}

// One setup that several benchmarks and --dry-run predict, each in its own way: `NAME 8b` prints this alone.
inline void print_8b(double bf16, double fp8) {
  printf("llama3-8b, T = 8192, 8 H100, ZeRO-3, a sequence each: predicted %s tokens/s a GPU in bf16, %s in FP8\n",
         human_count(bf16).c_str(), human_count(fp8).c_str());
}
inline bool wants_8b_alone(int argc, char** argv) { return argc == 2 && std::string(argv[1]) == "8b"; }

#include "llmc/model/scratch.h"

#include <cstring>

#include "llmc/base/error.h"
#include "llmc/kernels/qk_norm_rope.h"
#include "llmc/kernels/rmsnorm.h"
#include "llmc/memory/plan.h"
#include "llmc/model/attention.h"

namespace {

using Sizes = ScratchSizes;

Tensor residual(const Sizes& s) { return Tensor(nullptr, s.type, {s.R, s.config.C}); }
Tensor qkv(const Sizes& s) { return Tensor(nullptr, s.type, {s.N, s.config.qkv_width()}); }

Tensor qk_sums(const Sizes& s) {
  return s.config.family->qk_norm == QkNorm::whole ? Tensor(nullptr, DType::fp32, {s.N, 2}) : Tensor();
}
Tensor rotated(const Sizes& s) { return s.config.family->qk_norm != QkNorm::none ? qkv(s) : Tensor(); }

Tensor vector_partials(const Sizes& s) {
  const Family& family = *s.config.family;
  if (!family.qkv_bias && family.qk_norm == QkNorm::none) return {};
  const int64_t width = family.qkv_bias ? s.config.qkv_width() : s.config.q_width() + s.config.kv_width();
  return Tensor(nullptr, DType::fp32, {qk_norm_rope_scratch(s.N, width)});
}

// Absent if no block stores the gradient of gate_up's output in the model's type.
Tensor dgate_up(const Sizes& s) {
  bool stored = s.fp8.bf16_wgrad();
  for (const LayerProjection& p : s.projections.all())
    stored = stored || (p.which == Projection::gate_up && !s.fp8.quantizes(p));
  return stored ? Tensor(nullptr, s.type, {s.N, 2 * s.config.FF}) : Tensor();
}

constexpr ScratchUse kExchanged = ScratchUse::exchanged, kHead = ScratchUse::head, kBlocks = ScratchUse::blocks;
constexpr bool kBackward = true, kBoth = false;

constexpr ScratchRow kRows[] = {
    {"projected", residual, kExchanged, kBoth},
    {"delta", residual, kExchanged, kBoth},  // mlp_out, which a block adds to h
    {"dqkv", qkv, kBlocks, kBoth},
    {"sums of q and k", qk_sums, kExchanged, kBoth},
    {"qkv after RoPE", rotated, kBlocks, kBackward},
    {"qkv vector partials", vector_partials, kBlocks, kBackward},
    {"dnorm", residual, kExchanged, kBackward},
    {"dattention",
     [](const Sizes& s) {
       return Tensor(nullptr, s.type, {s.N, s.config.q_width()});
     },
     kBlocks, kBackward},
    {"dswiglu",
     [](const Sizes& s) {
       return Tensor(nullptr, s.type, {s.N, s.config.FF});
     },
     kBlocks, kBackward},
    {"dgate_up", dgate_up, kBlocks, kBackward},
    {"dresidual", residual, kExchanged, kBackward},
    {"attention delta",
     [](const Sizes& s) { return Tensor(nullptr, DType::fp32, {rowsum_dO_O_size(s.config, s.N, s.context_heads)}); },
     kBlocks, kBackward},
    {"norm partials",
     [](const Sizes& s) { return Tensor(nullptr, DType::fp32, {rmsnorm_backward_scratch(int(s.R), s.config.C)}); },
     kHead, kBackward},
};

}  // namespace

std::span<const ScratchRow> scratch_rows() { return kRows; }

size_t block_scratch_bytes(const ScratchSizes& sizes) {
  size_t bytes = 0;
  for (const ScratchRow& row : kRows)
    if (row.use == ScratchUse::blocks) bytes += MemoryPlan::aligned(row.of(sizes).span_bytes());
  return bytes;
}

Tensor ScratchTensors::operator[](const char* name) const {
  for (size_t i = 0; i < tensors_.size(); ++i)
    if (!std::strcmp(kRows[i].name, name)) return tensors_[i];
  fail("no scratch is named \"%s\"", name);
}

BlockScratch::BlockScratch(const ScratchTensors& all, int N, int R)
    : projected(all["projected"].rows(0, R)),
      dqkv(all["dqkv"].rows(0, N)),
      rotated(all["qkv after RoPE"].rows(0, N)),
      qk_sums(all["sums of q and k"].rows(0, N)),
      dnorm(all["dnorm"].rows(0, R)),
      dattention(all["dattention"].rows(0, N)),
      dswiglu(all["dswiglu"].rows(0, N)),
      dgate_up(all["dgate_up"].rows(0, N)),
      rowsum_dO_O(all["attention delta"]),
      norm_partials(all["norm partials"]),
      vector_partials(all["qkv vector partials"]) {}

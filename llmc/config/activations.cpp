#include "llmc/config/activations.h"

#include <cstring>

#include "llmc/base/error.h"

namespace {

using Sizes = SavedSizes;

// A product's input in the model's type, absent if backward needs only its FP8 copy. Column-parallel ranks have R rows.
template <Projection which>
Tensor high_precision_input(const Sizes& s, int layer) {
  const LayerProjection* p = s.projections.find(layer, which);
  const bool needed = p && (!s.fp8.quantizes(*p) || s.fp8.bf16_wgrad() || (s.gathers(*p) && !s.fp8.per_tensor_scale()));
  if (!needed) return {};
  return Tensor(nullptr, s.type, {p->row().parallel == Parallel::column ? s.R : s.N, p->IC});
}
// The input of qkv or gate_up likewise. If norms come after the layers, it is the residual stream, which is saved
// anyway.
template <Projection which>
Tensor norm_output(const Sizes& s, int layer) {
  return s.config.family->norm_after ? Tensor() : high_precision_input<which>(s, layer);
}
// A norm after attention or the MLP reads this tensor.
Tensor norm_input(const Sizes& s, int) {
  return s.config.family->norm_after ? Tensor(nullptr, s.type, {s.R, s.config.C}) : Tensor();
}

// The input of a product in FP8, as the weight gradient takes it. Inputs that tensor-parallel ranks gather are kept as
// this rank's rows if they have one scale, and in the model's type otherwise.
template <Projection which>
QuantizedTensor fp8_input(const Sizes& s, int layer) {
  const LayerProjection* p = s.projections.find(layer, which);
  const bool own_rows = p && s.gathers(*p);
  const bool needed =
      p && s.backward && s.fp8.quantizes(*p) && !s.fp8.bf16_wgrad() && (!own_rows || s.fp8.per_tensor_scale());
  return needed ? s.fp8.operand(Role::input, !own_rows, int(own_rows ? s.R : s.N), p->IC) : QuantizedTensor{};
}
template <Projection which>
Tensor fp8_bytes(const Sizes& s, int layer) {
  const QuantizedTensor x = fp8_input<which>(s, layer);
  return x.columns ? Tensor(nullptr, DType::uint8, {x.bytes()}) : Tensor();
}
template <Projection which>
Tensor fp8_scale_inv(const Sizes& s, int layer) {
  const QuantizedTensor x = fp8_input<which>(s, layer);
  return x.columns ? Tensor(nullptr, DType::fp32, {x.scale_inv_count()}) : Tensor();
}

// The output of a column-parallel product, or the input of a row-parallel one, both with all rows.
template <Projection which>
Tensor whole_rows(const Sizes& s, int layer) {
  const LayerProjection* p = s.projections.find(layer, which);
  if (!p) return {};
  return Tensor(nullptr, s.type, {s.N, p->row().parallel == Parallel::column ? p->OC : p->IC});
}

Tensor residual(const Sizes& s, int) { return Tensor(nullptr, s.type, {s.R, s.config.C}); }
Tensor rstd(const Sizes& s, int) { return Tensor(nullptr, DType::fp32, {s.R}); }

constexpr SavedRow kSavedRows[] = {
    // The residual stream before the block.
    {"x", residual, Offload::input, Recompute::none},
    {"rstd1", rstd, Offload::attention, Recompute::block},
    {"norm1", norm_output<Projection::qkv>, Offload::attention, Recompute::norms},
    {"input of qkv", fp8_bytes<Projection::qkv>, Offload::attention, Recompute::norms},
    {"input of qkv, factors", fp8_scale_inv<Projection::qkv>, Offload::attention, Recompute::norms, SavedTrait::scales},
    // After RoPE or, where queries and keys have a norm, before it.
    {"qkv", whole_rows<Projection::qkv>, Offload::attention, Recompute::block, SavedTrait::key_cache},
    // A norm over all heads needs the sums of squares of queries and of keys.
    {"squares of q and k",
     [](const Sizes& s, int) {
       return s.config.family->qk_norm == QkNorm::whole ? Tensor(nullptr, DType::fp32, {s.N, 2}) : Tensor();
     },
     Offload::attention, Recompute::block},
    {"attention", whole_rows<Projection::o>, Offload::attention, Recompute::block},
    // The log-sum-exp of the scores, (B, NH, T).
    {"lse", [](const Sizes& s, int) { return Tensor(nullptr, DType::fp32, {s.N * s.config.NH}); }, Offload::attention,
     Recompute::block},
    {"output of o", norm_input, Offload::attention, Recompute::block},
    // The residual stream between attention and MLP.
    {"middle", residual, Offload::all, Recompute::block, SavedTrait::next_block},
    {"rstd2", rstd, Offload::all, Recompute::block},
    {"norm2", norm_output<Projection::gate_up>, Offload::all, Recompute::norms},
    {"input of gate_up", fp8_bytes<Projection::gate_up>, Offload::all, Recompute::norms},
    {"input of gate_up, factors", fp8_scale_inv<Projection::gate_up>, Offload::all, Recompute::norms,
     SavedTrait::scales},
    {"gate_up", whole_rows<Projection::gate_up>, Offload::all, Recompute::mlp},
    {"swiglu", high_precision_input<Projection::down>, Offload::all, Recompute::norms},
    {"input of down", fp8_bytes<Projection::down>, Offload::all, Recompute::norms},
    {"input of down, factors", fp8_scale_inv<Projection::down>, Offload::all, Recompute::norms, SavedTrait::scales},
    {"output of down", norm_input, Offload::all, Recompute::block},
};

}  // namespace

std::span<const SavedRow> saved_rows() { return kSavedRows; }

const SavedRow& saved_row(const char* name) {
  for (const SavedRow& row : kSavedRows)
    if (strcmp(row.name, name) == 0) return row;
  fail("a block saves no tensor named %s", name);
}

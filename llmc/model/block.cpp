#include "llmc/model/block.h"

#include "llmc/kernels/accumulate.h"
#include "llmc/kernels/rmsnorm.h"

namespace {

QkvVectors vectors_of(const UnitTensors& tensors) {
  return {.q_bias = tensors["q bias"],
          .k_bias = tensors["k bias"],
          .v_bias = tensors["v bias"],
          .q_norm = tensors["q norm"],
          .k_norm = tensors["k norm"]};
}

}  // namespace

Block::Block(const Pass& pass, const BlockTensors& tensors, const BlockScratch& scratch)
    : pass_(pass),
      s_(scratch),
      layer_(tensors.layer),
      x_(tensors.saved["x"].rows(0, pass.R)),
      qkv_in_(norm_after() ? x_ : tensors.saved["norm1"].rows(0, pass.R)),
      qkv_out_(tensors.saved["qkv"].rows(0, pass.past + pass.N)),
      squares_(tensors.saved["squares of q and k"].rows(0, pass.N)),
      attention_(tensors.saved["attention"].rows(0, pass.N)),
      lse_(tensors.saved["lse"]),
      o_out_(norm_after() ? tensors.saved["output of o"].rows(0, pass.R) : s_.projected),
      h_(tensors.saved["middle"].rows(0, pass.R)),
      mlp_in_(norm_after() ? h_ : tensors.saved["norm2"].rows(0, pass.R)),
      down_out_(tensors.saved["output of down"].rows(0, pass.R)),
      norm1_{tensors.parameter("norm1"), norm_after() ? o_out_ : x_, tensors.saved["rstd1"].elements(0, pass.R)},
      norm2_{tensors.parameter("norm2"), norm_after() ? down_out_ : h_, tensors.saved["rstd2"].elements(0, pass.R)},
      vectors_(vectors_of(tensors.weights)),
      vector_gradients_(tensors.gradients ? vectors_of(*tensors.gradients) : QkvVectors{}),
      qkv_(tensors.linear(Projection::qkv)),
      o_(tensors.linear(Projection::o)),
      mlp_(pass, tensors, scratch) {}

ProductSource Block::qkv_input() const {
  // The embedding's kernel finds no amax.
  const float* amax = norm_after() && layer_ == 0 ? nullptr : qkv_.wanted_amax(pass_, Role::input);
  return source_of(qkv_in_, norm1_.output(), amax);
}
ProductSource Block::mlp_input() const {
  return source_of(mlp_in_, norm2_.output(), mlp_.wanted_amax(pass_, Role::input));
}

// ---------------------------------------------------------------------------------------------- forward

void Block::forward(const Tensor& h_before, const Tensor& mlp_out) const {
  float* amax = qkv_.wanted_amax(pass_, Role::input);
  if (!norm_after() && h_before)
    add_rmsnorm_forward(pass_.stream, x_, qkv_in_, norm1_.rstd, h_before, mlp_out, norm1_.weight.value, pass_.eps(),
                        amax);
  else if (!norm_after())
    rmsnorm_forward(pass_.stream, qkv_in_, norm1_.rstd, x_, norm1_.weight.value, pass_.eps(), amax);
  else if (h_before) add(pass_.stream, x_, h_before, mlp_out, amax);  // (R, C)
  show("the residual stream", x_);
  if (!norm_after()) show("the output of the first norm", qkv_in_);
  attention_sublayer();
  mlp_.forward(pass_, norm_after() ? down_out_ : mlp_out, mlp_input());  // (R, C)
  if (!norm_after()) return;
  rmsnorm_forward(pass_.stream, mlp_out, norm2_.rstd, down_out_, norm2_.weight.value, pass_.eps());
  show("the output of the second norm", mlp_out);
}

// Computes everything from qkv's input to the MLP's input.
void Block::attention_sublayer() const {
  const Tensor own = qkv_out_.rows(pass_.past, pass_.N), qkv = pass_.past ? s_.dqkv : own;
  qkv_.forward(pass_, qkv, qkv_input());  // (N, QKV)
  show("the output of qkv", qkv);
  if (squares_) sum_over_heads(squares_, qkv, qkv);
  rotate(qkv);
  show("q, k and v after RoPE", pass_.past ? qkv : rotated());
  if (pass_.past) copy(pass_.stream, own, qkv);  // after those of earlier tokens
  float* amax = o_.wanted_amax(pass_, Role::input);
  attention_forward(pass_, layer_, attention(), amax);  // (N, NH HD)
  show("the output of attention", attention_);
  o_.forward(pass_, o_out_, {attention_, amax});  // (R, C)
  show("the output of o", o_out_);
  amax = mlp_.wanted_amax(pass_, Role::input);
  if (norm_after())
    rmsnorm_add_forward(pass_.stream, h_, norm1_.rstd, x_, o_out_, norm1_.weight.value, pass_.eps(), amax);
  else add_rmsnorm_forward(pass_.stream, h_, mlp_in_, norm2_.rstd, x_, o_out_, norm2_.weight.value, pass_.eps(), amax);
  show("the residual stream after attention", h_);
  if (!norm_after()) show("the output of the second norm", mlp_in_);
}

// Computes q, k and v as attention takes them.
void Block::rotate(const Tensor& qkv) const {
  if (!has_biases_or_norms()) return rope_forward(pass_.stream, qkv, pass_.rope);
  qk_norm_rope_forward(pass_.stream, rope_out_of_place() ? s_.rotated : qkv, qkv, vectors_, pass_.rope, pass_.eps(),
                       {squares_, {}, pass_.ranks_of_heads()});
}

// sums (N, 2) = the sums of a * b over all query heads and over all key heads, those of other ranks included.
void Block::sum_over_heads(const Tensor& sums, const Tensor& a, const Tensor& b) const {
  const Tensor own = pass_.tensor_parallel ? s_.qk_sums : sums;
  qk_dots(pass_.stream, own, a, b, pass_.config.NH, pass_.config.NKV);
  if (pass_.tensor_parallel) pass_.tensor_parallel->all_reduce_sum(pass_.stream, own);
  if (own.data != sums.data) copy(pass_.stream, sums, own);
}

// ---------------------------------------------------------------------------------------------- backward

void Block::recompute(Recompute level) const {
  if (level == Recompute::none) return;
  const bool all = level == Recompute::block, before = !norm_after();
  if (before && (all || qkv_in_))
    rmsnorm_forward(pass_.stream, qkv_in_, norm1_.rstd, x_, norm1_.weight.value, pass_.eps());
  if (all) attention_sublayer();
  else {
    qkv_.save_input(pass_, qkv_input());
    if (before && mlp_in_) rmsnorm_forward(pass_.stream, mlp_in_, norm2_.rstd, h_, norm2_.weight.value, pass_.eps());
  }
  const bool recomputes_out = all && norm_after();
  mlp_.recompute(pass_, level, recomputes_out ? down_out_ : Tensor(), mlp_input());
  if (recomputes_out) rmsnorm_forward(pass_.stream, {}, norm2_.rstd, down_out_, norm2_.weight.value, pass_.eps());
}

void Block::backward(const Tensor& dresidual, const float* amax, float* amax_of_previous) const {
  const ProductSource dmlp_out =
      output_gradient(dresidual, amax, mlp_.wanted_amax(pass_, Role::output_gradient), norm2_);  // (R, C)
  mlp_.backward(pass_, s_.dnorm, dmlp_out, mlp_in_);                                             // (R, C)
  float* amax_o = o_.wanted_amax(pass_, Role::output_gradient);
  add_input_gradient(dresidual, amax_o, norm2_);
  show("the gradient of the residual stream after attention", dresidual);

  if (rope_out_of_place()) rotate(qkv_out_);
  attention_prefetch(pass_, layer_, rotated());
  const ProductSource dprojected = output_gradient(dresidual, amax_o, amax_o, norm1_);  // (R, C)
  o_.backward(pass_, s_.dattention, dprojected, attention_);                            // (N, NH HD)
  show("the gradient of attention's output", s_.dattention);
  qkv_.prefetch_input(pass_, qkv_in_);
  attention_backward(pass_, layer_, s_.dqkv, s_.dattention, attention(), s_.rowsum_dO_O);  // (N, QKV)
  show("the gradient of q, k and v after RoPE", s_.dqkv);
  qkv_.backward(pass_, s_.dnorm, rotate_backward(), qkv_in_);  // (R, C)
  show("the gradient of qkv's input", s_.dnorm);
  add_input_gradient(dresidual, amax_of_previous, norm1_);
  show("the gradient of the residual stream", dresidual);
}

// Returns the gradient of qkv's output, from that of `rotated` in dqkv (N, QKV). If a product takes it in the
// model's type, rope_backward() writes it over dqkv. Otherwise nobody writes it; the kernel that quantizes it reads
// dqkv and computes RoPE's backward (RopeBackwardOutput). With biases, or norms of q and k, qk_norm_rope_backward()
// writes it over dqkv, because the gradients of biases and norms are sums over it.
ProductSource Block::rotate_backward() const {
  if (!has_biases_or_norms()) {
    const Tensor dqkv = qkv_.wgrad_in_model_type(pass_) ? s_.dqkv : Tensor();
    if (dqkv) rope_backward(pass_.stream, dqkv, pass_.rope);
    return source_of(dqkv, RopeBackwardOutput{s_.dqkv, pass_.rope});
  }
  if (squares_) sum_over_heads(s_.qk_sums, s_.dqkv, s_.rotated);
  float* amax = qkv_.wanted_amax(pass_, Role::output_gradient);
  qk_norm_rope_backward(pass_.stream, s_.dqkv, vector_gradients_, s_.vector_partials, norms_qk() ? qkv_out_ : Tensor(),
                        vectors_, pass_.rope, pass_.eps(), {squares_, s_.qk_sums, pass_.ranks_of_heads()}, amax);
  return {s_.dqkv, amax};
}

// Returns the gradient of the output of o or of the MLP, and where its amax is. If a norm comes after that output, the
// gradient is that of the norm's input x, and its amax goes to `amax_after_norm`.
ProductSource Block::output_gradient(const Tensor& dresidual, const float* amax, float* amax_after_norm,
                                     const Norm& norm) const {
  if (!norm_after()) return {dresidual, amax};
  rmsnorm_backward(pass_.stream, s_.projected, norm.weight.grad, s_.norm_partials, dresidual, norm.x, norm.weight.value,
                   norm.rstd, amax_after_norm, false);
  return {s_.projected, amax_after_norm};
}

// Adds the gradient of the input of qkv or of the MLP, dnorm (R, C), to dresidual. If a norm comes before the product,
// dnorm is first taken back through that norm, and `amax` receives the amax of dresidual.
void Block::add_input_gradient(const Tensor& dresidual, float* amax, const Norm& norm) const {
  if (norm_after()) return add(pass_.stream, dresidual, dresidual, s_.dnorm);
  rmsnorm_backward(pass_.stream, dresidual, norm.weight.grad, s_.norm_partials, s_.dnorm, norm.x, norm.weight.value,
                   norm.rstd, amax);  // +=
}

#include "llmc/model/block.h"

#include "llmc/kernels/accumulate.h"
#include "llmc/kernels/rmsnorm.h"
#include "llmc/kernels/swiglu.h"
#include "llmc/model/attention.h"

namespace {

Parameter parameter(const BlockTensors& tensors, const char* name) {
  return {tensors.weights[name], tensors.gradients ? (*tensors.gradients)[name] : Tensor()};
}

QkvVectors vectors_of(const UnitTensors& tensors) {
  return {tensors["q bias"], tensors["k bias"], tensors["v bias"], tensors["q norm"], tensors["k norm"]};
}

Linear linear(const BlockTensors& tensors, int layer, Projection projection) {
  // Attention's output is kept anyway, so o saves no input.
  constexpr const char* inputs[kProjectionCount][2] = {{"input of qkv", "input of qkv, factors"},
                                                       {},
                                                       {"input of gate_up", "input of gate_up, factors"},
                                                       {"input of down", "input of down, factors"}};
  OperandMemory saved;
  if (const auto [bytes, scale_inv] = inputs[int(projection)]; bytes)
    saved = {tensors.saved[bytes].as<uint8_t>(), tensors.saved[scale_inv].as<float>()};
  return Linear(projection, layer, parameter(tensors, projection_name(projection)), tensors.fp8[size_t(projection)],
                saved, tensors.recomputes_inputs[int(projection)]);
}

// The operand in memory or, if backward needs no copy of it in the model's type, how it is computed.
LinearInput input_of(const Tensor& high_precision, const QuantizeSource& source, const float* amax = nullptr) {
  return {high_precision ? QuantizeSource(high_precision) : source, amax};
}

}  // namespace

Block::Block(const Pass& pass, int layer, const BlockTensors& tensors, const BlockScratch& scratch)
    : pass_(pass),
      s_(scratch),
      layer_(layer),
      norm1_(parameter(tensors, "norm1")),
      norm2_(parameter(tensors, "norm2")),
      vectors_(vectors_of(tensors.weights)),
      vector_gradients_(tensors.gradients ? vectors_of(*tensors.gradients) : QkvVectors{}),
      qkv_(linear(tensors, layer, Projection::qkv)),
      o_(linear(tensors, layer, Projection::o)),
      gate_up_(linear(tensors, layer, Projection::gate_up)),
      down_(linear(tensors, layer, Projection::down)),
      x_(tensors.saved["x"].rows(0, pass.R)),
      rstd1_(tensors.saved["rstd1"].elements(0, pass.R)),
      qkv_in_(norm_after() ? x_ : tensors.saved["norm1"].rows(0, pass.R)),
      qkv_out_(tensors.saved["qkv"].rows(0, pass.past + pass.N)),
      squares_(tensors.saved["squares of q and k"].rows(0, pass.N)),
      attention_(tensors.saved["attention"].rows(0, pass.N)),
      lse_(tensors.saved["lse"]),
      o_out_(norm_after() ? tensors.saved["output of o"].rows(0, pass.R) : s_.projected),
      middle_(tensors.saved["middle"].rows(0, pass.R)),
      rstd2_(tensors.saved["rstd2"].elements(0, pass.R)),
      gate_up_in_(norm_after() ? middle_ : tensors.saved["norm2"].rows(0, pass.R)),
      gate_up_out_(tensors.saved["gate_up"].rows(0, pass.N)),
      swiglu_(tensors.saved["swiglu"].rows(0, pass.N)),
      down_out_(tensors.saved["output of down"].rows(0, pass.R)) {}

LinearInput Block::qkv_input() const {
  // The embedding writes no largest number.
  const float* amax = norm_after() && layer_ == 0 ? nullptr : qkv_.wanted_amax(pass_, Role::input);
  return input_of(qkv_in_, RmsnormOutput{x_, rstd1_, norm1_.value}, amax);
}
LinearInput Block::gate_up_input() const {
  return input_of(gate_up_in_, RmsnormOutput{middle_, rstd2_, norm2_.value}, gate_up_.wanted_amax(pass_, Role::input));
}
LinearInput Block::down_input() const { return input_of(swiglu_, SwigluOutput{gate_up_out_}); }

// ---------------------------------------------------------------------------------------------- forward

void Block::forward(const Tensor& middle_before, const Tensor& mlp_out) const {
  float* amax = qkv_.wanted_amax(pass_, Role::input);
  if (!norm_after() && middle_before)
    add_rmsnorm_forward(pass_.stream, x_, qkv_in_, rstd1_, middle_before, mlp_out, norm1_.value, pass_.eps(), amax);
  else if (!norm_after()) rmsnorm_forward(pass_.stream, qkv_in_, rstd1_, x_, norm1_.value, pass_.eps(), amax);
  else if (middle_before) add(pass_.stream, x_, middle_before, mlp_out, amax);  // (R, C)
  show("the residual stream", x_);
  if (!norm_after()) show("the output of the first norm", qkv_in_);
  attention_half();
  mlp_input();
  down_.forward(pass_, norm_after() ? down_out_ : mlp_out, down_input());  // (R, C)
  show("the output of down", norm_after() ? down_out_ : mlp_out);
  if (norm_after()) rmsnorm_forward(pass_.stream, mlp_out, rstd2_, down_out_, norm2_.value, pass_.eps());
  if (norm_after()) show("the output of the second norm", mlp_out);
}

// Computes everything from qkv's input to gate_up's input.
void Block::attention_half() const {
  const Tensor own = qkv_out_.rows(pass_.past, pass_.N), qkv = pass_.past ? s_.dqkv : own;
  qkv_.forward(pass_, qkv, qkv_input());  // (N, QKV)
  show("the output of qkv", qkv);
  if (squares_) sum_over_heads(squares_, qkv, qkv);
  rotate(qkv);
  show("q, k and v after RoPE", pass_.past ? qkv : rotated());
  if (pass_.past) copy(pass_.stream, own, qkv);  // behind those of earlier tokens
  float* amax = o_.wanted_amax(pass_, Role::input);
  attention_forward(pass_, layer_, attention_, lse_, rotated(), amax);  // (N, NH HD)
  show("the output of attention", attention_);
  o_.forward(pass_, o_out_, {attention_, amax});  // (R, C)
  show("the output of o", o_out_);
  amax = gate_up_.wanted_amax(pass_, Role::input);
  if (norm_after()) rmsnorm_add_forward(pass_.stream, middle_, rstd1_, x_, o_out_, norm1_.value, pass_.eps(), amax);
  else add_rmsnorm_forward(pass_.stream, middle_, gate_up_in_, rstd2_, x_, o_out_, norm2_.value, pass_.eps(), amax);
  show("the residual stream after attention", middle_);
  if (!norm_after()) show("the output of the second norm", gate_up_in_);
}

// Computes q, k and v as attention takes them.
void Block::rotate(const Tensor& qkv) const {
  if (!has_vectors()) return rope_forward(pass_.stream, qkv, pass_.rope);
  qk_norm_rope_forward(pass_.stream, rotates_apart() ? s_.rotated : qkv, qkv, vectors_, pass_.rope, pass_.eps(),
                       {squares_, {}, pass_.ranks_of_heads()});
}

// sums (N, 2) = the sums of a * b over all query heads and over all key heads, those of other ranks included.
void Block::sum_over_heads(const Tensor& sums, const Tensor& a, const Tensor& b) const {
  const Tensor own = pass_.tensor_parallel ? s_.qk_sums : sums;
  qk_dots(pass_.stream, own, a, b, pass_.config.NH, pass_.config.NKV);
  if (pass_.tensor_parallel) pass_.tensor_parallel->all_reduce_sum(pass_.stream, own);
  if (own.data != sums.data) copy(pass_.stream, sums, own);
}

// Computes everything from gate_up's input to down's input.
void Block::mlp_input() const {
  gate_up_.forward(pass_, gate_up_out_, gate_up_input());  // (N, 2 FF)
  show("the output of gate_up", gate_up_out_);
  if (swiglu_) swiglu_forward(pass_.stream, swiglu_, gate_up_out_);  // (N, FF)
  show("the output of SwiGLU", swiglu_);
}

// ---------------------------------------------------------------------------------------------- backward

void Block::recompute(Recompute level) const {
  if (level == Recompute::none) return;
  const bool all = level == Recompute::block, before = !norm_after();
  if (before && (all || qkv_in_)) rmsnorm_forward(pass_.stream, qkv_in_, rstd1_, x_, norm1_.value, pass_.eps());
  if (all) attention_half();
  else {
    qkv_.save_input(pass_, qkv_input());
    if (before && gate_up_in_) rmsnorm_forward(pass_.stream, gate_up_in_, rstd2_, middle_, norm2_.value, pass_.eps());
  }
  if (level != Recompute::norms) mlp_input();
  else {
    gate_up_.save_input(pass_, gate_up_input());
    if (swiglu_) swiglu_forward(pass_.stream, swiglu_, gate_up_out_);
  }
  if (before || !all) return down_.save_input(pass_, down_input());
  down_.forward(pass_, down_out_, down_input());
  rmsnorm_forward(pass_.stream, {}, rstd2_, down_out_, norm2_.value, pass_.eps());
}

void Block::backward(const Tensor& dresidual, const float* amax, float* amax_before) const {
  Stream& stream = pass_.stream;
  const LinearInput ddown = output_gradient(dresidual, amax, down_, norm2_, down_out_, rstd2_);  // (R, C)
  down_.backward(pass_, s_.dswiglu, ddown, swiglu_);                                             // (N, FF)
  show("the gradient of down's input", s_.dswiglu);
  gate_up_.prefetch_input(pass_, gate_up_in_);
  const Tensor dgate_up = gate_up_.wgrad_in_model_type(pass_) ? s_.dgate_up : Tensor();
  if (dgate_up) swiglu_backward(stream, dgate_up, s_.dswiglu, gate_up_out_);  // (N, 2 FF)
  show("the gradient of gate_up's output", dgate_up);
  gate_up_.backward(pass_, s_.dnorm, input_of(dgate_up, SwigluBackwardOutput{s_.dswiglu, gate_up_out_}), gate_up_in_);
  show("the gradient of gate_up's input", s_.dnorm);
  float* amax_o = o_.wanted_amax(pass_, Role::output_gradient);
  add_input_gradient(dresidual, amax_o, norm2_, middle_, rstd2_);
  show("the gradient of the residual stream after attention", dresidual);

  if (rotates_apart()) rotate(qkv_out_);
  attention_prefetch(pass_, layer_, rotated());
  const LinearInput dprojected = output_gradient(dresidual, amax_o, o_, norm1_, o_out_, rstd1_);  // (R, C)
  o_.backward(pass_, s_.dattention, dprojected, attention_);                                      // (N, NH HD)
  show("the gradient of attention's output", s_.dattention);
  qkv_.prefetch_input(pass_, qkv_in_);
  attention_backward(pass_, layer_, s_.dqkv, s_.attention_delta, s_.dattention, attention_, lse_, rotated());
  show("the gradient of q, k and v after RoPE", s_.dqkv);
  qkv_.backward(pass_, s_.dnorm, rotate_backward(), qkv_in_);  // (R, C)
  show("the gradient of qkv's input", s_.dnorm);
  add_input_gradient(dresidual, amax_before, norm1_, x_, rstd1_);
  show("the gradient of the residual stream", dresidual);
}

// Returns the gradient of qkv's output, from that of `rotated` in dqkv (N, QKV): in memory or, if it is only quantized
// and has no vectors whose gradients are sums over it, how it is computed.
LinearInput Block::rotate_backward() const {
  if (!has_vectors()) {
    const Tensor dqkv = qkv_.wgrad_in_model_type(pass_) ? s_.dqkv : Tensor();
    if (dqkv) rope_backward(pass_.stream, dqkv, pass_.rope);
    return input_of(dqkv, RopeBackwardOutput{s_.dqkv, pass_.rope});
  }
  if (squares_) sum_over_heads(s_.qk_sums, s_.dqkv, s_.rotated);
  float* amax = qkv_.wanted_amax(pass_, Role::output_gradient);
  qk_norm_rope_backward(pass_.stream, s_.dqkv, vector_gradients_, s_.vector_partials, norms_qk() ? qkv_out_ : Tensor(),
                        vectors_, pass_.rope, pass_.eps(), {squares_, s_.qk_sums, pass_.ranks_of_heads()}, amax);
  return {s_.dqkv, amax};
}

// Returns the gradient of the output of o or down. If a norm of x is behind it, its gradient goes there.
LinearInput Block::output_gradient(const Tensor& dresidual, const float* amax, const Linear& linear,
                                   const Parameter& norm, const Tensor& x, const Tensor& rstd) const {
  if (!norm_after()) return {dresidual, amax};
  float* wanted = linear.wanted_amax(pass_, Role::output_gradient);
  rmsnorm_backward(pass_.stream, s_.projected, norm.grad, s_.norm_partials, dresidual, x, norm.value, rstd, wanted,
                   false);
  return {s_.projected, wanted};
}

// Adds the gradient of the input of qkv or gate_up, dnorm (R, C), to that of the residual stream: that of a norm of x,
// if there is one before the product. Then `amax` receives the largest number of the sum.
void Block::add_input_gradient(const Tensor& dresidual, float* amax, const Parameter& norm, const Tensor& x,
                               const Tensor& rstd) const {
  if (norm_after()) return add(pass_.stream, dresidual, dresidual, s_.dnorm);
  rmsnorm_backward(pass_.stream, dresidual, norm.grad, s_.norm_partials, s_.dnorm, x, norm.value, rstd, amax);  // +=
}

#include "llmc/model/block.h"

#include "llmc/kernels/rmsnorm.h"
#include "llmc/kernels/swiglu.h"
#include "llmc/model/attention.h"

namespace {

BlockScratch cut(const BlockScratch& s, int N, int R) {
  return {s.projected.rows(0, R), s.dqkv.rows(0, N),     s.dnorm.rows(0, R), s.dattention.rows(0, N),
          s.dswiglu.rows(0, N),   s.dgate_up.rows(0, N), s.attention_delta,  s.norm_partials};
}

Parameter parameter(const BlockTensors& tensors, const char* name) {
  return {tensors.weights[name], tensors.gradients ? (*tensors.gradients)[name] : Tensor()};
}

Linear linear(const BlockTensors& tensors, int layer, Product product) {
  // Attention's output is kept anyway, so o saves no input.
  constexpr const char* inputs[kProducts][2] = {{"input of qkv", "input of qkv, factors"},
                                                {},
                                                {"input of gate_up", "input of gate_up, factors"},
                                                {"input of down", "input of down, factors"}};
  OperandMemory saved;
  if (const auto [bytes, factors] = inputs[int(product)]; bytes)
    saved = {tensors.saved[bytes].as<uint8_t>(), tensors.saved[factors].as<float>()};
  return Linear(product, layer, parameter(tensors, product_name(product)), tensors.fp8[size_t(product)], saved,
                tensors.recomputes_inputs[int(product)]);
}

// The operand in memory or, if backward needs no copy of it in the model's type, how it is computed.
LinearInput input_of(const Tensor& wide, const QuantizeSource& source, const float* amax = nullptr) {
  return {wide ? QuantizeSource(wide) : source, amax};
}

}  // namespace

Block::Block(const Pass& pass, int layer, const BlockTensors& tensors, const BlockScratch& scratch)
    : pass_(pass),
      s_(cut(scratch, pass.N, pass.R)),
      norm1_(parameter(tensors, "norm1")),
      norm2_(parameter(tensors, "norm2")),
      qkv_(linear(tensors, layer, Product::qkv)),
      o_(linear(tensors, layer, Product::o)),
      gate_up_(linear(tensors, layer, Product::gate_up)),
      down_(linear(tensors, layer, Product::down)),
      x_(tensors.saved["x"].rows(0, pass.R)),
      rstd1_(tensors.saved["rstd1"].elements(0, pass.R)),
      norm1_out_(tensors.saved["norm1"].rows(0, pass.R)),
      qkv_out_(tensors.saved["qkv"].rows(0, pass.past + pass.N)),
      attention_(tensors.saved["attention"].rows(0, pass.N)),
      lse_(tensors.saved["lse"]),
      middle_(tensors.saved["middle"].rows(0, pass.R)),
      rstd2_(tensors.saved["rstd2"].elements(0, pass.R)),
      norm2_out_(tensors.saved["norm2"].rows(0, pass.R)),
      gate_up_out_(tensors.saved["gate_up"].rows(0, pass.N)),
      swiglu_(tensors.saved["swiglu"].rows(0, pass.N)) {}

LinearInput Block::qkv_input() const {
  return input_of(norm1_out_, RmsnormOutput{x_, rstd1_, norm1_.value}, qkv_.wanted_amax(pass_, Role::input));
}
LinearInput Block::gate_up_input() const {
  return input_of(norm2_out_, RmsnormOutput{middle_, rstd2_, norm2_.value}, gate_up_.wanted_amax(pass_, Role::input));
}
LinearInput Block::down_input() const { return input_of(swiglu_, SwigluOutput{gate_up_out_}); }

// ---------------------------------------------------------------------------------------------- forward

void Block::forward(const Tensor& middle_before, const Tensor& delta) const {
  float* amax = qkv_.wanted_amax(pass_, Role::input);
  if (middle_before)
    add_rmsnorm_forward(pass_.stream, x_, norm1_out_, rstd1_, middle_before, delta, norm1_.value, pass_.eps(), amax);
  else rmsnorm_forward(pass_.stream, norm1_out_, rstd1_, x_, norm1_.value, pass_.eps(), amax);  // (R, C)
  attention_half();
  mlp_input();
  down_.forward(pass_, delta, down_input());  // (R, C)
}

// Computes everything from the first norm's output to the second norm's output.
void Block::attention_half() const {
  const Tensor own = qkv_out_.rows(pass_.past, pass_.N), qkv = pass_.past ? s_.dqkv : own;
  qkv_.forward(pass_, qkv, qkv_input());  // (N, QKV)
  rope_forward(pass_.stream, qkv, pass_.rope);
  if (pass_.past) copy(pass_.stream, own, qkv);  // behind those of earlier tokens
  float* amax = o_.wanted_amax(pass_, Role::input);
  attention_forward(pass_, attention_, lse_, qkv_out_, amax);  // (N, NH HD)
  o_.forward(pass_, s_.projected, {attention_, amax});         // (R, C)
  add_rmsnorm_forward(pass_.stream, middle_, norm2_out_, rstd2_, x_, s_.projected, norm2_.value, pass_.eps(),
                      gate_up_.wanted_amax(pass_, Role::input));  // (R, C)
}

// Computes everything from the second norm's output to the last product's input.
void Block::mlp_input() const {
  gate_up_.forward(pass_, gate_up_out_, gate_up_input());            // (N, 2 FF)
  if (swiglu_) swiglu_forward(pass_.stream, swiglu_, gate_up_out_);  // (N, FF)
}

// ---------------------------------------------------------------------------------------------- backward

void Block::recompute(Recompute level) const {
  if (level == Recompute::none) return;
  const bool all = level == Recompute::block;
  if (all || norm1_out_) rmsnorm_forward(pass_.stream, norm1_out_, rstd1_, x_, norm1_.value, pass_.eps());
  if (all) attention_half();
  else {
    qkv_.save_input(pass_, qkv_input());
    if (norm2_out_) rmsnorm_forward(pass_.stream, norm2_out_, rstd2_, middle_, norm2_.value, pass_.eps());
  }
  if (level != Recompute::norms) mlp_input();
  else {
    gate_up_.save_input(pass_, gate_up_input());
    if (swiglu_) swiglu_forward(pass_.stream, swiglu_, gate_up_out_);
  }
  down_.save_input(pass_, down_input());
}

void Block::backward(const Tensor& dresidual, const float* amax, float* amax_before) const {
  Stream& stream = pass_.stream;
  down_.backward(pass_, s_.dswiglu, {dresidual, amax}, swiglu_);  // (N, FF)
  gate_up_.prefetch_input(pass_, norm2_out_);
  const Tensor dgate_up = gate_up_.wgrad_in_model_type(pass_) ? s_.dgate_up : Tensor();
  if (dgate_up) swiglu_backward(stream, dgate_up, s_.dswiglu, gate_up_out_);  // (N, 2 FF)
  gate_up_.backward(pass_, s_.dnorm, input_of(dgate_up, SwigluBackwardOutput{s_.dswiglu, gate_up_out_}), norm2_out_);
  float* amax_o = o_.wanted_amax(pass_, Role::output_gradient);
  rmsnorm_backward(stream, dresidual, norm2_.grad, s_.norm_partials, s_.dnorm, middle_, norm2_.value, rstd2_,
                   amax_o);  // +=

  attention_prefetch(pass_, qkv_out_);
  o_.backward(pass_, s_.dattention, {dresidual, amax_o}, attention_);  // (N, NH HD)
  qkv_.prefetch_input(pass_, norm1_out_);
  attention_backward(pass_, s_.dqkv, s_.attention_delta, s_.dattention, attention_, lse_, qkv_out_);  // (N, QKV)
  const Tensor dqkv = qkv_.wgrad_in_model_type(pass_) ? s_.dqkv : Tensor();
  if (dqkv) rope_backward(stream, dqkv, pass_.rope);
  qkv_.backward(pass_, s_.dnorm, input_of(dqkv, RopeBackwardOutput{s_.dqkv, pass_.rope}), norm1_out_);  // (R, C)
  rmsnorm_backward(stream, dresidual, norm1_.grad, s_.norm_partials, s_.dnorm, x_, norm1_.value, rstd1_,
                   amax_before);  // +=
}

#include "llmc/model/mlp.h"

#include "llmc/kernels/swiglu.h"

Mlp::Mlp(const Pass& pass, const BlockTensors& tensors, const BlockScratch& scratch)
    : layer_(tensors.layer),
      s_(scratch),
      gate_up_(tensors.linear(Projection::gate_up)),
      down_(tensors.linear(Projection::down)),
      gate_up_out_(tensors.saved["gate_up"].rows(0, pass.N)),
      swiglu_(tensors.saved["swiglu"].rows(0, pass.N)) {}

ProductSource Mlp::down_input() const { return source_of(swiglu_, SwigluOutput{gate_up_out_}); }

void Mlp::forward(const Pass& pass, const Tensor& out, const ProductSource& x) const {
  up(pass, x);
  down_.forward(pass, out, down_input());  // (R, C)
  show(pass, "the output of down", out);
}

// Computes everything from gate_up's input to down's input.
void Mlp::up(const Pass& pass, const ProductSource& x) const {
  gate_up_.forward(pass, gate_up_out_, x);  // (N, 2 FF)
  show(pass, "the output of gate_up", gate_up_out_);
  if (swiglu_) swiglu_forward(pass.stream, swiglu_, gate_up_out_);  // (N, FF)
  show(pass, "the output of SwiGLU", swiglu_);
}

void Mlp::recompute(const Pass& pass, Recompute level, const Tensor& out, const ProductSource& x) const {
  if (level != Recompute::norms) up(pass, x);
  else {
    gate_up_.save_input(pass, x);
    if (swiglu_) swiglu_forward(pass.stream, swiglu_, gate_up_out_);
  }
  if (out) down_.forward(pass, out, down_input());
  else down_.save_input(pass, down_input());
}

void Mlp::backward(const Pass& pass, const Tensor& dx, const ProductSource& dout, const Tensor& x) const {
  down_.backward(pass, s_.dswiglu, dout, swiglu_);  // (N, FF)
  show(pass, "the gradient of down's input", s_.dswiglu);
  gate_up_.prefetch_input(pass, x);
  const Tensor dgate_up = gate_up_.wgrad_in_model_type(pass) ? s_.dgate_up : Tensor();
  if (dgate_up) swiglu_backward(pass.stream, dgate_up, s_.dswiglu, gate_up_out_);  // (N, 2 FF)
  show(pass, "the gradient of gate_up's output", dgate_up);
  gate_up_.backward(pass, dx, source_of(dgate_up, SwigluBackwardOutput{s_.dswiglu, gate_up_out_}), x);  // (R, C)
  show(pass, "the gradient of gate_up's input", dx);
}

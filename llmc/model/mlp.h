// The SwiGLU MLP of a block, forward and backward, without norms and residual stream:
//
//   out = Wdown swiglu(Wgate_up x)
//
// Under tensor parallelism, FF counts what this rank holds, in weights and activations alike.
#pragma once

#include "llmc/model/block_tensors.h"
#include "llmc/model/scratch.h"

class Mlp {
 public:
  // The views are cut for this pass, so the object lives no longer than it and `scratch`.
  Mlp(const Pass& pass, const BlockTensors& tensors, const BlockScratch& scratch);

  // Where the kernel that produces x (role input) or the gradient of out (output_gradient) writes its amax; see
  // Linear::wanted_amax().
  float* wanted_amax(const Pass& pass, Role role) const {
    return (role == Role::input ? gate_up_ : down_).wanted_amax(pass, role);
  }

  // out (R, C) = the MLP of x (R, C).
  void forward(const Pass& pass, const Tensor& out, const ProductSource& x) const;
  // Call this before backward, with a pass that is `recomputing`, unless the level is none. It recomputes what backward
  // needs and the level leaves out. `out` may be absent; otherwise it is computed, too.
  void recompute(const Pass& pass, Recompute level, const Tensor& out, const ProductSource& x) const;
  // dx (R, C) = the gradient of x, from that of out. `x` is forward's input in the model's type, if that was kept.
  void backward(const Pass& pass, const Tensor& dx, const ProductSource& dout, const Tensor& x) const;

 private:
  void show(const Pass& pass, const char* name, const Tensor& tensor) const { pass.show(layer_, name, tensor); }
  ProductSource down_input() const;
  void up(const Pass& pass, const ProductSource& x) const;

  const int layer_;
  const BlockScratch& s_;
  const Linear gate_up_, down_;        // (2 FF, C), (C, FF)
  const Tensor gate_up_out_, swiglu_;  // (N, 2 FF), (N, FF); the second is absent where it is only quantized
};

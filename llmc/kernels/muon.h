// The parts of Muon (Jordan et al. 2024) that go over elements, in the order of operations of torch.optim.Muon. The
// products between them are Newton and Schulz's iteration (newton_schulz.h). With g = gradient * clip_factor
// and lerp(a, b, w) = a + w (b - a):
//
//   m = lerp(m, g, 1 - momentum)
//   u = lerp(g, m, momentum)          Nesterov's momentum
//   o = the orthogonal factor of the matrix u, nearly: its singular values are about 1
//   p = p (1 - rate * weight_decay) - rate * scale * o
//
// All arithmetic is fp32; u and o are bf16, or fp32 where products are. The kernels read learning rate and clip factor
// from StepState on the device. If that says that the step is held, they write nothing. Master and moment may be
// stored in bf16. They are then rounded stochastically, with AdamW's draws (adamw.h). Deterministic: the bits of an
// element do not depend on its address, its neighbours or the ranks.
#pragma once

#include "llmc/device/tensor.h"
#include "llmc/kernels/shard_window.h"
#include "llmc/kernels/step_state.h"

// The elements of a slice of one tensor, as stochastic rounding sees them.
struct MuonSlice {
  uint64_t key = 0;         // philox_key of the tensor
  ShardWindow window = {};  // place of the slice in the tensor
};

struct MuonRates {
  float factor;        // rate = StepState::learning_rate * factor
  float weight_decay;  // with `rate`, not with `rate * scale`
  float scale;         // muon_scale() of the matrix
};

enum class MuonScale { original, match_rms };
// Returns max(1, rows / columns)^0.5 (original), or 0.2 max(rows, columns)^0.5, with which an update is about as large
// as AdamW's (match_rms: Liu et al. 2025, arXiv 2502.16982). `rows` and `columns` are those of the whole matrix.
float muon_scale(MuonScale scale, int64_t rows, int64_t columns);

// Updates the momentum m from gradients, and writes u. All tensors are (n), n > 0: m and u are fp32 or bf16, gradients
// is fp32. u may be absent. They need no alignment beyond that of their type; with 16-byte alignment the kernel is
// faster. Throws on other types and shapes.
void muon_momentum(Stream& stream, const Tensor& m, const Tensor& u, const Tensor& gradients, const StepState* state,
                   float momentum, const MuonSlice& slice);

// Divides x by its L2 norm, or by 1e-7 if the norm is less, in place. `square_sum` (1) is fp64: the sum of the squares
// of x. With bf16 the norm is rounded to bf16 before the division. x is fp32 or bf16, has any shape, and is 16-byte
// aligned.
void muon_normalize(Stream& stream, const Tensor& x, const Tensor& square_sum);

// Updates master (n), fp32 or bf16, from o (n), fp32 or bf16, n > 0. Unless `weights` (n, bf16) is absent, the kernel
// also writes there the master rounded to nearest, for the products. Unless `amax` (1, fp32) is absent, it raises that
// to the largest |weight|, rounded to bf16. Alignment as for muon_momentum. Throws on other types and shapes, and if
// the amax is wanted without bf16 weights.
void muon_update(Stream& stream, const Tensor& master, const Tensor& weights, const Tensor& o, const StepState* state,
                 const MuonRates& rates, const MuonSlice& slice, const Tensor& amax = {});

// whole[window[i]] = packed[i], and the other way round. packed is (n); whole is a matrix of the same type, fp32 or
// bf16, which contains the window.
void scatter_window(Stream& stream, const Tensor& whole, const Tensor& packed, const ShardWindow& window);
void gather_window(Stream& stream, const Tensor& packed, const Tensor& whole, const ShardWindow& window);

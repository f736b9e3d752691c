// Rotary position embedding (Su et al. 2021) in the layout of Hugging Face: with half = HD/2, elements i and i + half
// of a head are rotated together by the angle position * frequency[i]:
//
//   y[i]        = x[i] * cos - x[i + half] * sin
//   y[i + half] = x[i + half] * cos + x[i] * sin
//   frequency[i] = theta^(-2i/HD), slowed if a longer context asks for it (RopeScaling)
//
// The kernels work in place on the q and k heads of the packed rows qkv[N, (NH + 2*NKV) * HD]: q heads, k heads, v
// heads. qkv is fp32 or bf16; arithmetic is fp32, rounded once. Pairs do not depend on each other: deterministic.
// Buffers are 16-byte aligned if HD is a multiple of 16. All functions throw on invalid shapes, types or alignment.
#pragma once

#include <cstddef>
#include <vector>

#include "llmc/device/tensor.h"

// How frequencies are slowed for a longer context, by Hugging Face's rope_type:
//
//   plain   not at all ("default")
//   linear  all of them, by `factor` (Chen et al. 2023)
//   llama3  (Llama 3.1) A wavelength beyond original_max_position / low_freq_factor becomes `factor` times as long, and
//           one below original_max_position / high_freq_factor stays as it is. Frequencies in between are blended.
//   yarn    (Peng et al. 2023) The same, blended over the index i instead: from the i that turns beta_fast times within
//           original_max_position on, up to the one that turns beta_slow times. `truncate` rounds both outward. The
//           table's cosines and sines are multiplied by attention_factor.
enum class RopeType { plain, linear, llama3, yarn };
struct RopeScaling {
  double theta = 10000;
  RopeType type = RopeType::plain;
  double factor = 1;
  int original_max_position = 8192;                  // llama3, yarn
  double low_freq_factor = 1, high_freq_factor = 4;  // llama3
  double beta_fast = 32, beta_slow = 1;              // yarn
  double attention_factor = 1;                       // yarn
  bool truncate = true;                              // yarn

  // Throws unless the values are possible. `who` begins the message.
  void check(const char* who) const;
};

// Returns the (HD/2) frequencies in radians per position.
std::vector<double> rope_frequencies(const RopeScaling& scaling, int HD);

// Returns the table that the kernels read, (positions, HD/2, 2): the cosine and the sine of each angle, times the
// attention factor, computed in double and rounded to fp32.
std::vector<float> rope_table(const RopeScaling& scaling, int HD, int positions);

// The angles of N rows: those of positions (N), int32, in table (positions, HD/2, 2), fp32. The first `heads` heads of
// a row are rotated: its NH query heads and NKV key heads.
struct RopeAngles {
  Tensor table, positions;
  int heads = 0;
};

// Rotates the heads of qkv (N, (NH + 2*NKV) * HD) in place. For a position outside of the table the kernel reads
// nothing outside of it: the row's q and k become NaN.
void rope_forward(Stream& stream, const Tensor& qkv, const RopeAngles& angles);

// Computes the gradient: rotates dqkv by the negative angles, in place.
void rope_backward(Stream& stream, const Tensor& dqkv, const RopeAngles& angles);

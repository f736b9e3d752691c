// Rotary position embedding (Su et al. 2021) as Hugging Face lays it out: with half = HD/2, elements i and i + half of
// a head turn together by the angle position * frequency[i]:
//
//   y[i]        = x[i] * cos - x[i + half] * sin
//   y[i + half] = x[i + half] * cos + x[i] * sin
//   frequency[i] = theta^(-2i/HD), slowed by llama3 scaling if asked
//
// In place on the q and k heads of the packed rows qkv[N, (NH + 2*NKV) * HD]: q heads, k heads, v heads.
// T is float or bf16; arithmetic is fp32, rounded once. Each pair by itself: deterministic. Buffers are 16-byte aligned
// if HD is a multiple of 16.
#pragma once

#include <cstddef>
#include <vector>

#include "llmc/device/device.h"

// Llama 3.1 stretches long waves (Hugging Face's rope_type "llama3"): a wavelength beyond original_max_position /
// low_freq_factor becomes `factor` times as long, one below original_max_position / high_freq_factor stays, and
// frequencies in between are blended.
struct RopeScaling {
  double theta = 10000;
  bool llama3 = false;
  double factor = 1, low_freq_factor = 1, high_freq_factor = 4;
  int original_max_position = 8192;
};

// Frequencies in radians a position, (HD/2).
std::vector<double> rope_frequencies(const RopeScaling& scaling, int HD);

// The table that the kernels read, (positions, HD/2, 2): the cosine and the sine of each angle, computed in double and
// rounded to fp32.
std::vector<float> rope_table(const RopeScaling& scaling, int HD, int positions);

// Throws unless all `count` positions (host memory) lie in the table. To be called before they reach the device.
void require_rope_positions(const int* positions, size_t count, int table_positions);

// positions[N] is in device memory. A position outside of the table is no read outside of it: the row's q and k become
// NaN.
template <class T>
void rope_forward(Stream& stream, T* qkv, const float* table, const int* positions, int N, int NH, int NKV, int HD,
                  int table_positions);

// The gradient: dqkv turned back, by the negative angles, in place.
template <class T>
void rope_backward(Stream& stream, T* dqkv, const float* table, const int* positions, int N, int NH, int NKV, int HD,
                   int table_positions);

// Rotary position embedding (Su et al. 2021) as Hugging Face has it: in each head, element i < HD/2 and element i +
// HD/2 are rotated together by the angle position * frequency_i, frequency_i = theta^(-2i/HD).
//
// llama3 scaling (Llama 3.1) slows the low frequencies down, so that positions beyond the original training length have
// angles that were trained on.
#pragma once

#include <cstdint>
#include <vector>

#include "llmc/device/device.h"

struct RopeScaling {
  double theta = 10000.0;
  bool llama3 = false;
  double factor = 1, low_freq_factor = 1, high_freq_factor = 4;
  int original_max_position = 8192;
};

// The HD/2 frequencies, in double precision.
std::vector<double> rope_frequencies(const RopeScaling& scaling, int HD);

// (positions, HD/2, 2): cosine and sine of each angle, computed in double precision and rounded to fp32.
std::vector<float> rope_table(const RopeScaling& scaling, int HD, int positions);

// Throws if a position has no row in a table of `table_positions`: kernels do not look.
void check_positions(const int32_t* positions, size_t count, int table_positions);

// Rotates the query and key heads of qkv (N, (NH + 2 NKV) HD) in place: row n by its position, positions (N) on the
// device. T is float or bf16; the arithmetic is fp32. Deterministic.
template <class T>
void rope_forward(Stream& stream, T* qkv, const float* table, const int* positions, int N, int NH, int NKV, int HD,
                  int table_positions);

// Backward: rotates gradients by the negative angles, in place.
template <class T>
void rope_backward(Stream& stream, T* dqkv, const float* table, const int* positions, int N, int NH, int NKV, int HD,
                   int table_positions);

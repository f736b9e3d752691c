// The logits of the last forward pass, on the host.
#pragma once

#include <algorithm>
#include <vector>

#include "llmc/device/number.h"
#include "llmc/train/walk.h"

// Rows begin .. end-1, (end - begin, V) in fp32. The host waits; the head computes its chunks of rows anew.
template <class T>
std::vector<float> read_logits(Walk<T>& walk, Stream& compute, int begin, int end) {
  const int chunk = walk.head_chunk(), V = walk.vocabulary(), stride = walk.logits_stride();
  std::vector<float> result;
  result.reserve(size_t(end - begin) * size_t(V));
  std::vector<T> rows;
  for (int first = begin / chunk * chunk; first < end; first += chunk) {
    const T* logits = walk.logits(first);
    const int from = std::max(begin, first), to = std::min(end, first + chunk);
    rows.resize(size_t(to - from) * size_t(stride));
    copy(compute, rows.data(), logits + size_t(from - first) * size_t(stride), rows.size());
    compute.synchronize();
    for (int r = 0; r < to - from; ++r)
      for (int v = 0; v < V; ++v) result.push_back(to_float(rows[size_t(r) * size_t(stride) + size_t(v)]));
  }
  return result;
}

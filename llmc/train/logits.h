// The logits of the last forward pass, on the host.
#pragma once

#include <algorithm>
#include <vector>

#include "llmc/device/number.h"
#include "llmc/train/walk.h"

// Rows begin .. end-1, (end - begin, V) in fp32. The host waits; the head computes its chunks of rows anew.
template <class T>
std::vector<float> read_logits(Walk<T>& walk, Stream& compute, int begin, int end) {
  const int chunk = walk.head_chunk();
  std::vector<float> result;
  std::vector<T> rows;
  for (int first = begin / chunk * chunk; first < end; first += chunk) {
    const T* logits = walk.logits(first);
    for (int row = std::max(begin, first); row < std::min(end, first + chunk); ++row) {
      const typename Walk<T>::RowParts parts = walk.row_parts(logits, row - first);
      rows.resize(size_t(parts.ranks) * size_t(parts.stride));
      copy(compute, rows.data(), parts.data, rows.size());
      compute.synchronize();
      for (int v = 0; v < walk.vocabulary(); ++v)
        result.push_back(to_float(rows[size_t(v / parts.V) * size_t(parts.stride) + size_t(v % parts.V)]));
    }
  }
  return result;
}

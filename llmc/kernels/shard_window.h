// The position of a slice of a weight in the whole tensor, of which a rank may hold only some columns. Random numbers
// and checkpoints use positions in the whole tensor.
#pragma once

#include <cstddef>
#include <cstdint>

#include "llmc/device/backend.h"

// The slice consists of rows of `columns` elements, whose starts are `stride` elements apart in the whole tensor. The
// first of these rows starts at element `start` there, and the slice begins `skip` of its elements after that.
// operator[] returns the position of element i of the slice.
struct ShardWindow {
  uint64_t start = 0, skip = 0, columns = 1, stride = 1;

  ShardWindow() = default;
  // Contiguous elements first, first + 1, … of the whole tensor.
  HOST_DEVICE ShardWindow(uint64_t first) : start(first) {}
  HOST_DEVICE ShardWindow(uint64_t start, uint64_t skip, uint64_t columns, uint64_t stride)
      : start(start), skip(skip), columns(columns), stride(stride) {}

  HOST_DEVICE bool is_cut() const { return columns != stride; }
  HOST_DEVICE uint64_t operator[](uint64_t i) const {
    const uint64_t at = skip + i;
    return is_cut() ? start + at / columns * stride + at % columns : start + at;
  }
  ShardWindow from(uint64_t i) const { return {start, skip + i, columns, stride}; }
  // Calls f(i, first, count) for each run of the elements 0 .. n-1 that is contiguous in the whole tensor: elements i
  // .. i+count-1 are first .. first+count-1 there.
  template <class F>
  void for_runs(size_t n, F&& f) const {
    for (size_t i = 0, count; i < n; i += count) {
      const size_t left = size_t(columns - (skip + i) % columns);
      count = is_cut() && left < n - i ? left : n - i;
      f(i, (*this)[i], count);
    }
  }
};

// Which bytes of a planned arena a training has touched.
#pragma once

#include <algorithm>
#include <string>

#include "llmc/base/error.h"
#include "llmc/comm/communicator.h"
#include "llmc/memory/plan.h"

// The arena begins as poison (0xff in every byte), which no number that training writes ends up as: what is still
// poison was not touched.
struct Touched {
  std::string untouched;  // planned buffers with a poisoned element, and where
  size_t outside = 0;     // bytes of gaps between buffers that are not poison any more
};

inline bool poisoned(const std::byte* data, size_t bytes) {
  return std::all_of(data, data + bytes, [](std::byte b) { return b == std::byte{0xff}; });
}

// touched_elsewhere(buffer, whole) returns true if another rank touches all of a buffer. `whole`: this rank does.
template <class F>
Touched look_at(const MemoryPlan& plan, const Arena& arena, F&& touched_elsewhere) {
  Touched touched;
  for (Segment segment : {Segment::device, Segment::symmetric, Segment::pinned}) {
    size_t end = 0;  // of the buffer before
    const std::byte* base = arena.base(segment);
    const auto look = [&](const MemoryPlan::Buffer& b, size_t together) {
      size_t i = 0;
      while (i < b.bytes && !poisoned(base + b.offset + i, std::min(together, b.bytes - i))) i += together;
      if (!touched_elsewhere(b, i >= b.bytes) && i < b.bytes)
        touched.untouched += format("%s, %s: byte %zu of %zu\n", b.category.c_str(), b.name.c_str(), i, b.bytes);
    };
    for (const MemoryPlan::Buffer& b : plan.buffers()) {
      if (b.segment != segment) continue;
      for (size_t i = end; i < b.offset; ++i) touched.outside += base[i] != std::byte{0xff};
      end = b.offset + b.bytes;
      bool has_parts = false;
      for (const MemoryPlan::Buffer& part : plan.parts())
        if (part.segment == segment && part.offset >= b.offset && part.offset < end) {
          // Parts share memory. A byte of somebody else's numbers may be 0xff; four such bytes are a NaN.
          look(part, part.element_bytes == 1 ? sizeof(float) : part.element_bytes), has_parts = true;
        }
      if (!has_parts) look(b, b.element_bytes);
    }
    for (size_t i = end; i < plan.bytes(segment); ++i) touched.outside += base[i] != std::byte{0xff};
  }
  return touched;
}

inline Touched look_at(const MemoryPlan& plan, const Arena& arena) {
  return look_at(plan, arena, [](const MemoryPlan::Buffer&, bool) { return false; });
}

// Muon's buffers are on all ranks what the largest slices and matrices of any rank take, so that one rank touches all
// of each. All ranks call.
inline void require_touched(const std::string& what, const MemoryPlan& plan, const Arena& arena,
                            Communicator& communicator, Stream& stream) {
  const Touched touched = look_at(plan, arena, [&](const MemoryPlan::Buffer& b, bool whole) {
    return b.category == "Muon" && sum_number(communicator, stream, whole) > 0;
  });
  REQUIRE(touched.untouched.empty() && touched.outside == 0,
          "%s: %zu bytes outside of buffers were touched, not touched:\n%s", what.c_str(), touched.outside,
          touched.untouched.c_str());
}

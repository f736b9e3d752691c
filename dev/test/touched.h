// Which bytes of a planned arena a training has touched.
#pragma once

#include <algorithm>
#include <string>

#include "llmc/base/error.h"
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

// `may_stay`: says which buffers may have poison left; null: none.
inline Touched look_at(const MemoryPlan& plan, const Arena& arena,
                       bool (*may_stay)(const MemoryPlan::Buffer&) = nullptr) {
  Touched touched;
  for (Segment segment : {Segment::device, Segment::symmetric, Segment::pinned}) {
    size_t end = 0;  // of the buffer before
    const std::byte* base = arena.base(segment);
    for (const MemoryPlan::Buffer& b : plan.buffers()) {
      if (b.segment != segment) continue;
      for (size_t i = end; i < b.offset; ++i) touched.outside += base[i] != std::byte{0xff};
      end = b.offset + b.bytes;
      if (may_stay && may_stay(b)) continue;
      for (size_t i = 0; i < b.bytes; i += b.element_bytes) {
        if (!poisoned(base + b.offset + i, b.element_bytes)) continue;
        touched.untouched += format("%s, %s: byte %zu of %zu\n", b.category.c_str(), b.name.c_str(), i, b.bytes);
        break;
      }
    }
    for (size_t i = end; i < plan.bytes(segment); ++i) touched.outside += base[i] != std::byte{0xff};
  }
  return touched;
}

inline void require_touched(const std::string& what, const MemoryPlan& plan, const Arena& arena,
                            bool (*may_stay)(const MemoryPlan::Buffer&) = nullptr) {
  const Touched touched = look_at(plan, arena, may_stay);
  REQUIRE(touched.untouched.empty() && touched.outside == 0,
          "%s: %zu bytes outside of buffers were touched, not touched:\n%s", what.c_str(), touched.outside,
          touched.untouched.c_str());
}

#include "llmc/train/not_finite.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "llmc/base/error.h"
#include "llmc/kernels/not_finite.h"

NotFiniteSearch::NotFiniteSearch(Communicator& communicator, Stream& stream, const ParameterLayout& layout,
                                 int64_t tokens, const uint32_t* fp8_word)
    : communicator_(communicator),
      stream_(stream),
      layout_(layout),
      tokens_(tokens),
      fp8_word_(fp8_word),
      first_(stream.device(), sizeof(uint32_t)) {}

// Each micro-batch begins with the embedding's output.
void NotFiniteSearch::look_at(const ObservedTensor& seen) {
  if (found_) return;
  if (seen.layer < 0 && seen.name) ++micro_batch_, position_ = 0;
  if (fp8_word_) {
    uint32_t word = 0;
    copy(stream_, &word, fp8_word_, 1);
    communicator_.wait_for(stream_);
    if (!is_finite_word(word)) return report(layout_.projections.name(not_finite_id(word)) + ", which FP8 cannot hold");
  }
  if (!seen.name) return look_at_gradients(seen);
  if (const std::optional<int64_t> at = first_in(seen.tensor)) {
    const int blocks = int(layout_.units.size()) - 2;
    const std::string where = seen.layer < 0         ? " of the embedding"
                              : seen.layer == blocks ? " in the head"
                                                     : format(" in block %d", seen.layer);
    const int64_t rows = seen.tensor.axes == 1 ? seen.tensor.size() : seen.tensor.rows();
    const int64_t columns = seen.tensor.axes == 1 ? 1 : seen.tensor.columns();
    return report(seen.name + where, rows == tokens_ ? *at / columns : -1);
  }
  ++position_;
}

void NotFiniteSearch::look_at_gradients(const ObservedTensor& seen) {
  const int unit = seen.layer < 0 ? layout_.embedding_unit() : std::min(1 + seen.layer, layout_.head_unit());
  for (const ParameterInfo& t : layout_.tensors_of(unit))
    if (first_in(seen.tensor.elements(t.offset, t.size()))) return report("the gradient of " + t.name);
  ++position_;
}

// Returns the index, row by row, of the first number that is not finite.
std::optional<int64_t> NotFiniteSearch::first_in(const Tensor& tensor) {
  constexpr int64_t kMost = int64_t(1) << 31;  // elements of a piece: find_not_finite counts in 32 bits
  const int64_t rows = tensor.shape[4 - tensor.axes], columns = tensor.size() / rows;
  const int64_t at_once = std::max<int64_t>(1, kMost / columns);
  auto* on_device = reinterpret_cast<uint32_t*>(first_.data());
  for (int64_t row = 0; row < rows; row += at_once) {
    const int64_t count = std::min(at_once, rows - row);
    uint32_t first = ~0u;
    copy(stream_, on_device, &first, 1);
    find_not_finite(stream_, tensor.slice(0, row, count), on_device);
    copy(stream_, &first, on_device, 1);
    communicator_.wait_for(stream_);
    if (first != ~0u) return row * columns + first;
  }
  return {};
}

void NotFiniteSearch::report(const std::string& tensor, int64_t token) {
  found_ = {micro_batch_, position_, tensor, token};
}

#include "llmc/train/batch_uploader.h"

#include <algorithm>

#include "llmc/base/error.h"
#include "llmc/data/token_order.h"
#include "llmc/kernels/classifier.h"

BatchUploader::BatchUploader(MemoryPlan& plan, Device& device, int micro_batches, size_t tokens, int window,
                             int sources, ContextPart context)
    : device_(device),
      micro_batches_(micro_batches),
      tokens_((tokens + 63) / 64 * 64),
      window_(window),
      several_sources_(sources > 1),
      context_(context),
      pinned_(plan.add(Segment::pinned, "batch", "tokens", DType::int32, {kSlots, micro_batches, arrays(), tokens_})),
      on_device_(plan.add(Segment::device, "batch", "tokens", DType::int32, {micro_batches, arrays(), tokens_})) {}

namespace {

void require_tokens(const int32_t* inputs, const int32_t* labels, const int32_t* positions, int B, int T, int V) {
  for (size_t i = 0; i < size_t(B) * size_t(T); ++i) {
    REQUIRE(inputs[i] >= 0 && inputs[i] < V, "token %d in row %zu, position %zu: the vocabulary has %d", inputs[i],
            i / T, i % T, V);
    REQUIRE(!labels || labels[i] == kIgnoredLabel || (labels[i] >= 0 && labels[i] < V),
            "label %d in row %zu, position %zu: the vocabulary has %d, and %d is ignored", labels[i], i / T, i % T, V,
            kIgnoredLabel);
    if (!positions) continue;
    const int t = int(i % T), position = positions[i];
    REQUIRE(
        position >= 0 && position < T && (t == 0 || position == 0 || position == positions[i - 1] + 1),
        "position %d at token %d of row %zu, after %d\n  expected the next one, below %d, or 0 where a document begins",
        position, t, i / T, t ? positions[i - 1] : -1, T);
  }
}

}  // namespace

// Fills `batch` (arrays, tokens) with one micro-batch.
void BatchUploader::fill(int* batch, const int32_t* inputs, const int32_t* labels, const int32_t* positions, int B,
                         int T, int V, int past) {
  require_tokens(inputs, labels, positions, B, T, V);
  const size_t whole = size_t(B) * size_t(T), n = whole / size_t(context_.degree);
  document_start_.resize(whole);
  for (size_t i = 0; i < whole; ++i) {
    const int t = int(i % size_t(T));
    const bool begins = t == 0 || (positions && positions[i] == 0);
    document_start_[i] = begins ? t : document_start_[i - 1];
  }
  for (size_t i = 0; i < n; ++i) {
    const size_t at = context_.place(i, B, T);
    const int t = past + int(at % size_t(T));  // in the sequence
    batch[kInputs * tokens_ + i] = inputs[at];
    batch[kLabels * tokens_ + i] = labels ? labels[at] : kIgnoredLabel;
    batch[kPositions * tokens_ + i] = positions ? positions[at] : t;
    batch[kDocumentStart * tokens_ + i] = document_start_[at];
    if (window_) batch[kWindowStart * tokens_ + i] = std::max(document_start_[at], t - window_ + 1);
  }
  sort_indices_by_token(batch, int(n), batch + kOrder * tokens_, sort_scratch_);
}

void BatchUploader::fill_sources(int* batch, const int32_t* row_sources, int B, int T) {
  const size_t n = size_t(B) * size_t(T) / size_t(context_.degree);
  for (size_t i = 0; i < n; ++i)
    batch[size_t(source_array()) * tokens_ + i] = row_sources ? row_sources[context_.place(i, B, T) / size_t(T)] : 0;
}

void BatchUploader::send(Stream& stream, int micro_batches, const int32_t* inputs, const int32_t* labels,
                         const int32_t* positions, int B, int T, int V, int past, const int32_t* row_sources) {
  const size_t n = size_t(B) * size_t(T);
  REQUIRE(
      B > 0 && T > 0 && T % context_.multiple() == 0 && n <= tokens_ * size_t(context_.degree),
      "a micro-batch of %d x %d tokens for %d ranks\n  expected sequences of a multiple of %d, and at most %zu tokens "
      "for each, as planned",
      B, T, context_.degree, context_.multiple(), tokens_);
  REQUIRE(micro_batches > 0 && micro_batches <= micro_batches_, "%d micro-batches, planned were at most %d",
          micro_batches, micro_batches_);
  const Tensor slot = pinned_->at(slot_).first({micro_batches, arrays(), tokens_});
  slot_ = (slot_ + 1) % kSlots;
  host_accesses(device_, "the next step's tokens", {writes(slot)});
  for (size_t k = 0; device_.executes() && k < size_t(micro_batches); ++k) {  // a modelled device has no memory to fill
    int* batch = slot.at(k).as<int>();
    fill(batch, inputs + k * n, labels ? labels + k * n : nullptr, positions ? positions + k * n : nullptr, B, T, V,
         past);
    if (several_sources_) fill_sources(batch, row_sources ? row_sources + k * size_t(B) : nullptr, B, T);
  }
  packed_ = positions != nullptr;
  B_ = B, T_ = T;
  copy(stream, on_device_->first({micro_batches, arrays(), tokens_}), slot);
}

MicroBatch BatchUploader::micro_batch(int index) const {
  const Tensor all = on_device_->at(index);
  const auto array = [&](int a) { return all.at(a).elements(0, int64_t(B_) * T_ / context_.degree); };
  return {.inputs = array(kInputs),
          .labels = array(kLabels),
          .positions = array(kPositions),
          .order = array(kOrder),
          .document_start = packed_ ? array(kDocumentStart) : Tensor(),
          .window_start = window_ ? array(kWindowStart) : Tensor(),
          .sources = several_sources_ ? array(source_array()) : Tensor(),
          .B = B_,
          .T = T_};
}

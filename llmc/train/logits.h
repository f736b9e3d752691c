// The logits and losses of the last forward pass, on the host. Samples and test_llama read logits here, as the product
// with the head leaves them (Head::logits). Losses, those of --eval-choices too, come from the classifier. A change of
// the logits, such as a cap, must be made where both see it.
#pragma once

#include <algorithm>
#include <optional>
#include <span>
#include <vector>

#include "llmc/base/error.h"
#include "llmc/device/number.h"
#include "llmc/model/transformer.h"
#include "llmc/train/batch_uploader.h"

// Sequences (B, seq_len), padded with tokens at their ends until their length T is a multiple of `multiple`. Attention
// is causal, so the padding does not change what comes before it.
struct PaddedRows {
  const int T;

  PaddedRows(std::span<const int32_t> inputs, std::span<const int32_t> positions, int B, int seq_len, int multiple)
      : T((seq_len + multiple - 1) / multiple * multiple), seq_len_(seq_len), inputs_(inputs), positions_(positions) {
    if (T == seq_len) return;
    for (size_t row = 0; row < size_t(B); ++row)
      for (int t = 0; t < T; ++t) {
        const size_t last = row * size_t(seq_len) + size_t(std::min(t, seq_len - 1));
        padded_inputs_.push_back(inputs[last]);
        if (!positions.empty()) padded_positions_.push_back(positions[last] + std::max(t - (seq_len - 1), 0));
      }
    inputs_ = padded_inputs_, positions_ = padded_positions_;
  }
  PaddedRows(const PaddedRows&) = delete;

  const int32_t* inputs() const { return inputs_.data(); }
  const int32_t* positions() const { return positions_.empty() ? nullptr : positions_.data(); }
  int place(int row) const { return row / seq_len_ * T + row % seq_len_; }

 private:
  const int seq_len_;
  std::span<const int32_t> inputs_, positions_;
  std::vector<int32_t> padded_inputs_, padded_positions_;
};

// Copies an fp32 or bf16 tensor to the host, as fp32. The host waits.
inline void read_numbers(Stream& compute, const Tensor& from, std::vector<float>& numbers) {
  const size_t count = size_t(from.size());
  numbers.resize(count);
  with_type("read_numbers", from.type, [&](auto number) {
    std::vector<decltype(number)> copied(count);
    copy(compute, copied.data(), from.as<decltype(number)>(), count);
    compute.synchronize();
    std::transform(copied.begin(), copied.end(), numbers.begin(), [](auto x) { return to_float(x); });
  });
}

// Returns rows begin .. end-1 of the logits of sequences (B, seq_len), as (end - begin, V) in fp32. The host waits. The
// head computes its chunks of rows again. All ranks that compute the same sequences call.
inline std::vector<float> read_logits(Transformer& transformer, Stream& compute, int B, int seq_len, int begin,
                                      int end) {
  const ContextPart own = transformer.context_part();
  const size_t V = size_t(transformer.vocabulary());
  std::vector<float> result(size_t(end - begin) * V);
  std::vector<float> numbers;
  Tensor logits;
  for (int row = 0, computed = -1; row < transformer.tokens(); ++row) {
    // The place of this row in the result, for each rank that shares the sequences; -1: not wanted.
    std::vector<int> places;
    for (int rank = 0; rank < own.degree; ++rank) {
      const int place = int(ContextPart{own.degree, rank}.place(size_t(row), B, seq_len));
      places.push_back(place >= begin && place < end ? place - begin : -1);
    }
    if (std::all_of(places.begin(), places.end(), [](int place) { return place < 0; })) continue;
    if (const int first = row / transformer.head_chunk() * transformer.head_chunk(); first != computed)
      logits = transformer.logits(computed = first);
    const Transformer::RowParts parts = transformer.row_parts(logits, row - computed);
    const size_t each = size_t(parts.ranks) * size_t(parts.stride);
    read_numbers(compute, parts.data, numbers);
    for (size_t rank = 0; rank < places.size(); ++rank)
      for (size_t v = 0; places[rank] >= 0 && v < V; ++v)
        result[size_t(places[rank]) * V + v] =
            numbers[rank * each + v / size_t(parts.V) * size_t(parts.stride) + v % size_t(parts.V)];
  }
  return result;
}

// Returns the logits (B * seq_len, V) of sequences (B, seq_len), or those of row `only_row` alone. `positions` are
// those of packed documents, or empty. As with read_logits(), the host waits and all ranks that compute the same
// sequences call.
inline std::vector<float> compute_logits(Transformer& transformer, BatchUploader& batches, Stream& compute,
                                         std::span<const int32_t> inputs, std::span<const int32_t> positions, int B,
                                         int seq_len, std::optional<int> only_row) {
  const int N = B * seq_len;
  REQUIRE(inputs.size() == size_t(N) && (!only_row || (*only_row >= 0 && *only_row < N)),
          "logits of %zu tokens as %d x %d, row %d", inputs.size(), B, seq_len, only_row.value_or(-1));
  REQUIRE(positions.empty() || positions.size() == inputs.size(), "%zu positions of %d tokens", positions.size(), N);
  const PaddedRows rows(inputs, positions, B, seq_len, transformer.context_part().multiple());
  batches.send(compute, 1, rows.inputs(), nullptr, rows.positions(), B, rows.T, transformer.vocabulary());
  transformer.forward(batches.micro_batch(), false);
  if (only_row) return read_logits(transformer, compute, B, rows.T, rows.place(*only_row), rows.place(*only_row) + 1);
  if (rows.T == seq_len) return read_logits(transformer, compute, B, rows.T, 0, N);
  std::vector<float> all;
  for (int b = 0; b < B; ++b) {
    const std::vector<float> of_row = read_logits(transformer, compute, B, rows.T, b * rows.T, b * rows.T + seq_len);
    all.insert(all.end(), of_row.begin(), of_row.end());
  }
  return all;
}

// Returns the losses (B, seq_len) of the last forward_loss(). `sequence_group` spans the ranks that compute the same
// sequences, which all call; null: this rank alone.
inline std::vector<float> read_losses(const Transformer& transformer, Stream& compute, Communicator* sequence_group,
                                      int B, int seq_len) {
  const ContextPart own = transformer.context_part();
  const size_t mine = size_t(transformer.tokens()), ranks = sequence_group ? size_t(sequence_group->size()) : 1;
  std::vector<float> numbers(ranks * mine), losses(size_t(B) * size_t(seq_len));
  if (sequence_group) {
    const DeviceMemory all(compute.device(), numbers.size() * sizeof(float));
    sequence_group->all_gather(compute, all.data(), transformer.losses().data, mine * sizeof(float));
    sequence_group->wait_for(compute);
    copy(compute, numbers.data(), reinterpret_cast<const float*>(all.data()), numbers.size());
    compute.synchronize();
  } else {
    copy(compute, numbers.data(), transformer.losses().as<float>(), numbers.size());
    compute.synchronize();
  }
  for (int rank = 0; rank < own.degree; ++rank) {
    const float* theirs = numbers.data() + size_t(rank) * ranks / size_t(own.degree) * mine;
    for (size_t i = 0; i < mine; ++i) losses[ContextPart{own.degree, rank}.place(i, B, seq_len)] = theirs[i];
  }
  return losses;
}

#include "llmc/data/sampler.h"

#include <algorithm>
#include <bit>
#include <numeric>
#include <utility>

#include "llmc/base/error.h"
#include "llmc/kernels/classifier.h"

namespace {

// The finalizer of SplitMix64 (Steele, Lea & Flood 2014, Fast Splittable Pseudorandom Number Generators): every bit of
// x affects every bit of the result.
uint64_t mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

// Returns the fraction shift / 2^64 of `room`, rounded down. For a random shift, all values in [0, room) are equally
// likely, except for a relative error of room / 2^64.
int64_t scale(uint64_t shift, int64_t room) {
  return int64_t((unsigned __int128)shift * (unsigned __int128)room >> 64);
}

int64_t ceil_divide(int64_t a, int64_t b) { return (a + b - 1) / b; }

int64_t sequence_of(int64_t micro_batch, int data_ranks, int rank, int B, int row) {
  return micro_batch * (int64_t(data_ranks) * B) + int64_t(rank) * B + row;
}

}  // namespace

Permutation::Permutation(int64_t size, uint64_t seed, uint64_t stream) : size_(uint64_t(size)) {
  REQUIRE(size >= 1, "a permutation of %lld numbers\n  expected at least 1", (long long)size);
  const int bits = int(std::bit_width(size_ - 1));
  left_bits_ = bits / 2;
  right_bits_ = bits - left_bits_;
  for (uint64_t round = 0; round < kRounds; round++) keys_[round] = mix(mix(mix(seed) ^ stream) ^ round);
}

int64_t Permutation::operator()(int64_t index) const {
  REQUIRE(index >= 0 && uint64_t(index) < size_, "number %lld of a permutation of %llu", (long long)index,
          (unsigned long long)size_);
  const uint64_t left_mask = (uint64_t(1) << left_bits_) - 1, right_mask = (uint64_t(1) << right_bits_) - 1;
  uint64_t x = uint64_t(index);
  do {
    uint64_t left = x >> right_bits_, right = x & right_mask;
    for (int round = 0; round < kRounds; round += 2) {
      left ^= mix(keys_[round] ^ right) & left_mask;
      right ^= mix(keys_[round + 1] ^ left) & right_mask;
    }
    x = left << right_bits_ | right;
  } while (x >= size_);
  return int64_t(x);
}

Windows::Windows(TokenDataset data, int T, int64_t fewest) : data_(std::move(data)), T_(T) {
  REQUIRE(T >= 1, "windows of %d tokens\n  expected at least 1", T);
  if (fewest == 0) fewest = int64_t(T) + 1;
  count_ = ceil_divide(data_.size(), T);
  REQUIRE(
      data_.size() >= fewest,
      "no sequence of %d tokens and a label fits: the data has %lld tokens in %d file%s, the first is %s\n  expected "
      "%lld: lower --seq-len to %lld or less, or give more data",
      T, (long long)data_.size(), data_.shards(), data_.shards() == 1 ? "" : "s",
      data_.shards() ? data_.shard_path(0).c_str() : "missing", (long long)fewest,
      (long long)std::max<int64_t>(1, data_.size() - 1));
}

Windows::Place Windows::place(int64_t index, uint64_t shift) const {
  REQUIRE(index >= 0 && index < count(), "window %lld of %lld", (long long)index, (long long)count());
  const int64_t before = index * T_;
  return {(before + scale(shift, T_)) % data_.size(), int(std::min<int64_t>(T_, data_.size() - before))};
}

void Windows::verify(Place place) const {
  const int64_t left = data_.size() - place.start, first = std::min<int64_t>(place.tokens + 1, left);
  data_.verify(place.start, first);
  if (place.tokens > left) data_.verify(0, std::min<int64_t>(place.tokens - left + 1, data_.size()));
}

void Windows::read(Place place, int32_t* inputs, int32_t* labels) const {
  std::fill_n(inputs, T_, 0);
  std::fill_n(labels, T_, kIgnoredLabel);
  std::vector<int32_t> tokens(size_t(T_) + 1);
  std::vector<uint8_t> mask(data_.has_masks() ? size_t(T_) : 0);
  int64_t start = place.start;  // a place may continue at the data's first token; the token before that has no label
  for (int64_t done = 0; done < place.tokens; start = 0) {
    const int64_t left = data_.size() - start;
    const int64_t with_input = std::min(place.tokens - done, left), with_label = std::min(with_input, left - 1);
    data_.read(start, with_label + 1, tokens.data());
    std::copy_n(tokens.data(), with_input, inputs + done);
    std::copy_n(tokens.data() + 1, with_label, labels + done);
    if (data_.has_masks()) data_.read_mask(start + 1, with_label, mask.data());
    for (int64_t t = 0; data_.has_masks() && t < with_label; ++t)
      if (!mask[size_t(t)]) labels[done + t] = kIgnoredLabel;
    done += with_input;
  }
}

int64_t BatchLayout::micro_batches() const {
  REQUIRE(G >= 1 && data_ranks >= 1 && B >= 1,
          "a global batch of %lld sequences, %d data ranks, a micro-batch of %d\n  expected at "
          "least 1 of each",
          (long long)G, data_ranks, B);
  const int64_t together = int64_t(data_ranks) * B;
  REQUIRE(G % together == 0,
          "a global batch of %lld sequences is not a multiple of %d data ranks x micro-batch %d = %lld\n  change "
          "--global-batch (to %lld, say), --micro-batch or the number of ranks",
          (long long)G, data_ranks, B, (long long)together, (long long)((G + together - 1) / together * together));
  return G / together;
}

int64_t BatchLayout::sequence(int64_t step, int64_t micro_batch, int rank, int row) const {
  REQUIRE(step >= 0 && micro_batch >= 0 && micro_batch < micro_batches() && rank >= 0 && rank < data_ranks &&
              row >= 0 && row < B,
          "row %d of micro-step %lld of rank %d in step %lld\n  expected at most %d rows, %lld micro-steps, %d ranks",
          row, (long long)micro_batch, rank, (long long)step, B, (long long)micro_batches(), data_ranks);
  return step * G + sequence_of(micro_batch, data_ranks, rank, B, row);
}

namespace {

std::vector<int64_t> weights_of(const DataSources& sources) {
  std::vector<int64_t> weights;
  for (const DataSource& source : sources) weights.push_back(source.weight);
  return weights;
}

Windows windows_of(const DataSource& source, int T) {
  try {
    return Windows(source.tokens, T);
  } catch (const Error& error) {
    fail("%s%s", error_prefix(source).c_str(), error.what());
  }
}

}  // namespace

// Source 0 has the seed itself, so that a mixture of one source has the order of that data alone.
Sampler::Sampler(const DataSources& sources, int T, uint64_t seed) : mixture_(weights_of(sources)) {
  for (const DataSource& source : sources) {
    const uint64_t number = sources_.size();
    sources_.push_back({windows_of(source, T), source.documents, number ? mix(mix(seed) ^ ~number) : seed});
  }
}

Sampler::Sampler(TokenDataset data, int T, uint64_t seed)
    : Sampler(DataSources{{.tokens = std::move(data)}}, T, seed) {}

bool Sampler::packs() const {
  return std::ranges::any_of(sources_, [](const Source& source) { return source.documents.has_value(); });
}

void Sampler::leave_out(const std::vector<BadStep>& steps) {
  left_out_.clear();
  for (const BadStep& step : steps) left_out_.insert(left_out_.end(), step.samples.begin(), step.samples.end());
}

int64_t Sampler::number_of(int64_t g) const {
  for (const SampleRange& range : left_out_) {
    if (g < range.first) break;
    g += range.last - range.first + 1;
  }
  return g;
}

std::vector<SampleRange> Sampler::numbers_of(int64_t g, int64_t count) const {
  std::vector<SampleRange> ranges;
  for (int64_t i = g; i < g + count; ++i) {
    const int64_t number = number_of(i);
    if (ranges.empty() || ranges.back().last + 1 != number) ranges.push_back({number, number});
    ranges.back().last = number;
  }
  return ranges;
}

Sampler::Place Sampler::place(int64_t g) const {
  const auto [source, index] = mixture_.sequence(number_of(g));
  return place_in(source, index);
}

Sampler::Place Sampler::place_in(int source, int64_t index) const {
  const Source& from = sources_[size_t(source)];
  const int64_t W = from.windows.count();
  // Epoch e uses streams 2e and 2e+1 of the seed: one for its order, one for the shift of its windows.
  const uint64_t epoch = uint64_t(index / W);
  const Permutation order(W, from.seed, 2 * epoch);
  return {from.windows.place(order(index % W), mix(mix(from.seed) ^ (2 * epoch + 1))), source};
}

void Sampler::read(Place place, int32_t* inputs, int32_t* labels, int32_t* positions) const {
  const auto& [windows, documents, seed] = sources_[size_t(place.source)];
  windows.read(place, inputs, labels);
  if (!positions) return;
  if (documents) split_documents(*documents, inputs, labels, positions, T());
  else std::iota(positions, positions + T(), 0);
}

void Sampler::fill(const BatchLayout& layout, int64_t step, int64_t micro_batch, int rank, int32_t* inputs,
                   int32_t* labels, int32_t* positions, int32_t* sources) const {
  for (int b = 0; b < layout.B; b++) {
    const size_t row = size_t(b) * size_t(T());
    const Place sequence = place(layout.sequence(step, micro_batch, rank, b));
    windows(sequence.source).verify(sequence);
    read(sequence, inputs + row, labels + row, positions ? positions + row : nullptr);
    if (sources) sources[b] = sequence.source;
  }
}

ValidationWindows::ValidationWindows(TokenDataset data, int T, int64_t count)
    : windows_(std::move(data), T, 2),
      labelled_(std::min(windows_.count(), ceil_divide(windows_.data().size() - 1, T))) {
  REQUIRE(count >= 1, "%lld validation windows\n  expected at least 1", (long long)count);
  count_ = std::min(count, labelled_);
}

Windows::Place ValidationWindows::place(int64_t i) const {
  REQUIRE(i >= 0 && i < count_, "validation window %lld of %lld", (long long)i, (long long)count_);
  return windows_.place(int64_t((__int128)i * labelled_ / count_), 0);
}

int64_t ValidationWindows::micro_batches(int data_ranks, int B) const {
  REQUIRE(data_ranks >= 1 && B >= 1, "validation on %d data ranks with micro-batch %d\n  expected at least 1 of each",
          data_ranks, B);
  const int64_t together = int64_t(data_ranks) * B;
  return ceil_divide(count_, together);
}

int ValidationWindows::fill(int data_ranks, int B, int64_t micro_batch, int rank, int32_t* inputs,
                            int32_t* labels) const {
  REQUIRE(micro_batch >= 0 && micro_batch < micro_batches(data_ranks, B) && rank >= 0 && rank < data_ranks,
          "validation micro-step %lld of rank %d\n  expected at most %lld micro-steps, %d ranks",
          (long long)micro_batch, rank, (long long)micro_batches(data_ranks, B), data_ranks);
  const size_t T = size_t(windows_.T());
  int rows = 0;
  for (int b = 0; b < B; b++) {
    const int64_t i = sequence_of(micro_batch, data_ranks, rank, B, b);
    if (i < count_) {
      windows_.verify(place(i));
      windows_.read(place(i), inputs + size_t(b) * T, labels + size_t(b) * T);
      rows++;
    } else {
      std::fill_n(inputs + size_t(b) * T, T, 0);
      std::fill_n(labels + size_t(b) * T, T, kIgnoredLabel);
    }
  }
  return rows;
}

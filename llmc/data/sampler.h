// Decides which tokens a training step sees: a pure function of (seed, sequence number), without state, and the same
// for any number of ranks.
//
//   windows   The concatenation of the dataset's files, in the order of their names, is split into windows of T tokens
//             that do not overlap. A sequence is a window's T tokens and, as labels, the T tokens one further on. The
//             last token of all has no label.
//   epochs    With W windows in all, sequence g (from 0, over the whole run) is number g % W of epoch g / W. Each epoch
//             visits each window once, in a pseudo-random order of its own. Each epoch also draws the token, in [0, T),
//             at which its first window begins, so that the borders between sequences move from epoch to epoch. After
//             the last token of all the windows continue with the first one. Each token is an input exactly once an
//             epoch: n tokens are W = ceil(n / T) windows, of which one has fewer than T tokens if n is not a multiple
//             of T.
//   mixtures  Each of several sources has windows and epochs of its own, and a seed that follows from its number.
//             Mixture says which source's sequence g is, and which of the source's sequences it is.
//   steps     Step s trains on the sequences s G to s G + G-1, whoever computes them: see BatchLayout.
//   left out  A training may leave out ranges of sequences (bad_samples.h). Those after them then take their places: the
//             g-th sequence of the training is the g-th of those that are left. So the steps before a range, which are
//             done, keep theirs, no sequence comes twice, and the length of the run does not matter.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "llmc/data/bad_samples.h"
#include "llmc/data/data_sources.h"
#include "llmc/data/mixture.h"
#include "llmc/data/token_dataset.h"

// A pseudo-random permutation of [0, size), keyed by (seed, stream): a Feistel network over the next power of two. A
// number that leaves the range is sent through again until it is back in it ("cycle walking": Black & Rogaway 2002,
// Ciphers with Arbitrary Finite Domains). It takes constant time and memory; the expected number of turns is below two.
class Permutation {
 public:
  // Throws if size < 1.
  Permutation(int64_t size, uint64_t seed, uint64_t stream);
  // Returns the image of `index`. Throws if `index` is not in [0, size).
  int64_t operator()(int64_t index) const;

 private:
  static constexpr int kRounds = 8;
  uint64_t size_;
  int left_bits_, right_bits_;
  uint64_t keys_[kRounds];
};

// The windows of T tokens in a dataset, numbered.
class Windows {
 public:
  // Throws if T < 1, or if the data have fewer than `fewest` tokens (0: a sequence's T+1). Data of 2 to T tokens are
  // one window, which is not full.
  Windows(TokenDataset data, int T, int64_t fewest = 0);

  int64_t count() const { return count_; }  // the same in every epoch
  int T() const { return T_; }
  const TokenDataset& data() const { return data_; }

  struct Place {
    int64_t start;  // first token, in the concatenation
    int tokens;     // up to T; those beyond the dataset's end are its first ones
  };
  // Returns window `index` when the first window begins at token shift / 2^64 * T, rounded down: a random 64-bit
  // `shift` draws it from [0, T). Throws on an index outside [0, count).
  Place place(int64_t index, uint64_t shift) const;

  // Verifies the files at a place (TokenDataset::verify).
  void verify(Place place) const;
  // Reads the tokens at a place and their labels, T each: labels[t] is the token that follows inputs[t], or -100 if its
  // mask says that its loss does not count. If the place has fewer than T tokens, the rest is filled with inputs 0 and
  // labels -100.
  void read(Place place, int32_t* inputs, int32_t* labels) const;

 private:
  TokenDataset data_;
  int T_;
  int64_t count_;
};

// How a step's G sequences are distributed over D data ranks: row b of micro-batch k of data rank r is sequence
// s G + k (D B) + r B + b. Each of the step's G sequences belongs to exactly one (k, r, b).
struct BatchLayout {
  int64_t G;       // global batch: sequences of a step
  int data_ranks;  // D
  int B;           // sequences of a micro-batch

  // Returns the micro-batches of a step of one rank, G / (D B). Throws if that is not a whole number, and says what to
  // do.
  int64_t micro_batches() const;
  int64_t sequence(int64_t step, int64_t micro_batch, int rank, int row) const;
};

class Sampler {
 public:
  // Throws as Windows does, with the name of the source, and as Mixture does.
  Sampler(const DataSources& sources, int T, uint64_t seed);
  Sampler(TokenDataset data, int T, uint64_t seed);  // of one source without a name

  int T() const { return sources_[0].windows.T(); }
  const Mixture& mixture() const { return mixture_; }
  int64_t sequences_per_epoch(int source = 0) const { return windows(source).count(); }
  const Windows& windows(int source = 0) const { return sources_[size_t(source)].windows; }
  // True if rows are packed with several documents, in one source at least.
  bool packs() const;

  // Leaves out the samples of these steps, which rise (bad_steps_of).
  void leave_out(const std::vector<BadStep>& steps);
  // Returns the number of the g-th sequence of the training, from 0, among all: g, if none before it is left out; and
  // the ranges that `count` of them make.
  int64_t number_of(int64_t g) const;
  std::vector<SampleRange> numbers_of(int64_t g, int64_t count) const;

  struct Place : Windows::Place {
    int source;
  };
  // Returns the place of the g-th sequence of the training, from 0; and that of sequence `index` of one source.
  Place place(int64_t g) const;
  Place place_in(int source, int64_t index) const;
  // Reads the sequence at a place: inputs (T) and labels (T) as Windows::read() does. With `positions` (T), splits it
  // into the source's documents (split_documents); a source without a rule has one document a row.
  void read(Place place, int32_t* inputs, int32_t* labels, int32_t* positions = nullptr) const;

  // Fills the rows of a micro-batch, from files that it verifies: inputs, labels and, unless they are null, positions
  // (B, T), and sources (B). Throws outside the layout, or if a file was altered.
  void fill(const BatchLayout& layout, int64_t step, int64_t micro_batch, int rank, int32_t* inputs, int32_t* labels,
            int32_t* positions = nullptr, int32_t* sources = nullptr) const;

 private:
  struct Source {
    Windows windows;
    std::optional<DocumentRule> documents;
    uint64_t seed;
  };
  std::vector<Source> sources_;
  Mixture mixture_;
  std::vector<SampleRange> left_out_;
};

// A fixed set of windows to measure a loss on: at most `count` of them, evenly spread over the dataset and not shifted.
// Window i of n is the same for any number of ranks and any micro-batch.
class ValidationWindows {
 public:
  // Throws if count < 1, and as Windows does, but takes data of 2 tokens.
  ValidationWindows(TokenDataset data, int T, int64_t count);

  int64_t count() const { return count_; }          // the smaller of the requested count and what the dataset has
  bool all() const { return count_ == labelled_; }  // all that the dataset has
  const Windows& windows() const { return windows_; }
  Windows::Place place(int64_t i) const;

  // Returns the number of micro-batches of B rows in which the data ranks see all windows once. Some rows of the last
  // one may have no window.
  int64_t micro_batches(int data_ranks, int B) const;
  // As Sampler::fill, with window k (D B) + r B + b in row b. A row beyond the last window has inputs 0 and labels
  // -100, which the loss ignores. Returns how many rows have a window.
  int fill(int data_ranks, int B, int64_t micro_batch, int rank, int32_t* inputs, int32_t* labels) const;

 private:
  Windows windows_;
  int64_t labelled_;  // windows with a label: one that holds only the dataset's last token has none
  int64_t count_;
};

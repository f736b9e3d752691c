// Decides which source of a mixture a sample is from, and which of the source's samples it is: a pure function of the
// sample's number, for any number of ranks. All samples of a run have the same length, so that shares of samples are
// shares of tokens.
//
// The weights p_1 .. p_k of the sources are whole numbers with the sum D, and source i has the share p_i / D. Samples
// are assigned by the method of Tijdeman (1980, The chairman assignment problem, Discrete Mathematics 32): sample n,
// from 1, goes to one of the sources whose lag p_i n / D - c_i, with c_i samples so far, is at least 1/(2k - 2). The
// lags add up to 1, so there is one. Of these it is the source that would be the first to lag by more than 1 - 1/(2k -
// 2) if it went on without a sample; of equals the first. Tijdeman proves that |p_i n / D - c_i| <= 1 - 1/(2k - 2) < 1
// after each sample n, for each source:
//
//   prefixes   of any first n samples, source i has less than one sample more or fewer than n p_i / D
//   windows    of any n consecutive samples, it has less than two more or fewer: the difference of two prefixes
//   period     after D samples each lag is a whole number below 1, so it is 0, and the assignment begins again: a table
//              of D samples holds all of it
#pragma once

#include <cstdint>
#include <vector>

class Mixture {
 public:
  // The most samples after which shares may repeat; a table of so many takes 8 MB.
  static constexpr int64_t kLongestPeriod = 1'000'000;

  // Returns the weights divided by their greatest common divisor. Throws unless each is at least 1, and their sum is
  // then at most kLongestPeriod.
  static std::vector<int64_t> reduced(std::vector<int64_t> weights);

  // Reduces the weights likewise.
  explicit Mixture(const std::vector<int64_t>& weights);

  int sources() const { return int(weights_.size()); }
  int64_t period() const { return int64_t(table_.size()); }
  double share(int source) const { return double(weights_[size_t(source)]) / double(period()); }

  struct Sample {
    int source;
    int64_t index;  // in the source: the number of its samples before this one
  };
  // Returns sample g, from 0. Takes constant time.
  Sample sample(int64_t g) const;
  // Returns how many of the first n samples are the source's.
  int64_t samples(int source, int64_t n) const;

 private:
  struct Entry {
    int32_t source, index;  // of a sample of the first period
  };
  std::vector<int64_t> weights_;
  std::vector<Entry> table_;  // (D)
};

// Decides which source of a mixture a sequence is from, and which of the source's sequences it is: a pure function of
// the sequence's number, for any number of ranks. All sequences of a run have the same length, so that shares of
// sequences are shares of tokens.
//
// The weights p_1 .. p_k of the sources are whole numbers with the sum D, and source i has the share p_i / D. Sequences
// are assigned by the method of Tijdeman (1980, The chairman assignment problem, Discrete Mathematics 32). With
// m = 2k - 2, sequence n, from 1, goes to one of the sources whose lag p_i n / D - c_i is at least 1 / m, where c_i
// counts the source's sequences so far. The lags of all sources add up to 1, so there is one. Of these sources it is
// the one whose lag would be the first to exceed 1 - 1 / m if it got no sequence; of equals the first. Tijdeman proves
// that |p_i n / D - c_i| <= 1 - 1 / m < 1 after each sequence n, for each source:
//
//   prefixes   of any first n sequences, source i has less than one sequence more or fewer than n p_i / D
//   windows    of any n consecutive sequences, it has less than two more or fewer: the difference of two prefixes
//   period     after D sequences each lag is a whole number below 1, so it is 0, and the assignment begins again: a
//              table of D sequences holds all of it
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

class Mixture {
 public:
  // The most sequences after which shares may repeat; a table of so many takes 8 MB.
  static constexpr int64_t kLongestPeriod = 1'000'000;

  // Returns the weights divided by their greatest common divisor. Throws unless each is at least 1, and their sum is
  // then at most kLongestPeriod.
  static std::vector<int64_t> reduced(std::vector<int64_t> weights);

  // Reduces the weights likewise.
  explicit Mixture(const std::vector<int64_t>& weights);

  int sources() const { return int(weights_.size()); }
  int64_t period() const { return int64_t(table_.size()); }
  double share(int source) const { return double(weights_[size_t(source)]) / double(period()); }

  struct Sequence {
    int source;
    int64_t index;  // in the source: the number of its sequences before this one
  };
  // Returns sequence g, from 0. Takes constant time.
  Sequence sequence(int64_t g) const;
  // Returns how many of the first n sequences are the source's.
  int64_t sequences(int source, int64_t n) const;

 private:
  struct Entry {
    int32_t source, index;  // of a sequence of the first period
  };
  std::vector<int64_t> weights_;
  std::vector<Entry> table_;  // (D)
};

#include "llmc/data/mixture.h"

#include <algorithm>
#include <numeric>

#include "llmc/base/error.h"

std::vector<int64_t> Mixture::reduced(std::vector<int64_t> weights) {
  REQUIRE(!weights.empty() && *std::ranges::min_element(weights) >= 1,
          "a mixture of %zu sources\n  expected at least one, and a weight of at least 1 for each", weights.size());
  const int64_t divisor = std::reduce(weights.begin(), weights.end(), int64_t(0), std::gcd<int64_t, int64_t>);
  double sum = 0;  // it may be beyond 64 bits
  for (int64_t& weight : weights) sum += double(weight /= divisor);
  REQUIRE(sum <= double(kLongestPeriod),
          "the order of a mixture with these shares would repeat after %.15g sequences\n  expected at most %lld: give "
          "the shares fewer digits",
          sum, (long long)kLongestPeriod);
  return weights;
}

// All numbers are whole: a lag is times D, and compared with D / m for m = 2k - 2. One source is taken for one of two.
Mixture::Mixture(const std::vector<int64_t>& weights) : weights_(reduced(weights)) {
  const int64_t D = std::reduce(weights_.begin(), weights_.end()), m = 2 * std::max<int64_t>(2, sources()) - 2;
  std::vector<int64_t> lags(weights_.size());
  std::vector<int32_t> counts(weights_.size());
  for (int64_t n = 1; n <= D; ++n) {
    size_t next = weights_.size();
    int64_t left = 0;  // m D times the sequences until `next` lags by more than 1 - 1/m, times its share
    for (size_t i = 0; i < lags.size(); ++i) {
      lags[i] += weights_[i];
      if (m * lags[i] < D) continue;
      const int64_t own = (m - 1) * D - m * lags[i];
      if (next == lags.size() || own * weights_[next] < left * weights_[i]) next = i, left = own;
    }
    table_.push_back({int32_t(next), counts[next]++});
    lags[next] -= D;
  }
}

Mixture::Sequence Mixture::sequence(int64_t g) const {
  REQUIRE(g >= 0, "sample %lld\n  expected 0 or more", (long long)g);
  const Entry& entry = table_[size_t(g % period())];
  return {entry.source, g / period() * weights_[size_t(entry.source)] + entry.index};
}

int64_t Mixture::sequences(int source, int64_t n) const {
  const auto of_source = [&](const Entry& entry) { return entry.source == source; };
  return n / period() * weights_[size_t(source)] +
         std::count_if(table_.begin(), table_.begin() + n % period(), of_source);
}

#include "llmc/run/rank_times.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "llmc/base/error.h"

double SlowRanks::median(std::vector<double> seconds) {
  const auto middle = seconds.begin() + std::ptrdiff_t(seconds.size() - 1) / 2;
  std::nth_element(seconds.begin(), middle, seconds.end());
  return *middle;
}

// Returns how far most ranks are from the median: all but the farthest quarter or so, which may be slow at once. With
// two ranks it is 0.
static double spread(std::vector<double> seconds, double median) {
  for (double& x : seconds) x = std::abs(x - median);
  const auto most = seconds.begin() + std::ptrdiff_t(0.7 * double(seconds.size() - 1));
  std::nth_element(seconds.begin(), most, seconds.end());
  return *most;
}

bool SlowRanks::is_slow(size_t rank) const {
  double least = std::numeric_limits<double>::max(), middle = 0;
  for (const Measurement& m : last_) {
    if (m.seconds[rank] <= m.most) return false;
    least = std::min(least, m.seconds[rank]), middle = std::max(middle, m.median);
  }
  return last_.size() == kMany && least > kSlow * middle;
}

std::vector<int> SlowRanks::take(const std::vector<double>& seconds, std::vector<int>& recovered) {
  slow_.resize(seconds.size());
  const double middle = median(seconds);
  const double most = middle + std::max((kSlow - 1) * middle, kSpreads * spread(seconds, middle));
  last_.push_back({seconds, middle, most});
  if (last_.size() > kMany) last_.pop_front();
  std::vector<int> slow;
  for (size_t rank = 0; rank < seconds.size(); ++rank) {
    if (!slow_[rank] && is_slow(rank)) slow_[rank] = true, slow.push_back(int(rank));
    if (!slow_[rank] || seconds[rank] > most) continue;
    slow_[rank] = false;
    recovered.push_back(int(rank));
  }
  return slow;
}

RankTimes::RankTimes(Trainer& trainer, Communicator& communicator, Device& device)
    : trainer_(trainer), places_(gather_places(communicator, device)), times_(places_.size()) {
  if (device.info().gpu) sensors_.emplace(device.info().uuid);
}

void RankTimes::read_sensors() {
  if (sensors_) own_.sensors = sensors_->read();
}

void RankTimes::take(const Record& record) { own_.seconds = record.busy_seconds("compute"); }

void RankTimes::exchange() {
  times_ = trainer_.exchange(own_);
  judge();
}

size_t RankTimes::slowest() const {
  const auto longer = [](const RankTime& a, const RankTime& b) { return a.seconds < b.seconds; };
  return size_t(std::max_element(times_.begin(), times_.end(), longer) - times_.begin());
}

void RankTimes::judge() {
  news_.clear();
  if (!records()) return;
  std::vector<double> seconds;
  for (const RankTime& time : times_) seconds.push_back(time.seconds);
  const double median = SlowRanks::median(seconds);
  std::vector<int> recovered;
  for (const int rank : slow_.take(seconds, recovered)) {
    const double own = seconds[size_t(rank)];
    const auto usual = size_t(std::find(seconds.begin(), seconds.end(), median) - seconds.begin());
    const std::string sensors = times_[size_t(rank)].sensors.text(), others = times_[usual].sensors.text();
    news_.push_back(format("%s is slow: it computes %.2f times as long as the median rank, %.1f ms and %.1f ms in this "
                           "step, for %zu measurements now; all others wait for it",
                           places_[size_t(rank)].text(rank).c_str(), own / median, own * 1e3, median * 1e3,
                           SlowRanks::kMany) +
                    (sensors.empty() ? "" : "\n  its GPU: " + sensors) +
                    (others.empty() ? "" : "\n  that of the median rank: " + others));
  }
  for (const int rank : recovered)
    news_.push_back(format("%s is slow no longer: it computes %.2f times as long as the median rank",
                           places_[size_t(rank)].text(rank).c_str(), seconds[size_t(rank)] / median));
}

Json RankTimes::line(int64_t steps) const {
  const size_t of = slowest();
  const GpuSensors::Reading& gpu = times_[of].sensors;
  if (!records() && !gpu.any()) return {};
  Json line = Json::object();
  line.set("step", steps).set("look", true);
  if (records()) {
    const auto rounded = [](double seconds) { return std::round(seconds * 1e6) / 1e3; };
    std::vector<double> seconds;
    Json all = Json::array();
    for (const RankTime& time : times_) seconds.push_back(time.seconds), all.push_back(rounded(time.seconds));
    line.set("computing_ms_min", rounded(*std::min_element(seconds.begin(), seconds.end())))
        .set("computing_ms_median", rounded(SlowRanks::median(seconds)))
        .set("computing_ms_max", rounded(seconds[of]))
        .set("slowest", places_[of].text(int(of)))
        .set("computing_ms", all);
  }
  const std::pair<const char*, int64_t> numbers[] = {
      {"gpu_mhz", gpu.mhz}, {"gpu_watts", gpu.watts}, {"gpu_celsius", gpu.celsius}, {"gpu_ecc", gpu.not_corrected}};
  for (const auto& [name, value] : numbers)
    if (value >= 0) line.set(name, value);
  if (const std::string reasons = gpu.reasons_text(); !reasons.empty()) line.set("gpu_throttled", reasons);
  return line;
}

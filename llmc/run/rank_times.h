// How long each rank's device computes, and what its sensors say (--gpu-every): which rank all others wait for, and
// why.
//
// Every N-th step the ranks record when the work of their compute streams was executed. The sum is the time of
// computing: no wait for other ranks or for copies is in it, so a rank whose GPU is slow stands out, though all ranks
// take equally long for the step. The ranks exchange their times, and all of them judge alike.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "llmc/base/json.h"
#include "llmc/comm/communicator.h"
#include "llmc/device/gpu_sensors.h"
#include "llmc/device/record.h"
#include "llmc/run/rank_place.h"
#include "llmc/train/trainer.h"

// Which ranks compute longer than others, in several measurements in a row: in each of them longer than the median rank
// in any of them. Where all ranks differ much, or from look to look, as on processors that are shared with others, a
// slow one has to differ more.
class SlowRanks {
 public:
  static constexpr double kSlow = 1.15;  // times the median, from which on a rank is slow,
  static constexpr double kSpreads = 3;  // if it is also so many times as far from it as most other ranks
  static constexpr size_t kMany = 5;     // measurements in a row, so that a passing disturbance names nobody

  // Takes a measurement: the seconds of each rank. Returns the ranks that are slow since now, and in `recovered` those
  // that were, and are not any more.
  std::vector<int> take(const std::vector<double>& seconds, std::vector<int>& recovered);
  // Returns the median: of an even number, the smaller of the two in the middle, so that one of two ranks can be slow.
  static double median(std::vector<double> seconds);

 private:
  struct Measurement {
    std::vector<double> seconds;  // by rank
    double median, most;          // a rank that takes longer than `most` stands out
  };
  bool is_slow(size_t rank) const;

  std::deque<Measurement> last_;  // kMany of them
  std::vector<bool> slow_;        // by rank: it was said
};

class RankTimes {
 public:
  // Entries of a step's record: the first ones of a long step are enough. All ranks do the same, but for Muon's
  // matrices.
  static constexpr size_t kRecorded = 8192;

  // All ranks call. The trainer must outlive this object.
  RankTimes(Trainer& trainer, Communicator& communicator, Device& device);

  // True if a step is to be recorded: one rank has nobody to compare with.
  bool records() const { return places_.size() > 1; }
  // Returns why there are no sensors of this rank's GPU; "" if there are, or if there is no GPU.
  std::string missing_sensors() const { return sensors_ ? sensors_->missing() : ""; }

  // Reads this rank's sensors, while its GPU has work.
  void read_sensors();
  // Takes the time of this rank's computing from the recorded step.
  void take(const Record& record);
  // Exchanges what the ranks measured. All ranks call, when no step is under way.
  void exchange();
  // Returns the line of train.jsonl about the last measurement, after `steps` steps; null if there is nothing to say.
  Json line(int64_t steps) const;
  // Returns what is new with the last measurement, a text for each rank that is slow now or is not any more.
  const std::vector<std::string>& news() const { return news_; }

 private:
  size_t slowest() const;
  void judge();

  Trainer& trainer_;
  std::vector<RankPlace> places_;
  std::optional<GpuSensors> sensors_;  // on a GPU
  RankTime own_;
  std::vector<RankTime> times_;  // of all ranks
  SlowRanks slow_;
  std::vector<std::string> news_;
};

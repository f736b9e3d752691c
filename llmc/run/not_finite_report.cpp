#include "llmc/run/not_finite_report.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "llmc/base/console.h"
#include "llmc/run/setup.h"
#include "llmc/train/not_finite.h"
#include "llmc/train/trainer.h"

namespace {

constexpr int64_t kNone = std::numeric_limits<int64_t>::max();

// Returns the smallest of the ranks' numbers, and which rank has it.
std::pair<int64_t, int> smallest(Communicator& communicator, Stream& stream, int64_t number) {
  const std::vector<int64_t> all = gather_numbers(communicator, stream, number);
  const auto first = std::min_element(all.begin(), all.end());
  return {*first, int(first - all.begin())};
}

// Returns the index in the layout of the first tensor whose part on this rank has an infinity or NaN; kNone: there is
// none.
int64_t bad_weight(Trainer& trainer) {
  const ParameterLayout& layout = trainer.layout();
  std::vector<float> numbers;
  for (const auto& [unit, shard, _] : trainer.saved()[StateKind::master].entries())
    for (const Slice& slice : layout.slices(unit, shard.first, shard.count))
      for (size_t done = 0; done < slice.count; done += numbers.size()) {
        numbers.resize(std::min(kCheckpointChunk, slice.count - done));
        trainer.read_state(StateKind::master, unit, {shard.first + slice.at + done, numbers.size()}, numbers.data());
        if (!std::all_of(numbers.begin(), numbers.end(), [](float x) { return std::isfinite(x); }))
          return slice.tensor - layout.tensors.data();
      }
  return kNone;
}

// Returns where the data of this rank's micro-batch come from: all of its sequences, or the one that holds the token.
std::string data_of(const Setup& setup, int64_t step, const NotFinite& found) {
  constexpr int kNamed = 8;
  const RunSettings& s = setup.settings;
  const BatchLayout layout{s.G, setup.mesh.data_degree(), s.B};
  const int first = found.token < 0 ? 0 : int(found.token / s.T), end = found.token < 0 ? s.B : first + 1;
  std::string text;
  for (int row = first; row < std::min(end, first + kNamed); ++row) {
    const Sampler::Place place = setup.sampler->place(
        layout.sequence(setup.step_of_stage(step), found.micro_batch, setup.mesh.data_rank(), row));
    const TokenDataset& tokens = setup.data.train[size_t(place.source)].tokens;
    text += format("\n  data: sequence %d of %d: ", row + 1, s.B) + tokens.where(place.start, place.tokens);
    if (found.token >= 0 && found.token % s.T < place.tokens)
      text += "; it begins at " + tokens.where(place.start + found.token % s.T, 1);
  }
  return end - first > kNamed ? text + format("\n  and %d more sequences", end - first - kNamed) : text;
}

std::string place_of(const Setup& setup, const StepInput& input, const NotFinite& found) {
  const std::string rank =
      setup.ranks.size == 1 ? "" : format(" on rank %d of %d,", setup.ranks.rank, setup.ranks.size);
  return format("the first tensor with an infinity or NaN is %s,%s in micro-batch %lld of %lld", found.tensor.c_str(),
                rank.c_str(), (long long)found.micro_batch + 1, (long long)setup.settings.micro_batches) +
         data_of(setup, input.step, found);
}

}  // namespace

NotFiniteReport find_not_finite(Setup& setup, Trainer& trainer, const StepInput& input) {
  Communicator& communicator = *setup.communicator;
  Stream stream(setup.device, "search");
  const Trainer::Search again = trainer.search_not_finite(input);
  const NotFinite* found = again.found ? &*again.found : nullptr;
  const auto [first, rank] =
      smallest(communicator, stream, found ? (found->micro_batch << 32) + found->position : kNone);
  std::string text;
  if (first != kNone)
    text = broadcast_text(communicator, stream, setup.ranks.rank == rank ? place_of(setup, input, *found) : "", rank);
  else if (again.result.finite) return {"run again, the step was finite", again.result};
  else text = "no tensor has an infinity or NaN before the gradients are summed: their sum or their norm has";
  if (const int64_t weight = smallest(communicator, stream, bad_weight(trainer)).first; weight != kNone)
    text += "\n  the weights held one before the step: " + trainer.layout().tensors[size_t(weight)].name +
            "\n  train other weights, or go on from an earlier checkpoint";
  else text += "\n  a lower --lr or a longer --warmup-steps may help";
  return {text, again.result};
}

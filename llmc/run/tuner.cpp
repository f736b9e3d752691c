#include "llmc/run/tuner.h"

#include <algorithm>
#include <cstdio>

#include "llmc/base/error.h"
#include "llmc/base/new_file.h"
#include "llmc/kernels/matmul.h"

namespace {

bool names_file(const Options& options) { return options.tuning != "auto" && options.tuning != "none"; }

// Returns the choices that the checkpoint was computed with.
Tuning tuning_of(const Checkpoint& checkpoint) {
  const Json* saved = checkpoint.state().find("tuning");
  return saved && !saved->is_null() ? Tuning::from_json(*saved) : Tuning();
}

// Returns the first rank's tuning on all ranks.
Tuning broadcast(const Tuning& tuning, const std::string& name, Communicator& communicator, Device& device) {
  Stream stream(device, "tuning");
  const std::string text = broadcast_text(communicator, stream, tuning.to_json().dump());
  return Tuning::from_json(Json::parse(text, name));
}

std::string hash_or_default(const Tuning& tuning) {
  return tuning.empty() ? "by the defaults" : "tuned (" + tuning.hash() + ")";
}

}  // namespace

Tuning open_tuning(const Options& options, const Checkpoint* start, Communicator& communicator, Device& device) {
  const TunedFor here = Matmul::tuned_for(device.info());
  if (names_file(options)) {
    const Tuning read = communicator.rank() == 0 ? Tuning::from_json(Json::read(options.tuning)) : Tuning();
    const Tuning tuning = broadcast(read, options.tuning, communicator, device);
    tuning.require_fits(here, "--tuning " + options.tuning);
    return tuning;
  }
  if (!start || options.tuning == "none") return {};
  const Tuning tuning = tuning_of(*start);
  if (options.trains() && options.tune_products)
    return options.resume == "auto" && tuning.found_on() == here ? tuning : Tuning();
  if (tuning.empty() || (!options.trains() && tuning.found_on() != here)) return {};
  tuning.require_fits(here, start->path());
  return tuning;
}

// Two micro-batches are enough: the first one's gradients are stored, the second one's are added.
Tuning find_tuning(Trainer& trainer, const Sampler& sampler, const BatchLayout& layout, int data_rank, int64_t step,
                   Communicator& communicator, Device& device) {
  const int64_t micro_batches = std::min<int64_t>(layout.micro_batches(), 2);
  const size_t tokens = size_t(layout.B) * size_t(sampler.T());
  std::vector<int32_t> inputs(size_t(micro_batches) * tokens), labels(inputs.size());
  for (int64_t k = 0; k < micro_batches; ++k)
    sampler.fill(layout, step, k, data_rank, inputs.data() + size_t(k) * tokens, labels.data() + size_t(k) * tokens);
  return find_tuning(trainer, {step, 0, inputs, labels}, communicator, device);
}
Tuning find_tuning(Trainer& trainer, const StepInput& input, Communicator& communicator, Device& device) {
  return broadcast(trainer.time_products(input), "what --tune-products found", communicator, device);
}

void keep_tuning(const Tuning& tuning, const RunFolder& folder) {
  const std::string path = folder.file("tuning.json");
  if (tuning.empty()) remove(path.c_str());
  else write_file(path, tuning.to_json().dump(2) + "\n");
}

std::string describe_products(const Tuning& tuning) {
  return Matmul::description() + (tuning.empty() ? "" : ", tuned: " + tuning.description());
}

std::string tuning_hint(const Options& options, bool gpu, int64_t steps, bool resumed) {
  constexpr int64_t kLong = 5000;  // steps, of which 0.8% are more than the tuning takes
  if (!gpu || steps < kLong || resumed || options.tune_products || options.tuning != "auto") return "";
  return "in so long a run --tune-products on may pay: with the fastest algorithm of each product an H200 was 0.8% "
         "faster (1B, bf16), and sums are rounded otherwise";
}

std::string changed_tuning(const Tuning& tuning, const Checkpoint& start) {
  const Tuning before = tuning_of(start);
  if (tuning.hash() == before.hash()) return "";
  return format("products %s (were computed %s): sums are rounded otherwise", hash_or_default(tuning).c_str(),
                hash_or_default(before).c_str());
}

std::string unneeded_choices(const Matmul& products, const Tuning& tuning) {
  const size_t unused = products.unused_choices();
  if (!unused) return "";
  return format(
      "%zu of the %zu products that were tuned are none of this run's, whose others are computed by the defaults:\n"
      "  another batch, model or precision was tuned; --tune-products chooses for this one",
      unused, tuning.products().size());
}

#include "llmc/run/context.h"

#include <algorithm>
#include <functional>

#include "llmc/base/error.h"
#include "llmc/config/context_part.h"

namespace {

// Returns the largest number in least .. most that fits. Returns `least` if none does: the planner then reports what
// would fit.
int64_t largest_that(const std::function<bool(int64_t)>& fits, int64_t least, int64_t most) {
  if (fits(most)) return most;
  while (most - least > 1) {
    const int64_t mid = least + (most - least) / 2;
    (fits(mid) ? least : most) = mid;
  }
  return least;
}

// Returns settings with room for `tokens`, or for as many as the model has positions and as fit on all ranks.
RunSettings with_context(const RunSettings& settings, int64_t tokens, const Options& options, const ModelConfig& config,
                         const Mesh& mesh, const Planner& planner, Communicator& communicator, Device& device) {
  // Ranks that share a sequence need a multiple of this.
  const int64_t unit = ContextPart{mesh.context_degree, 0}.multiple();
  const auto units = [unit](int64_t count) { return (count + unit - 1) / unit; };
  const auto with = [&](int64_t count) {
    RunSettings s = settings;
    s.context_length = int(count * unit);
    if (is_auto(options.micro_batch))
      s.B = int(std::max<int64_t>(1, int64_t(s.B) * s.T / std::max(s.T, s.context_length)));
    return s;
  };
  Stream stream(device, "context");
  const auto fits_all = [&](int64_t count) {
    return sum_number(communicator, stream, !planner.fits(with(count))) == 0;
  };
  const int64_t least = options.sample_only ? 1 : units(settings.T);  // sequences of held-out data have T tokens
  const int64_t most = units(std::clamp<int64_t>(tokens, 1, config.max_positions));
  return with(most <= least ? least : largest_that(fits_all, least, most));
}

}  // namespace

std::vector<ChoiceItem> choose_context(RunSettings& settings, bool asked, size_t prompt, const Options& options,
                                       const ModelConfig& config, const TextCodec& codec, const Mesh& mesh,
                                       const Planner& planner, Communicator& communicator, Device& device,
                                       Console& console) {
  std::vector<ChoiceItem> choices;
  if (!options.eval_choices.empty())
    choices =
        read_choices(options.eval_choices, options.eval_format == "llm.c" ? ChoiceFormat::llmc : ChoiceFormat::lm_eval,
                     ChoiceKeys::parse(options.eval_keys), codec);
  int64_t wanted = options.sample_only ? int64_t(prompt) + options.sample_tokens : 1;
  for (const ChoiceItem& item : choices) wanted = std::max(wanted, item.longest() - 1);
  const bool chosen = !options.trains() && !asked;
  if (chosen) settings = with_context(settings, wanted, options, config, mesh, planner, communicator, device);

  const int window = std::min(settings.context_length, config.max_positions);
  std::string limit = format("--seq-len %d; the model has %d positions", window, config.max_positions);
  if (window == config.max_positions) limit = format("the model's %d positions", window);
  else if (chosen)
    limit = format("the %d tokens that fit in memory; the model has %d positions", window, config.max_positions);
  const int64_t items = int64_t(choices.size()), cut = cut_choices(choices, options.eval_choices, window);
  if (cut)
    console.warning(format("--eval-choices: %lld of %lld questions lose their beginning: they are longer than %s",
                           (long long)cut, (long long)items, limit.c_str()));
  const bool samples = settings.takes_samples(options);
  const int64_t unseen = int64_t(prompt) - window;
  if (samples && unseen > 0)
    console.warning(format("--prompt: the first %lld of its %lld tokens are not seen: it is longer than %s",
                           (long long)unseen, (long long)prompt, limit.c_str()));
  else if (options.sample_only && wanted > window + 1)
    console.warning(
        format("--sample-tokens %lld: with the prompt that is more than %s: each time these are full, the model drops "
               "the older half of them",
               (long long)options.sample_tokens, limit.c_str()));
  return choices;
}

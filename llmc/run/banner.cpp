#include "llmc/run/banner.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "llmc/base/text.h"
#include "llmc/data/chat_prompt.h"
#include "llmc/kernels/attention.h"
#include "llmc/memory/activation_policy.h"
#include "llmc/run/description.h"
#include "llmc/run/idle_options.h"
#include "llmc/run/tuner.h"
#include "llmc/train/run_state.h"

namespace {

// Fewer steps than these teach loaded weights no answer by heart, whatever the learning rate.
constexpr int64_t kFewSteps = 20;

void print_machine(Setup& setup) {
  Console& console = setup.console;
  const RunSettings& settings = setup.settings;
  const DeviceInfo& info = setup.device.info();
  const std::string bound = info.numa_node >= 0 ? format(", with the CPUs of its NUMA node %d", info.numa_node) : "";
  console.item("device", info.gpu ? info.name + bound : info.name + ": a GPU's kernels, executed by the CPU");
  if (const std::string gpu = Device::unused_gpu(); !gpu.empty())
    console.warning("this build does not use the " + gpu + " of this machine: make DEVICE=cuda");
  console.item("products", describe_products(setup.tuning));
  for (const std::string& line : settings.products) console.item("", line);
  if (setup.options.trains())
    if (const std::string hint =
            tuning_hint(setup.options, info.gpu, settings.stage_steps(), setup.resumed_from.has_value());
        !hint.empty())
      console.item("", hint);
  const AttentionChoice attention =
      choose_attention_kernel(settings.attention, info, settings.dtype, setup.model.config.HD);
  console.item("attention", format("%s: %s", attention_kernel_name(attention.kernel), attention.why.c_str()));
  const Ranks& ranks = setup.ranks;
  console.item("ranks",
               format("%d (%s); %s", ranks.size, ranks.how.c_str(), setup.communicator->description().c_str()));
  if (ranks.size > 1) console.item("", describe_sharing(setup.mesh, setup.options, setup.model.config));
}

void print_model(Setup& setup) {
  Console& console = setup.console;
  const std::optional<Checkpoint>& resumed_from = setup.resumed_from;
  console.item("model", describe_model(setup.model));
  if (const std::string text = nothing_to_resume(setup.options, setup.resume, resumed_from); !text.empty())
    console.warning(text);
  if (resumed_from)
    console.item("goes on",
                 format("after step %lld of %s", (long long)resumed_from->step(), resumed_from->path().c_str()));
  for (const std::string& change : setup.changes) console.item("", change);
  if (setup.stages.size() > 1) console.item("stages", describe_stages(setup.stages));
}

// Says how often the run goes through the data; of a mixture through each source.
void print_epochs(Setup& setup) {
  if (const std::string text = describe_shares(setup.options.train_data); !text.empty()) setup.console.item("", text);
  const Sampler& sampler = *setup.sampler;
  for (int i = 0; i < sampler.mixture().sources(); ++i) {
    const int64_t sequences = sampler.mixture().sequences(i, setup.settings.stage_steps() * setup.settings.G);
    const std::string name = setup.source_name(i);
    setup.console.item("", (name.empty() ? "" : name + ", ") + describe_epochs(sampler.windows(i), sequences));
  }
}

void print_data(Setup& setup) {
  Console& console = setup.console;
  const RunData& data = setup.data;
  const char* title = "data";  // of the first line alone
  for (const DataSource& source : data.train) console.item(std::exchange(title, ""), describe_data(source, data.train));
  for (size_t i = 0; i < data.held_out.size(); ++i)
    console.item(std::exchange(title, ""),
                 describe_held_out(data.held_out[i], setup.evaluation->measured_text(i), setup.options));
  if (setup.options.eval_only && !data.held_out.empty())
    console.item("", format("in sequences of %s", counted(setup.settings.T, "token").c_str()));
  if (!data.train.empty() && data.held_out.empty())
    console.item("", data.chat ? "nothing is held out: dev/data/prepare --val-fraction 0.1 holds out conversations"
                               : "nothing is held out: name files with --val-data to see a held-out loss");
  for (const std::string& names : describe_unpaired(data.train, data.held_out)) console.item("", names);
  for (const std::string& files : data.about_folders) console.item("", files);
  for (const std::string& masks : setup.about_masks) console.item("", masks);
  for (const std::string& how : data.about_text) console.item("", how);
  if (data.chat && setup.tokenizer_files)
    console.item("", describe_chat(*data.chat, setup.codec, setup.tokenizer_files->replaces_template()));
  if (setup.sampler) print_epochs(setup);
  for (const std::string& remark : data.remarks) console.warning(remark);
  const auto is_text = [](const DataSource& source) { return source.tokens.is_text(); };
  if (std::ranges::any_of(data.train, is_text) && setup.model.config.V > 256)
    console.warning(describe_bytes(setup.model));
  console.item("tokenizer", setup.codec.description());
}

void print_step(Setup& setup) {
  Console& console = setup.console;
  const RunSettings& settings = setup.settings;
  const bool trains = setup.options.trains();
  if (trains)
    console.item("step", format("%s; %s, %s tokens", describe_step(settings, setup.mesh).c_str(),
                                counted(settings.stage_steps(), "step").c_str(),
                                human_count(double(settings.stage_steps()) * double(settings.step_tokens())).c_str()));
  if (!settings.precision.empty()) console.item(trains ? "" : "precision", settings.precision);
  if (!trains) return;
  for (const std::string& reason : settings.reasons) console.item("", reason);
  if (setup.model.loaded && have_masks(setup.data.train) && settings.stage_steps() < kFewSteps)
    console.warning(format(
        "with %s at the learning rate %g a model that is trained already learns hardly anything new: more --epochs (or "
        "--steps), or a higher --lr",
        counted(settings.stage_steps(), "step").c_str(), settings.lr));
  if (settings.warmup_steps > settings.stage_steps())
    console.warning(format("--warmup-steps %lld: the run ends after %lld of them, at the learning rate %.3g",
                           (long long)settings.warmup_steps, (long long)settings.stage_steps(),
                           settings.learning_rate_at(settings.steps - 1)));
  if (setup.options.skip_spikes > 0) console.item("spikes", describe_spikes(setup.options));
  if (setup.resumed_from)
    if (const std::vector<int64_t> skipped = skipped_steps(setup.resumed_from->state()); !skipped.empty())
      console.item(setup.options.skip_spikes > 0 ? "" : "spikes", "until now " + describe_skipped(skipped));
  if (!setup.left_out.empty()) console.item("left out", describe_bad_steps(setup.left_out));
  console.item("activations",
               describe_activations(settings.activations, setup.model.config, settings.fp8, setup.mesh.tensor_degree));
}

// Says how samples begin and end, and how --sample-only draws their tokens.
void print_samples(Setup& setup) {
  const Options& o = setup.options;
  if (setup.settings.takes_samples(o))
    setup.console.item("samples", describe_samples(setup.prompt, setup.prompt_from, setup.ends, o, setup.codec));
  if (o.sample_only)
    setup.console.item("drawn", o.temperature == 0
                                    ? "always the likeliest token: temperature 0"
                                    : format("at temperature %g with seed %lld: another --seed draws another text, "
                                             "--temperature 0 always the likeliest token",
                                             o.temperature, (long long)o.seed));
}

void print_checkpoints(Setup& setup) {
  if (setup.options.trains()) setup.console.item("checkpoints", describe_checkpoints(setup.options, setup.settings));
}

void print_options(Setup& setup) {
  // The options of a run that goes on have the numbers that its checkpoint stores, which nobody asked for.
  const Options& changed = setup.options.trains() && !setup.resumed_from ? setup.options : setup.command_line;
  for (const std::string& option : changed_options(changed)) setup.console.item("option", "--" + option);
  const bool measures = !setup.data.held_out.empty() || !setup.options.eval_choices.empty();
  const RunFacts facts{setup.options,      setup.settings, setup.model.config, setup.device.info(), setup.mesh,
                       setup.model.loaded, measures};
  for (const std::string& remark : idle_options(setup.command_line, facts))
    setup.options.trains() ? setup.console.item("", remark) : setup.console.warning(remark);  // which --quiet shows
  if (const std::string hint = chat_hint(setup.command_line, setup.codec); !hint.empty()) setup.console.warning(hint);
}

}  // namespace

void print_banner(Setup& setup, const MemoryPlan& plan) {
  setup.console.heading(format("train_llama %s", kVersion));
  print_machine(setup);
  print_model(setup);
  print_data(setup);
  print_step(setup);
  print_samples(setup);
  print_checkpoints(setup);
  setup.console.item("memory", plan.table());
  if (setup.planner)
    if (const std::string largest = setup.planner->largest(plan); !largest.empty()) setup.console.item("", largest);
  print_options(setup);
}

#include "llmc/run/idle_options.h"

#include <algorithm>
#include <string_view>

#include "llmc/base/error.h"
#include "llmc/base/text.h"

std::string unmet_need(const std::string& need, const RunFacts& run) {
  const Options& o = run.options;
  const RunSettings& s = run.settings;
  const bool shards = run.mesh.state_shards() > 1;
  const bool stage_3 = o.zero_stage == 3, wsd = s.schedule == Schedule::kWsd;
  const std::string no_training = o.sample_only ? "--sample-only trains nothing" : "--eval-only trains nothing";
  const std::string one_rank =
      run.mesh.world_size == 1 ? "there is one rank" : "each rank keeps a whole copy of the state";
  struct Condition {
    const char* need;
    bool holds;
    std::string otherwise;
  };
  const Condition conditions[] = {
      {"trains", o.trains(), no_training},
      {"measures", run.measures, "nothing is held out, and there are no questions"},
      {"choices", !o.eval_choices.empty(), "there are no questions: --eval-choices"},
      {"samples", s.takes_samples(o), o.eval_only ? "--eval-only takes no samples" : "--sample-every is 0"},
      {"chat", o.chat, "--chat is off"},
      {"temperature", o.temperature > 0, "--temperature is 0"},
      {"computes", !o.dry_run, "a dry run computes nothing"},
      {"nodes", o.nodes > 0, "it is for --dry-run"},
      {"network", o.nodes > 1 || (o.nodes == 0 && o.plan == "auto"),
       "it is for predictions of several nodes: --dry-run --nodes, --plan auto"},
      {"predicts", o.nodes > 0 || o.plan == "auto",
       "it is for predictions: --dry-run with --nodes or --gpu, --plan auto"},
      {"random-weights", !run.loads_weights, "the weights are loaded"},
      {"documents", o.packed_documents, "--packed-documents is off"},
      {"checkpoints", s.saves(o), "no checkpoints are saved"},
      {"falling", s.schedule != Schedule::kConstant && !(wsd && s.cooldown_steps == 0),
       wsd ? "--cooldown-steps is 0" : "--schedule is constant"},
      {"cools-down", wsd, "--schedule is not wsd"},
      {"after-warm-up", s.warmup_steps < s.stage_steps(),
       format("the warm-up takes all %s: --warmup-steps %lld", counted(s.stage_steps(), "step").c_str(),
              (long long)s.warmup_steps)},
      {"muon", o.optimizer == "muon", "--optimizer is adamw"},
      {"spikes", o.skip_spikes > 0, "--skip-spikes is 0"},
      {"fp8", s.fp8.on(), "--fp8 is off"},
      {"fp8-head", o.trains() || o.fp8_head == "on", no_training},
      {"fp8-kept", has_fp8_weights_to_keep(o, shards), "blocks that come from ranks or the host are made on use"},
      {"fp8-gather", o.fp8_all_gather, "--fp8-all-gather is off"},
      {"gpu", run.device.gpu, "Nsight Systems is for GPUs"},
      {"tf32", run.device.gpu && s.dtype == DType::fp32, run.device.gpu ? "products are bf16" : "a CPU has none"},
      {"recompute", o.recompute != "none", "--recompute is none"},
      {"offload", o.activation_offload != "none", "--activation-offload is none"},
      {"beyond-horizon", s.activations.offloads(run.config),
       format("all %d blocks are within the horizon of %d", run.config.L, s.activations.horizon)},
      {"ranks", run.mesh.world_size > 1, "there is one rank"},
      {"looks", run.mesh.world_size > 1 || run.device.gpu, "there is one rank, and no GPU"},
      {"heartbeat", run.device.gpu, "ranks on CPUs exchange no heartbeats, so that --comm-timeout alone ends a wait"},
      {"data-ranks", run.mesh.data_degree() > 1, "no two ranks train on sequences of their own"},
      {"sharing", shards, one_rank},
      {"gathers", (stage_3 && shards) || o.offload_weights,
       (stage_3 ? one_rank : "--zero-stage is not 3") + ", and --offload-weights is off"},
      {"tensor", run.mesh.tensor_degree > 1, "--tensor-parallel-degree is 1"},
  };
  for (const Condition& condition : conditions)
    if (need == condition.need) return condition.holds ? "" : condition.otherwise;
  fail("option table: an option needs \"%s\", which is no condition\n  add it to run/idle_options.cpp", need.c_str());
}

std::string unread_options(const Options& given) {
  // The options on which only data, numbers, files, samples or the ranks' start depend, by group, but for some, or by
  // name. The test dry_run tries every option.
  constexpr const char* kGroups[] = {"Data", "Optimizer"};
  constexpr const char* kRead[] = {"optimizer", "skip-spikes", "z-loss"};  // they decide what is planned
  constexpr std::string_view kNames =
      " tokenizer init out seed epochs eval-choices eval-format val-every val-tokens sample-every eval-keys "
      "prompt chat system sample-tokens temperature top-p export gpu-every nvtx cuda-graphs quiet "
      "checkpoint-on-signal checkpoint-verify comm-timeout silent-timeout lock-timeout skip-bad-samples rendezvous "
      "stop-after stage fp8-grad fp8-pow2-scales fp8-amax fp8-margin ";
  std::string list;
  for (const std::string& option : changed_options(given)) {  // "lr 0.0003"
    const std::string name = option.substr(0, option.find(' ')), group = group_of(name);
    const bool in_group = std::count(std::begin(kGroups), std::end(kGroups), group) &&
                          !std::count(std::begin(kRead), std::end(kRead), name);
    if (given.sample_only && name == "sample-tokens") continue;
    if (in_group || kNames.find(" " + name + " ") != kNames.npos) list += (list.empty() ? "--" : ", --") + name;
  }
  return list.empty()
             ? ""
             : "a dry run of a cluster opens no data, computes no numbers and writes no run: it does not look at " +
                   list;
}

std::vector<std::string> idle_options(const Options& given, const RunFacts& run) {
  return idle_options(given, [&](const std::string& need) { return unmet_need(need, run); });
}

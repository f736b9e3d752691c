// train_llama: trains Llama, Mistral, Qwen and OLMo models. `./train_llama --help` lists the options.
//
// The program reads like a recipe from top to bottom: the options, then the setup, the trainer, the training loop, the
// export. Each line of run() calls a function below it, or one of llmc/run.
#include <algorithm>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "llmc/base/error.h"
#include "llmc/base/options.h"
#include "llmc/base/processor.h"
#include "llmc/base/text.h"
#include "llmc/comm/launch.h"
#include "llmc/comm/ranks.h"
#include "llmc/device/range.h"
#include "llmc/kernels/matmul.h"
#include "llmc/memory/activation_policy.h"
#include "llmc/run/banner.h"
#include "llmc/run/consolidate.h"
#include "llmc/run/estimate.h"
#include "llmc/run/interrupt.h"
#include "llmc/run/kernel_check.h"
#include "llmc/run/resume.h"
#include "llmc/run/sampling.h"
#include "llmc/run/setup.h"
#include "llmc/run/simulate.h"
#include "llmc/run/start_record.h"
#include "llmc/run/training_loop.h"
#include "llmc/run/tuner.h"
#include "llmc/train/trainer.h"
#include "llmc/train/weights_io.h"

namespace {

int ranks_to_launch(const std::vector<std::string>& arguments);
void require_as_many_ranks(int64_t gpus, const Ranks& ranks);
int follow_options(int argc, char** argv, Ranks& ranks, StopRequests& stop_requests);
std::string help();
int run(const Options& command_line, const std::vector<std::string>& arguments, Ranks& ranks,
        const std::optional<ResumePoint>& resume, const StopRequests& stop_requests);
std::unique_ptr<Trainer> create_trainer(Setup& setup);
int report_plan(Setup& setup, const MemoryPlan& plan);
void check_kernels(Setup& setup);
void choose_algorithms(Setup& setup, Trainer& trainer, const RunFolder* folder);
void set_weights(const Setup& setup, Trainer& trainer);
void measure(Setup& setup, Trainer& trainer);
bool export_model(Setup& setup, Trainer& trainer, const TrainingLoop& loop, int64_t steps);

}  // namespace

int main(int argc, char** argv) {
  require_processor();
  if (const int ranks = ranks_to_launch({argv + std::min(argc, 1), argv + argc})) {
    try {
      return launch_ranks(ranks, {argv, argv + argc});
    } catch (const std::exception& error) {
      end_now(std::string("error: ") + error.what(), exit_code_of(error));
    }
  }
  StopRequests stop_requests;     // first: a signal during the start counts
  std::signal(SIGXFSZ, SIG_IGN);  // a write beyond the limit of a file's size then is an error that names the path
  Ranks ranks;
  int code = 0;
  try {
    ranks = Ranks::start(&argc, &argv);
    code = follow_options(argc, argv, ranks, stop_requests);
  } catch (const std::exception& error) {
    end_all_ranks(ranks, error);
  }
  ranks.finish();
  return code;
}

namespace {

// --gpus N: returns how many ranks this process starts and waits for; 0 if it is a rank itself, and if an option is
// wrong.
int ranks_to_launch(const std::vector<std::string>& arguments) {
  if (!kLaunchesRanks || Ranks::launcher_size() > 1) return 0;
  try {
    const int64_t gpus = parse_options(arguments).gpus;
    return gpus > 1 ? int(gpus) : 0;
  } catch (const Error&) {
    return 0;
  }
}

// Throws if --gpus asks for another number of ranks than there are.
void require_as_many_ranks(int64_t gpus, const Ranks& ranks) {
  if (!gpus || gpus == ranks.size) return;
  REQUIRE(kLaunchesRanks,
          "--gpus %lld: this program was built for CPUs, whose ranks MPI starts\n  use: scripts/run -n %lld",
          (long long)gpus, (long long)gpus);
  fail("--gpus %lld: there are %d ranks, %s\n  leave --gpus out, or start one process", (long long)gpus, ranks.size,
       ranks.how.c_str());
}

// Chooses between help, --consolidate, --dry-run --nodes and a run. Returns the program's exit code.
int follow_options(int argc, char** argv, Ranks& ranks, StopRequests& stop_requests) {
  const std::vector<std::string> arguments(argv + std::min(argc, 1), argv + argc);
  const Options command_line = parse_options(arguments);
  if (command_line.help || command_line.version) {
    if (ranks.rank == 0) printf("%s", command_line.help ? help().c_str() : version_text().c_str());
    return 0;
  }
  require_as_many_ranks(command_line.gpus, ranks);
  REQUIRE(ranks.rendezvous.empty() || command_line.rendezvous.empty(),
          "--gpus %d --rendezvous %s: the ranks that --gpus starts meet by themselves: leave --rendezvous out",
          ranks.size, command_line.rendezvous.c_str());
  if (command_line.stop_after > 0) stop_requests.end_after(3600 * command_line.stop_after);
  const std::optional<ResumePoint> resume = ResumePoint::find(command_line);
  if (!command_line.consolidate.empty() || command_line.dry_run || command_line.eval_only || command_line.sample_only)
    stop_requests.decline();
  if (!command_line.consolidate.empty()) {
    REQUIRE(resume && ranks.size == 1,
            "--consolidate %s: name a run or a checkpoint with --resume, and start one process",
            command_line.consolidate.c_str());
    consolidate(arguments, *resume);
    return 0;
  }
  const bool is_modelled =
      command_line.nodes || (command_line.dry_run && (command_line.gives("gpu") || !is_auto(command_line.gpu)));
  REQUIRE(command_line.plan != "mesh" || is_modelled,
          "--plan mesh: it searches the meshes of a cluster that is not here\n  use it with --dry-run --nodes N, or "
          "--plan auto for these ranks");
  if (is_modelled) {
    REQUIRE(command_line.dry_run && ranks.size == 1, "--%s: it is for --dry-run, by one process",
            command_line.nodes ? format("nodes %lld", (long long)command_line.nodes).c_str()
                               : ("gpu " + command_line.gpu).c_str());
    Console console(true);
    return simulate(resume ? resume->newest_options(arguments) : command_line, console) ? 0
                                                                                        : int(ExitCode::does_not_fit);
  }
  try {
    return run(command_line, arguments, ranks, resume, stop_requests);
  } catch (const Setup::Stopped& stopped) {
    Console(ranks.rank == 0).line(stopped.what());
    return 0;
  }
}

std::string help() {
  std::string presets;
  for (const std::string& preset : ModelConfig::presets()) presets += " " + preset;
  return options_help("train_llama") + "\nPresets of --model:" + presets + "\n" +
         "\nTensors of a block that backward needs: which are computed again, and which are copied to the host and "
         "back. The\n"
         "others are kept on the device. A tensor that is computed again is not copied.\n\n" +
         activation_table();
}

// Trains, measures or samples, and returns the program's exit code.
int run(const Options& command_line, const std::vector<std::string>& arguments, Ranks& ranks,
        const std::optional<ResumePoint>& resume, const StopRequests& stop_requests) {
  if (command_line.nvtx) Range::turn_on();
  Setup setup(command_line, arguments, ranks, resume, &stop_requests);
  const Options& options = setup.options;
  const std::unique_ptr<Trainer> trainer = create_trainer(setup);
  TrainingLoop loop(setup, *trainer, stop_requests);
  try {
    if (options.dry_run) return report_plan(setup, trainer->plan());
    if (loop.is_done()) return 0;
    setup.planner->require_fits(trainer->plan());
    check_kernels(setup);
    trainer->allocate();
    if (setup.options.trains()) loop.open_folder();
    choose_algorithms(setup, *trainer, loop.folder());
    print_banner(setup, trainer->plan());
    set_weights(setup, *trainer);
    if (setup.resumed_from) setup.resumed_from->close();
    if (options.sample_only) {
      print_sample(setup, *trainer, "of the model");
    } else if (options.eval_only) {
      measure(setup, *trainer);
    } else {
      print_estimate(setup, *trainer);
      const int64_t steps = loop.run();
      const bool exported = export_model(setup, *trainer, loop, steps);
      loop.report_end(steps, exported);
    }
    return 0;
  } catch (const std::exception& error) {
    setup.console.end_line();
    loop.give_up();
    end_all_ranks(ranks, error);  // before the destructor of `loop` waits for a save
  }
}

// Plans the trainer's memory, and allocates nothing yet. Throws if the weights to be loaded are not those of the model.
std::unique_ptr<Trainer> create_trainer(Setup& setup) {
  const ModelSource& model = setup.model;
  std::unique_ptr<Trainer> trainer = Trainer::create(setup.device, *setup.communicator, model.config,
                                                     trainer_settings(setup.options, setup.settings), setup.mesh);
  if (model.weights && !setup.resumed_from)
    require_weights_fit(trainer->layout(), *model.weights, !is_auto(setup.options.layers));
  return trainer;
}

// --dry-run: prints the memory that the run would take, and returns the exit code for "it does not fit", if it does not
// fit on any of the ranks.
int report_plan(Setup& setup, const MemoryPlan& plan) {
  print_banner(setup, plan);
  setup.console.result(setup.planner->verdict(plan));
  Stream stream(setup.device, "verdict");
  const bool fits = sum_number(*setup.communicator, stream, !setup.planner->fits(plan)) == 0;
  return fits ? 0 : int(ExitCode::does_not_fit);
}

// The CPU's kernels are tested where they are built; on a GPU the driver and the libraries are this machine's.
void check_kernels(Setup& setup) {
  if (!setup.device.info().gpu) return;
  const TrainerSettings settings = trainer_settings(setup.options, setup.settings);
  require_right_kernels({settings.attention, settings.dtype, setup.model.config.HD, settings.fp8}, setup.device,
                        *setup.communicator, setup.ranks);
}

// Makes the products use the algorithms of setup.tuning; --tune-products finds them first. Only the first rank of a
// training has a folder.
void choose_algorithms(Setup& setup, Trainer& trainer, const RunFolder* folder) {
  Tuning& tuning = setup.tuning;
  if (setup.options.tune_products && setup.options.trains() && tuning.empty()) {
    setup.console.line("timing the algorithms for each product of a step …");
    set_weights(setup, trainer);
    const BatchLayout layout{setup.settings.G, setup.mesh.data_degree(), setup.settings.B};
    tuning = find_tuning(trainer, *setup.sampler, layout, setup.mesh.data_rank(), setup.first_step(),
                         *setup.communicator, setup.device);
  }
  trainer.matmul().use(tuning);
  if (folder) keep_tuning(tuning, *folder);
  const std::string change = setup.resumed_from ? changed_tuning(tuning, *setup.resumed_from) : "";
  if (setup.options.trains() && !change.empty()) setup.changes.push_back(change);
}

// The weights come from the checkpoint that the run goes on from, from the model's files, or from random numbers.
void set_weights(const Setup& setup, Trainer& trainer) {
  const Options& options = setup.options;
  if (setup.resumed_from) trainer.restore(*setup.resumed_from);
  else if (setup.model.weights) trainer.load(*setup.model.weights);
  else trainer.initialize(options.init == "normal" ? Init::normal : Init::depth_scaled, uint64_t(options.seed));
  if (setup.begins_stage()) trainer.forget_losses();
}

// --eval-only: prints the held-out loss and the score of --eval-choices.
void measure(Setup& setup, Trainer& trainer) {
  const EvaluationResult result = setup.evaluation->run(trainer, progress_lines(setup.console));
  setup.console.result(evaluation_text(result, setup.model.config.V, setup.unigram));
  if (result.loss && !std::isfinite(result.loss->nats))
    fail_as(ExitCode::not_finite, "the held-out loss is not finite: the weights, or what they compute, are not");
}

// Writes the trained model as a directory that Hugging Face's tools read. A run that was stopped and can be resumed
// exports when it is done. All ranks call. Returns whether it exported.
bool export_model(Setup& setup, Trainer& trainer, const TrainingLoop& loop, int64_t steps) {
  const Options& options = setup.options;
  const bool is_done = steps == setup.settings.steps;
  if (!options.export_ || (!is_done && options.checkpoint_on_signal)) return false;
  const std::string directory = loop.folder() ? loop.folder()->file("export") : "";
  if (loop.folder())  // an export that was not completed
    if (const std::string moved = loop.folder()->set_export_aside(steps); !moved.empty()) setup.console.line(moved);
  std::string not_finite;
  try {
    not_finite = trainer.save(directory);
    if (directory.empty()) return true;
    setup.tokenizer_files->write(directory);
    const ModelCard card{
        setup.data_description(),     steps, setup.settings.tokens_after(steps), loop.last_step(), loop.last_score(),
        changed_options_line(options)};
    export_model_card(card, setup.model.config, directory);
  } catch (const std::exception& error) {
    if (directory.empty() || exit_code_of(error) == ExitCode::lost) throw;
    fail_as(ExitCode::not_saved, "the weights after step %lld could not be exported: %s\n  %s", (long long)steps,
            error.what(), loop.what_remains().c_str());
  }
  setup.console.line(format("exported the weights to %s", directory.c_str()));
  if (not_finite.empty()) return true;
  if (!setup.model.loaded)
    fail_as(ExitCode::not_finite,
            "%s in %s has an infinity or NaN, though no step's loss or gradients had: an update was too large\n"
            "  a lower --lr or a smaller --weight-decay may help",
            not_finite.c_str(), directory.c_str());
  setup.console.warning(
      format("%s in %s has an infinity or NaN, perhaps since it was loaded", not_finite.c_str(), directory.c_str()));
  return true;
}

}  // namespace

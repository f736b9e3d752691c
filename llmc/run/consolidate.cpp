#include "llmc/run/consolidate.h"

#include <cstdio>
#include <filesystem>

#include "llmc/base/error.h"
#include "llmc/base/printable.h"
#include "llmc/run/export_folder.h"
#include "llmc/train/weights_io.h"

namespace {

// Throws if one of the small files is there. WeightsWriter checks for the weight files.
void require_nothing_there(const std::string& directory, const TokenizerFiles& tokenizer_files) {
  std::vector<std::string> names = tokenizer_files.names();
  names.insert(names.end(), {"README.md", "config.json", "generation_config.json"});
  for (const std::string& name : names) {
    const std::filesystem::path path = std::filesystem::path(directory) / name;
    std::error_code error;
    REQUIRE(!std::filesystem::exists(path, error),
            "--consolidate %s: %s is there already, and would be written over\n  name a new folder, or remove the file",
            directory.c_str(), path.c_str());
  }
}

}  // namespace

void consolidate(const std::vector<std::string>& arguments, const ResumePoint& resume) {
  REQUIRE(!resume.checkpoints.empty(), "--consolidate: %s has no checkpoint", resume.run_folder.c_str());
  const Checkpoint checkpoint(resume.checkpoints[0]);
  for (int file = 0; file < checkpoint.files(); ++file) checkpoint.verify(file);
  const Json& state = checkpoint.state();
  const Json saved = saved_options(checkpoint, int(state.get_int("ranks")));
  const Options options = parse_options(arguments, &saved);
  const ModelConfig config = model_of(checkpoint, options).config;
  const TextCodec codec = codec_of(checkpoint, options, config);
  const TokenizerFiles tokenizer_files(codec, config);
  require_nothing_there(options.consolidate, tokenizer_files);

  const int64_t tokens = state.get_int("tokens", state.get_int("sequences") * state.at("options").get_int("seq_len"));
  Options trained = options;
  trained.config = "", trained.resume = "none", trained.consolidate = "";
  const ModelCard card = {state.get_string("data"), checkpoint.step(),      tokens,
                          state.at("last_step"),    state.at("last_score"), changed_options_line(trained)};

  const ParameterLayout layout(config);
  WeightsWriter writer(options.consolidate, layout, config);
  for (int unit = 0; unit < int(layout.units.size()); ++unit)
    writer.write_unit(unit, [&](const ParameterInfo& t, size_t first, size_t count, float* out) {
      checkpoint.read(StateKind::master, t.name, first, count, out);
    });
  writer.finish();
  tokenizer_files.write(options.consolidate);
  export_model_card(card, config, options.consolidate);
  printf("%s, step %lld, is in %s\n", checkpoint.path().c_str(), (long long)checkpoint.step(),
         options.consolidate.c_str());
}

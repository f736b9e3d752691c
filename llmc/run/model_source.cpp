#include "llmc/run/model_source.h"

#include <algorithm>
#include <filesystem>

#include "llmc/base/error.h"
#include "llmc/base/input_file.h"
#include "llmc/base/text.h"
#include "llmc/data/data_sources.h"
#include "llmc/data/vocabulary.h"
#include "llmc/train/checkpoint.h"

namespace fs = std::filesystem;

namespace {

// Throws if the weights have fewer layers than the config. If they have more, only the first ones are used.
void require_enough_layers(const Safetensors& weights, const ModelConfig& config) {
  const std::string last = format("model.layers.%d.self_attn.q_proj.weight", config.L - 1);
  REQUIRE(weights.find(last), "--layers %d: %s has no layer %d", config.L, weights.path().c_str(), config.L - 1);
}

// Returns whether the folder has weights in any format. The reader decides which formats it can read.
bool has_weights(const fs::path& folder) {
  return std::any_of(fs::directory_iterator(folder), fs::directory_iterator(), [](const fs::directory_entry& file) {
    const std::string name = file.path().filename();
    return name.ends_with(".safetensors") || name.ends_with(".bin") || name.ends_with(".index.json");
  });
}

// Returns the directory of weights for a run's folder or a file of weights; any other name unchanged.
std::string weights_directory(const std::string& name) {
  const fs::path path(name);
  std::error_code error;
  if (path.extension() == ".safetensors" && fs::is_regular_file(path, error)) {
    const fs::path folder = path.has_parent_path() ? path.parent_path() : ".";
    REQUIRE(fs::exists(folder / "config.json", error),
            "--model %s: a file of weights does not say the model's shape, and its folder has no config.json\n"
            "  put the model's config.json there, or name a folder that has both",
            name.c_str());
    return folder.string();
  }
  if (!fs::exists(path / "train.jsonl", error)) {
    const bool tokenizer_alone = !fs::exists(path / "config.json", error) && fs::exists(path / "tokenizer.json", error);
    REQUIRE(!tokenizer_alone,
            "--model %s: this folder has a tokenizer, and no model (config.json, *.safetensors)\n"
            "  for its tokenizer: --tokenizer %s; --model takes a preset, or a folder of weights",
            name.c_str(), name.c_str());
    REQUIRE(!fs::exists(path / "config.json", error) || has_weights(path),
            "--model %s: it has a config.json, and no weights (*.safetensors)\n"
            "  for random weights name the file: --model %s; else put the weights there",
            name.c_str(), (path / "config.json").c_str());
    return name;
  }
  if (fs::exists(path / "export" / "config.json", error)) return (path / "export").string();
  REQUIRE(checkpoints_in((path / "checkpoints").string()).empty(),
          "--model %s: this run has no export, but checkpoints\n"
          "  make its newest one a model: scripts/consolidate %s DIR, then --model DIR",
          name.c_str(), name.c_str());
  fail(
      "--model %s: this run has neither an export nor a checkpoint, so there are no weights\n"
      "  name a folder with config.json and model.safetensors",
      name.c_str());
}

// Returns the folder whose name is most like that of a path, next to where it would be; "" if none is.
std::string similar_folder(const fs::path& path) {
  std::error_code error;
  std::vector<std::string> folders;
  for (const fs::directory_entry& entry : fs::directory_iterator(path.parent_path(), error))
    if (entry.is_directory(error)) folders.push_back(entry.path().filename());
  const std::string near = nearest(path.filename(), folders);
  return near.empty() ? "" : (path.parent_path() / near).string();
}

// Throws if --model names a file of weights that is not one of those that are read from its folder.
void require_own_file(const Safetensors& weights, const std::string& named) {
  const fs::path file = fs::path(named).filename();
  const auto in_file = [&](const StoredTensor& t) { return fs::path(t.file).filename() == file; };
  REQUIRE(
      file.extension() != ".safetensors" || std::any_of(weights.tensors().begin(), weights.tensors().end(), in_file),
      "--model %s: %s is none of the weights of %s, which are model.safetensors or the shards of its index\n"
      "  give it that name in a folder of its own, with config.json",
      named.c_str(), file.c_str(), weights.path().c_str());
}

// Throws if the shards have a token that the model lacks among their first million, where dev/data's manifest names a
// larger vocabulary. If they have one later, the run ends when it reads it.
void require_vocabulary(const Options& options, int V) {
  for (const std::string& named : {options.train_data, options.val_data})
    for (const std::string& pattern : patterns_of(named)) {
      if (manifest_vocabulary(pattern).tokens <= V) continue;
      const TokenDataset data = TokenDataset::open(pattern, V);
      std::vector<int32_t> tokens(size_t(std::min<int64_t>(data.size(), 1 << 20)));
      data.read(0, int64_t(tokens.size()), tokens.data());
    }
}

// Gives a model with random weights V tokens. bos, eos and pad are kept if they are below V.
void set_vocabulary(ModelConfig& config, int V) {
  config.V = V;
  for (int* token : {&config.bos, &config.pad})
    if (*token >= V) *token = -1;
  std::erase_if(config.eos, [V](int token) { return token >= V; });
}

}  // namespace

ModelSource open_model(const Options& options) {
  ModelSource source;
  std::error_code error;
  // The name of a preset means the preset, even if the working directory has a folder of that name; ./tiny means the
  // folder.
  const auto presets = ModelConfig::presets();
  const bool preset = std::find(presets.begin(), presets.end(), options.model) != presets.end();
  const std::string name = preset ? options.model : weights_directory(options.model);
  const bool directory = !preset && fs::is_directory(name, error);
  if (directory) {
    const std::string config = (fs::path(name) / "config.json").string();
    source.config = ModelConfig::from_json(Json::read(config), options.model);
    if (fs::exists(fs::path(name) / "generation_config.json", error))  // the export gets all of its content
      source.config.generation = Json::read(own_file(name, "generation_config.json"));
    source.config.end_tokens();  // throws on token ids that make no sense
    source.weights.emplace(name);
    source.loaded = true;
    source.directory = name;
    require_own_file(*source.weights, options.model);
    source.description = "weights of " + name;
  } else if (!preset && (name.ends_with(".json") || fs::is_regular_file(name, error))) {
    source.config = ModelConfig::from_json(Json::read(name), fs::path(name).stem().string());
    source.description = format("config %s, random weights (%s)", name.c_str(), options.init.c_str());
  } else {
    const std::string fetch = download_command(name),
                      similar = fs::path(name).has_parent_path() ? similar_folder(name) : "";
    const std::string near = similar.empty() ? "" : format("\n  did you mean %s?", similar.c_str());
    REQUIRE(
        fetch.empty(),
        "--model %s: there is no such folder here%s\n  if it is a model of the Hugging Face hub, fetch it first: %s, "
        "then --model %s",
        name.c_str(), near.c_str(), fetch.c_str(), fs::path(name).filename().c_str());
    REQUIRE(near.empty(), "--model %s: there is no such folder%s", name.c_str(), near.c_str());
    source.config = ModelConfig::preset(name);
    source.description = format("preset %s, random weights (%s)", name.c_str(), options.init.c_str());
  }
  if (!is_auto(options.layers)) {
    source.description += format(", %lld of %d layers", (long long)options.layers, source.config.L);
    source.config.set_layers(int(options.layers));
    if (source.weights) require_enough_layers(*source.weights, source.config);
  }
  if (const bool of_bytes = preset && source.config.V == 256; of_bytes && is_auto(options.vocab_size) && !options.nodes)
    if (const DataVocabulary named = named_vocabulary(options); named.tokens > source.config.V) {
      source.description += format(", %lld tokens as %s has", (long long)named.tokens, named.whose.c_str());
      set_vocabulary(source.config, int(named.tokens));
    }
  if (!is_auto(options.vocab_size)) {
    REQUIRE(!source.weights, "--vocab-size %lld: the weights of %s have %d tokens\n  remove the option",
            (long long)options.vocab_size, name.c_str(), source.config.V);
    set_vocabulary(source.config, int(options.vocab_size));
  }
  source.config.check();
  require_vocabulary(options, source.config.V);
  return source;
}

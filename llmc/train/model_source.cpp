#include "llmc/train/model_source.h"

#include <algorithm>
#include <climits>
#include <filesystem>

#include "llmc/base/error.h"
#include "llmc/base/input_file.h"
#include "llmc/base/text.h"
#include "llmc/train/checkpoint.h"
#include "llmc/train/shard_manifest.h"
#include "llmc/train/token_dataset.h"

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
            "--model %s: a file of weights does not say the model's shape, and there is no config.json beside it\n"
            "  put the model's config.json there, or name a folder that has both",
            name.c_str());
    return folder.string();
  }
  if (!fs::exists(path / "train.jsonl", error)) {
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

// Returns the first token, among the first million of the shards, that the model lacks.
std::optional<int32_t> token_beyond(const std::string& shards, int V) {
  const TokenDataset data = TokenDataset::open(shards, INT_MAX);
  std::vector<int32_t> tokens(size_t(std::min<int64_t>(data.size(), 1 << 20)));
  data.read(0, int64_t(tokens.size()), tokens.data());
  const auto found = std::ranges::find_if(tokens, [V](int32_t token) { return token >= V; });
  return found == tokens.end() ? std::nullopt : std::optional(*found);
}

// Throws if dev/data's manifest says that the shards have a larger vocabulary than the model, and they soon use it. If
// they use it later, the run ends when it reads such a token.
void require_vocabulary(const Options& options, const ModelSource& source) {
  for (const std::string& pattern : {options.train_data, options.val_data})
    for (const ShardFolder& folder : shard_folders(pattern)) {
      const Json* tokenizer = folder.manifest.is_null() ? nullptr : folder.manifest.find("tokenizer");
      const int64_t vocabulary = tokenizer ? tokenizer->get_int("vocabulary", 0) : 0;
      if (vocabulary <= source.config.V) continue;
      const std::optional<int32_t> beyond = token_beyond(pattern, source.config.V);
      if (!beyond) continue;
      const std::string found =
          format("the shards in %s have a vocabulary of %lld tokens and use token %d: the model %s has %d tokens",
                 folder.path.c_str(), (long long)vocabulary, *beyond, source.config.name.c_str(), source.config.V);
      REQUIRE(!source.weights, "%s\n  name shards that were made with its tokenizer: dev/data/prepare --tokenizer",
              found.c_str());
      fail(
          "%s\n  name a model of that vocabulary with --model: a folder of weights, or for random weights a file as\n"
          "    {\"hidden_size\": 512, \"intermediate_size\": 1536, \"num_hidden_layers\": 8, \"num_attention_heads\": "
          "8, "
          "\"vocab_size\": %lld}\n  or give this model so many tokens: --vocab-size %lld",
          found.c_str(), (long long)vocabulary, (long long)vocabulary);
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
    REQUIRE(similar.empty(), "--model %s: there is no such folder\n  did you mean %s?", name.c_str(), similar.c_str());
    REQUIRE(fetch.empty(),
            "--model %s: there is no such folder here\n  if it is a model of the Hugging Face hub, fetch it first: %s, "
            "then --model %s",
            name.c_str(), fetch.c_str(), fs::path(name).filename().c_str());
    source.config = ModelConfig::preset(name);
    source.description = format("preset %s, random weights (%s)", name.c_str(), options.init.c_str());
  }
  if (!is_auto(options.layers)) {
    source.description += format(", %lld of %d layers", (long long)options.layers, source.config.L);
    source.config.set_layers(int(options.layers));
    if (source.weights) require_enough_layers(*source.weights, source.config);
  }
  if (!is_auto(options.vocab_size)) {
    REQUIRE(!source.weights, "--vocab-size %lld: the weights of %s have %d tokens\n  remove the option",
            (long long)options.vocab_size, name.c_str(), source.config.V);
    set_vocabulary(source.config, int(options.vocab_size));
  }
  source.config.check();
  require_vocabulary(options, source);
  return source;
}

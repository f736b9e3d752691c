// Covers: options: parser, config files, help, refusals with the nearest name; those that change nothing in a run
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <random>
#include <sstream>

#include "dev/test/test.h"
#include "llmc/base/options.h"
#include "llmc/base/text.h"
#include "llmc/device/known_devices.h"
#include "llmc/train/idle_options.h"
#include "llmc/train/model_source.h"

namespace fs = std::filesystem;

namespace {

using Words = std::vector<std::string>;

// A file of its own, removed at the end of the test.
struct ConfigFile {
  std::string path = (fs::temp_directory_path() / format("llmc_options_%d.json", int(getpid()))).string();
  explicit ConfigFile(const std::string& text) { std::ofstream(path) << text; }
  ~ConfigFile() { fs::remove(path); }
};

std::string refusal(const Words& arguments) {
  return error_of([&] { parse_options(arguments); });
}

std::string config_refusal(const std::string& text) {
  const ConfigFile file(text);
  const std::string message = error_of([&] { parse_options({"--config", file.path}); });
  CHECK(message.find(file.path) != std::string::npos);
  return message;
}

void has(const std::string& message, const std::string& part) {
  if (message.find(part) != message.npos) return;
  CHECK(message == "... " + part + " ...");
}

// Names as in the saved config.json: all but --config, --help, --version.
Words names() {
  Words result;
  const Json all = options_json(Options());
  for (const auto& [name, value] : all.items()) result.push_back(name);
  return result;
}

std::string dashed(std::string name) {
  for (char& c : name) c = c == '_' ? '-' : c;
  return "--" + name;
}

std::string plain(const Json& value) {
  if (value.is_bool()) return value.as_bool() ? "on" : "off";
  if (value.is_string()) return value.as_string();
  return value.is_int() ? std::to_string(value.as_int()) : shortest(value.as_double());
}

// The remarks on options of a run of `tiny` by so many ranks.
Words remarks(const Words& arguments, int ranks = 1, const char* gpu = "H100") {
  const Options options = parse_options(arguments);
  const DeviceInfo device = gpu ? modelled_device(gpu) : DeviceInfo();
  const Mesh mesh = Mesh::create(ranks, 0, int(options.tensor_parallel_degree), int(options.context_parallel_degree),
                                 int(options.hybrid_shard_degree));
  const LlamaConfig config = open_model(options).config;
  const RunSettings settings = resolve_settings(options, config, device, mesh.data_ranks(), 100000);
  return idle_options(options, {options, settings, config, device, mesh});
}

}  // namespace

TEST_CASE("options that change nothing get a remark, and no others do") {
  const auto lone = [](const Words& arguments, int ranks = 1) {
    const Words lines = remarks(arguments, ranks);
    CHECK(lines.size() == 1);
    return lines.empty() ? std::string() : lines[0];
  };
  CHECK(remarks({}).empty());
  CHECK(lone({"--recompute-every", "2"}) == "--recompute-every changes nothing: --recompute is none");
  CHECK(remarks({"--recompute-every", "2", "--recompute", "mlp"}).empty());
  CHECK(lone({"--activation-loading-horizon", "1"}) ==
        "--activation-loading-horizon changes nothing: --activation-offload is none");
  CHECK(lone({"--activation-offload", "all", "--activation-loading-horizon", "9"}) ==
        "--activation-offload changes nothing: all 4 blocks are within the horizon of 9");
  CHECK(lone({"--fp8-precompute-scales", "off"}) == "--fp8-precompute-scales changes nothing: --fp8 is off");
  CHECK(lone({"--fp8-precompute-scales", "off", "--fp8", "tensorwise"}) ==
        "--fp8-precompute-scales changes nothing: --fp8-all-gather is off");
  CHECK(lone({"--zero-stage", "3"}) == "--zero-stage changes nothing: there is one rank");
  CHECK(remarks({"--zero-stage", "3"}, 2).empty());
  CHECK(lone({"--reduce-dtype", "bf16"}) == "--reduce-dtype changes nothing: there is one rank");
  CHECK(remarks({"--reduce-dtype", "bf16"}, 2).empty());
  CHECK(lone({"--reduce-dtype", "bf16", "--hybrid-shard-degree", "1"}, 2) ==
        "--reduce-dtype changes nothing: no two ranks share a copy of the state");
  CHECK(lone({"--prefetch", "2", "--zero-stage", "2"}, 2) == "--prefetch changes nothing: --zero-stage is not 3");
  CHECK(remarks({"--prefetch", "2", "--zero-stage", "3"}, 2).empty());
  CHECK(lone({"--tensor-parallel-overlap", "1"}, 2) ==
        "--tensor-parallel-overlap changes nothing: --tensor-parallel-degree is 1");
  CHECK(lone({"--gpu", "A100"}) == "--gpu changes nothing: it is for --dry-run --nodes");
  CHECK(remarks({"--gpu", "A100", "--nodes", "1", "--dry-run"}).empty());
  CHECK(lone({"--tf32"}) == "--tf32 changes nothing: products are bf16");
  CHECK(remarks({"--tf32", "--dtype", "fp32"}).empty());
  CHECK(remarks({"--tf32"}, 1, nullptr) == Words{"--tf32 changes nothing: a CPU has none"});
  CHECK(lone({"--checkpoint-async", "off"}) == "--checkpoint-async changes nothing: --checkpoint-every is 0");
  CHECK(lone({"--min-lr", "0", "--schedule", "constant"}) == "--min-lr changes nothing: --schedule is constant");
  CHECK(lone({"--document-token", "0"}) == "--document-token changes nothing: --packed-documents is off");
  CHECK(lone({"--top-p", "0.5", "--temperature", "0"}) == "--top-p changes nothing: --temperature is 0");
  CHECK(lone({"--prompt", "x", "--top-p", "0.5", "--sample-every", "0"}) ==
        "--prompt, --top-p change nothing: --sample-every is 0");
  CHECK(lone({"--sample-only", "--lr", "1", "--steps", "3", "--prompt", "x"}) ==
        "--steps, --lr change nothing: --sample-only trains nothing");
}

TEST_CASE("each word that an option needs is a condition of the trainer's") {
  const Options options;
  const LlamaConfig config = open_model(options).config;
  const DeviceInfo device = modelled_device("H100");
  const RunSettings settings = resolve_settings(options, config, device, 1, 100000);
  const Mesh mesh;
  const RunFacts run{options, settings, config, device, mesh};
  Options changed;  // each option has another value than its default
  const auto change = [](auto& value) {
    using T = std::remove_cvref_t<decltype(value)>;
    if constexpr (std::is_same_v<T, std::string>) value += "other";
    else value = value == T(1) ? T(0) : T(1);
  };
#define CHANGE(group, kind, name, ...) change(changed.name);
  OPTION_TABLE(CHANGE)
#undef CHANGE
  size_t asked = 0;
  const auto met = [&](const std::string& need) {
    ++asked;
    unmet_need(need, run);  // throws if it is none
    return std::string();   // so that the next one is asked for, too
  };
  CHECK(idle_options(changed, met).empty());
  CHECK(asked > 40);
  CHECK(error_of([&] { unmet_need("moonlight", run); }).find("\"moonlight\", which is no condition") !=
        std::string::npos);
}

TEST_CASE("defaults") {
  const Options o = parse_options(Words{});
  CHECK(o == Options());
  CHECK(o.model == "tiny");
  CHECK(o.seed == 1337);
  CHECK(is_auto(o.steps));
  CHECK(is_auto(o.lr));
  CHECK(is_auto(o.dtype));
  CHECK(!is_auto(o.beta1));
  CHECK(!is_auto(o.seed));
  CHECK(o.adam_eps == 1e-8);
  CHECK(o.export_);
  CHECK(!o.dry_run);
  CHECK(changed_options(o).empty());
  const char* argv[] = {"./train_llama", "--steps", "7"};
  CHECK(parse_options(3, argv).steps == 7);
  CHECK(parse_options(1, argv) == Options());
  CHECK(parse_options(0, argv) == Options());
}

TEST_CASE("the ways to write an option") {
  CHECK(parse_options({"--micro-batch", "8"}).micro_batch == 8);
  CHECK(parse_options({"--micro-batch=8"}).micro_batch == 8);
  CHECK(parse_options({"--micro_batch", "8"}).micro_batch == 8);
  CHECK(parse_options({"--micro_batch=auto"}) == Options());
  CHECK(parse_options({"--lr", "3e-4"}).lr == 3e-4);
  CHECK(parse_options({"--adam-eps", "1e-5"}).adam_eps == 1e-5);
  CHECK(parse_options({"--lr", "1"}).lr == 1.0);
  CHECK(parse_options({"--train-tokens", "2.5e9"}).train_tokens == 2500000000);
  CHECK(parse_options({"--seed", "9007199254740993"}).seed == 9007199254740993);
  CHECK(parse_options({"--dry-run"}).dry_run);
  CHECK(parse_options({"--dry-run", "on"}).dry_run);
  CHECK(parse_options({"--tf32", "--dry-run", "off", "--export=off"}).tf32);
  CHECK(!parse_options({"--export", "off"}).export_);
  CHECK(parse_options({"--dry_run", "--steps", "3"}).steps == 3);
  CHECK(parse_options({"--prompt", "- a = b"}).prompt == "- a = b");
  CHECK(parse_options({"--prompt=--x=y"}).prompt == "--x=y");
  CHECK(parse_options({"--prompt="}).prompt == "");
  CHECK(parse_options({"--prompt", ""}).prompt == "");
  CHECK(parse_options({"--dtype", "bf16"}).dtype == "bf16");
  CHECK(parse_options({"--grad-clip", "0"}).grad_clip == 0);
  CHECK(parse_options({"--lr", "0.1", "--min-lr", "0.1"}).min_lr == 0.1);
  for (const Words& words : {Words{"--help"}, Words{"-h"}, Words{"--lr", "abc", "-h"}, Words{"--lr", "abc", "--help"},
                             Words{"--nonsense", "--help", "--x"}}) {
    CHECK(parse_options(words).help);
  }
  CHECK(parse_options({"--version"}).version);
}

TEST_CASE("names that nobody knows") {
  const std::string message = refusal({"--leraning-rate", "3"});
  has(message, "unknown option --leraning-rate\n  did you mean --lr?");
  has(message, "--help lists all options");
  has(refusal({"--step", "3"}), "did you mean --steps?");
  has(refusal({"--mirco_batch=3"}), "unknown option --mirco_batch\n  did you mean --micro-batch?");
  has(refusal({"--batch-size", "4"}), "--micro-batch?");
  has(refusal({"--parallel", "4"}),
      "--tensor-parallel-degree or --tensor-parallel-overlap or --tensor-parallel-reduce-dtype or "
      "--context-parallel-degree?");
  CHECK(refusal({"--qwertyuiop"}) == "unknown option --qwertyuiop\n  --help lists all options");
  CHECK(refusal({"--q"}) == "unknown option --q\n  --help lists all options");
  has(refusal({"lr=3e-4"}), "unexpected argument \"lr=3e-4\"\n  expected --name value; did you mean --lr?");
  has(refusal({"--dry-run", "on", "off"}), "unexpected argument \"off\"");
  has(refusal({"--"}), "unexpected argument \"--\"");
  has(refusal({""}), "unexpected argument \"\"");
  has(refusal({"--=3"}), "unknown option --");
}

TEST_CASE("values of the wrong type or out of range") {
  CHECK(refusal({"--steps", "-5"}) == "--steps -5: out of range\n  expected auto or an integer in [1, 1e15]");
  CHECK(refusal({"--lr", "abc"}) == "--lr abc: not a number\n  expected auto or a number in (0, inf)");
  CHECK(refusal({"--lr", "1e-3x"}) == "--lr 1e-3x: not a number\n  expected auto or a number in (0, inf)");
  CHECK(refusal({"--dtype", "fp17"}) == "--dtype fp17: unknown\n  expected one of auto, bf16, fp32");
  CHECK(refusal({"--dry-run", "yes"}) == "--dry-run yes: neither on nor off\n  expected on or off");
  const Words counts[] = {{"--steps", "0"},
                          {"--steps", "1.5"},
                          {"--steps", ""},
                          {"--steps", "0x10"},
                          {"--steps", "5 "},
                          {"--steps", " 5"},
                          {"--steps", "1e400"},
                          {"--seed", "auto"},
                          {"--seed", "1e17"},
                          {"--seed", "nan"},
                          {"--steps", "99999999999999999999"},
                          {"--steps", "1e-400"},
                          {"--steps", "inf"},
                          {"--steps", "Auto"},
                          {"--steps", "+5"},
                          {"--seed", "-9223372036854775808"}};
  for (const Words& words : counts) {
    CAPTURE(words[1]);
    CHECK(refusal(words).rfind(words[0] + " " + words[1] + ": ", 0) == 0);
    has(refusal(words), "an integer in ");
  }
  const Words reals[] = {{"--beta1", "1"},  {"--beta1", "-0.1"}, {"--beta1", "nan"},  {"--lr", "inf"},
                         {"--lr", "-inf"},  {"--lr", "-nan"},    {"--adam-eps", "0"}, {"--adam-eps", "1e-400"},
                         {"--epochs", "0"}, {"--beta2", "auto"}, {"--lr", ""},        {"--lr", "1,5"},
                         {"--lr", "1e"},    {"--lr", "0.1.2"},   {"--lr", "1e999"}};
  for (const Words& words : reals) {
    CAPTURE(words[1]);
    CHECK(refusal(words).rfind(words[0] + " " + words[1] + ": ", 0) == 0);
    has(refusal(words), "a number in ");
  }
  has(refusal({"--beta1", "1"}), "[0, 0.999999]");
  CHECK(refusal({"--beta1", "0"}).empty());
  has(refusal({"--prompt", "\xff"}), "not UTF-8");
}

TEST_CASE("missing and doubled values, values that exclude each other") {
  has(refusal({"--lr"}), "--lr needs a value\n  expected auto or a number");
  has(refusal({"--steps", "--lr", "3"}), "--steps needs a value");
  has(refusal({"--prompt", "--x"}), "--prompt=...");
  CHECK(refusal({"--lr", "1", "--seed", "2", "--lr", "3"}) == "--lr is given twice: 1 and 3\n  keep one of them");
  has(refusal({"--micro-batch=1", "--micro_batch", "1"}), "--micro-batch is given twice");
  CHECK(refusal({"--steps", "10", "--train-tokens", "100"}) ==
        "--steps 10 and --train-tokens 100 each set the length of the run\n"
        "  give one of --steps, --train-tokens, --epochs");
  has(refusal({"--epochs", "0.5", "--steps", "10"}), "--steps 10 and --epochs 0.5");
  CHECK(refusal({"--epochs", "0.5", "--steps", "auto"}).empty());
  has(refusal({"--lr", "0.01", "--min-lr", "0.1"}), "--min-lr 0.1 is above --lr 0.01");
}

TEST_CASE("a config file") {
  const ConfigFile file(
      R"({"steps": 40, "micro-batch": 2, "seq_len": 64.0, "lr": 1e-5, "min_lr": "auto", "dry_run": true,
    "tf32": "on", "dtype": "fp32", "prompt": "To be", "grad_clip": 2})");
  const Options o = parse_options({"--config", file.path});
  CHECK(o.steps == 40);
  CHECK(o.micro_batch == 2);
  CHECK(o.seq_len == 64);
  CHECK(o.lr == 1e-5);
  CHECK(is_auto(o.min_lr));
  CHECK(o.dry_run);
  CHECK(o.tf32);
  CHECK(o.dtype == "fp32");
  CHECK(o.prompt == "To be");
  CHECK(o.grad_clip == 2.0);

  SUBCASE("the command line wins, wherever --config stands") {
    const Options p =
        parse_options({"--lr", "2e-5", "--config=" + file.path, "--dry-run", "off", "--micro-batch", "auto"});
    CHECK(p.lr == 2e-5);
    CHECK(!p.dry_run);
    CHECK(is_auto(p.micro_batch));
    CHECK(p.steps == 40);
  }
  SUBCASE("a length on the command line replaces another one in the file") {
    const Options p = parse_options({"--config", file.path, "--epochs", "2"});
    CHECK(p.epochs == 2);
    CHECK(is_auto(p.steps));
  }
  SUBCASE("values of both are checked together") {
    has(refusal({"--config", file.path, "--min-lr", "1e-4"}), "--min-lr 1e-04 is above --lr 1e-05");
  }
}

TEST_CASE("config files that are refused") {
  has(config_refusal(R"({"stesp": 3})"), "\"stesp\": unknown option\n  did you mean steps?");
  has(config_refusal(R"({"learning_rate": 3})"), "did you mean lr?");
  has(config_refusal(R"({"fp9": "tensorwise"})"), "\"fp9\": unknown option\n  did you mean fp8?");
  has(config_refusal(R"({"lr": "3e-4"})"), "\"lr\" is the string \"3e-4\"\n  expected auto or a number");
  has(config_refusal(R"({"lr": null})"), "\"lr\" is null");
  has(config_refusal(R"({"lr": [1]})"), "\"lr\" is an array of 1");
  has(config_refusal(R"({"lr": -1})"),
      "\"lr\" is the integer -1: out of range\n  expected auto or a number in (0, inf)");
  has(config_refusal(R"({"steps": 1.5})"), "not an integer");
  has(config_refusal(R"({"steps": true})"), "\"steps\" is true");
  has(config_refusal(R"({"seed": "auto"})"), "\"seed\" is the string \"auto\"");
  has(config_refusal(R"({"dry_run": 1})"), "expected on or off");
  has(config_refusal(R"({"dry_run": "yes"})"), "neither on nor off");
  has(config_refusal(R"({"dtype": "fp17"})"), "expected one of auto, bf16, fp32");
  has(config_refusal(R"({"dtype": 16})"), "expected one of");
  has(config_refusal(R"({"model": 3})"), "expected text");
  has(config_refusal(R"({"micro_batch": 1, "micro-batch": 1})"), "stands twice");
  has(config_refusal(R"({"lr": 1, "lr": 1})"), "stands twice");
  has(config_refusal(R"({"steps": 1, "epochs": 1})"), "--steps 1 and --epochs 1 each set the length");
  for (const char* name : {"config", "help", "version"}) {
    has(config_refusal(format("{\"%s\": true}", name)), "only the command line takes this option");
  }
  has(config_refusal("[1]"), "expected an object");
  has(config_refusal("{\"lr\": 1e-}"), "not valid JSON");
  has(refusal({"--config", "/none.json"}), "/none.json: No such file");
}

TEST_CASE("every option: its default can be written, and leaves nothing changed") {
  Words all;
  const Json defaults = options_json(Options());
  for (const std::string& name : names()) {
    CAPTURE(name);
    const Words words = {dashed(name), plain(defaults.at(name))};
    CHECK(parse_options(words) == Options());
    all.insert(all.end(), words.begin(), words.end());
  }
  CHECK(parse_options(all) == Options());
  CHECK(names().size() >= 37);
}

// A value within the limits that the option's line in the table gives.
std::string some_value(const std::string& kind, const std::string& limits, std::mt19937& random) {
  if (kind == "Switch") return random() % 2 ? "on" : "off";
  if (kind == "Text") return "text \"\\\n\xc3\xa9" + std::to_string(random());
  if (kind == "Choice") {
    std::istringstream words(limits);
    Words all;
    for (std::string word; std::getline(words, word, '|');) all.push_back(word);
    return all.at(random() % all.size());
  }
  double low = 0, high = 0;
  CHECK(std::sscanf(limits.c_str(), "%*c%lf, %lf", &low, &high) == 2);
  if (kind == "Real")
    return shortest(std::uniform_real_distribution<double>(low + 0.001, std::min(high, low + 0.999))(random));
  return std::to_string(int64_t(low) + int64_t(random() % uint64_t(std::min(high - low, 100000.0) + 1)));
}

TEST_CASE("every option: the saved configuration gives the same values") {
  std::mt19937 random(3);
  std::map<std::string, std::string> kinds, limits;
  const auto add = [&](std::string name, const char* kind, const char* its_limits) {
    if (name.back() == '_') name.pop_back();
    kinds[name] = kind, limits[name] = its_limits;
  };
#define ADD_OPTION(group, kind, name, standard, limits, text, ...) add(#name, #kind, limits);
  OPTION_TABLE(ADD_OPTION)
#undef ADD_OPTION
  const Json defaults = options_json(Options());
  for (int round = 0; round < 200; ++round) {
    Words words;
    size_t changes = 0;
    for (const auto& [name, value] : defaults.items()) {
      if (random() % 2 || name == "train_tokens" || name == "epochs" || name == "min_lr") continue;
      std::string text;
      do text = some_value(kinds.at(name), limits.at(name), random);
      while (text == plain(value));
      words.insert(words.end(), {dashed(name), text});
      ++changes;
    }
    const Options options = parse_options(words);
    CHECK(changed_options(options).size() == changes);
    const ConfigFile file(options_json(options).dump(2));
    Options loaded = parse_options({"--config", file.path});
    CHECK(loaded.config == file.path);
    loaded.config = "";
    CHECK(loaded == options);
    Options applied;
    apply_config(applied, options_json(options));
    CHECK(applied == options);
  }
}

TEST_CASE("the banner's list") {
  const Options o = parse_options({"--lr", "3e-4", "--dry-run", "--seed=1337", "--steps", "20", "--model", ""});
  CHECK(changed_options(o) == Words{"model \"\"", "steps 20", "dry-run on", "lr 3e-04"});
}

TEST_CASE("help and the table of options") {
  const std::string help = options_help("train_llama"), table = options_markdown();
  std::istringstream lines(help);
  for (std::string line; std::getline(lines, line);) {
    CAPTURE(line);
    CHECK(line.size() <= 100);
    CHECK((line.empty() || line.back() != ' '));
  }
  // Each option's own text, whatever it says: in the help broken into lines, in the table with < and | escaped.
  const auto squeezed = [](const std::string& text) {
    std::string words;
    for (const char c : text)
      if (c != ' ' && c != '\n' && c != '\\') words += c;
    return words;
  };
  const auto check = [&](std::string name, const std::string& text) {
    name = dashed(name.back() == '_' ? name.substr(0, name.size() - 1) : name);
    CAPTURE(name);
    const size_t option = help.find("\n  " + name), row = table.find("| `" + name);
    CHECK(option != std::string::npos);
    CHECK(row != std::string::npos);
    if (option == std::string::npos || row == std::string::npos) return;
    const std::string words = squeezed(text);
    CHECK(squeezed(help.substr(option, 4 * text.size() + 400)).find(words) != std::string::npos);
    std::string in_table = table.substr(row, table.find('\n', row) - row);
    for (size_t at; (at = in_table.find("&lt;")) != std::string::npos;) in_table.replace(at, 4, "<");
    CHECK(squeezed(in_table).find(words) != std::string::npos);
  };
#define CHECK_OPTION(group, kind, name, standard, limits, text, ...) check(#name, text);
  OPTION_TABLE(CHECK_OPTION)
#undef CHECK_OPTION
  has(help, "Usage: train_llama ");
  has(help, "\n\nOptimizer\n  --lr X   ");
  has(help, " [1e-08]\n");
  has(help, "  --schedule cosine|linear|wsd|constant\n                                ");
  has(table, "| `--dtype auto\\|bf16\\|fp32` | `auto` |");
  std::istringstream rows(table);
  for (std::string row; std::getline(rows, row);) {
    CAPTURE(row);
    size_t bars = 0;
    for (size_t i = 0; i < row.size(); ++i) bars += row[i] == '|' && (i == 0 || row[i - 1] != '\\');
    CHECK(bars == 4);
  }
}

TEST_CASE("a file's length replaces a saved one") {
  const Json saved = Json::parse(R"({"steps": 100, "train_tokens": "auto", "lr": 0.5, "min_lr": "auto"})", "saved");
  const ConfigFile file(R"({"train_tokens": 5000})");
  const Options options = parse_options({"--config", file.path}, &saved);
  CHECK(is_auto(options.steps));
  CHECK(options.train_tokens == 5000);
  CHECK(options.lr == 0.5);
  CHECK(parse_options({"--epochs", "2"}, &saved).epochs == 2);
  CHECK(parse_options({}, &saved).steps == 100);
}

TEST_CASE("SageMaker's configuration works as it is") {
  const auto with = [](const std::string& json) {
    Options options;
    apply_config(options, Json::parse(json, "smp.json"));
    return options;
  };
  const Options options = with(R"({"hybrid_shard_degree": 8, "sm_activation_offloading": false, "random_seed": 7,
    "activation_loading_horizon": 2, "fsdp_cache_flush_warnings": false, "allow_empty_shards": true,
    "tensor_parallel_degree": 2, "context_parallel_degree": 4, "expert_parallel_degree": 1})");
  CHECK(options.hybrid_shard_degree == 8);
  CHECK(options.seed == 7);
  CHECK(options.tensor_parallel_degree == 2);
  CHECK(options.context_parallel_degree == 4);
  CHECK(options.activation_offload == "none");
  CHECK(options.activation_loading_horizon == 2);
  const Options offloading = with(R"({"sm_activation_offloading": true, "activation_loading_horizon": 3})");
  CHECK(offloading.recompute == "block");
  CHECK(offloading.activation_offload == "input");
  CHECK(offloading.activation_loading_horizon == 3);
  const Options kept = with(R"({"sm_activation_offloading": true, "recompute": "mlp"})");
  CHECK(kept.recompute == "mlp");
  CHECK(kept.activation_offload == "input");
  const std::string number = error_of([&] { with(R"({"sm_activation_offloading": 1})"); });
  CHECK(number.find("sm_activation_offloading") != number.npos);
  CHECK(number.find("expected true or false") != number.npos);
  const std::string experts = error_of([&] { with(R"({"expert_parallel_degree": 4})"); });
  CHECK(experts.find("expected 1") != experts.npos);
  const std::string twice = error_of([&] { with(R"({"random_seed": 1, "seed": 2})"); });
  CHECK(twice.find("stands twice") != twice.npos);
}

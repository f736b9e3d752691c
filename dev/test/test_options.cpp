// Covers: options: parser, config files, help, refusals with the nearest name; those that change nothing in a run
#include <algorithm>
#include <cstdio>
#include <map>
#include <random>
#include <sstream>
#include <tuple>

#include "dev/test/test.h"
#include "dev/test/token_files.h"
#include "llmc/base/options.h"
#include "llmc/base/text.h"
#include "llmc/device/known_devices.h"
#include "llmc/run/idle_options.h"
#include "llmc/run/model_source.h"
#include "llmc/run/tuner.h"

namespace {

using Words = std::vector<std::string>;

// A file of its own, removed at the end of the test.
struct ConfigFile {
  TemporaryFolder folder;
  std::string path;
  explicit ConfigFile(const std::string& text) : path(folder.write("options.json", text)) {}
};

std::string refusal(const Words& arguments) {
  return error_of([&] { parse_options(arguments); });
}

std::string config_refusal(const std::string& text) {
  const ConfigFile file(text);
  const std::string message = error_of([&] { parse_options({"--config", file.path}); });
  says(message, file.path);
  return message;
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
  const ModelConfig config = open_model(options).config;
  const RunSettings settings = resolve_settings(options, config, device, mesh.data_degree(), 100000);
  return idle_options(options, {options, settings, config, device, mesh});
}

}  // namespace

TEST_CASE("options that change nothing get a remark, and no others do") {
  struct Case {
    const char *options, *remark;
    int ranks = 1;
  };
  for (const Case& c : std::vector<Case>{
           {"", ""},
           {"--recompute-every 2", "--recompute-every changes nothing: --recompute is none"},
           {"--recompute-every 2 --recompute mlp", ""},
           {"--activation-loading-horizon 1",
            "--activation-loading-horizon changes nothing: --activation-offload is none"},
           {"--activation-offload all --activation-loading-horizon 9",
            "--activation-offload changes nothing: all 4 blocks are within the horizon of 9"},
           {"--fp8-precompute-scales off", "--fp8-precompute-scales changes nothing: --fp8 is off"},
           {"--fp8-precompute-scales off --fp8 tensorwise",
            "--fp8-precompute-scales changes nothing: --fp8-all-gather is off"},
           {"--zero-stage 3", "--zero-stage changes nothing: there is one rank"},
           {"--zero-stage 3", "", 2},
           {"--reduce-dtype bf16", "--reduce-dtype changes nothing: there is one rank"},
           {"--reduce-dtype bf16", "", 2},
           {"--reduce-dtype bf16 --hybrid-shard-degree 1",
            "--reduce-dtype changes nothing: each rank keeps a whole copy of the state", 2},
           {"--prefetch 2 --zero-stage 2",
            "--prefetch changes nothing: --zero-stage is not 3, and --offload-weights is off", 2},
           {"--prefetch 2 --zero-stage 3", "", 2},
           {"--prefetch 2 --offload-weights", ""},
           {"--tensor-parallel-overlap 1", "--tensor-parallel-overlap changes nothing: --tensor-parallel-degree is 1",
            2},
           {"--gpu A100", "--gpu changes nothing: it is for --dry-run"},
           {"--gpu A100 --nodes 1 --dry-run", ""},
           {"--fp8-head backward --fp8 tensorwise --dtype bf16", ""},
           {"--fp8-head backward --fp8 tensorwise --dtype bf16 --eval-only",
            "--fp8-head changes nothing: --eval-only trains nothing"},
           {"--fp8-weights on-use --fp8 tensorwise --dtype bf16", ""},
           {"--fp8-weights on-use --fp8 rowwise --dtype bf16 --offload-weights",
            "--fp8-weights changes nothing: blocks that come from ranks or the host are made on use"},
           {"--fp8-head on --fp8 tensorwise --dtype bf16 --eval-only", ""},
           {"--tf32", "--tf32 changes nothing: products are bf16"},
           {"--tf32 --dtype fp32", ""},
           {"--checkpoint-async off", "--checkpoint-async changes nothing: no checkpoints are saved"},
           {"--min-lr 0 --schedule constant", "--min-lr changes nothing: --schedule is constant"},
           {"--cooldown-steps 5%", "--cooldown-steps changes nothing: --schedule is not wsd"},
           {"--cooldown-steps 5% --cooldown-shape cosine --schedule wsd", ""},
           {"--cooldown-steps 0 --cooldown-shape cosine --min-lr 0 --schedule wsd",
            "--min-lr, --cooldown-shape change nothing: --cooldown-steps is 0"},
           {"--min-lr 0 --schedule linear --steps 5 --warmup-steps 5",
            "--min-lr, --schedule change nothing: the warm-up takes all 5 steps: --warmup-steps 5"},
           {"--min-lr 0 --schedule linear --steps 5 --warmup-steps 4", ""},
           {"--document-token 0", "--document-token changes nothing: --packed-documents is off"},
           {"--top-p 0.5 --temperature 0", "--top-p changes nothing: --temperature is 0"},
           {"--prompt x --top-p 0.5 --sample-every 0", "--prompt, --top-p change nothing: --sample-every is 0"},
           {"--sample-only --lr 1 --steps 3 --prompt x",
            "--steps, --lr change nothing: --sample-only trains nothing"}}) {
    CAPTURE(c.options);
    CHECK(remarks(words_of(c.options), c.ranks) == (*c.remark ? Words{c.remark} : Words{}));
  }
  CHECK(remarks({"--tf32"}, 1, nullptr) == Words{"--tf32 changes nothing: a CPU has none"});
}

TEST_CASE("each word that an option needs is a condition of the trainer's") {
  const Options options;
  const ModelConfig config = open_model(options).config;
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
#define CHANGE(group, kind, scope, name, ...) change(changed.name);
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
  says(error_of([&] { unmet_need("moonlight", run); }), "\"moonlight\", which is no condition");
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
}

TEST_CASE("the ways to write an option") {
  CHECK(parse_options({"--micro-batch", "8"}).micro_batch == 8);
  CHECK(parse_options({"--micro-batch=8"}).micro_batch == 8);
  CHECK(parse_options({"--micro_batch", "8"}).micro_batch == 8);
  CHECK(parse_options({"--micro_batch=auto"}) == Options());
  CHECK(parse_options({"--lr", "3e-4"}).lr == 3e-4);
  CHECK(parse_options({"--adam-eps", "1e-5"}).adam_eps == 1e-5);
  CHECK(parse_options({"--lr", "1"}).lr == 1.0);
  CHECK(parse_options({"--cooldown-steps", "12.5%"}).cooldown_steps == 0.125);
  CHECK(parse_options({"--cooldown-steps", "20%"}) == parse_options({"--cooldown-steps=0.2"}));
  CHECK(parse_options({"--cooldown-steps", "500"}).cooldown_steps == 500);
  CHECK(parse_options({"--train-tokens", "2.5e9"}).train_tokens == 2500000000);
  CHECK(parse_options({"--train-tokens", "10B"}).train_tokens == 10000000000);
  CHECK(parse_options({"--train-tokens", "1.5t"}).train_tokens == 1500000000000);
  CHECK(parse_options({"--train-tokens=0.3M", "--val-tokens", "16k"}).val_tokens == 16000);
  CHECK(parse_options({"--train-tokens=0.3M"}).train_tokens == 300000);
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

TEST_CASE("names that nobody knows, values of the wrong type, missing, doubled or excluding each other") {
  const std::pair<Words, const char*> cases[] = {
      {{"--leraning-rate", "3"}, "unknown option --leraning-rate\n  did you mean --lr? --help lists all options"},
      {{"--step", "3"}, "did you mean --steps?"},
      {{"--lr-wsd-decay-iters", "9"}, "did you mean --cooldown-steps?"},
      {{"--warmdown-ratio", "0.2"}, "did you mean --cooldown-steps?"},
      {{"--mirco_batch=3"}, "unknown option --mirco_batch\n  did you mean --micro-batch?"},
      {{"--batch-size", "4"}, "--micro-batch?"},
      {{"--parallel", "4"},
       "--tensor-parallel-degree or --tensor-parallel-overlap or --tensor-parallel-reduce-dtype or "
       "--context-parallel-degree?"},
      {{"--q"}, "unknown option --q\n  --help lists all options"},
      {{"lr=3e-4"}, "unexpected argument \"lr=3e-4\"\n  expected --name value; did you mean --lr?"},
      {{"--dry-run", "on", "off"}, "unexpected argument \"off\""},
      {{"--"}, "unexpected argument \"--\""},
      {{""}, "unexpected argument \"\""},
      {{"--=3"}, "unknown option --"},
      {{"--steps", "-5"}, "--steps -5: out of range\n  expected auto or an integer in [1, 1e15]"},
      {{"--train-tokens", "10X"}, "--train-tokens 10X: not an integer, which may have a unit: 10k, 300M, 1.5B, 2T"},
      {{"--train-tokens", "B"}, "--train-tokens B: not an integer"},
      {{"--train-tokens", "1.5BT"}, "--train-tokens 1.5BT: not an integer"},
      {{"--train-tokens", "1e3B"}, "--train-tokens 1e3B: not an integer"},
      {{"--train-tokens", "1.0005k"}, "--train-tokens 1.0005k: not an integer"},
      {{"--train-tokens", "2000000T"}, "--train-tokens 2000000T: out of range"},
      {{"--lr", "3k"}, "--lr 3k: not a number"},
      {{"--lr", "abc"}, "--lr abc: not a number\n  expected auto or a number in (0, inf)"},
      {{"--lr", "1e-3x"}, "--lr 1e-3x: not a number\n  expected auto or a number in (0, inf)"},
      {{"--beta1", "1"}, "[0, 0.999999]"},
      {{"--dtype", "fp17"}, "--dtype fp17: unknown\n  expected one of auto, bf16, fp32"},
      {{"--dry-run", "yes"}, "--dry-run yes: neither on nor off\n  expected on or off"},
      {{"--prompt", "\xff"}, "not UTF-8"},
      {{"--lr"}, "--lr needs a value\n  expected auto or a number"},
      {{"--steps", "--lr", "3"}, "--steps needs a value"},
      {{"--prompt", "--x"}, "--prompt=..."},
      {{"--lr", "1", "--seed", "2", "--lr", "3"}, "--lr is given twice: 1 and 3\n  keep one of them"},
      {{"--micro-batch=1", "--micro_batch", "1"}, "--micro-batch is given twice"},
      {{"--steps", "10", "--train-tokens", "100"},
       "--steps 10 and --train-tokens 100 each set the length of the run\n"
       "  give one of --steps, --train-tokens, --epochs"},
      {{"--epochs", "0.5", "--steps", "10"}, "--steps 10 and --epochs 0.5"}};
  for (const auto& [words, error] : cases) says(refusal(words), error);
  CHECK(refusal({"--qwertyuiop"}) == "unknown option --qwertyuiop\n  --help lists all options");  // and no proposal
  CHECK(refusal({"--beta1", "0"}).empty());
  CHECK(refusal({"--epochs", "0.5", "--steps", "auto"}).empty());

  const std::tuple<const char*, const char*, Words> numbers[] = {
      {"--steps",
       "an integer in ",
       {"0", "1.5", "", "0x10", "5 ", " 5", "1e400", "99999999999999999999", "1e-400", "inf", "Auto", "+5"}},
      {"--seed", "an integer in ", {"auto", "1e17", "nan", "-9223372036854775808"}},
      {"--beta1", "a number in ", {"1", "-0.1", "nan"}},
      {"--beta2", "a number in ", {"auto"}},
      {"--lr", "a number in ", {"inf", "-inf", "-nan", "", "1,5", "1e", "0.1.2", "1e999", "%", "5%%", "1e2%"}},
      {"--adam-eps", "a number in ", {"0", "1e-400"}},
      {"--cooldown-steps", "a number in ", {"100%", "200%", "-5%"}},
      {"--epochs", "a number in ", {"0"}}};
  for (const auto& [option, expected, values] : numbers)
    for (const std::string& value : values) {
      CHECK(refusal({option, value}).starts_with(std::string(option) + " " + value + ": "));
      says(refusal({option, value}), expected);
    }
}

TEST_CASE("a config file") {
  const ConfigFile file(
      R"({"steps": 40, "micro-batch": 2, "seq_len": 64.0, "lr": 1e-5, "min_lr": "auto", "dry_run": true,
    "tf32": "on", "dtype": "fp32", "prompt": "Thou", "grad_clip": 2})");
  Options o = parse_options({"--config", file.path});
  CHECK(o.config == file.path);
  o.config = "";
  CHECK(o == parse_options(words_of("--steps 40 --micro-batch 2 --seq-len 64 --lr 1e-5 --dry-run --tf32 --dtype fp32 "
                                    "--prompt Thou --grad-clip 2")));

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
}

TEST_CASE("config files that are refused") {
  const std::pair<const char*, const char*> cases[] = {
      {R"({"stesp": 3})", "\"stesp\": unknown option\n  did you mean steps?"},
      {R"({"learning_rate": 3})", "did you mean lr?"},
      {R"({"fp9": "tensorwise"})", "\"fp9\": unknown option\n  did you mean fp8?"},
      {R"({"lr": "3e-4"})", "\"lr\" is the string \"3e-4\"\n  expected auto or a number"},
      {R"({"lr": null})", "\"lr\" is null"},
      {R"({"lr": [1]})", "\"lr\" is an array of 1"},
      {R"({"lr": -1})", "\"lr\" is the integer -1: out of range\n  expected auto or a number in (0, inf)"},
      {R"({"steps": 1.5})", "not an integer"},
      {R"({"steps": true})", "\"steps\" is true"},
      {R"({"seed": "auto"})", "\"seed\" is the string \"auto\""},
      {R"({"dry_run": 1})", "expected on or off"},
      {R"({"dry_run": "yes"})", "neither on nor off"},
      {R"({"dtype": "fp17"})", "expected one of auto, bf16, fp32"},
      {R"({"dtype": 16})", "expected one of"},
      {R"({"model": 3})", "expected text"},
      {R"({"micro_batch": 1, "micro-batch": 1})", "stands twice"},
      {R"({"lr": 1, "lr": 1})", "stands twice"},
      {R"({"steps": 1, "epochs": 1})", "--steps 1 and --epochs 1 each set the length"},
      {"[1]", "expected an object"},
      {R"({"lr": 1e-})", "not valid JSON"}};
  for (const auto& [text, error] : cases) says(config_refusal(text), error);
  for (const std::string option : {"config", "help", "version"})
    says(config_refusal("{\"" + option + "\": true}"), "only the command line takes this option");
  says(refusal({"--config", "/none.json"}), "/none.json: No such file");
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
#define ADD_OPTION(group, kind, scope, name, standard, limits, text, ...) add(#name, #kind, limits);
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
    Options applied;
    apply_config(applied, options_json(options));
    CHECK(applied == options);
    const Json saved = options_json(options, Scope::machine);  // config.json
    const ConfigFile file(saved.dump(2));
    const Options loaded = parse_options({"--config", file.path});
    CHECK(loaded.config == file.path);
    CHECK(options_json(loaded, Scope::machine) == saved);
    CHECK(options_json(loaded).at("out") == defaults.at("out"));
  }
}

TEST_CASE("every option: a run that goes on takes it over if it is the run's, and from no file if it is a start's") {
  std::mt19937 random(4);
  const Json defaults = options_json(Options());
  const auto check = [&](std::string name, const char* kind, const char* limits, Scope scope) {
    if (name.back() == '_') name.pop_back();
    if (scope == Scope::command) return;
    CAPTURE(name);
    std::string text;
    do text = some_value(kind, limits, random);
    while (text == plain(defaults.at(name)));
    const Options other = parse_options({dashed(name), text});
    const Json of_stranger = Json::object().set(name, options_json(other).at(name));
    CHECK(changed_options(parse_options({}, &of_stranger)).size() == (scope >= Scope::run ? 1 : 0));
    CHECK(options_json(other, Scope::run).contains(name) == (scope >= Scope::run));
    CHECK(options_json(other, Scope::machine).contains(name) == (scope >= Scope::machine));
    CHECK(scope_of(dashed(name).substr(2)) == scope);
  };
#define CHECK_SCOPE(group, kind, scope, name, standard, limits, text, ...) check(#name, #kind, limits, Scope::scope);
  OPTION_TABLE(CHECK_SCOPE)
#undef CHECK_SCOPE
  for (const char* writes : {"config", "out", "trace", "consolidate", "rendezvous", "resume", "tuning"}) {
    CAPTURE(writes);
    CHECK(*scope_of(writes) < Scope::run);
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
    const size_t option = help.find("\n  " + name + " "),
                 row = std::min(table.find("| `" + name + " "), table.find("| `" + name + "`"));
    CHECK(option != std::string::npos);
    CHECK(row != std::string::npos);
    if (option == std::string::npos || row == std::string::npos) return;
    const std::string words = squeezed(text);
    says(squeezed(help.substr(option, 4 * text.size() + 400)), words);
    std::string in_table = table.substr(row, table.find('\n', row) - row);
    for (size_t at; (at = in_table.find("&lt;")) != std::string::npos;) in_table.replace(at, 4, "<");
    says(squeezed(in_table), words);
  };
#define CHECK_OPTION(group, kind, scope, name, standard, limits, text, ...) check(#name, text);
  OPTION_TABLE(CHECK_OPTION)
#undef CHECK_OPTION
  says(help, "Usage: train_llama ", "\n\nOptimizer\n  --lr X   ", " [1e-08]\n",
       "  --schedule cosine|linear|wsd|constant\n                                ");
  says(table, "| `--dtype auto\\|bf16\\|fp32` | `auto` |");
  std::istringstream rows(table);
  for (std::string row; std::getline(rows, row);) {
    CAPTURE(row);
    size_t bars = 0;
    for (size_t i = 0; i < row.size(); ++i) bars += row[i] == '|' && (i == 0 || row[i - 1] != '\\');
    CHECK(bars == 5);
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
  CHECK(options == parse_options(words_of("--hybrid-shard-degree 8 --seed 7 --tensor-parallel-degree 2 "
                                          "--context-parallel-degree 4 --activation-loading-horizon 2")));
  const Options offloading = with(R"({"sm_activation_offloading": true, "activation_loading_horizon": 3})");
  CHECK(offloading ==
        parse_options(words_of("--recompute block --activation-offload input --activation-loading-horizon 3")));
  CHECK(with(R"({"sm_activation_offloading": true, "recompute": "mlp"})") ==
        parse_options(words_of("--recompute mlp --activation-offload input")));
  says(error_of([&] { with(R"({"sm_activation_offloading": 1})"); }), "sm_activation_offloading",
       "expected true or false");
  says(error_of([&] { with(R"({"expert_parallel_degree": 4})"); }), "expected 1");
  says(error_of([&] { with(R"({"random_seed": 1, "seed": 2})"); }), "stands twice");
}

TEST_CASE("a long training on a GPU is told of tuned products") {
  const Options defaults;
  says(tuning_hint(defaults, true, 5000, false), "--tune-products on may pay");
  CHECK(tuning_hint(defaults, true, 4999, false) == "");
  CHECK(tuning_hint(defaults, false, 5000, false) == "");
  CHECK(tuning_hint(defaults, true, 5000, true) == "");
  Options tunes, tuned;
  tunes.tune_products = true, tuned.tuning = "runs/other/tuning.json";
  CHECK(tuning_hint(tunes, true, 5000, false) == "");
  CHECK(tuning_hint(tuned, true, 5000, false) == "");
}

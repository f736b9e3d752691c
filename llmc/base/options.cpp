#include "llmc/base/options.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <variant>

#include "llmc/base/error.h"
#include "llmc/base/text.h"

namespace {

enum class Kind { Count, Real, Switch, Choice, Text };

struct OptionInfo {
  const char* group;
  Kind kind;
  Scope scope;
  std::string name;  // as on the command line, without the dashes
  std::variant<int64_t Options::*, double Options::*, bool Options::*, std::string Options::*> field;
  std::string limits;
  std::string help;
  std::string needs = "";
};

using Table = std::vector<OptionInfo>;

// train_data, train-data → train-data; export_ → export.
std::string spelled(std::string name) {
  std::replace(name.begin(), name.end(), '_', '-');
  if (!name.empty() && name.back() == '-') name.pop_back();
  return name;
}

const Table& table() {
#define OPTION_INFO(group, kind, scope, name, standard, limits, help, ...) \
  {group, Kind::kind, Scope::scope, spelled(#name), &Options::name, limits, help __VA_OPT__(, ) __VA_ARGS__},
  static const Table options = {OPTION_TABLE(OPTION_INFO)};
#undef OPTION_INFO
  return options;
}

// Names that other programs use for our options. They serve only for "did you mean".
const std::pair<const char*, const char*> kOtherNames[] = {
    {"learning-rate", "lr"},
    {"max-lr", "lr"},
    {"final-lr", "min-lr"},
    {"eps", "adam-eps"},
    {"clip", "grad-clip"},
    {"clip-grad", "grad-clip"},
    {"max-grad-norm", "grad-clip"},
    {"lr-scheduler", "schedule"},
    {"lr-schedule", "schedule"},
    {"lr-decay-style", "schedule"},
    {"decay-steps", "cooldown-steps"},
    {"decay-ratio", "cooldown-steps"},         // torchtitan
    {"lr-wsd-decay-iters", "cooldown-steps"},  // Megatron-LM
    {"warmdown-ratio", "cooldown-steps"},      // nanochat
    {"decay-type", "cooldown-shape"},
    {"lr-wsd-decay-style", "cooldown-shape"},
    {"z-loss-multiplier", "z-loss"},
    {"softmax-auxiliary-loss", "z-loss"},
    {"time-limit", "stop-after"},
    {"exit-duration-in-mins", "stop-after"},
    {"batch-size", "micro-batch"},
    {"micro-batch-size", "micro-batch"},
    {"global-batch-size", "global-batch"},
    {"sequence-length", "seq-len"},
    {"context-length", "seq-len"},
    {"block-size", "seq-len"},
    {"max-steps", "steps"},
    {"num-steps", "steps"},
    {"iterations", "steps"},
    {"num-layers", "layers"},
    {"precision", "dtype"},
    {"output", "out"},
    {"output-dir", "out"},
    {"data", "train-data"},
    {"eval-every", "val-every"},
    {"tp", "tensor-parallel-degree"},
    {"tensor-parallel-size", "tensor-parallel-degree"},
    {"cp", "context-parallel-degree"},
    {"context-parallel-size", "context-parallel-degree"},
    {"tune", "tune-products"},  // Open MPI's mpirun takes --tune for itself, wherever it stands
    {"h", "help"},
};

// Keys of SageMaker's model parallelism library (SMP v2) that have another name here or no counterpart. They let its
// JSON work as a config file.
struct SageMakerKey {
  const char *key, *option;  // null: nothing to set
  const char* only;          // the only value accepted, which is what this program does anyway; null: any
};
constexpr SageMakerKey kSageMakerKeys[] = {
    {"random_seed", "seed", nullptr},
    {"expert_parallel_degree", nullptr, "1"},
    {"allow_empty_shards", nullptr, nullptr},         // empty shards are always allowed
    {"fsdp_cache_flush_warnings", nullptr, nullptr},  // there is no cache: memory is planned
};

// Returns the option that such a key sets, or null if there is nothing to set. Throws if the value asks for what this
// program cannot do.
const char* option_of(const SageMakerKey& known, const Json& value) {
  REQUIRE(!known.only || value.dump() == known.only, "%s is %s: this version cannot do that\n  expected %s",
          value.where().c_str(), value.found().c_str(), known.only);
  return known.option;
}

// A run takes at most one of these options.
const std::vector<std::string> kLengths = {"steps", "train-tokens", "epochs"};

const OptionInfo* find_option(const std::string& name) {
  const std::string wanted = spelled(name);
  for (const OptionInfo& info : table()) {
    if (info.name == wanted) return &info;
  }
  return nullptr;
}

// Returns the names similar to an unknown one: the nearest by spelling, or else all that contain it or are contained in
// it.
std::vector<std::string> suggestions(const std::string& name) {
  const std::string wanted = spelled(name);
  std::vector<std::string> names;
  for (const OptionInfo& info : table()) names.push_back(info.name);
  for (const auto& [other, ours] : kOtherNames) names.push_back(other);
  std::string near = nearest(wanted, names);
  for (const auto& [other, ours] : kOtherNames) {
    if (near == other) near = ours;
  }
  if (!near.empty()) return {near};
  std::vector<std::string> related;
  for (const OptionInfo& info : table()) {
    const bool contains = wanted.size() >= 3 && info.name.find(wanted) != std::string::npos;
    const bool contained = info.name.size() >= 3 && wanted.find(info.name) != std::string::npos;
    if (contains || contained) related.push_back(info.name);
  }
  return related;
}

std::string did_you_mean(const std::string& name, const std::string& dashes) {
  std::string list;
  for (const std::string& near : suggestions(name)) list += (list.empty() ? "" : " or ") + dashes + near;
  return list.empty() ? "" : "did you mean " + list + "? ";
}

std::vector<std::string> words_of(const std::string& choices, char border = '|') {
  std::vector<std::string> words;
  for (size_t begin = 0; begin <= choices.size();) {
    const size_t end = std::min(choices.find(border, begin), choices.size());
    words.push_back(choices.substr(begin, end - begin));
    begin = end + 1;
  }
  return words;
}

// An interval in mathematical notation: "[0, 1)", "(0, inf)".
struct Interval {
  double low, high;
  bool with_low, with_high;
  bool holds(double x) const { return (with_low ? x >= low : x > low) && (with_high ? x <= high : x < high); }
};

Interval interval_of(const OptionInfo& info) {
  char open = 0, close = 0, low[32] = "", high[32] = "";
  const int fields = std::sscanf(info.limits.c_str(), "%c%31[^,], %31[^])]%c", &open, low, high, &close);
  REQUIRE(fields == 4, "option table: --%s has the limits \"%s\"\n  expected an interval such as [0, 1)",
          info.name.c_str(), info.limits.c_str());
  const bool endless = std::strcmp(high, "inf") == 0;
  return {std::atof(low), endless ? std::numeric_limits<double>::infinity() : std::atof(high), open == '[',
          close == ']'};
}

std::string text_of(const Options& options, const OptionInfo& info) {
  const auto text = [&](auto field) -> std::string {
    const auto& value = options.*field;
    using T = std::remove_cvref_t<decltype(value)>;
    if constexpr (std::is_same_v<T, bool>) return value ? "on" : "off";
    if constexpr (std::is_same_v<T, int64_t>) return is_auto(value) ? "auto" : std::to_string(value);
    if constexpr (std::is_same_v<T, double>) return is_auto(value) ? "auto" : shortest(value);
    if constexpr (std::is_same_v<T, std::string>) return value;
  };
  return std::visit(text, info.field);
}

std::string default_of(const OptionInfo& info) { return text_of(Options(), info); }

bool takes_auto(const OptionInfo& info) {
  return (info.kind == Kind::Count || info.kind == Kind::Real) && default_of(info) == "auto";
}

std::string expected(const OptionInfo& info) {
  const std::string or_auto = takes_auto(info) ? "auto or " : "";
  switch (info.kind) {
    case Kind::Count:
      return or_auto + "an integer in " + info.limits;
    case Kind::Real:
      return or_auto + "a number in " + info.limits;
    case Kind::Switch:
      return "on or off";
    case Kind::Text:
      return "text";
    case Kind::Choice:
      break;
  }
  std::string list;
  for (const std::string& word : words_of(info.limits)) list += (list.empty() ? "one of " : ", ") + word;
  return list;
}

// Each `set_` function returns what is wrong with the text, or "".

std::string set_real(double& field, const OptionInfo& info, const std::string& given) {
  const std::string text = given.ends_with('%') ? given.substr(0, given.size() - 1) + "e-2" : given;
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error == std::errc::result_out_of_range) return "beyond what a double holds";
  if (error != std::errc() || end != text.data() + text.size()) return "not a number";
  if (!interval_of(info).holds(value)) return "out of range";
  if (text != given && value >= 1) return "a share of all or more";  // 100% would be one step of a cooldown
  field = value;
  return "";
}

// Writes a unit (k, M, B or T, in either case) as an exponent, which a double reads exactly: "2.7B" → "2.7e9".
std::string with_exponent(const std::string& text) {
  const size_t unit = text.size() < 2 ? std::string::npos : std::string("kmbt").find(char(std::tolower(text.back())));
  return unit == std::string::npos ? text : text.substr(0, text.size() - 1) + "e" + std::to_string(3 * (unit + 1));
}

std::string set_count(int64_t& field, const OptionInfo& info, const std::string& given) {
  const std::string text = with_exponent(given);
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) {
    // 1e9 and 1B are accepted as integers too, as long as a double represents them exactly.
    double real = 0;
    const auto [real_end, real_error] = std::from_chars(text.data(), text.data() + text.size(), real);
    const bool number = real_error != std::errc::invalid_argument && real_end == text.data() + text.size();
    if (!number || (real_error == std::errc() && real != std::floor(real)))
      return "not an integer, which may have a unit: 10k, 300M, 1.5B, 2T";
    if (real_error != std::errc() || std::abs(real) > 9007199254740992.0) return "out of range";
    value = int64_t(real);
  }
  if (!interval_of(info).holds(double(value))) return "out of range";
  field = value;
  return "";
}

std::string set_switch(bool& field, const std::string& text) {
  if (text != "on" && text != "off") return "neither on nor off";
  field = text == "on";
  return "";
}

std::string set_string(std::string& field, const OptionInfo& info, const std::string& text) {
  const std::vector<std::string> words = words_of(info.limits);
  if (info.kind == Kind::Choice && std::find(words.begin(), words.end(), text) == words.end()) return "unknown";
  // config.json must be able to represent it.
  try {
    Json(text).dump();
  } catch (const Error&) {
    return "not UTF-8";
  }
  field = text;
  return "";
}

std::string set(Options& options, const OptionInfo& info, const std::string& text) {
  const auto set_field = [&](auto field) -> std::string {
    auto& value = options.*field;
    using T = std::remove_cvref_t<decltype(value)>;
    if constexpr (std::is_same_v<T, int64_t> || std::is_same_v<T, double>) {
      if (takes_auto(info) && text == "auto") return value = kAuto, "";
    }
    if constexpr (std::is_same_v<T, int64_t>) return set_count(value, info, text);
    if constexpr (std::is_same_v<T, double>) return set_real(value, info, text);
    if constexpr (std::is_same_v<T, bool>) return set_switch(value, text);
    if constexpr (std::is_same_v<T, std::string>) return set_string(value, info, text);
  };
  return std::visit(set_field, info.field);
}

struct Given {
  const OptionInfo* info;
  std::string value;
};

// Returns the option that arguments[i] names, and its value. On return, `i` is the index of the last argument consumed.
Given read_argument(const std::vector<std::string>& arguments, size_t& i) {
  const std::string& argument = arguments[i];
  const size_t equals = argument.find('=');
  const bool dashed = argument.size() > 2 && argument.compare(0, 2, "--") == 0;
  const std::string name =
      argument.substr(dashed ? 2 : 0, equals == argument.npos ? equals : equals - (dashed ? 2 : 0));
  if (!dashed) {
    const std::string bare = name.substr(std::min(name.find_first_not_of('-'), name.size()));
    const std::string hint = argument.empty() ? "" : did_you_mean(bare, "--");
    // The shell replaces an unquoted pattern by the files that match it.
    std::error_code unreadable;
    const bool is_file = std::filesystem::exists(argument, unreadable);
    fail("unexpected argument \"%s\"\n  expected --name value; %s%s--help lists all options", argument.c_str(),
         hint.c_str(),
         is_file ? "a file is the value of an option, such as --train-data FILE, and a pattern of files needs quotes: "
                   "'books/*.txt'; "
                 : "");
  }
  const OptionInfo* info = find_option(name);
  REQUIRE(info, "unknown option --%s\n  %s--help lists all options", name.c_str(), did_you_mean(name, "--").c_str());
  if (equals != argument.npos) return {info, argument.substr(equals + 1)};
  const bool value_follows = i + 1 < arguments.size() && arguments[i + 1].compare(0, 2, "--") != 0;
  if (!value_follows && info->kind == Kind::Switch) return {info, "on"};
  REQUIRE(value_follows, "--%s needs a value\n  expected %s%s", info->name.c_str(), expected(*info).c_str(),
          i + 1 < arguments.size() ? (" (one that begins with -- is written --" + info->name + "=...)").c_str() : "");
  return {info, arguments[++i]};
}

// Throws if more than one length of the run is given. `origin` is the file, or "" for the command line.
void check_lengths(const Options& options, const std::string& origin) {
  std::string given, all;
  int count = 0;
  for (const std::string& name : kLengths) {
    const std::string value = text_of(options, *find_option(name));
    all += (all.empty() ? "--" : ", --") + name;
    if (value == "auto") continue;
    given += (given.empty() ? "--" : " and --") + name + " " + value;
    ++count;
  }
  REQUIRE(count <= 1, "%s%s each set the length of the run\n  give one of %s", origin.c_str(), given.c_str(),
          all.c_str());
}

// Returns the command line's text for a value of a config file. Throws on a value of another kind.
std::string config_text(const OptionInfo& info, const Json& value) {
  const bool is_number = info.kind == Kind::Count || info.kind == Kind::Real;
  if (value.is_string() && (!is_number || (takes_auto(info) && value.as_string() == "auto"))) return value.as_string();
  if (value.is_bool() && info.kind == Kind::Switch) return value.as_bool() ? "on" : "off";
  if (value.is_int() && is_number) return std::to_string(value.as_int());
  if (value.is_double() && is_number) return shortest(value.as_double());
  fail("%s is %s\n  expected %s", value.where().c_str(), value.found().c_str(), expected(info).c_str());
}

// Wraps `text` into lines of `width` columns. All lines after the first are indented by `indent` spaces.
std::string wrapped(const std::string& text, size_t width, size_t indent) {
  std::string lines;
  size_t column = 0;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find(' ', begin), text.size());
    if (column > 0 && column + 1 + end - begin > width) {
      lines += "\n" + std::string(indent, ' ');
      column = 0;
    }
    if (column > 0) lines += " ", ++column;
    lines += text.substr(begin, end - begin);
    column += end - begin;
    begin = end + 1;
  }
  return lines;
}

std::string placeholder(const OptionInfo& info) {
  switch (info.kind) {
    case Kind::Count:
      return "N";
    case Kind::Real:
      return "X";
    case Kind::Switch:
      return info.scope != Scope::command ? "on|off" : "";
    case Kind::Choice:
    case Kind::Text:
      break;
  }
  return info.limits;
}

}  // namespace

Options parse_options(const std::vector<std::string>& arguments, const Json* saved) {
  Options options;
  for (const std::string& argument : arguments) {
    options.help |= argument == "--help" || argument == "-h";
    options.version |= argument == "--version";
  }
  if (options.help || options.version) return options;

  std::vector<Given> given;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const Given now = read_argument(arguments, i);
    for (const Given& before : given) {
      REQUIRE(before.info != now.info, "--%s is given twice: %s and %s\n  keep one of them", now.info->name.c_str(),
              before.value.c_str(), now.value.c_str());
    }
    given.push_back(now);
  }

  if (saved) apply_config(options, *saved, Scope::run);
  for (const Given& it : given) {
    if (it.info->name != "config") continue;
    apply_config(options, Json::read(it.value));
  }
  // A length on the command line replaces a different length of the file.
  const auto is_length = [](const Given& it) {
    return std::count(kLengths.begin(), kLengths.end(), it.info->name) > 0;
  };
  if (std::any_of(given.begin(), given.end(), is_length)) {
    for (const std::string& name : kLengths) set(options, *find_option(name), "auto");
  }
  for (const Given& it : given) {
    const std::string problem = set(options, *it.info, it.value);
    REQUIRE(problem.empty(), "--%s %s: %s\n  expected %s", it.info->name.c_str(), it.value.c_str(), problem.c_str(),
            expected(*it.info).c_str());
    options.given.push_back(it.info->name);
  }
  check_lengths(options, "");
  return options;
}

// SageMaker's activation offloading keeps the inputs of checkpointed blocks in host memory. Options that the file sets
// explicitly take precedence.
static void set_sm_offloading(Options& options, const Json& config, const Json& value) {
  REQUIRE(value.is_bool(), "%s is %s\n  expected true or false", value.where().c_str(), value.found().c_str());
  if (!value.as_bool()) return;
  const auto says = [&](const std::string& name) {
    for (const auto& [key, _] : config.items())
      if (spelled(key) == name) return true;
    return false;
  };
  if (!says("recompute")) options.recompute = "block";
  if (!says("activation-offload")) options.activation_offload = "input";
}

void apply_config(Options& options, const Json& config, Scope least) {
  // A length in `config` replaces any length set before.
  for (const std::string& name : kLengths)
    for (const auto& [key, value] : config.items())
      if (spelled(key) == name && !(value.is_string() && value.as_string() == "auto"))
        for (const std::string& other : kLengths) set(options, *find_option(other), "auto");
  std::vector<const OptionInfo*> seen;
  for (const auto& [given, value] : config.items()) {
    if (given == "sm_activation_offloading") {
      set_sm_offloading(options, config, value);
      continue;
    }
    std::string key = given;
    for (const SageMakerKey& known : kSageMakerKeys)
      if (given == known.key) key = option_of(known, value) ? known.option : "";
    if (key.empty()) continue;
    const OptionInfo* info = find_option(key);
    REQUIRE(info, "%s: unknown option\n  %sexpected the names that --help lists", value.where().c_str(),
            did_you_mean(key, "").c_str());
    REQUIRE(info->scope != Scope::command || least > Scope::start,
            "%s: only the command line takes this option\n  remove it from the file", value.where().c_str());
    if (info->scope < least) continue;
    REQUIRE(std::find(seen.begin(), seen.end(), info) == seen.end(), "%s: the option stands twice\n  keep one of them",
            value.where().c_str());
    seen.push_back(info);
    const std::string problem = set(options, *info, config_text(*info, value));
    REQUIRE(problem.empty(), "%s is %s: %s\n  expected %s", value.where().c_str(), value.found().c_str(),
            problem.c_str(), expected(*info).c_str());
  }
  check_lengths(options, config.where() + ": ");
}

Json options_json(const Options& options, Scope least) {
  Json json = Json::object();
  for (const OptionInfo& info : table()) {
    if (info.scope < least) continue;
    std::string key = info.name;
    std::replace(key.begin(), key.end(), '-', '_');
    const auto value = [&](auto field) { return Json(options.*field); };
    const bool as_text = takes_auto(info) && text_of(options, info) == "auto";
    json.set(key, as_text ? Json("auto") : std::visit(value, info.field));
  }
  return json;
}

std::optional<Scope> scope_of(const std::string& name) {
  const OptionInfo* info = find_option(name);
  return info ? std::optional(info->scope) : std::nullopt;
}

std::string group_of(const std::string& name) {
  const OptionInfo* info = find_option(name);
  REQUIRE(info, "there is no option --%s", name.c_str());
  return info->group;
}

std::string options_help(const std::string& program) {
  constexpr size_t kColumn = 32, kWidth = 100;
  std::string text = "Usage: " + program +
                     " [--name value | --name=value] ...\n\n"
                     "Trains Llama, Mistral, Qwen and OLMo models. Alone it trains a tiny one on the bundled text.\n"
                     "In names _ equals -. A switch alone means on. Where the default is auto, the program chooses\n"
                     "and says why. Counts (N) may have a decimal unit: 10k, 300M, 1.5B, 2T.\n";
  std::string group;
  for (const OptionInfo& info : table()) {
    if (group != info.group) text += "\n" + (group = info.group) + "\n";
    std::string left = "  --" + info.name + " " + placeholder(info);
    const std::string standard = placeholder(info).empty() ? "" : default_of(info);
    const std::string right = info.help + (standard.empty() ? "" : " [" + standard + "]");
    if (left.size() + 2 > kColumn) {
      left += "\n" + std::string(kColumn, ' ');
    } else {
      left.resize(kColumn, ' ');
    }
    text += left + wrapped(right, kWidth - kColumn, kColumn) + "\n";
  }
  return text;
}

// Returns what a run that goes on does with an option of its checkpoint.
static const char* going_on(Scope scope) {
  switch (scope) {
    case Scope::run:
      return "takes it over";
    case Scope::ranks:
      return "takes it over, by as many ranks";
    case Scope::order:
      return "keeps it";
    default:
      return "";
  }
}

std::string options_markdown() {
  std::string text = "| option | default | a run that goes on | |\n|---|---|---|---|\n", group;
  const auto escaped = [](const std::string& words) {
    std::string result;
    for (char c : words) result += c == '|' ? "\\|" : c == '<' ? "&lt;" : std::string(1, c);
    return result;
  };
  for (const OptionInfo& info : table()) {
    if (group != info.group) text += "| **" + (group = info.group) + "** | | | |\n";
    const std::string value = placeholder(info), standard = value.empty() ? "" : default_of(info);
    text += "| `--" + info.name + (value.empty() ? "" : " " + escaped(value)) + "` | " +
            (standard.empty() ? "" : "`" + standard + "`") + " | " + going_on(info.scope) + " | " + escaped(info.help) +
            " |\n";
  }
  return text;
}

// Returns "lr 0.0003" for each option that `counts`.
template <class Counts>
static std::vector<std::string> options_that(const Options& options, const Counts& counts) {
  std::vector<std::string> list;
  for (const OptionInfo& info : table()) {
    const std::string value = text_of(options, info);
    if (counts(info, value)) list.push_back(info.name + " " + (value.empty() ? "\"\"" : value));
  }
  return list;
}

std::vector<std::string> changed_options(const Options& options, const Options& since) {
  return options_that(options,
                      [&](const OptionInfo& info, const std::string& value) { return value != text_of(since, info); });
}

std::vector<std::string> asked_options(const Options& options) {
  return options_that(options, [&](const OptionInfo& info, const std::string& value) {
    return value != default_of(info) || options.gives(info.name);
  });
}

bool Options::operator==(const Options& other) const { return changed_options(*this, other).empty(); }

std::string changed_options_line(const Options& options, const Options& since) {
  std::string line;
  for (const std::string& option : changed_options(options, since)) line += (line.empty() ? "--" : " --") + option;
  return line;
}

std::vector<std::string> idle_options(const Options& options,
                                      const std::function<std::string(const std::string&)>& unmet) {
  std::vector<std::pair<std::string, std::vector<std::string>>> by_reason;
  for (const OptionInfo& info : table()) {
    if (info.needs.empty() || text_of(options, info) == default_of(info)) continue;
    for (const std::string& need : words_of(info.needs, ' ')) {
      const std::string reason = unmet(need);
      if (reason.empty()) continue;
      const auto same = std::find_if(by_reason.begin(), by_reason.end(), [&](auto& it) { return it.first == reason; });
      if (same != by_reason.end()) same->second.push_back(info.name);
      else by_reason.push_back({reason, {info.name}});
      break;
    }
  }
  std::vector<std::string> lines;
  for (const auto& [reason, names] : by_reason) {
    std::string list;
    for (const std::string& name : names) list += (list.empty() ? "--" : ", --") + name;
    lines.push_back(list + (names.size() == 1 ? " changes" : " change") + " nothing: " + reason);
  }
  return lines;
}

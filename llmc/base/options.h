// The program's options: one field for each line of the option table, and the functions generated from the table.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "llmc/base/json.h"
#include "llmc/base/option_table.h"

// Means "the program chooses". As a number it is a value that no option accepts. A computation that used it would give
// an obviously wrong result.
struct Auto {
  constexpr operator int64_t() const { return INT64_MIN; }
  constexpr operator double() const { return -std::numeric_limits<double>::infinity(); }
};
inline constexpr Auto kAuto;

constexpr bool is_auto(int64_t value) { return value == int64_t(kAuto); }
constexpr bool is_auto(double value) { return value == double(kAuto); }
inline bool is_auto(const std::string& value) { return value == "auto"; }

// An option belongs to one of these. The head of option_table.h explains the words. Each lasts longer than those before
// it.
enum class Scope { command, start, machine, run, ranks, order };

struct Options {
  using Count = int64_t;
  using Real = double;
  using Switch = bool;
  using Choice = std::string;
  using Text = std::string;

#define OPTION_FIELD(group, kind, scope, name, standard, limits, help, ...) kind name = standard;
  OPTION_TABLE(OPTION_FIELD)
#undef OPTION_FIELD

  // The names of those that the command line gives, as "zero-stage". --plan leaves them as they are, even if they are
  // the default. (A config file may be that of another run, which has all options.)
  std::vector<std::string> given;

  bool trains() const { return !sample_only && !eval_only; }
  bool gives(const std::string& name) const { return std::ranges::find(given, name) != given.end(); }

  bool operator==(const Options& other) const;  // of the values
};

// Parses the command line without the program's name. Options are --name value or --name=value, and `_` equals `-`; a
// Switch alone means on. A Count may have a decimal unit: "10B" is 10'000'000'000, "1.5k" 1500. --config FILE is read
// first, and the command line overrides it. Throws on an unknown name (with the nearest known one), a value of the
// wrong type or out of range, a missing value, an option given twice, or two lengths of the run.
// If --help or --version occurs anywhere, nothing else is parsed. `saved` are the options of a run that goes on: those
// of the scope `run` and after it replace the defaults, and a config file and the command line override them.
Options parse_options(const std::vector<std::string>& arguments, const Json* saved = nullptr);

// Sets the options that `config` names; its keys may use `_` or `-`. Throws as parse_options does, with the file and
// the key. Leaves out the options of the scopes before `least`.
void apply_config(Options& options, const Json& config, Scope least = Scope::start);

// Returns the options of the scope `least` and of those after it. apply_config of the result gives equal options.
Json options_json(const Options& options, Scope least = Scope::start);

// Returns the scope of an option, whose name may use `_` or `-`; nothing if there is none of this name.
std::optional<Scope> scope_of(const std::string& name);

// Returns the group of an option of the table: "Data".
std::string group_of(const std::string& name);

// Returns the text of --help, in groups, with at most 100 columns.
std::string options_help(const std::string& program);

// Returns the table of dev/docs/options.md.
std::string options_markdown();

// Returns "lr 0.0003" for each option whose value differs from that in `since`, in the table's order.
std::vector<std::string> changed_options(const Options& options, const Options& since = Options());
// Returns the same of those that were given, or are not the default.
std::vector<std::string> asked_options(const Options& options);
// Returns the former in one line, in the syntax of the command line.
std::string changed_options_line(const Options& options, const Options& since = Options());

// Returns lines such as "--fp8-skip changes nothing: --fp8 is off", for the options that are not at their default but
// need a condition that is not met. `unmet` receives a word of the table's `needs` and returns the reason why that
// condition is not met, or "" if it is met. Options with the same reason share a line.
std::vector<std::string> idle_options(const Options& options,
                                      const std::function<std::string(const std::string&)>& unmet);

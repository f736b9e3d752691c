// The program's options: one field per line of the option table, and what the table makes of them.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "llmc/base/json.h"
#include "llmc/base/option_table.h"

// "The program chooses." As a number it is one that no option can have and that no computation survives unnoticed.
struct Auto {
  constexpr operator int64_t() const { return INT64_MIN; }
  constexpr operator double() const { return -std::numeric_limits<double>::infinity(); }
};
inline constexpr Auto kAuto;

constexpr bool is_auto(int64_t value) { return value == int64_t(kAuto); }
constexpr bool is_auto(double value) { return value == double(kAuto); }
inline bool is_auto(const std::string& value) { return value == "auto"; }

struct Options {
  using Count = int64_t;
  using Real = double;
  using Switch = bool;
  using Choice = std::string;
  using Text = std::string;

#define OPTION_FIELD(group, kind, name, standard, limits, help, ...) kind name = standard;
  OPTION_TABLE(OPTION_FIELD)
#undef OPTION_FIELD

  bool operator==(const Options&) const = default;
};

// The command line without the program's name: --name value, --name=value, `_` equal to `-`; a Switch alone means on.
// --config FILE is read first, the command line wins over it. Fails on unknown names (with the nearest), values of the
// wrong type or out of range, a missing value, an option given twice, two lengths of the run, --min-lr above --lr.
// With --help or --version anywhere nothing else is looked at.
Options parse_options(const std::vector<std::string>& arguments, const Json* saved = nullptr);
Options parse_options(int argc, const char* const* argv);

// The same, where `saved` options of another run stand in for the defaults: a file's and the command line's win.
Options parse_options(int argc, const char* const* argv, const Json& saved);

// Sets the options that `config` names, keys with `_` or `-`. Fails as parse_options does, naming the file and the key.
void apply_config(Options& options, const Json& config);

// All options but --config, --help and --version, for the run's config.json: apply_config of it gives equal options.
Json options_json(const Options& options);

// The text of --help, in groups, at most 100 columns.
std::string options_help(const std::string& program);

// The table of dev/docs/options.md.
std::string options_markdown();

// "lr 0.0003" for each option whose value differs from that in `since`, in the table's order.
std::vector<std::string> changed_options(const Options& options, const Options& since = Options());
// The same in one line, as the command line would have them.
std::string changed_options_line(const Options& options, const Options& since = Options());

// "--fp8-skip changes nothing: --fp8 is off": of the options that are not at their default, those that need what is not
// so. `unmet` says of a word in the table's `needs` why it is not so, "" if it is. Options with the same reason share a
// line.
std::vector<std::string> idle_options(const Options& options,
                                      const std::function<std::string(const std::string&)>& unmet);

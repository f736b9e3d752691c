// The main() of a test program that scripts run, on one rank or on several under mpirun:
//
//   int main(int argc, char** argv) {
//     return ranks_main(argc, argv, {{"meshes [every]", [](const Ranks& ranks, const Words& words) { … }}});
//   }
//
// The first command whose usage fits the words runs. In a usage small letters are themselves, `a|b` is one of the two,
// a word in capitals is any word, [brackets] hold one that may be missing, and […] any number of them.
#pragma once

#include <cctype>
#include <functional>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "llmc/base/error.h"
#include "llmc/comm/ranks.h"

using Words = std::vector<std::string>;

struct Command {
  const char* usage;
  std::function<void(const Ranks&, const Words&)> run;
};

inline bool fits(const std::string& usage, const Words& words) {
  std::istringstream expected(usage);
  std::string word;
  expected >> word;  // the program
  size_t used = 0;
  while (expected >> word) {
    if (word == "[…]") return true;
    const bool optional = word[0] == '[';
    if (used == words.size() && !optional) return false;
    if (used == words.size()) continue;
    if (optional) word = word.substr(1, word.size() - 2);
    if (!isupper(word[0]) && ("|" + word + "|").find("|" + words[used] + "|") == std::string::npos) return false;
    ++used;
  }
  return used == words.size();
}

inline int ranks_main(int argc, char** argv, const std::vector<Command>& commands) {
  Ranks ranks;
  try {
    ranks = Ranks::start(&argc, &argv);
    const Words words(argv + 1, argv + argc);
    std::string usages = "usage:";
    for (const Command& command : commands) {
      if (fits(command.usage, words)) {
        command.run(ranks, words);
        ranks.finish();
        return 0;
      }
      usages += std::string("\n  ") + command.usage;
    }
    fail("%s", usages.c_str());
  } catch (const std::exception& error) {
    end_all_ranks(ranks, error);
  }
}

// The words `key=value` from word number `first` on; a word alone has the value "yes".
class Values {
 public:
  Values(const Words& words, size_t first) {
    for (size_t i = first; i < words.size(); ++i) {
      const size_t equals = words[i].find('=');
      values_[words[i].substr(0, equals)] = equals == std::string::npos ? "yes" : words[i].substr(equals + 1);
    }
  }
  std::string take(const std::string& key, const std::string& otherwise = "") {
    const auto node = values_.extract(key);
    return node ? node.mapped() : otherwise;
  }
  int number(const std::string& key, int otherwise = 0) { return std::stoi(take(key, std::to_string(otherwise))); }
  bool has(const std::string& key) { return take(key) == "yes"; }
  void require_all_taken() const {
    REQUIRE(values_.empty(), "%s is not a word of this program", values_.begin()->first.c_str());
  }

 private:
  std::map<std::string, std::string> values_;
};

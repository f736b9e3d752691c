// Multiple choice in the format of HellaSwag's files: which of several endings does the model find most likely?
//
//   {"ctx": "A man sits down. He", "endings": ["stands up.", …], "label": 2}      one item, a line of the file
//   {"activity_label": …, "ctx_a": …, "ctx_b": …, "endings": […], "label": "2"}   the same in lm-eval's fields
//
// Other files call these keys otherwise: --eval-keys says how.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "llmc/data/text_codec.h"

// How the text is built and tokenized.
//   lm_eval   lm-evaluation-harness' task hellaswag: "label: ctx_a Ctx_b" without WikiHow's marks if the item has these
//             fields, else ctx. The ending's tokens are those of "ctx ending" after the first n, where ctx has n.
//   llmc      llm.c's hellaswag.py: the tokens of ctx, then those of " ending", without a begin-of-text token
enum class ChoiceFormat { lm_eval, llmc };

// The names that a file gives the keys of an item. "choices.text" is the key text of the object choices; "sol1+sol2",
// for the endings, are several keys with one ending each.
struct ChoiceKeys {
  std::string ctx = "ctx", endings = "endings", label = "label";
  std::string activity_label = "activity_label", ctx_a = "ctx_a", ctx_b = "ctx_b";

  // Reads "ctx=question,endings=choices,label=answer"; keys that it does not name keep their names. Throws on a word
  // that is no such pair, and on a key that an item does not have.
  static ChoiceKeys parse(const std::string& text);
};

struct ChoiceItem {
  struct Ending {
    std::vector<int32_t> tokens;  // of context and ending
    int first;                    // index of the ending's first token, at least 1
    int64_t characters;           // Unicode code points of the ending's text
  };
  std::vector<Ending> endings;
  int gold;
  int line = 0;  // in the file

  // Returns the number of tokens of the longest context with its ending. The last one is only predicted, never an
  // input.
  int64_t longest() const;
};

// Reads the items of a file. A label is the ending's number from 0, also in quotes, or its letter from A. Throws, with
// file and line, on a line that is not an item; of one that lacks a key, with those that it has.
std::vector<ChoiceItem> read_choices(const std::string& path, ChoiceFormat format, const ChoiceKeys& keys,
                                     const TextCodec& codec);
// Cuts each context with its ending to its last T+1 tokens, and returns how many items had more. Throws, with the line,
// on an ending of more than T tokens.
int64_t cut_choices(std::vector<ChoiceItem>& items, const std::string& path, int T);

// Counts the items that the model answers correctly. Its answer is the ending with the highest score, and the first one
// of equal scores. Three scores are counted: the sum of the ending's token log-likelihoods (acc), that sum divided by
// the ending's characters (lm-eval's acc_norm), or by its tokens (llm.c's).
struct ChoiceScore {
  int64_t items = 0, acc = 0, acc_norm = 0, acc_norm_tokens = 0;
  double chance = 0;  // the share that a guess gets right: the mean of 1 / endings
  void add(const ChoiceItem& item, const std::vector<float>& log_likelihoods);
};

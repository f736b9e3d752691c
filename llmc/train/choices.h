// Multiple choice, as HellaSwag's files have it: which of several endings does the model find likeliest?
//
//   {"ctx": "A man sits down. He", "endings": ["stands up.", …], "label": 2}      a line of the file, an item
//   {"activity_label": …, "ctx_a": …, "ctx_b": …, "endings": […], "label": "2"}   the same as lm-eval takes it
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "llmc/train/text_codec.h"

// How text is built and cut into tokens.
//   lm_eval   lm-evaluation-harness' task hellaswag: "label: ctx_a Ctx_b" without WikiHow's marks where the item has
//             these fields, else ctx; the ending's tokens are those of "ctx ending" beyond the number of ctx's
//   llmc      llm.c's hellaswag.py: tokens of ctx, then those of " ending", without a begin-of-text
enum class ChoiceFormat { lm_eval, llmc };

struct ChoiceItem {
  struct Ending {
    std::vector<int32_t> tokens;  // of context and ending
    int first;                    // which of them the ending begins with, at least 1
    int64_t characters;           // Unicode's, of the ending's text
  };
  std::vector<Ending> endings;
  int gold;
  int line = 0;  // of the file

  // Tokens of the longest context with its ending, of which the last is predicted only.
  int64_t longest() const;
};

// Throws with file and line on a line that is no item.
std::vector<ChoiceItem> read_choices(const std::string& path, ChoiceFormat format, const TextCodec& codec);
// Leaves of each context with its ending the last T+1 tokens, and returns how many items had more. Throws on an ending
// of more than T tokens, with its line.
int64_t cut_choices(std::vector<ChoiceItem>& items, const std::string& path, int T);

// Items answered rightly, by the likeliest ending: the sum of its tokens' log-likelihoods, that sum by its characters
// (lm-eval's acc_norm), or by its tokens (llm.c's). Of equals the first counts.
struct ChoiceScore {
  int64_t items = 0, acc = 0, acc_norm = 0, acc_norm_tokens = 0;
  void add(const ChoiceItem& item, const std::vector<float>& log_likelihoods);
};

// The tokens that a tokenizer.json puts before and behind a text: "post_processor". Supported: TemplateProcessing (one
// at most; its pattern for pairs of texts is not used), ByteLevel (which changes no ids), and Sequences of them.
#pragma once

#include <cstdint>
#include <vector>

#include "llmc/base/json.h"

struct TokenTemplate {
  std::vector<int32_t> before, behind;

  explicit TokenTemplate(const Json* json);  // nullptr or null: none

 private:
  void add(const Json& json);
  void add_template(const Json& json);
  bool found_ = false;
};

// The tokens that the "post_processor" of a tokenizer.json puts before and after a text. Supported: at most one
// TemplateProcessing (its template for pairs of texts is not used), ByteLevel (which does not change ids), and
// Sequences of them.
#pragma once

#include <cstdint>
#include <vector>

#include "llmc/base/json.h"

struct TokenTemplate {
  std::vector<int32_t> before, after;

  explicit TokenTemplate(const Json* json);  // nullptr or null: no tokens

 private:
  void add(const Json& json);
  void add_template(const Json& json);
  bool has_template_ = false;
};

// Renders a chat template: Jinja, as Hugging Face's tools read it. The library minja does it, where the program was
// compiled with it (scripts/doctor says where it was found).
#pragma once

#include <string>

#include "llmc/base/json.h"

// Returns "minja", or "" if the program was compiled without it.
std::string chat_template_library();

// Returns the text that the template `source` gives for `values`, an object: messages, add_generation_prompt,
// bos_token, eos_token and so on. The templates of chats also have raise_exception(text) and strftime_now(format), the
// local time. Throws with `name`, the template's file, and the library's words if the template cannot be read, or
// refuses the values; without the library, with the line that gets it.
std::string render_chat_template(const std::string& source, const std::string& name, const Json& values);

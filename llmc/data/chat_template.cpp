#include "llmc/data/chat_template.h"

#include "llmc/base/error.h"

#ifdef LLMC_MINJA

#include <algorithm>
#include <ctime>
#include <exception>
#include <minja/minja.hpp>
#include <nlohmann/json.hpp>

namespace {

minja::Value local_time(const std::shared_ptr<minja::Context>&, minja::ArgumentsValue& arguments) {
  arguments.expectArgs("strftime_now", {1, 1}, {0, 0});
  const std::time_t now = std::time(nullptr);
  std::tm parts = {};
  localtime_r(&now, &parts);
  char text[256];
  const size_t length = std::strftime(text, sizeof text, arguments.args[0].get<std::string>().c_str(), &parts);
  return std::string(text, length);
}

// Removes the white space before a block that is the first thing in its line, as jinja2's lstrip_blocks does, unless
// the block begins with {%+. The library's own would also remove what is before {{ }}, and it does not know {%+.
std::string without_indents(const std::string& source) {
  std::string stripped;
  for (size_t at = 0; at < source.size();) {
    const size_t end = std::min(source.find('\n', at), source.size() - 1) + 1;
    const size_t first = source.find_first_not_of(" \t", at);
    const std::string_view opens = first < end ? std::string_view(source).substr(first, 2) : std::string_view();
    const bool block = opens == "{%" || opens == "{#", keeps = block && source[std::min(first + 2, end - 1)] == '+';
    const size_t begin = block && !keeps ? first : at;
    stripped += source.substr(begin, end - begin);
    at = end;
  }
  for (const char* open : {"{%+", "{#+"})
    for (size_t at = stripped.find(open); at != stripped.npos; at = stripped.find(open, at + 1))
      stripped.erase(at + 2, 1);
  return stripped;
}

// A filter that does what the string's method of this name does: "x | replace(a, b)" is x.replace(a, b).
minja::Value filter_of(const std::string& method) {
  return minja::Value::callable([method](const std::shared_ptr<minja::Context>&, minja::ArgumentsValue& arguments) {
    const auto context = minja::Context::make(minja::Value::object());
    std::string call = "{{ x0." + method + "(";
    for (size_t i = 0; i < arguments.args.size(); ++i) {
      const std::string name = "x" + std::to_string(i);
      context->set(name, arguments.args[i]);
      if (i > 0) call += (i > 1 ? ", " : "") + name;
    }
    return minja::Value(minja::Parser::parse(call + ") }}", {})->render(context));
  });
}

minja::Value first_of(const std::shared_ptr<minja::Context>&, minja::ArgumentsValue& arguments) {
  arguments.expectArgs("first", {1, 1}, {0, 0});
  minja::Value& list = arguments.args[0];
  REQUIRE(list.is_array() && list.size() > 0, "first: no list with an element");
  return list.at(size_t(0));
}

}  // namespace

std::string chat_template_library() { return "minja"; }

std::string render_chat_template(const std::string& source, const std::string& name, const Json& values) {
  try {
    const auto parsed = minja::Parser::parse(
        without_indents(source), {.trim_blocks = true, .lstrip_blocks = false, .keep_trailing_newline = false});
    const auto context = minja::Context::make(minja::Value(nlohmann::ordered_json::parse(values.dump())));
    context->set("strftime_now", minja::Value::callable(local_time));
    context->set("first", minja::Value::callable(first_of));  // the library lacks these filters
    for (const char* method : {"capitalize", "title", "replace"}) context->set(method, filter_of(method));
    return parsed->render(context);
  } catch (const std::exception& error) {  // "WHY at row 3, column 7:", and the lines around that place
    const std::string what = error.what();
    const size_t end = what.find(":\n", std::min(what.find(" at row "), what.size()));
    fail("the chat template %s cannot be rendered: %s", name.c_str(), what.substr(0, end).c_str());
  }
}

#else

std::string chat_template_library() { return ""; }

std::string render_chat_template(const std::string&, const std::string& name, const Json&) {
  fail(
      "--chat: this program was compiled without minja, which renders the chat template %s\n  scripts/get_minja "
      "fetches "
      "it, then run make again; or write the prompt in the template's form yourself, without --chat",
      name.c_str());
}

#endif

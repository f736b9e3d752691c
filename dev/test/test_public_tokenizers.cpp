// Covers: the tokenizers of public models: stand-ins of the same components have the ids of the tokenizers library, or
// are refused by the name of what is not supported
#include "dev/test/test.h"
#include "llmc/base/json.h"
#include "llmc/tokenizer/tokenizer.h"

namespace {

const std::string kFolder = "dev/test/tokenizers/";

using Ids = std::vector<int32_t>;

// The stand-in that an entry of models.json describes.
Json stand_in(const Json& entry) {
  Json file = Json::read(kFolder + entry.get_string("base") + ".json");
  Json model = file.at("model"), vocabulary = model.at("vocab");
  for (const auto& [key, value] : entry.at("model").items()) model.set(key, value);
  for (const auto& [token, id] : entry.at("more_tokens").items()) vocabulary.set(token, id);
  for (const auto& [key, part] : entry.at("parts").items()) file.set(key, part);
  file.set("model", model.set("vocab", vocabulary));
  return Json::parse(file.dump(), "a stand-in");
}

}  // namespace

TEST_CASE("the components of public models' tokenizers") {
  const Json file = Json::read(kFolder + "models.json");
  size_t models = 0, same = 0;
  for (const Json& entry : file.at("files").elements()) {
    const std::string name = entry.at("models").at(size_t(0)).as_string();
    CAPTURE(name);
    models += entry.at("models").size();
    if (entry.contains("refused")) {
      says(error_of([&] { Tokenizer tokenizer(stand_in(entry)); }), entry.get_string("refused"), "not supported");
      continue;
    }
    const Tokenizer tokenizer(stand_in(entry));
    for (size_t i = 0; i < file.at("texts").size(); ++i) {
      const std::string text = file.at("texts").at(i).as_string();
      CAPTURE(text);
      Ids want;
      for (const Json& id : entry.at("ids").at(i).elements()) want.push_back(int32_t(id.as_int()));
      CHECK(tokenizer.encode(text, true) == want);
    }
    same += entry.at("models").size();
  }
  printf("%zu public models, %zu with the library's ids, %zu refused by name\n", models, same, models - same);
  CHECK(models == 81);
  CHECK(same == 76);
}

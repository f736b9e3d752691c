// Covers: settings that the program chooses: the learning rate, a tenth of it where weights are loaded
#include "dev/test/test.h"
#include "llmc/train/settings.h"

namespace {

RunSettings settings(const char* model, bool loaded, double lr = kAuto) {
  Options options;
  options.lr = lr;
  return resolve_settings(options, ModelConfig::preset(model), DeviceInfo{}, 1, 1'000'000, loaded);
}

bool tells(const RunSettings& s, const std::string& text) {
  for (const std::string& reason : s.reasons)
    if (reason.find(text) != std::string::npos) return true;
  return false;
}

}  // namespace

TEST_CASE("loaded weights have a tenth of the default learning rate") {
  CHECK(settings("tiny", false).lr == doctest::Approx(4e-3));
  CHECK(settings("tiny", true).lr == doctest::Approx(4e-4));
  CHECK(settings("tiny", true).min_lr == doctest::Approx(4e-5));
  CHECK(settings("llama3.2-1b", false).lr == doctest::Approx(3e-4));
  CHECK(settings("llama3.2-1b", true).lr == doctest::Approx(3e-5));
  CHECK(tells(settings("llama3.2-1b", true), "3e-05"));
  CHECK(tells(settings("llama3.2-1b", true), "a tenth of the default"));
  CHECK(!tells(settings("llama3.2-1b", false), "tenth"));
  CHECK(settings("llama3.2-1b", true, 1e-3).lr == 1e-3);
  CHECK(!tells(settings("llama3.2-1b", true, 1e-3), "tenth"));
}

// Covers: settings that the program chooses: the learning rate, a tenth of it where weights are loaded; the global
// batch
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

TEST_CASE("an epoch of little data has at least 8 steps of the default batch") {
  const auto batch_of = [](int64_t tokens, int ranks) {
    Options options;
    options.seq_len = 256, options.epochs = 3;
    return resolve_settings(options, ModelConfig::preset("llama3.2-1b"), DeviceInfo{}, ranks, tokens, true);
  };
  CHECK(batch_of(0, 1).G == 64);  // the data is not known
  CHECK(batch_of(64 * 8 * 256, 1).G == 64);
  CHECK(!tells(batch_of(64 * 8 * 256, 1), "less"));
  CHECK(batch_of(63 * 8 * 256, 1).G == 32);
  CHECK(batch_of(19 * 256, 1).G == 2);
  CHECK(batch_of(19 * 256, 1).steps == 29);
  CHECK(tells(batch_of(19 * 256, 1), "global batch 2 sequences: less than the default 64, for an epoch has 19"));
  CHECK(batch_of(19 * 256, 3).G == 3);  // what the ranks can share
  CHECK(batch_of(100, 1).G == 1);
}

// Writes which tokens each step of a training sees, for a program that trains on the same batches
// (dev/bench/pytorch_train.py --batches):
//
//   batch_order OUT.safetensors TRAIN_LLAMA'S OPTIONS…
//
// OUT holds, with a sequence as {the place of its first token in the data, how many tokens it has}:
//   sequences       int64 (steps, G, 2)    of each step, in the concatenation of the files of --train-data
//   held_out        int64 (windows, 2)     of a validation, in that of --val-data, or of the text's last tenth
//   learning_rates  float64 (steps)
//   data            int64 (3)              T, tokens to train on, held-out tokens
//
// A sequence that reaches the end of the data goes on at its beginning. A step's label is the token that follows; the
// last token of the data has none, and a sequence of fewer than T tokens is filled with tokens that have none.
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "llmc/base/error.h"
#include "llmc/base/options.h"
#include "llmc/base/safetensors.h"
#include "llmc/comm/ranks.h"
#include "llmc/run/evaluation.h"
#include "llmc/run/setup.h"

namespace {

void add(std::vector<int64_t>& places, Windows::Place place) {
  places.push_back(place.start), places.push_back(place.tokens);
}

void write(const std::string& path, const Ranks& ranks, const std::vector<std::string>& arguments) {
  const Setup setup(parse_options(arguments), arguments, ranks, {});
  REQUIRE(setup.options.trains() && !setup.data.held_out.empty(),
          "batch_order: these options train nothing, or hold nothing out");
  const RunSettings& settings = setup.settings;
  const TokenDataset &train = setup.data.train[0].tokens, &held_out = setup.data.held_out[0].tokens;

  std::vector<int64_t> sequences, windows;
  std::vector<double> rates;
  for (int64_t step = 0; step < settings.steps; ++step) {
    rates.push_back(settings.learning_rate_at(step));
    for (int64_t i = 0; i < settings.G; ++i) add(sequences, setup.sampler->place(step * settings.G + i));
  }
  const ValidationWindows validation(held_out, settings.T, settings.val_windows);
  for (int64_t i = 0; i < validation.count(); ++i) add(windows, validation.place(i));
  const int64_t data[] = {settings.T, train.size(), held_out.size()};

  const uint64_t steps = uint64_t(settings.steps);
  SafetensorsWriter writer(path, {{"sequences", StoredType::I64, {steps, uint64_t(settings.G), 2}},
                                  {"held_out", StoredType::I64, {uint64_t(validation.count()), 2}},
                                  {"learning_rates", StoredType::F64, {steps}},
                                  {"data", StoredType::I64, {3}}});
  writer.write("sequences", sequences.data(), sequences.size() * sizeof(int64_t));
  writer.write("held_out", windows.data(), windows.size() * sizeof(int64_t));
  writer.write("learning_rates", rates.data(), rates.size() * sizeof(double));
  writer.write("data", data, sizeof data);
  writer.finish();
  printf("%s: %lld steps of %lld sequences of %d tokens, %lld held-out sequences\n", path.c_str(),
         (long long)settings.steps, (long long)settings.G, settings.T, (long long)validation.count());
}

}  // namespace

int main(int argc, char** argv) {
  Ranks ranks;
  try {
    ranks = Ranks::start(&argc, &argv);
    REQUIRE(argc >= 2 && argv[1][0] != '-', "usage: batch_order OUT.safetensors TRAIN_LLAMA'S OPTIONS…");
    write(argv[1], ranks, std::vector<std::string>(argv + 2, argv + argc));
  } catch (const std::exception& error) {
    end_all_ranks(ranks, error);
  }
  ranks.finish();
  return 0;
}

// Prints what a token of a sample costs, by how many came before it:  build/cpu/bench/sampling
//
// For each length it has the time of a whole token, of attention's forward over all layers alone, and of the rest,
// which should stay the same. The last column is the time of a token whose context is computed anew.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <vector>

#include "llmc/base/error.h"
#include "llmc/comm/communicator.h"
#include "llmc/kernels/attention.h"
#include "llmc/memory/plan.h"
#include "llmc/train/trainer.h"

namespace {

double median_ms(int rounds, const std::function<void()>& body) {
  std::vector<double> times;
  for (int i = 0; i < rounds; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    body();
    times.push_back(std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count());
  }
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

// One query over `keys` keys, as often as the model has layers.
double attention_ms(Device& device, const ModelConfig& c, int keys) {
  MemoryPlan plan;
  const auto add = [&](const char* name, TensorShape shape) {
    return plan.add(Segment::device, "bench", name, DType::fp32, shape);
  };
  const PlannedTensor rows = add("qkv", {keys, c.qkv_width()}), out = add("out", {1, 1, c.NH, c.HD}),
                      lse = add("lse", {1, c.NH, 1});
  const Arena arena(device, plan);
  Stream stream(device, "compute");
  clear(stream, rows);
  const int kv_width = c.NKV * c.HD;
  const Tensor k = rows->columns(c.q_width(), kv_width), v = rows->columns(c.q_width() + kv_width, kv_width);
  const Tensor query = rows->rows(keys - 1, 1).columns(0, c.q_width());
  return median_ms(9, [&] {
    for (int layer = 0; layer < c.L; ++layer)
      attention_forward(stream, out, lse, query.heads(1, c.HD), k.heads(1, c.HD), v.heads(1, c.HD),
                        {.query_offset = keys - 1});
    stream.synchronize();
  });
}

void run(const char* preset, int window) {
  Device device;
  SingleCommunicator communicator;
  const ModelConfig config = ModelConfig::preset(preset);
  TrainerSettings settings;
  settings.T = window, settings.training = false;
  auto trainer = Trainer::create(device, communicator, config, settings);
  trainer->allocate();
  trainer->initialize(Init::normal, 1);
  printf("%s in fp32 on %s, milliseconds a token\n", preset, device.info().name.c_str());
  printf("%8s %10s %10s %10s %12s\n", "before", "token", "attention", "the rest", "all anew");
  const std::vector<int32_t> tokens(size_t(window), 7);
  for (int past = 16; past < window; past *= 4) {
    const std::vector<int32_t> before(tokens.begin(), tokens.begin() + past);
    trainer->next_logits(before, 0);
    const double token = median_ms(15, [&] { trainer->next_logits(std::vector<int32_t>{3}, past); });
    const double attention = attention_ms(device, config, past + 1);
    const double anew = median_ms(3, [&] { trainer->logits(before, 1, past, past - 1); });
    printf("%8d %10.3f %10.3f %10.3f %12.3f\n", past, token, attention, token - attention, anew);
  }
}

}  // namespace

int main() try {
  run("tiny", 4097);
  return 0;
} catch (const std::exception& error) {
  fprintf(stderr, "error: %s\n", error.what());
  return 1;
}

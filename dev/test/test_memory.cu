// Covers: promise 8: the plan is what a training touches: each planned buffer from its first to its last byte, nothing
// outside of one, and nothing is allocated after the start
#include <vector>

#include "dev/test/test.h"
#include "dev/test/touched.h"
#include "llmc/comm/communicator.h"
#include "llmc/train/trainer.h"

namespace {

// Head of 128 tokens, so that the last chunk is whole: of a part of a chunk the rest is padding.
LlamaConfig small(bool tied) {
  LlamaConfig c = LlamaConfig::preset("tiny");
  c.C = 40, c.L = 3, c.NH = 6, c.NKV = 2, c.HD = 16, c.FF = 52, c.V = 97, c.tied = tied;
  return c;
}

// Every product a multiple of 128: what pads in FP8 are the rows of passes of fewer tokens alone.
LlamaConfig whole_blocks() {
  LlamaConfig c = small(false);
  c.C = 128, c.NH = 4, c.NKV = 2, c.HD = 32, c.FF = 128;
  return c;
}

}  // namespace

struct Kind {
  const char *name, *skip = "";
  bool tied = false;
  DType dtype = DType::bf16;
  bool whole_blocks = false;
};

TEST_CASE("a training touches every planned byte and no other, and allocates nothing") {
  const Kind kinds[] = {{"off", "", false, DType::fp32},
                        {"off", "", true, DType::fp32},
                        {"off", "", false},
                        {"off", "", true},
                        {"tensorwise"},
                        {"delayed"},
                        {"rowwise"},
                        {"rowwise-hp-wgrad"},
                        {"blockwise"},
                        {"tensorwise", "down_proj"},
                        {"delayed", "layers.1.mlp"},
                        {"rowwise", "self_attn"},
                        {"rowwise-hp-wgrad", "gate,last=1"},
                        {"blockwise", "first=1,layers.2.self_attn.o"},
                        {"blockwise", "", false, DType::bf16, true}};
  for (const Kind& kind : kinds) {
    CAPTURE(kind.name);
    CAPTURE(kind.skip);
    CAPTURE(kind.tied);
    CAPTURE(dtype_name(kind.dtype));
    Device device;
    if (device.info().gpu) return;  // whose memory nobody poisons
    SingleCommunicator communicator;
    TrainerSettings settings;
    settings.dtype = kind.dtype;
    settings.B = 4, settings.T = 64, settings.micro_steps = 2;
    Fp8Choice choice;
    choice.recipe = kind.name;
    choice.skip = kind.skip;
    const LlamaConfig config = kind.whole_blocks ? whole_blocks() : small(kind.tied);
    settings.fp8 = fp8_settings(choice, config);
    settings.fp8_stats = 1;
    auto trainer = Trainer::create(device, communicator, config, settings);
    trainer->allocate();
    trainer->initialize(Init::normal, 7);
    const size_t allocations = device.allocations();

    const size_t tokens = size_t(settings.B) * size_t(settings.T), micro_steps = 2;
    std::vector<int32_t> inputs, labels;
    for (size_t i = 0; i < micro_steps * tokens; ++i) inputs.push_back(int(i % 97)), labels.push_back(int(i * 7 % 97));
    for (int step = 0; step < 3; ++step) {
      trainer->enqueue_step({step, 1e-3, inputs, labels});
      if (step > 0) trainer->wait_for_step();
    }
    trainer->wait_for_step();
    trainer->evaluate({inputs.begin(), inputs.begin() + ptrdiff_t(tokens)},
                      {labels.begin(), labels.begin() + ptrdiff_t(tokens)});
    trainer->logits({inputs.begin(), inputs.begin() + 10}, 1, 10);
    trainer->logits({inputs.begin(), inputs.begin() + 3 * 63}, 3, 63);
    CHECK(device.allocations() == allocations);

    const Touched touched = look_at(trainer->plan(), trainer->arena());
    CHECK(touched.untouched == "");
    CHECK(touched.outside == 0);
    printf(
        "%s, %s, FP8 %s%s%s: %zu buffers of %zu bytes touched to the last, %zu bytes outside of them, %zu allocations "
        "after start\n",
        kind.tied ? "tied" : "untied", dtype_name(kind.dtype), kind.name, kind.skip[0] ? " without " : "", kind.skip,
        trainer->plan().buffers().size(), trainer->plan().device_bytes() + trainer->plan().bytes(Segment::pinned),
        touched.outside, device.allocations() - allocations);
  }
}

TEST_CASE("an untouched buffer and a byte outside are seen") {
  Device device;
  if (device.info().gpu) return;
  Stream stream(device, "compute");
  MemoryPlan plan;
  const auto whole = plan.add<float>(Segment::device, "test", "whole", 10);
  const auto but_one = plan.add<float>(Segment::device, "test", "all but one", 10);
  const Arena arena(device, plan);
  clear(stream, arena[whole], 11);
  clear(stream, arena[but_one], 9);
  stream.synchronize();
  const Touched touched = look_at(plan, arena);
  CHECK(touched.untouched == "test, all but one: byte 36 of 40\n");
  CHECK(touched.outside == 4);
}

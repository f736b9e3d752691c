// Covers: promise 8: the plan is what a training touches: each planned buffer from its first to its last byte, nothing
// outside of one, and nothing is allocated after the start
#include "dev/test/test.h"
#include "dev/test/tiny_trainer.h"

struct Kind {
  const char *name, *skip = "";
  bool tied = false;
  Fp8HeadProducts head = Fp8HeadProducts::off;
  bool whole_blocks = false;  // every product a multiple of 128: rows of passes of fewer tokens alone are padded
};

TEST_CASE("a training touches every planned byte and no other, and allocates nothing") {
  const Kind kinds[] = {{"fp32"},
                        {"fp32", "", true},
                        {"bf16"},
                        {"bf16", "", true},
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
                        {"tensorwise", "", false, Fp8HeadProducts::on},
                        {"delayed", "", true, Fp8HeadProducts::backward},
                        {"blockwise", "", true, Fp8HeadProducts::on},
                        {"blockwise", "", false, Fp8HeadProducts::off, true}};
  for (const Kind& kind : kinds) {
    CAPTURE(kind.name);
    CAPTURE(kind.skip);
    CAPTURE(kind.tied);
    World world;
    if (world.device.info().gpu) return;  // whose memory nobody poisons
    const TinyModel small{.tied = kind.tied}, whole{.C = 128, .NH = 4, .NKV = 2, .HD = 32, .FF = 128};
    const ModelConfig config = tiny(kind.whole_blocks ? whole : small);
    TrainerSettings settings = settings_in(kind.name, config, kind.skip);
    settings.fp8_stats = 1, settings.fp8.head = kind.head;
    Training training(world, config, settings);
    training.use_all();
    training.require_planned(training.text());
    const MemoryPlan& plan = training->plan();
    CHECK(look_at(plan, training->arena()).outside == 0);
    printf("%s: %zu buffers of %zu bytes touched to the last, and no other\n", training.text().c_str(),
           plan.buffers().size(), plan.device_bytes() + plan.bytes(Segment::pinned));
  }
}

TEST_CASE("a plan beyond 64 bits is refused") {
  MemoryPlan plan;
  const int64_t half = int64_t(1) << 57;  // bytes of 2^59
  plan.add(Segment::device, "test", "first", DType::fp32, {half});
  plan.add(Segment::pinned, "test", "other memory", DType::fp32, {half});
  const std::string error = error_of([&] {
    plan.add(Segment::device, "test", "second", DType::fp32, {half});
    plan.add(Segment::device, "test", "third", DType::fp32, {half});
  });
  says(error, "the plan has more than 1.00 EiB: 512 PiB of third");
}

TEST_CASE("an untouched buffer and a byte outside are seen") {
  Device device;
  if (device.info().gpu) return;
  Stream stream(device, "compute");
  MemoryPlan plan;
  const auto whole = plan.add(Segment::device, "test", "whole", DType::fp32, {10});
  const auto but_one = plan.add(Segment::device, "test", "all but one", DType::fp32, {10});
  const Arena arena(device, plan);
  clear(stream, whole->as<float>(), 11);
  clear(stream, but_one->elements(0, 9));
  stream.synchronize();
  const Touched touched = look_at(plan, arena);
  CHECK(touched.untouched == "test, all but one: byte 36 of 40\n");
  CHECK(touched.outside == 4);
}

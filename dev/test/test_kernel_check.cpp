// Covers: promise 7: the check of a run's kernels before its first step passes for every attention kernel and FP8
// recipe
//
// softgpu/kernel_check.sh shows that it sees wrong kernels, those that hang and those that crash.
#include "dev/test/test.h"
#include "llmc/run/kernel_check.h"

TEST_CASE("right kernels pass, in both types and for head sizes that each kernel takes") {
  Device device;
  for (const DType dtype : {DType::fp32, DType::bf16})
    for (const int HD : {32, 64, 128}) {
      const KernelCheck check{AttentionKernel::automatic, dtype, HD, {}};
      CAPTURE(HD);
      CHECK(check.run(device) == "");
    }
  for (const AttentionKernel kernel : {AttentionKernel::plain, AttentionKernel::mma, AttentionKernel::hopper})
    CHECK(KernelCheck{kernel, DType::bf16, 64, {}}.run(device) == "");
}

TEST_CASE("every recipe passes") {
  Device device;
  for (const Fp8Recipe recipe : {Fp8Recipe::tensorwise, Fp8Recipe::delayed, Fp8Recipe::rowwise,
                                 Fp8Recipe::rowwise_hp_wgrad, Fp8Recipe::blockwise}) {
    Fp8Settings fp8;
    fp8.recipe = recipe;
    if (!fp8.per_tensor_scale()) fp8.gradient = Fp8Format::e4m3;
    CAPTURE(recipe_name(recipe));
    CHECK(KernelCheck{AttentionKernel::automatic, DType::bf16, 64, fp8}.run(device) == "");
  }
}

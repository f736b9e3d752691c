// Covers: a step by class of work: all of it is in a class, its FLOPs are those of the formulas on paper, and the
// optimizer's bytes those of the state
// Covers: each kernel, head size and FP8 recipe is charged with a rate of its own, from one table with sources
#include <algorithm>
#include <cmath>
#include <iterator>
#include <sstream>
#include <string>
#include <vector>

#include "dev/bench/step_split.h"
#include "dev/test/test.h"
#include "llmc/base/options.h"
#include "llmc/device/known_devices.h"
#include "llmc/predict/mfu.h"
#include "llmc/predict/simulation.h"
#include "llmc/run/model_source.h"
#include "llmc/train/settings.h"

namespace {

using Entry = Record::Entry;
using Kind = Record::Entry::Kind;

struct Step {
  ModelConfig config;
  RunSettings settings;
  Record record;
  double tokens;  // of a rank
  StepSplit split;
};

// A step on one H100 of so many, with train_llama's options.
Step step_of(const std::string& words, int ranks = 1) {
  std::istringstream in(words);
  const Options options = parse_options({std::istream_iterator<std::string>(in), {}});
  const DeviceInfo device = modelled_device("H100");
  const Mesh mesh = Mesh::create(ranks, 0, int(options.tensor_parallel_degree), int(options.context_parallel_degree),
                                 int(options.hybrid_shard_degree));
  const ModelConfig config = open_model(options).config;
  const RunSettings settings = resolve_settings(options, config, device, mesh.data_degree(), 0);
  const Record record =
      record_step(config, trainer_settings(options, settings), mesh, device, settings.micro_batches).record;
  const ReplayRates rates = ReplayRates::data_sheet(device);
  return {config, settings, record, double(settings.step_tokens()) / ranks,
          split_step(record, replay(record, rates).spans, rates)};
}

}  // namespace

TEST_CASE("all work of a step is in a class, and the classes are all of the step") {
  struct Case {
    const char* options;
    int ranks;
  };
  // Kernels of each kind of head, of odd sizes, of each recipe, of each way to save memory and to share.
  for (const Case& c : std::vector<Case>{
           {"--dtype fp32", 1},
           {"--model dev/reference/dumps/odd_vocab/config.json --seq-len 19 --micro-batch 3 --global-batch 6", 1},
           {"--model dev/reference/dumps/odd_vocab/config.json --seq-len 19 --micro-batch 3 --global-batch 6 --fp8 "
            "tensorwise",
            1},
           {"--model llama3.2-1b --layers 3 --seq-len 256 --micro-batch 2 --global-batch 4", 1},
           {"--fp8 tensorwise --fp8-stats 1", 1},
           {"--fp8 delayed --global-batch 32 --micro-batch 8", 1},
           {"--fp8 rowwise", 1},
           {"--fp8 rowwise-hp-wgrad", 1},
           {"--fp8 blockwise", 1},
           {"--recompute block --activation-offload input --offload-optimizer --offload-gradients", 1},
           {"--recompute mlp --activation-offload all --moment-dtype bf16 --master-dtype bf16 --dtype bf16", 1},
           {"--zero-stage 1 --reduce-dtype bf16", 4},
           {"--zero-stage 2 --global-batch 32 --micro-batch 4", 4},
           {"--zero-stage 3 --hybrid-shard-degree 2", 4},
           {"--zero-stage 3 --optimizer muon", 4},
           {"--tensor-parallel-degree 2 --optimizer muon --dtype bf16 --master-dtype bf16 --moment-dtype bf16", 4},
           {"--zero-stage 3 --fp8 tensorwise --fp8-all-gather", 4},
           {"--zero-stage 3 --fp8 delayed --fp8-all-gather --fp8-precompute-scales off", 4},
           {"--tensor-parallel-degree 2 --dtype fp32", 2},
           {"--tensor-parallel-degree 2 --zero-stage 3 --fp8 tensorwise --recompute mlp", 4},
           {"--tensor-parallel-degree 2 --zero-stage 3 --fp8 rowwise", 4},
           {"--context-parallel-degree 2 --zero-stage 2", 2},
           {"--context-parallel-degree 2 --tensor-parallel-degree 2 --zero-stage 3 --recompute block", 8},
           {"--model qwen2.5-0.5b --layers 2 --seq-len 64 --micro-batch 1 --global-batch 2 --fp8 tensorwise", 1},
           {"--model qwen3-0.6b --layers 2 --seq-len 64 --micro-batch 1 --global-batch 2 --recompute block", 1},
           {"--model olmo2-1b --layers 2 --seq-len 64 --micro-batch 1 --global-batch 2 --tensor-parallel-degree 2",
            2}}) {
    CAPTURE(c.options);
    const Step step = step_of(c.options, c.ranks);
    size_t works = 0, counted = 0;
    for (const Entry& entry : step.record.entries) {
      if (entry.kind != Kind::work) continue;
      CAPTURE(entry.name);
      CAPTURE(entry.place);
      CHECK(class_of(entry) != WorkClass::other);
      ++works;
    }
    double alone = step.split.idle;
    for (const StepSplit::Part& part : step.split.parts) {
      counted += size_t(part.count), alone += part.alone;
      CHECK(part.alone <= part.busy * (1 + 1e-9));
      CHECK(part.busy <= part.least * (1 + 1e-9));  // a class that works in several streams at once is busy once
    }
    CHECK(counted == works);
    CHECK(std::abs(alone - step.split.seconds) <= 1e-9 * step.split.seconds);
  }
}

TEST_CASE("FLOPs of a step are those of the formulas on paper") {
  for (const char* options :
       {"--dtype fp32", "--seq-len 100 --micro-batch 3 --global-batch 12",
        "--model llama3.2-1b --seq-len 512 --micro-batch 2 --global-batch 2",  // a tied head
        "--model llama3-8b --layers 3 --seq-len 2048 --micro-batch 1 --global-batch 2 --fp8 tensorwise",
        "--model qwen3-8b --layers 3 --seq-len 2048 --micro-batch 1 --global-batch 2",
        "--model olmo2-7b --layers 3 --seq-len 2048 --micro-batch 1 --global-batch 2 --fp8 delayed",
        "--model llama3-8b --layers 3 --seq-len 2048 --micro-batch 1 --global-batch 2 --fp8 rowwise-hp-wgrad"}) {
    CAPTURE(options);
    const Step step = step_of(options);
    const ModelConfig& config = step.config;
    const int T = step.settings.T;
    const double products = step.split[WorkClass::product].flops + step.split[WorkClass::fp8_product].flops,
                 attention = step.split[WorkClass::attention].flops;
    CHECK(products == config.flops_per_token(0, false) * step.tokens);
    // The paper has 2 products of T/2 keys a token in forward and 4 in backward; the kernels also compute each query
    // with its own key, (T+1)/2, and the scores once more in backward: 7 products for 6.
    const double causal = (config.flops_per_token(T, true) - config.flops_per_token(0, true)) * step.tokens,
                 full = (config.flops_per_token(T, false) - config.flops_per_token(0, false)) * step.tokens;
    CHECK(std::abs(attention / (causal * 7 / 6 * (T + 1) / T) - 1) < 1e-12);
    CHECK(full == 2 * causal);
  }
}

TEST_CASE("the optimizer's bytes are those of the state") {
  struct Case {
    const char* options;
    int ranks;
    double bytes;  // of a parameter that this rank updates
  };
  // Gradients (fp32) are read by the norm and by the update; weights for the products are written where the master is
  // fp32 and they are bf16; master and moments are read and written.
  for (const Case& c : {Case{"--dtype fp32", 1, 4 + 4 + 2 * (4 + 4 + 4)},
                        {"--dtype bf16", 1, 4 + 4 + 2 + 2 * (4 + 4 + 4)},
                        {"--dtype bf16 --moment-dtype bf16", 1, 4 + 4 + 2 + 2 * (4 + 2 + 2)},
                        {"--dtype bf16 --moment-dtype bf16 --master-dtype bf16", 1, 4 + 4 + 2 * (2 + 2 + 2)},
                        {"--dtype bf16 --zero-stage 3", 8, 4 + 4 + 2 + 2 * (4 + 4 + 4)},
                        {"--dtype bf16 --zero-stage 1", 8, 4 + 4 + 2 + 2 * (4 + 4 + 4)}}) {
    CAPTURE(c.options);
    const Step step =
        step_of(std::string("--model llama3.2-1b --seq-len 64 --micro-batch 1 --global-batch 8 ") + c.options, c.ranks);
    const double paper = double(step.config.parameters()) / c.ranks * c.bytes;
    // In addition there are the partial sums of the norm, 8 bytes for some thousand gradients, and the table of weight
    // decay.
    CHECK(step.split[WorkClass::optimizer].bytes >= paper);
    CHECK(step.split[WorkClass::optimizer].bytes < paper * (1 + 1e-3));
  }
}

TEST_CASE("a step by hand") {
  const auto work = [](const char* name, int stream, double flops, size_t bytes,
                       RateClass rate = RateClass::product_bf16) {
    Entry entry{Kind::work, stream};
    entry.name = name, entry.flops = flops, entry.rate = rate;
    entry.accesses = {{nullptr, bytes, true}};
    return entry;
  };
  ReplayRates rates{};
  rates.set_all(100, 200, "by hand");
  rates.set(kAttentionForward, 50, "by hand"), rates.set(kAttentionBackward, 25, "by hand");
  rates.memory_bytes = 10, rates.host_bytes = 4, rates.node_bytes = 2;
  rates.kernel_seconds = rates.node_hop_seconds = 0;
  const auto seconds = [&](const Entry& entry) { return replayed_seconds(entry, rates); };
  CHECK(seconds(work("matmul_forward", 0, 300, 10)) == 3);
  CHECK(seconds(work("matmul_forward", 0, 100, 20)) == 2);  // its bytes take longer
  CHECK(seconds(work("matmul_forward", 0, 300, 10, RateClass::product_fp8_row)) == 1.5);
  CHECK(seconds(work("attention_mma, forward", 0, 100, 0, RateClass::attention_mma_forward)) == 2);
  CHECK(seconds(work("attention_mma, dq", 0, 105, 0, RateClass::attention_mma_backward)) == 3);  // 75 of them count
  CHECK(seconds(work("attention_mma, dk and dv", 0, 140, 0, RateClass::attention_mma_backward)) == 4);

  Record record;
  record.streams = {"compute", "gather", "out"};
  record.entries = {work("matmul_forward", 0, 300, 10), work("rope_forward", 0, 0, 20), work("all_gather", 1, 0, 0),
                    work("copy", 2, 0, 0), work("adamw", 0, 0, 10)};
  record.entries[2].ranks = {0, 1}, record.entries[2].sent = 6;
  record.entries[3].crossed = 8;
  // Time:      0 1 2 3 4 5 6 7 8 9
  // compute    m m m m - r r - - a
  // gather     - - g g g g - - - -
  // out        - - - - - - c c - -
  const StepSplit split = split_step(record, {{0, 0, 4}, {1, 5, 7}, {2, 2, 6}, {3, 6, 8}, {4, 9, 10}}, rates);
  const auto check = [&](WorkClass c, double alone, double busy, double least, double bytes) {
    CAPTURE(work_class_name(c));
    const StepSplit::Part& part = split[c];
    CHECK(std::vector{double(part.count), part.alone, part.busy, part.least, part.bytes} ==
          std::vector{1.0, alone, busy, least, bytes});
  };
  check(WorkClass::product, 4, 4, 3, 10);
  check(WorkClass::pass, 2, 2, 2, 20);
  check(WorkClass::communication, 1, 4, 3, 6);
  check(WorkClass::host_copy, 1, 2, 2, 8);
  check(WorkClass::optimizer, 1, 1, 1, 10);
  CHECK(split.idle == 1);
  CHECK(split.seconds == 10);
  CHECK(class_of(work("something else", 0, 0, 0)) == WorkClass::other);
  says(split.table(2), "communication                      1 1000.00 ms    10.0% 500000.000 4000.00 ms");
}

TEST_CASE("the MFU of a step in FP8 has both peaks") {
  const ModelConfig config = ModelConfig::preset("llama3-8b");
  const double of_peak = 0.5 * 989e12 / config.flops_per_token(8192, true);  // tokens/s at which bf16's MFU is 50%
  says(mfu_text(config, 8192, of_peak, 989e12, false), "MFU 50.0% (");
  CHECK(mfu_text(config, 8192, of_peak, 989e12, false).ends_with(" of 989 TFLOP/s"));
  CHECK(mfu_text(config, 8192, of_peak, 989e12, true).ends_with(" of 989 TFLOP/s in bf16, 25.0% of 1978 in FP8"));
}

TEST_CASE("each kernel, head size and recipe is charged with its own rate") {
  const ReplayRates rates = ReplayRates::of(modelled_device("H100"));
  const auto used = [&](const std::string& options) {
    std::vector<std::string> names;
    for (const Rate& rate :
         rates.used_by(step_of("--seq-len 256 --micro-batch 1 --global-batch 1 --layers 2 " + options).record))
      names.push_back(rate.name());
    return names;
  };
  using Names = std::vector<std::string>;
  const auto with = [](const char* kernel, const std::string& size, Names names) {
    for (const char* pass : {"forward", "backward"}) names.push_back(format("attention (%s) %s", kernel, pass) + size);
    return names;
  };
  const auto hopper = [&](int HD, Names names) { return with("hopper", format(", head size %d", HD), names); };
  CHECK(used("--model llama3-8b") == hopper(128, {"products in bf16"}));
  CHECK(used("--model llama3.2-1b") == hopper(64, {"products in bf16"}));
  CHECK(used("--model llama3-8b --attention mma") == with("mma", "", {"products in bf16"}));
  CHECK(used("--model llama3-8b --attention plain") == with("plain", "", {"products in bf16"}));
  CHECK(used("--model llama3-8b --dtype fp32") == with("plain", "", {"products in fp32"}));
  CHECK(used("--model llama3-8b --dtype fp32 --tf32") == with("plain", "", {"products in tf32"}));
  for (const auto& [recipe, shared] : std::vector<std::pair<std::string, std::string>>{{"tensorwise", "tensor"},
                                                                                       {"delayed", "tensor"},
                                                                                       {"rowwise", "row"},
                                                                                       {"rowwise-hp-wgrad", "row"},
                                                                                       {"blockwise", "block"}})
    CHECK(used("--model llama3-8b --fp8 " + recipe) ==
          hopper(128, {"products in bf16", "FP8 products, one factor a " + shared}));
}

TEST_CASE("the table of rates: sources, order and what is confirmed") {
  for (const char* name : {"A100", "H100", "H200", "B200", "A10G", "A6000", "L40S", "RTX4080", "RTX4090", "RTX5060Ti",
                           "RTX5080", "RTX5090", "RTXPRO6000"}) {
    CAPTURE(name);
    const DeviceInfo device = modelled_device(name);
    const ReplayRates rates = ReplayRates::of(device), sheet = ReplayRates::data_sheet(device);
    using enum RateClass;
    for (const Rate& rate : rates.compute) {
      const std::string source = rate.source, name = rate.name();
      CAPTURE(name);
      CHECK((source.starts_with("assumption: ") || source.starts_with("published: ") ||
             source.starts_with("measured: ")));
      CHECK(rate.confirmed == source.starts_with("measured: "));
      CHECK(rate.flops > 0);
      CHECK(rate.flops < sheet.flops(rate.of));
    }
    CHECK(rates.host_bytes < device.bus_bytes_per_second);
    CHECK(rates.node_bytes > rates.host_bytes / 3);
    const double bf16 = rates.flops(product_bf16);
    CHECK(rates.flops(product_fp8_tensor) > rates.flops(product_fp8_row));
    CHECK(rates.flops(product_fp8_row) > rates.flops(product_fp8_block));
    CHECK(rates.flops(product_fp8_block) > bf16);
    CHECK(rates.flops(product_fp32) < rates.flops(product_tf32));
    for (const auto of : {attention_mma_forward, attention_hopper_forward})
      for (const int HD : {64, 128}) {
        const auto back = RateClass(int(of) + 1);
        CHECK(rates.flops(of, HD) < bf16);
        CHECK(rates.flops(back, HD) < rates.flops(of, HD));
        CHECK(rates.flops(attention_plain_forward, HD) < rates.flops(of, HD));
      }
  }
  const ReplayRates rates = ReplayRates::of(modelled_device("H100"));
  CHECK(rates.unconfirmed({rates.rate(RateClass::product_bf16, 0)}) == "rates that no GPU has confirmed: links");
  const ReplayRates others = ReplayRates::of(modelled_device("A100"));
  CHECK(others.unconfirmed({others.rate(RateClass::product_bf16, 0)}) ==
        "rates that no GPU has confirmed: products in bf16; memory; links");
  // The help of --gpu names each of them.
  const std::string known = error_of([] { modelled_device("?"); });
  const std::string gpus = known.substr(known.find("choose one of:") + 14);
  std::istringstream words(gpus.substr(0, gpus.find(';')));
  for (std::string name; words >> name;) says(options_help("train_llama"), name);
  DeviceInfo laptop;
  laptop.name = "NVIDIA GeForce RTX 4090 Laptop GPU";
  set_known_rates(laptop);
  CHECK(laptop.bf16_flops == 0);
  ReplayRates confirmed = rates;
  confirmed.links_confirmed = true;
  CHECK(confirmed.unconfirmed({}).empty());
  says(error_of([&] { rates.rate(RateClass::attention_hopper_forward, 96); }),
       "no rate is known for attention (hopper) forward, head size 96");
}

TEST_CASE("no step is predicted to be faster than its kernels' rates allow") {
  const DeviceInfo device = modelled_device("H100");
  const ReplayRates rates = ReplayRates::of(device);
  double before = INFINITY;
  for (const char* recipe : {"off", "blockwise", "rowwise", "tensorwise"}) {  // from the slowest products on
    CAPTURE(recipe);
    const Step step = step_of(std::string("--model llama3-8b --layers 4 --seq-len 8192 --micro-batch 1 "
                                          "--global-batch 8 --zero-stage 3 --fp8 ") +
                                  recipe,
                              8);
    const double seconds = replay(step.record, rates).seconds,
                 flops = step.config.flops_per_token(step.settings.T, true) * step.tokens;
    CHECK(flops / seconds < (std::string(recipe) == "off" ? 0.7 : 1.0) * device.bf16_flops);
    CHECK(seconds < before);
    before = seconds;
  }
}

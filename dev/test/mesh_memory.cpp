// Memory and traffic of a training whose ranks share its products and sequences, on the ranks that run this:
//
//   mesh_memory TENSOR_DEGREE CONTEXT_DEGREE fp32|bf16      (the type of tensor-parallel sums)
//
// In bf16, stage 3 and two micro-batches: every planned byte is touched and no other, activations are what a formula on
// paper says, and so is what tensor and context parallelism send, as the communicators counted it; the step is the one
// that a device records which executes nothing. A line of a table, from the first rank.
#include <cstdio>

#include "dev/test/record_order.h"
#include "dev/test/tiny_trainer.h"
#include "llmc/predict/simulation.h"

namespace {

constexpr int kMicroSteps = 2, kBytes = 2;  // of a number of bf16

// The bytes that this rank sends along a stream: in a ring each passes on its part size - 1 times.
size_t sent_along(const Record& record, const std::string& stream) {
  size_t sent = 0;
  for (const Record::Entry& entry : record.entries)
    if (record.streams[size_t(entry.stream)] == stream) sent += entry.sent;
  return sent;
}

struct Theory {
  size_t N, R;  // tokens of the rank in a micro-batch, and its rows between products
  const ModelConfig whole, own;
  const Mesh mesh;
  const size_t sum;  // bytes of one

  Theory(const ModelConfig& config, const TrainerSettings& s, const Mesh& mesh)
      : N(size_t(s.B) * size_t(s.T) / size_t(mesh.context_degree)),
        R(N / size_t(mesh.tensor_degree)),
        whole(config),
        own(config.tensor_part(mesh.tensor_degree, mesh.tensor_rank)),
        mesh(mesh),
        sum(s.tensor_sums == DType::fp32 ? 4 : 2) {}

  // The block's set, and the head's.
  size_t activations() const {
    const size_t C = size_t(own.C), rows = R * (4 * C * kBytes + 2 * sizeof(float));
    const size_t tokens =
        N * (size_t(own.qkv_width() + own.q_width() + 3 * own.FF) * kBytes + size_t(own.NH) * sizeof(float));
    return size_t(own.L) * (rows + tokens) + R * (2 * C * kBytes + sizeof(float));
  }
  // Each block has forward two gathers and two scatters, backward four and two. The head gathers its input and
  // scatters the gradient, the embedding the other way round (one rank's number and zeros, which need no wider type);
  // and three numbers of each token's softmax.
  size_t tensor() const {
    const size_t each = R * size_t(own.C), L = size_t(own.L), others = size_t(mesh.tensor_degree) - 1;
    const size_t gathers = (6 * L + 2) * each * kBytes, scatters = (4 * L + 1) * each * sum + each * kBytes;
    return kMicroSteps * others * (gathers + scatters + N * 3 * sizeof(float));
  }
  // Keys and values forward and backward, and their gradients.
  size_t context() const {
    const size_t each = N * size_t(2 * own.NKV * own.HD) * kBytes, others = size_t(mesh.context_degree) - 1;
    return kMicroSteps * others * size_t(own.L) * 3 * each;
  }
};

size_t bytes_of(const MemoryPlan& plan, const std::string& category) {
  size_t bytes = 0;
  for (const MemoryPlan::Buffer& b : plan.buffers())
    if (b.category == category) bytes += b.bytes;
  return bytes;
}

void measure(const Ranks& ranks, const Words& words) {
  World world(ranks);
  const int tensor = std::stoi(words[0]), context = std::stoi(words[1]);
  const Mesh mesh = world.mesh(tensor, context);
  REQUIRE(mesh.data_degree() == 1, "%s: expected one data rank", mesh.description().c_str());
  const ModelConfig config = tiny({.C = 64, .NH = 16, .NKV = 8, .FF = 128, .V = 509});
  TrainerSettings settings = settings_in("bf16", config);
  settings.zero_stage = 3, settings.tensor_sums = words[2] == "bf16" ? DType::bf16 : DType::fp32;
  settings.B = 4, settings.T = 256, settings.tensor_chunks = 3;  // whole chunks of the head: padding is not touched
  Training training(world, config, settings, mesh);
  training.train(2);
  const Record executed = record_next_step(training);
  const Batch some = tokens_of(config.V, 0, 10);
  training->logits(some.inputs, 1, 10);
  training.require_planned(mesh.description());

  require_alike(executed, record_step(config, settings, mesh, world.device.info(), kMicroSteps).record);
  const Theory theory(config, settings, mesh);
  const auto equal = [](const char* what, size_t is, size_t expected) {
    REQUIRE(is == expected, "%s: %zu bytes, by the formula %zu", what, is, expected);
  };
  equal("activations", bytes_of(training->plan(), "activations"), theory.activations());
  equal("sent for tensor parallelism", sent_along(executed, "tensor"), theory.tensor());
  equal("sent for context parallelism", sent_along(executed, "context"), theory.context());
  size_t sharding = 0;
  for (const char* stream : {"gather", "reduce"}) sharding += sent_along(executed, stream);
  if (!world.first()) return;
  const auto text = [](size_t bytes) { return human_bytes(bytes); };
  printf("%6d %7d %5d %5s %11s %11s %11s %11s %11s\n", tensor, context, ranks.size, dtype_name(settings.tensor_sums),
         text(training->plan().device_bytes()).c_str(), text(theory.activations()).c_str(), text(sharding).c_str(),
         text(theory.tensor()).c_str(), text(theory.context()).c_str());
}

}  // namespace

int main(int argc, char** argv) {
  return ranks_main(argc, argv, {{"mesh_memory TENSOR_DEGREE CONTEXT_DEGREE fp32|bf16", measure}});
}

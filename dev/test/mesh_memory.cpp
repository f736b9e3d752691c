// Memory and traffic of a training whose ranks share its products and sequences, on the ranks that run this:
//
//   mesh_memory TENSOR_DEGREE CONTEXT_DEGREE fp32|bf16      (the type of tensor-parallel sums)
//
// In bf16, stage 3 and two micro-batches: every planned byte is touched and no other, activations are what a formula on
// paper says, and so is what tensor and context parallelism send, as the communicators counted it; the step is the one
// that a device records which executes nothing. A line of a table, from the first rank.
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "dev/test/touched.h"
#include "llmc/base/error.h"
#include "llmc/base/text.h"
#include "llmc/comm/communicator.h"
#include "llmc/train/rehearsal.h"
#include "llmc/train/trainer.h"

namespace {

constexpr int kMicroSteps = 2, kBytes = 2;  // of a number of bf16

LlamaConfig model() {
  LlamaConfig c = LlamaConfig::preset("tiny");
  c.C = 64, c.L = 3, c.NH = 16, c.NKV = 8, c.HD = 16, c.FF = 128, c.V = 509, c.tied = false;
  return c;
}

// What this rank sends along a stream: in a ring each passes on its part size - 1 times.
size_t sent_along(const Record& record, const std::string& stream) {
  size_t sent = 0;
  for (const Record::Entry& entry : record.entries)
    if (record.streams[size_t(entry.stream)] == stream) sent += entry.sent;
  return sent;
}

struct Theory {
  size_t N, R;  // tokens of the rank in a micro-batch, and its rows between products
  const LlamaConfig whole, own;
  const Mesh mesh;
  const size_t sum;  // bytes of one

  Theory(const LlamaConfig& config, const TrainerSettings& s, const Mesh& mesh)
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
  // Of each block: forward two gathers and two scatters, backward four and two. The head gathers its input and
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

void require_touched(Trainer& trainer) {
  const Touched touched = look_at(trainer.plan(), trainer.arena());
  REQUIRE(touched.untouched.empty() && touched.outside == 0,
          "%zu bytes outside of buffers were touched, not touched:\n%s", touched.outside, touched.untouched.c_str());
}

void measure(const Ranks& ranks, int tensor, int context, DType sums) {
  const Mesh mesh = Mesh::create(ranks.size, ranks.rank, tensor, context);
  REQUIRE(mesh.data_ranks() == 1, "%s: expected one data rank", mesh.description().c_str());
  TrainerSettings settings;
  settings.dtype = DType::bf16, settings.zero_stage = 3, settings.micro_steps = kMicroSteps;
  settings.B = 4, settings.T = 256, settings.tensor_chunks = 3;  // whole chunks of the head: padding is not touched
  settings.tensor_sums = sums;
  Device device(ranks.local_rank, CpuWorld::from_environment(ranks.local_size));
  const auto communicator = make_communicator(device, ranks, "");
  const auto trainer = Trainer::create(device, *communicator, model(), settings, mesh);
  trainer->allocate();
  trainer->initialize(Init::normal, 7);
  std::vector<int32_t> inputs, labels;
  for (int i = 0; i < kMicroSteps * settings.B * settings.T; ++i)
    inputs.push_back(i % 509), labels.push_back(i * 7 % 509);
  Record executed;
  for (int64_t step = 0; step < 3; ++step) {
    if (step == 2) device.record_to(&executed);
    trainer->enqueue_step({step, 1e-3, inputs, labels});
    device.record_to(nullptr);
    trainer->wait_for_step();
  }
  trainer->logits({inputs.begin(), inputs.begin() + 10}, 1, 10);
  require_touched(*trainer);

  const Record recorded = record_step(model(), settings, mesh, device.info(), kMicroSteps).record;
  const Theory theory(model(), settings, mesh);
  const auto equal = [](const char* what, size_t is, size_t expected) {
    REQUIRE(is == expected, "%s: %zu bytes, by the formula %zu", what, is, expected);
  };
  equal("activations", bytes_of(trainer->plan(), "activations"), theory.activations());
  equal("sent for tensor parallelism", sent_along(executed, "tensor"), theory.tensor());
  equal("sent for context parallelism", sent_along(executed, "context"), theory.context());
  size_t sharding = 0;
  for (const char* stream : {"gather", "reduce"}) {
    equal(stream, sent_along(executed, stream), sent_along(recorded, stream));
    sharding += sent_along(executed, stream);
  }
  if (ranks.rank > 0) return;
  const auto text = [](size_t bytes) { return human_bytes(bytes); };
  printf("%6d %7d %5d %5s %11s %11s %11s %11s %11s\n", tensor, context, ranks.size, dtype_name(sums),
         text(trainer->plan().device_bytes()).c_str(), text(theory.activations()).c_str(), text(sharding).c_str(),
         text(theory.tensor()).c_str(), text(theory.context()).c_str());
}

}  // namespace

int main(int argc, char** argv) {
  Ranks ranks;
  try {
    ranks = Ranks::start(&argc, &argv);
    REQUIRE(argc == 4, "mesh_memory: %d arguments, expected 3: see the head of its source", argc - 1);
    measure(ranks, atoi(argv[1]), atoi(argv[2]), std::string(argv[3]) == "bf16" ? DType::bf16 : DType::fp32);
  } catch (const std::exception& error) {
    end_all_ranks(ranks, error);
  }
  ranks.finish();
  return 0;
}

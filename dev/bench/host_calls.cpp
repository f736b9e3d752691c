// The calls of CUDA, cuBLASLt and NCCL with which the host enqueues one step, counted in recorded steps of one
// micro-batch: build/cpu/bench/host_calls
//
// A kernel, a product, a copy, a collective, an event's record and a wait for it are one call each. Outside a graph
// each launch of NCCL, of one collective or of a group, has an event more, which the watchdog looks at. With
// --cuda-graphs most of the step is one launch of a graph, and calls remain only before and after it.
#include <algorithm>
#include <cstdio>
#include <exception>

#include "llmc/device/known_devices.h"
#include "llmc/predict/simulation.h"
#include "llmc/train/settings.h"

namespace {

using Entry = Record::Entry;

// The collective of one rank, in place, which the CPU backend declares for the check of the order.
bool is_nothing(const Entry& e) {
  return e.ranks.size() < 2 && (e.name.starts_with("all_") || e.name.starts_with("reduce_scatter"));
}
bool is_collective(const Entry& e) { return e.kind == Entry::Kind::work && e.ranks.size() > 1; }
bool is_launch_of_nccl(const Entry& e) { return is_collective(e) && !e.joins; }
bool is_kernel(const Entry& e) { return e.kind == Entry::Kind::work && e.shape.kernel; }
bool is_product(const Entry& e) { return e.kind == Entry::Kind::work && !e.shape.kernel && e.flops > 0; }

// The work of a graph begins with the first kernel, or with the first weights that are gathered for it. After it comes
// the copy of the step's result, with an event.
size_t calls_with_graph(const Record& record) {
  const auto begins = [&](const Entry& e) { return is_kernel(e) || record.streams[size_t(e.stream)] == "gather"; };
  const auto work = std::find_if(record.entries.begin(), record.entries.end(), begins);
  const auto watched = std::count_if(record.entries.begin(), work, is_launch_of_nccl);
  const bool any = std::any_of(record.entries.begin(), record.entries.end(), is_collective);
  return size_t(work - record.entries.begin() + watched) + 1 + any + 2;
}

void print(const char* what, Options options) {
  const DeviceInfo device = modelled_device("H100");
  const Mesh mesh = Mesh::create(int(options.gpus_per_node), 0, int(options.tensor_parallel_degree),
                                 int(options.context_parallel_degree));
  options.micro_batch = 1, options.global_batch = mesh.data_degree();
  const ModelConfig config = ModelConfig::preset(options.model);
  const RunSettings settings = resolve_settings(options, config, device, mesh.data_degree(), 0);
  Record record = record_step(config, trainer_settings(options, settings), mesh, device, 1, false).record;
  std::erase_if(record.entries, is_nothing);
  const auto count = [&](auto&& is) { return size_t(std::count_if(record.entries.begin(), record.entries.end(), is)); };
  const size_t kernels = count(is_kernel), products = count(is_product), collectives = count(is_collective);
  const size_t launches = count(is_launch_of_nccl);
  const size_t work = count([](const Entry& e) { return e.kind == Entry::Kind::work; });
  const size_t records = count([](const Entry& e) { return e.kind == Entry::Kind::record; });
  const size_t waits = count([](const Entry& e) { return e.kind == Entry::Kind::wait; });
  printf("| %s | %zu | %zu | %zu | %zu | %zu | %zu | %zu | %zu | %zu |\n", what, kernels, products,
         work - kernels - products - collectives, collectives, launches, records + launches, waits,
         record.entries.size() + launches, calls_with_graph(record));
  fflush(stdout);
}

}  // namespace

int main() {
  try {
    printf(
        "| | kernels | products | copies, fills | collectives | launches of NCCL | events | waits | all calls | with a "
        "graph |\n");
    printf("|---|---|---|---|---|---|---|---|---|---|\n");
    Options one;
    one.model = "llama3.2-1b", one.seq_len = 4096, one.gpus_per_node = 1;
    print("1B, one GPU", one);
    Options eight;
    eight.model = "llama3-8b", eight.seq_len = 8192, eight.gpus_per_node = 8;
    Options sharded = eight;
    sharded.zero_stage = 3;
    print("8B, ZeRO-3 on 8", sharded);
    Options tensor = eight;
    tensor.tensor_parallel_degree = 8;
    print("8B, tensor parallel on 8", tensor);
    Options context = eight;
    context.context_parallel_degree = context.gpus_per_node = 4;
    print("8B, context parallel on 4", context);
  } catch (const std::exception& error) {
    fprintf(stderr, "error: %s\n", error.what());
    return 1;
  }
  return 0;
}

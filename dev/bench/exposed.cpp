// Prints for what compute waits while tensor and context parallelism send chunks, in replays of recorded steps: a
// model, not a measurement.  build/cpu/bench/exposed
#include <cstdio>

#include "dev/test/collective_trace.h"
#include "llmc/device/known_devices.h"
#include "llmc/predict/simulation.h"

namespace {

constexpr int kChunks = 4, kLayers = 4, kT = 8192;

void print(int tensor, int context, const char* recipe, DType sums, ReplayRates rates) {
  ModelConfig config = ModelConfig::preset("llama3-8b");
  config.L = kLayers;
  TrainerSettings settings;
  settings.dtype = DType::bf16, settings.B = 1, settings.T = kT, settings.head_chunk = 1024;
  settings.tensor_chunks = kChunks, settings.tensor_sums = sums;
  if (recipe) {
    Fp8Choice choice;
    choice.recipe = recipe;
    settings.fp8 = fp8_settings(choice, config);
  }
  const Mesh mesh = Mesh::create(tensor * context, 0, tensor, context);
  const RecordedStep step = record_step(config, settings, mesh, modelled_device("H100"), 1);
  const Replay replayed = replay(step.record, rates);
  std::vector<CollectiveTrace> traces;
  if (tensor > 1) traces.emplace_back(step.record, "tensor", kChunks);
  if (context > 1) traces.emplace_back(step.record, "context", size_t(config.NKV / tensor));
  std::vector<const CollectiveTrace*> streams;
  for (const CollectiveTrace& t : traces) streams.push_back(&t);
  size_t sent = 0, pairs = 0, needless = 0;
  double seconds = 0;
  for (const Record::Span& span : replayed.spans)
    for (const CollectiveTrace& t : traces)
      if (size_t chunk; t.transfer_of(span.entry, &chunk))
        sent += step.record.entries[size_t(span.entry)].sent, seconds += span.end - span.begin;
  for (const CollectiveTrace& t : traces) {
    size_t of_stream = 0;
    needless += t.needless_waits(&of_stream).size();
    pairs += of_stream;
  }
  printf("\ntensor %d x context %d, %s%s: %.2f ms, of which compute %.2f ms; chunks are sent for %.2f ms: %s\n", tensor,
         context, recipe ? recipe : "bf16", tensor == 1 ? "" : format(", sums in %s", dtype_name(sums)).c_str(),
         replayed.seconds * 1e3, replayed.compute * 1e3, seconds * 1e3, human_bytes(sent).c_str());
  printf("  %zu pairs of chunks, of which one waits needlessly for the other's product: %zu\n", pairs, needless);
  printf("  %-36s %11s %10s %11s\n", "compute waits for", "collectives", "sent", "exposed");
  for (const auto& [kind, exposed] : exposed_by_kind(step.record, replayed, streams))
    printf("  %-36s %11zu %10s %8.1f us\n", kind.c_str(), exposed.entries.size(), human_bytes(exposed.sent).c_str(),
           exposed.seconds * 1e6);
}

}  // namespace

int main() {
  try {
    const ReplayRates rates = ReplayRates::of(modelled_device("H100"));
    printf("%d layers of Llama-8B, a sequence of %d tokens a step, %d chunks, on a node of H100\n%s\n", kLayers, kT,
           kChunks, rates.text().c_str());
    for (const char* recipe : {static_cast<const char*>(nullptr), "tensorwise"})
      for (const auto& [tensor, context] : {std::pair{2, 1}, {4, 1}, {8, 1}, {1, 2}, {1, 4}, {2, 2}, {2, 4}})
        for (const DType sums : {DType::fp32, DType::bf16})
          if (tensor > 1 || sums == DType::fp32) print(tensor, context, recipe, sums, rates);
  } catch (const std::exception& error) {
    fprintf(stderr, "error: %s\n", error.what());
    return 1;
  }
  return 0;
}

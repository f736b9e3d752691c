// Covers: promise 2: tensor and context parallelism send while the device computes: no chunk waits for the product of
// another chunk, and no product for another's chunk; in a replay compute waits for the first chunk of a gather and the
// last of a scatter alone, and for the largest numbers of FP8; Muon sends other rounds' matrices while it computes one
#include <cstdio>

#include "dev/test/collective_trace.h"
#include "dev/test/test.h"
#include "llmc/device/known_devices.h"
#include "llmc/kernels/newton_schulz.h"
#include "llmc/predict/simulation.h"

namespace {

using Kind = Transfer::Kind;

constexpr int kChunks = 4, kLayers = 2, kHeadChunks = 8;

struct Case {
  int tensor, context;
  bool fp8;
  DType sums = DType::fp32;
};
constexpr Case kCases[] = {{2, 1, false, DType::bf16},
                           {2, 1, false},
                           {4, 1, false},
                           {8, 1, false},
                           {2, 1, true},
                           {8, 1, true},
                           {1, 2, false},
                           {1, 4, false},
                           {1, 4, true},
                           {2, 2, false}};

Record recorded(const Case& c) {
  ModelConfig config = ModelConfig::preset("llama3-8b");
  config.L = kLayers;
  TrainerSettings settings;
  settings.dtype = DType::bf16, settings.B = 1, settings.T = 8192, settings.tensor_chunks = kChunks;
  settings.tensor_sums = c.sums;
  settings.head_chunk = settings.T / c.context / kHeadChunks;
  settings.context_heads = 1;  // more gathers, and more waits that could be forgotten
  if (c.fp8) {
    Fp8Choice choice;
    choice.recipe = "tensorwise";
    settings.fp8 = fp8_settings(choice, config);
  }
  return record_step(config, settings, Mesh::create(c.tensor * c.context, 0, c.tensor, c.context),
                     modelled_device("H100"), 1)
      .record;
}

std::string text_of(const Case& c) {
  return format("tensor %d, context %d, %s, sums in %s", c.tensor, c.context, c.fp8 ? "FP8" : "bf16",
                dtype_name(c.sums));
}
CollectiveTrace of_tensor(const Record& record) { return {record, "tensor", kChunks}; }
CollectiveTrace of_context(const Record& record, const Case& c) { return {record, "context", size_t(8 / c.tensor)}; }

// The first of them.
std::string text_of(const std::vector<std::string>& found) {
  return found.empty() ? "" : format("%s; %zu in all", found[0].c_str(), found.size());
}

std::map<std::string, Exposed> exposed(const Record& record, const Case& c, const ReplayRates& rates) {
  std::vector<CollectiveTrace> traces;
  if (c.tensor > 1) traces.push_back(of_tensor(record));
  if (c.context > 1) traces.push_back(of_context(record, c));
  std::vector<const CollectiveTrace*> streams;
  for (const CollectiveTrace& t : traces) streams.push_back(&t);
  return exposed_by_kind(record, replay(record, rates), streams);
}

// Returns the record with one more wait: `before` comes after `after`.
Record with_wait(Record record, int after, int before) {
  const int after_stream = record.entries[size_t(after)].stream, before_stream = record.entries[size_t(before)].stream;
  record.entries.insert(record.entries.begin() + before, {Record::Entry::Kind::wait, before_stream, 1 << 20});
  record.entries.insert(record.entries.begin() + after + 1, {Record::Entry::Kind::record, after_stream, 1 << 20});
  return record;
}

// Returns the record in which a chunk, and what follows it on its stream, begins after a work of compute.
Record held_up(const Record& record, int chunk, int work) {
  const int stream = record.entries[size_t(chunk)].stream;
  Record changed;
  changed.streams = record.streams;
  std::vector<Record::Entry> held;
  for (int i = 0; i < int(record.entries.size()); ++i) {
    const Record::Entry& entry = record.entries[size_t(i)];
    (i >= chunk && i <= work && entry.stream == stream ? held : changed.entries).push_back(entry);
    if (i != work) continue;
    changed.entries.push_back({Record::Entry::Kind::record, entry.stream, 1 << 20});
    changed.entries.push_back({Record::Entry::Kind::wait, stream, 1 << 20});
    changed.entries.insert(changed.entries.end(), held.begin(), held.end());
  }
  return changed;
}

}  // namespace

TEST_CASE("no chunk waits for another's product, and no product for another's chunk") {
  for (const Case& c : kCases) {
    CAPTURE(text_of(c));
    const Record record = recorded(c);
    size_t pairs = 0;
    if (c.tensor > 1) {
      const CollectiveTrace trace = of_tensor(record);
      CHECK(text_of(trace.needless_waits(&pairs)) == "");
      // A layer gathers 2 inputs forward (of qkv, of gate and up); backward it gathers these again, and the gradients
      // of the outputs of o and down. The 2 others are the head's input and the embedding's gradient. Sums are
      // scattered in the same places, except that the inputs that backward gathers again have none.
      CHECK(trace.count(Kind::gather) == 6 * kLayers + 2);
      CHECK(trace.count(Kind::scatter) == 4 * kLayers + 2);
      CHECK(trace.count(Kind::parts) == 1);
      CHECK(trace.count(Kind::largest) == (c.fp8 ? 4 * kLayers : 0));
      CHECK(pairs == (10 * kLayers + 4) * (kChunks - 1) + kHeadChunks - 1);
    }
    if (c.context > 1) {
      const CollectiveTrace trace = of_context(record, c);
      CHECK(text_of(trace.needless_waits(&pairs)) == "");
      CHECK(trace.count(Kind::gather) == 2 * kLayers);
      CHECK(trace.count(Kind::scatter) == kLayers);
      CHECK(pairs == size_t(3 * kLayers * (8 / c.tensor - 1)));
    }
  }
}

TEST_CASE("compute waits for the first chunk of a gather, the last of a scatter and the largest numbers alone") {
  ReplayRates rates = ReplayRates::of(modelled_device("H100")), fast = rates;
  fast.node_bytes *= 16, fast.node_hop_seconds /= 16;
  for (const Case& c : kCases) {
    CAPTURE(text_of(c));
    const Record record = recorded(c);
    for (const ReplayRates& links : {rates, fast}) {
      // At such rates chunks are too slow: one takes longer than the product that runs at the same time, or has only a
      // part of the links.
      const bool slow = links.node_bytes == rates.node_bytes &&
                        (c.tensor > 2 || c.fp8 || c.tensor * c.context > 2 || c.sums == DType::fp32);
      CAPTURE(links.node_bytes);
      size_t firsts = 0, lasts = 0;
      for (const auto& [kind, e] : exposed(record, c, links)) {
        CAPTURE(kind);
        const bool allowed = kind == "first of a gather" || kind == "last of a scatter" ||
                             (kind == "largest numbers" && c.fp8) || kind == "later of the embedding's gradient" ||
                             kind == "turn of stream reduce" ||  // gradients of layers that are done
                             (slow && kind.starts_with("slow links: "));
        CHECK(allowed);
        if (kind == "first of a gather") firsts = e.entries.size();
        if (kind == "last of a scatter") lasts = e.entries.size();
        if (kind == "later of the embedding's gradient") CHECK(e.entries.size() == kChunks - 1);
        if (kind == "largest numbers") CHECK(e.entries.size() == 4 * kLayers);
      }
      // The gathers for gradients of weights, and the scatters of gradients of inputs, are hidden whole.
      if (c.context == 1) CHECK(firsts == 4 * kLayers + 2);
      if (c.context == 1 && !slow) CHECK(lasts == 2 * kLayers + 1);
    }
  }
}

TEST_CASE("one wait that is not needed is seen") {
  const ReplayRates rates = ReplayRates::of(modelled_device("H100"));
  for (const Case& c : {Case{2, 1, false}, Case{1, 2, false}}) {
    const Record record = recorded(c);
    const auto trace_of = [&](const Record& r) { return c.tensor > 1 ? of_tensor(r) : of_context(r, c); };
    const auto seen = [&](const Record& changed, const char* what) {
      size_t pairs = 0;
      for (const std::string& found : trace_of(changed).needless_waits(&pairs))
        if (found.find(what) != std::string::npos) return true;
      return false;
    };
    const CollectiveTrace trace = trace_of(record);
    std::map<Kind, int> tried;
    int waiting = 0, exposing = 0;
    for (const Transfer& t : trace.all())
      for (size_t k = 0; k + 1 < t.chunks.size(); ++k) {
        const std::vector<int>&chunk = t.chunks[k], &next = t.chunks[k + 1];
        CAPTURE(k);
        CAPTURE(record.entries[size_t(chunk[0])].place);
        if (t.kind == Kind::gather) {
          const int taker = trace.taker(chunk);
          if (taker == trace.taker(next)) continue;
          CHECK(seen(held_up(record, next[0], taker), "what takes it holds up the next chunk"));
          if (next.back() < taker)
            waiting += seen(with_wait(record, next.back(), taker), "what takes it waits for the next chunk");
        } else {
          const int filler = trace.first_filler(next, trace.filler(chunk));
          const Record changed = with_wait(record, chunk.back(), filler);
          CHECK(seen(changed, "it holds up what fills the next chunk"));
          const auto kinds = exposed(changed, c, rates);
          exposing += kinds.contains("needless: earlier of a scatter");
        }
        ++tried[t.kind];
      }
    if (c.tensor > 1) {
      CHECK(tried[Kind::gather] == (4 * kLayers + 1) * (kChunks - 1));
      CHECK(tried[Kind::scatter] == (4 * kLayers + 2) * (kChunks - 1));
      CHECK(tried[Kind::parts] == kHeadChunks - 1);
      // But the head's, whose later chunks are there with the softmax's first parts, and whose weight's gradient lies
      // between a chunk and the next.
      CHECK(waiting == 4 * kLayers * (kChunks - 1) + 1);
      CHECK(exposing == (4 * kLayers + 1) * (kChunks - 1));
    } else {
      CHECK(tried[Kind::gather] == 2 * kLayers * 7);
      CHECK(tried[Kind::scatter] == kLayers * 7);
    }
  }
}

TEST_CASE("Muon sends the slices of the next round and the results of the former one while it computes a matrix") {
  ModelConfig config = ModelConfig::preset("llama3-8b");
  config.L = kLayers;
  TrainerSettings settings;
  settings.dtype = DType::bf16, settings.B = 1, settings.T = 512, settings.zero_stage = 3, settings.muon = true;
  const Record record = record_step(config, settings, Mesh::create(4, 0), modelled_device("H100"), 1).record;
  const Order order(record);
  // One rank's matrices, each with the entries of its first and its last product, and what is sent in all rounds.
  std::vector<std::pair<int, int>> computed;
  std::vector<int> sent;
  int products = 0;
  for (int i = 0; i < int(record.entries.size()); ++i) {
    const Record::Entry& entry = record.entries[size_t(i)];
    if (entry.name == "all_to_all") sent.push_back(i);
    if (entry.name != "matmul_gemm") continue;
    if (products++ % (3 * kNewtonSchulzSteps) == 0) computed.push_back({i, i});
    computed.back().second = i;
  }
  CHECK(products % (3 * kNewtonSchulzSteps) == 0);
  // The slices of two rounds, then the results of a round before the slices of the one after the next.
  const size_t rounds = sent.size() / 2;
  const auto slices = [&](size_t r) { return sent[r ? 2 * r - 1 : 0]; };
  const auto results = [&](size_t r) { return sent[std::min(2 * r + 2, 2 * rounds - 1)]; };
  CHECK(sent.size() == 2 * rounds);
  CHECK(computed.size() >= 2);  // this rank has none in the last rounds
  CHECK(computed.size() <= rounds);
  for (size_t r = 0; r < computed.size(); ++r) {
    const auto [first, last] = computed[r];
    CHECK(order.orders(slices(r), first));
    CHECK(order.orders(last, results(r)));
    if (r + 1 == computed.size()) continue;
    const auto [next_first, next_last] = computed[r + 1];
    CHECK(!order.orders(first, slices(r + 1)));
    CHECK(!order.orders(slices(r + 1), last));
    CHECK(!order.orders(next_first, results(r)));
    CHECK(!order.orders(results(r), next_last));
  }
}

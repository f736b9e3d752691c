// Covers: promise 2: the gather of a unit does not wait for the compute of the unit before it, nor the backward of a
// unit for the sum of the unit after it; in a replay both run at the same time Covers: a record of a device that
// executes nothing is that of one that does
#include <algorithm>
#include <cstring>
#include <functional>

#include "dev/test/record_order.h"
#include "dev/test/test.h"
#include "dev/test/tiny_trainer.h"
#include "llmc/base/json.h"
#include "llmc/comm/recording_communicator.h"
#include "llmc/device/known_devices.h"
#include "llmc/device/replay.h"
#include "llmc/predict/simulation.h"

namespace {

using Entry = Record::Entry;
using Kind = Record::Entry::Kind;

ModelConfig small(int layers) { return tiny({.L = layers}); }

TrainerSettings sharded(int stage) {
  TrainerSettings settings;
  settings.B = 2, settings.T = 64, settings.zero_stage = stage;
  return settings;
}

// Work of this name, in its order.
std::vector<int> work_named(const Record& record, const std::string& name) {
  std::vector<int> found;
  for (int i = 0; i < int(record.entries.size()); ++i)
    if (record.entries[size_t(i)].kind == Kind::work && record.entries[size_t(i)].name == name) found.push_back(i);
  return found;
}

Access largest(const Entry& entry, bool write) {
  Access best{nullptr, 0, write};
  for (const Access& a : entry.accesses)
    if (a.write == write && a.bytes > best.bytes) best = a;
  return best;
}

// The first work of the compute stream that reads what the collective gathered.
int first_use(const Record& record, const Order& order, int gather) {
  const Access gathered = largest(record.entries[size_t(gather)], true);
  for (int i = gather + 1; i < int(record.entries.size()); ++i) {
    const Entry& entry = record.entries[size_t(i)];
    if (entry.kind == Kind::work && entry.stream == 0 && touches(entry, gathered, false) && order.orders(gather, i))
      return i;
  }
  return -1;
}

// The first of the works that made what the collective sums, of this unit: after the sum before it.
int first_maker(const Record& record, int sum, int after) {
  const Access summed = largest(record.entries[size_t(sum)], false);
  for (int i = after + 1; i < sum; ++i) {
    const Entry& entry = record.entries[size_t(i)];
    if (entry.kind == Kind::work && entry.stream == 0 && touches(entry, summed, true)) return i;
  }
  return -1;
}

// Returns whether the compute stream uses units that were gathered before, and are still there, between these two
// works.
bool uses_others(const Record& record, const std::vector<int>& gathers, int gather, int from, int to) {
  const Access own = largest(record.entries[size_t(gather)], true);
  for (int i = from; i < to; ++i) {
    const Entry& entry = record.entries[size_t(i)];
    if (entry.kind != Kind::work || entry.stream != 0) continue;
    for (const int other : gathers) {
      const Access there = largest(record.entries[size_t(other)], true);
      if (!overlap(there.data, there.bytes, own.data, own.bytes) && touches(entry, there, false)) return true;
    }
  }
  return false;
}

// The work of the compute stream before this one.
int compute_before(const Record& record, int index) {
  for (int i = index - 1; i >= 0; --i)
    if (record.entries[size_t(i)].kind == Kind::work && record.entries[size_t(i)].stream == 0) return i;
  return -1;
}

// Lists the waits that are not needed: the gather of a unit for compute of the unit before it, even for
// its first kernel; the backward of a unit, of the `units` of a pass, for the sum of the one that came before it.
std::vector<std::string> needless_waits(const Record& record, int units) {
  const Order order(record);
  std::vector<std::string> found;
  const std::vector<int> gathers = work_named(record, "all_gather"), sums = work_named(record, "reduce_scatter_sum");
  for (size_t k = 0; k < gathers.size(); ++k) {
    const int use = first_use(record, order, gathers[k]), before = k ? first_use(record, order, gathers[k - 1]) : -1;
    const bool next_to_it = before >= 0 && !uses_others(record, gathers, gathers[k - 1], before, use);
    const int compute = next_to_it ? before : compute_before(record, use);
    if (compute >= 0 && order.orders(compute, gathers[k])) found.push_back(format("gather %zu after compute", k));
  }
  for (size_t k = 0; k + 1 < sums.size(); ++k) {
    if (int(k + 1) % units == 0) continue;  // a forward pass lies between them
    const int backward = first_maker(record, sums[k + 1], sums[k]);
    if (backward >= 0 && order.orders(sums[k], backward))
      found.push_back(format("backward %zu after reduce %zu", k + 1, k));
  }
  return found;
}

std::string all_of(const std::vector<std::string>& texts) {
  std::string all;
  for (const std::string& text : texts) all += text + "; ";
  return all;
}

}  // namespace

TEST_CASE("no gather waits for the compute before it, no backward for the sum after it") {
  for (const int layers : {2, 3, 5, 8})
    for (const int64_t micro_batches : {1, 3}) {
      CAPTURE(layers);
      CAPTURE(micro_batches);
      const Mesh mesh = Mesh::create(4, 1);
      const RecordedStep step = record_step(small(layers), sharded(3), mesh, modelled_device("H100"), micro_batches);
      CHECK(all_of(needless_waits(step.record, layers + 2)) == "");
      // Forward gathers every unit, backward all blocks but the last two, which are still there, as the first two are
      // for the next forward.
      CHECK(work_named(step.record, "all_gather").size() ==
            size_t(2 * layers + (micro_batches - 1) * (2 * layers - 2)));
      CHECK(work_named(step.record, "reduce_scatter_sum").size() == size_t(micro_batches) * size_t(layers + 2));
    }
}

TEST_CASE("a wait that is not needed is seen") {
  const Mesh mesh = Mesh::create(4, 1);
  RecordedStep step = record_step(small(5), sharded(3), mesh, modelled_device("H100"), 1);
  Record& record = step.record;
  const std::vector<int> sums = work_named(record, "reduce_scatter_sum");
  const auto with = [&](int after, int after_stream, int before, int before_stream) {
    Record changed = record;
    changed.entries.insert(changed.entries.begin() + before, {Kind::wait, before_stream, 1 << 20});
    changed.entries.insert(changed.entries.begin() + after + 1, {Kind::record, after_stream, 1 << 20});
    return all_of(needless_waits(changed, 7));
  };
  const int reduce_stream = record.entries[size_t(sums[0])].stream;
  CHECK(with(sums[1], reduce_stream, first_maker(record, sums[2], sums[1]), 0) == "backward 2 after reduce 1; ");

  // Two units by hand, the gather of the second after the first kernel of the first, or after nothing.
  for (const bool waits : {false, true}) {
    static char memory[3][100];
    Record two;
    two.streams = {"compute", "gather"};
    const auto add = [&](Kind kind, int stream, int point) { two.entries.push_back({kind, stream, point}); };
    const auto work = [&](int stream, const char* name, const char* data, bool writes) {
      add(Kind::work, stream, -1);
      two.entries.back().name = name;
      two.entries.back().accesses = {{data, 100, writes}};
    };
    for (int unit = 0; unit < 2; ++unit) {
      if (waits && unit) add(Kind::wait, 1, 10);
      work(1, "all_gather", memory[unit], true);
      add(Kind::record, 1, unit);
      add(Kind::wait, 0, unit);
      work(0, "first kernel", memory[unit], false);
      add(Kind::record, 0, 10 + unit);
      work(0, "second kernel", memory[2], true);
    }
    CHECK(all_of(needless_waits(two, 2)) == (waits ? "gather 1 after compute; " : ""));
  }
}

TEST_CASE("the record of a device that executes nothing is that of one that does") {
  for (const char* precision : {"fp32", "bf16"}) {
    World world;
    const TrainerSettings settings = settings_in(precision, tiny());
    Training training(world, tiny(), settings);
    training.train(1);
    const Record executed = record_next_step(training);
    CHECK(executed.entries.size() > 100);
    require_alike(executed, record_step(tiny(), settings, Mesh::create(1, 0), world.device.info(), 2).record);
  }
}

TEST_CASE("a start writes no byte twice, and of weights and moments this rank's") {
  for (const bool tied : {false, true})
    for (const DType dtype : {DType::fp32, DType::bf16})
      for (const int stage : {0, 1, 2, 3}) {
        CAPTURE(tied);
        CAPTURE(stage);
        Device device(modelled_device("H100"));
        RecordingCommunicator communicator(1, Communicator::first_ranks(3));
        ModelConfig config = small(3);
        config.tied = tied;
        TrainerSettings settings = sharded(stage);
        settings.dtype = dtype;
        const auto trainer = Trainer::create(device, communicator, config, settings, Mesh::create(3, 1));
        Record record;
        device.record_to(&record);
        trainer->allocate();
        trainer->initialize(Init::normal, 1);
        device.record_to(nullptr);

        std::vector<std::pair<const char*, const char*>> written;
        for (const Entry& entry : record.entries)
          for (const Access& a : entry.accesses)
            if (a.write && a.bytes && entry.ranks.empty())
              written.push_back({static_cast<const char*>(a.data), static_cast<const char*>(a.data) + a.bytes});
        std::sort(written.begin(), written.end());
        size_t bytes = 0, twice = 0;
        for (size_t i = 0; i < written.size(); ++i) {
          bytes += size_t(written[i].second - written[i].first);
          twice += i && written[i].first < written[i - 1].second;
        }
        CHECK(twice == 0);
        const ParameterLayout& layout = trainer->layout();
        const size_t own = stage ? layout.size / 3 : layout.size;
        const size_t state = own * (3 * sizeof(float) + (dtype == DType::bf16 ? sizeof(bf16) : 0));
        const size_t table = size_t(settings.T) * size_t(config.HD) * sizeof(float);
        CHECK(bytes >= state + table);
        CHECK(bytes <= state + table + 4096);  // where weight decay begins and ends
      }
}

TEST_CASE("a replay: what is independent overlaps, what is ordered does not") {
  const Mesh mesh = Mesh::create(32, 0);
  TrainerSettings settings = sharded(3);
  settings.dtype = DType::bf16;
  settings.T = 4096, settings.B = 1;
  const RecordedStep step = record_step(ModelConfig::preset("llama3.2-1b"), settings, mesh, modelled_device("H100"), 2);
  const ReplayRates rates = ReplayRates::of(modelled_device("H100"));
  const Replay replayed = replay(step.record, rates);
  double traffic = 0;
  for (const Record::Span& span : replayed.spans)
    if (const Entry& work = step.record.entries[size_t(span.entry)]; work.ranks.size() > 1)
      traffic += replayed_seconds(work, rates);
  CHECK(replayed.seconds < 0.6 * (replayed.compute + traffic) + 0.4 * std::max(replayed.compute, traffic));
  CHECK(replayed.seconds >= replayed.compute);
  CHECK(replayed.seconds >= traffic * 0.999);
  printf("1B on 32 GPUs: compute %.1f ms, traffic %.1f ms, together %.1f ms\n", replayed.compute * 1e3, traffic * 1e3,
         replayed.seconds * 1e3);

  // Begins and ends respect the order of the record.
  const Order order(step.record);
  std::vector<const Record::Span*> span_of(step.record.entries.size(), nullptr);
  for (const Record::Span& span : replayed.spans) span_of[size_t(span.entry)] = &span;
  const std::vector<int> gathers = work_named(step.record, "all_gather");
  size_t together = 0;
  for (size_t k = 0; k + 1 < gathers.size(); ++k) {
    const int use = first_use(step.record, order, gathers[k]);
    if (use < 0) continue;
    CHECK(span_of[size_t(gathers[k])]->end <= span_of[size_t(use)]->begin + 1e-12);
    const Record::Span& next = *span_of[size_t(gathers[k + 1])];
    // Some work of the compute stream goes on while the next unit is gathered.
    for (const Record::Span& span : replayed.spans)
      if (step.record.entries[size_t(span.entry)].stream == 0 && span.begin < next.end && next.begin < span.end) {
        ++together;
        break;
      }
  }
  CHECK(together >= gathers.size() - 4);

  // Twice the rates: half the time, but for what does not depend on them.
  ReplayRates twice = rates;
  for (Rate& rate : twice.compute) rate.flops *= 2;
  twice.memory_bytes *= 2, twice.node_bytes *= 2, twice.network_bytes *= 2;
  CHECK(replay(step.record, twice).seconds < 0.55 * replayed.seconds);
}

TEST_CASE("replayed times by hand") {
  ReplayRates rates{};
  rates.set_all(100, 100, "by hand");
  rates.memory_bytes = 10, rates.kernel_seconds = 0.5, rates.ranks_per_node = 4;
  rates.node_bytes = 8, rates.network_bytes = 1, rates.node_hop_seconds = rates.network_hop_seconds = 0;
  static char memory[100];
  const auto work = [&](double flops, size_t bytes, size_t sent, std::vector<int> ranks) {
    Entry entry{Kind::work, 0};
    entry.flops = flops, entry.sent = sent, entry.ranks = std::move(ranks);
    entry.accesses = {{memory, bytes, true}};
    return entry;
  };
  CHECK(replayed_seconds(work(200, 10, 0, {}), rates) == 2);                        // FLOPs
  CHECK(replayed_seconds(work(20, 40, 0, {}), rates) == 4);                         // bytes
  CHECK(replayed_seconds(work(20, 1, 0, {}), rates) == 0.5);                        // at least
  CHECK(replayed_seconds(work(0, 0, 16, {0, 1, 2, 3}), rates) == 2.5);              // in a node
  CHECK(replayed_seconds(work(0, 0, 16, {0, 1, 2, 3, 4, 5, 6, 7}), rates) == 4.5);  // four cards between nodes
  CHECK(replayed_seconds(work(0, 0, 16, {0, 4}), rates) == 16.5);                   // one

  // Attention with fewer blocks than multiprocessors, whose longest block has half as much again as the mean; with
  // many.
  rates.multiprocessors = 4;
  Entry attention = work(200, 10, 0, {});
  attention.rate = RateClass::attention_hopper_forward, attention.head_size = 64, attention.imbalance = 1.5;
  attention.shape.grid[0] = 2, attention.shape.grid[1] = attention.shape.grid[2] = 1;
  CHECK(replayed_seconds(attention, rates) == 2 * 2 * 1.5);
  attention.shape.grid[0] = 16;
  CHECK(replayed_seconds(attention, rates) == 2);

  // Eight ranks on two nodes: a ring goes around all of them, a tree along the ranks of a node and along the nodes.
  rates.node_hop_seconds = 1, rates.network_hop_seconds = 10;
  Entry collective = work(0, 0, 0, {0, 1, 2, 3, 4, 5, 6, 7});
  CHECK(replayed_seconds(collective, rates) == 0.5 + 6 * 1 + 1 * 10);
  collective.tree = true;
  CHECK(replayed_seconds(collective, rates) == 0.5 + 2 * 1 + 1 * 10);
  collective.joins = true, collective.sent = 16;  // another one's launch
  CHECK(replayed_seconds(collective, rates) == 4);
}

TEST_CASE("an all_to_all sends to each rank at once, and to other nodes through the rank's own card") {
  ReplayRates rates{};
  rates.memory_bytes = 10, rates.kernel_seconds = 0.5, rates.ranks_per_node = 4;
  rates.node_bytes = 8, rates.network_bytes = 1, rates.node_hop_seconds = 1, rates.network_hop_seconds = 10;
  // Rank 6 of ranks 0 to 7 on two nodes, as the communicator records it.
  Device device(modelled_device("H100"));
  RecordingCommunicator communicator(6, Communicator::first_ranks(8));
  Stream stream(device, "compute");
  DeviceMemory memory(device, 200);
  const auto recorded = [&](const std::vector<size_t>& sent, const std::vector<size_t>& received) {
    std::vector<ByteRange> sends, receives;
    size_t from = 0, to = 0;
    for (const size_t bytes : sent) sends.push_back({from, bytes}), from += bytes;
    for (const size_t bytes : received) receives.push_back({to, bytes}), to += bytes;
    Record record;
    device.record_to(&record);
    communicator.all_to_all(stream, memory.data() + from, receives, memory.data(), sends);
    device.record_to(nullptr);
    record.streams = {"compute"};
    return record;
  };
  const auto check = [&](const Record& record, double seconds, double sent, double by_card) {
    const Replay r = replay(record, rates);
    CHECK(r.seconds == doctest::Approx(0.5 + 10 + seconds));  // one hop
    CHECK(r.sent.size() == 1);
    CHECK(r.sent.at({"compute", "all_to_all of 8 ranks on 2 nodes"}) == sent);
    CHECK(r.between_nodes == sent);
    CHECK(r.by_card == by_card);
  };
  // The bytes to itself (40) are sent nowhere. 16 + 16 in the node take 4 s, 2 + 1 to the other node 3 s.
  check(recorded({2, 0, 0, 1, 16, 0, 40, 16}, {0, 0, 0, 0, 0, 0, 40, 0}), 4, 35, 3);
  check(recorded({2, 0, 0, 1, 0, 8, 40, 0}, {0, 0, 0, 0, 0, 0, 40, 0}), 3, 11, 3);
  check(recorded({2, 0, 0, 1, 0, 8, 40, 0}, {0, 7, 0, 0, 8, 0, 40, 0}), 7, 11, 3);  // more is received
  check(recorded({0, 0, 0, 0, 0, 8, 40, 0}, {0, 0, 0, 0, 48, 0, 40, 0}), 6, 8, 0);  // in the node
  // Two that are sent at once share the card.
  const auto two = [&](const std::vector<size_t>& sent) {
    Record record = recorded(sent, std::vector<size_t>(8));
    record.streams = {"first", "second"};
    record.entries.push_back(record.entries[0]), record.entries[1].stream = 1;
    return replay(record, rates).seconds;
  };
  CHECK(two({89, 0, 0, 0, 0, 0, 0, 0}) == doctest::Approx(2 * 89));
  CHECK(two({0, 0, 0, 0, 72, 0, 0, 0}) == doctest::Approx(0.5 + 10 + 9));  // 9 of 19.5 s each: room for both
  rates.ranks_per_node = 8;
  CHECK(replayed_seconds(recorded({0, 0, 0, 0, 0, 8, 0, 0}, std::vector<size_t>(8)).entries[0], rates) == 0.5 + 1 + 1);
}

TEST_CASE("copies share each direction of the bus, and with them what ranks send through the host") {
  ReplayRates rates{};
  rates.kernel_seconds = rates.node_hop_seconds = 0, rates.ranks_per_node = 4;
  rates.host_bytes = 8, rates.node_bytes = 4;
  const auto seconds = [&](size_t first, bool first_to_host, size_t second, bool second_to_host, size_t sent = 0) {
    Record record;
    record.streams = {"first", "second", "third"};
    const auto add = [&](int stream, size_t crossed, bool to_host) -> Entry& {
      record.entries.push_back({Kind::work, stream});
      record.entries.back().crossed = crossed, record.entries.back().to_host = to_host;
      return record.entries.back();
    };
    add(0, first, first_to_host), add(1, second, second_to_host);
    if (sent) {
      Entry& collective = add(2, 0, false);
      collective.sent = sent, collective.ranks = {0, 1};
    }
    return replay(record, rates).seconds;
  };
  CHECK(seconds(16, true, 32, false) == 4);  // both directions at once
  CHECK(seconds(16, true, 32, true) == 6);   // 48 bytes in one
  CHECK(seconds(16, false, 16, false) == 4);
  CHECK(seconds(8, false, 8, false, 16) == 4);  // NVLink is not the bus
  // A collective through the host takes half of each direction, and all slow down by the same factor: 1.5 while copies
  // go in one direction, 2.5 while two go in the same one.
  rates.node_by_host = true;
  CHECK(seconds(8, true, 8, false, 16) == doctest::Approx(1.5 + 3));
  CHECK(seconds(16, false, 16, true, 32) == doctest::Approx(3 + 6));
  CHECK(seconds(16, false, 16, false, 16) == doctest::Approx(5 + 2));
}

TEST_CASE("the collectives of a group are recorded as one launch") {
  Device device(modelled_device("H100"));
  RecordingCommunicator communicator(0, {0, 1});
  Stream stream(device, "compute");
  DeviceMemory memory(device, 3 * sizeof(float));
  auto* const numbers = reinterpret_cast<float*>(memory.data());
  Record record;
  device.record_to(&record);
  communicator.group([&] {
    for (int i = 0; i < 3; ++i) communicator.all_reduce_sum(stream, {numbers + i, {1}});
  });
  communicator.all_reduce_sum(stream, {numbers, {1}});
  device.record_to(nullptr);
  std::vector<bool> joins;
  for (const Entry& entry : record.entries) joins.push_back(entry.joins);
  CHECK(joins == std::vector<bool>{false, true, true, false});
}

TEST_CASE("collectives that send at once share the links that both use, and waits are told by stream") {
  ReplayRates rates{};
  rates.set_all(1, 1, "by hand");
  rates.memory_bytes = 1, rates.kernel_seconds = 0, rates.ranks_per_node = 2;
  rates.node_bytes = 4, rates.network_bytes = 1, rates.node_hop_seconds = rates.network_hop_seconds = 0;
  // Compute of a second, then it waits for the first collective, then for the second one.
  const auto replayed = [&](std::vector<int> first, size_t first_sent, std::vector<int> second, size_t second_sent) {
    Record record;
    record.streams = {"compute", "first", "second"};
    const auto add = [&](Kind kind, int stream, int point) { record.entries.push_back({kind, stream, point}); };
    add(Kind::work, 0, -1), record.entries.back().flops = 1;
    add(Kind::work, 1, -1), record.entries.back().ranks = first, record.entries.back().sent = first_sent;
    add(Kind::record, 1, 0);
    add(Kind::work, 2, -1), record.entries.back().ranks = second, record.entries.back().sent = second_sent;
    add(Kind::record, 2, 1);
    add(Kind::wait, 0, 0), add(Kind::wait, 0, 1);
    return replay(record, rates);
  };
  const auto check = [](Replay r, double first_ends, double second_ends, double waits_for_first,
                        double waits_for_second) {
    CHECK(r.spans.size() == 3);
    CHECK(r.spans[1].end == doctest::Approx(first_ends));
    CHECK(r.spans[2].end == doctest::Approx(second_ends));
    CHECK(r.seconds == doctest::Approx(std::max({1.0, first_ends, second_ends})));
    CHECK(r.exposed == doctest::Approx(r.seconds - 1));
    CHECK(r.waits_by_stream["compute"] == 0);
    CHECK(r.waits_by_stream["first"] == doctest::Approx(waits_for_first));
    CHECK(r.waits_by_stream["second"] == doctest::Approx(waits_for_second));
  };
  check(replayed({0, 1}, 8, {0, 2}, 3), 2, 3, 1, 1);        // one in the node, one between nodes
  check(replayed({0, 1}, 8, {0, 1}, 12), 4, 5, 3, 1);       // the same link
  check(replayed({0, 2}, 2, {0, 2, 4}, 2), 4, 4, 3, 0);     // the same network card
  check(replayed({0, 1}, 8, {0, 1, 2, 3}, 8), 3, 5, 2, 2);  // two cards take half of the link in the node
}

TEST_CASE("a step of many micro-batches is replayed by records of one and two") {
  struct Case {
    int stage, tensor, context;
  };
  const DeviceInfo device = modelled_device("H100");
  const ReplayRates rates = ReplayRates::of(device);
  for (const Case& c : {Case{3, 1, 1}, Case{1, 1, 1}, Case{3, 8, 1}, Case{3, 2, 2}}) {
    CAPTURE(c.stage);
    CAPTURE(c.tensor);
    const Mesh mesh = Mesh::create(32, 0, c.tensor, c.context);
    TrainerSettings settings = sharded(c.stage);
    settings.dtype = DType::bf16, settings.T = 4096, settings.B = 1, settings.micro_batches = 6;
    const ModelConfig config = ModelConfig::preset("llama3.2-1b");
    const auto replayed = [&](const Record& record) { return replay(record, rates); };
    const Replay whole = replayed(record_step(config, settings, mesh, device, 6, false).record),
                 step = replay_step(config, settings, mesh, device, 6, replayed);
    CHECK(step.seconds == doctest::Approx(whole.seconds).epsilon(0.01));
    CHECK(step.compute == doctest::Approx(whole.compute).epsilon(0.001));
    CHECK(step.sent.size() == whole.sent.size());
    double sent = 0, waits = 0;
    for (const auto& [what, bytes] : whole.sent) {
      CHECK(step.sent.at(what) == doctest::Approx(bytes).epsilon(1e-6));
      sent += bytes;
    }
    CHECK(sent == doctest::Approx(whole.within_nodes + whole.between_nodes));
    for (const auto& [stream, seconds] : step.waits_by_stream) waits += seconds;
    CHECK(waits == doctest::Approx(step.exposed));
  }
}

TEST_CASE("what is updated is read and written; sums that all ranks get need not go around") {
  Device device(modelled_device("H100"));
  Stream stream(device, "compute");
  RecordingCommunicator communicator(0, Communicator::first_ranks(4));
  static float x[100], y[400];
  CHECK(entry_of(Work(stream, "work", {reads(x, 10), writes(y, 20)}), 0).bytes() == 120);
  CHECK(entry_of(Work(stream, "work", {reads(x, 10), updates(y, 20)}), 0).bytes() == 200);
  Record record;
  device.record_to(&record);
  communicator.all_reduce_sum(stream, {x, {100}});
  communicator.all_gather(stream, y, x, 400);
  communicator.reduce_scatter_sum(stream, {x, {100}}, {y, {400}});
  device.record_to(nullptr);
  CHECK(record.entries.size() == 3);
  for (const Entry& entry : record.entries) CHECK(entry.tree == (entry.name == "all_reduce_sum"));
}

TEST_CASE("a trace is JSON of all spans") {
  const RecordedStep step = record_step(small(2), sharded(1), Mesh::create(2, 0), modelled_device("A100"), 1);
  const Replay replayed = replay(step.record, ReplayRates::of(modelled_device("A100")));
  const std::string path = "/tmp/llmc_trace_" + std::to_string(size_t(&step)) + ".json";
  write_trace(path, step.record, replayed.spans);
  const Json trace = Json::read(path);
  remove(path.c_str());
  CHECK(trace.at("traceEvents").size() == replayed.spans.size() + step.record.streams.size());
  CHECK(error_of([] { modelled_device("H1000"); }).find("choose one of: A100") != std::string::npos);
}

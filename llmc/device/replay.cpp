#include "llmc/device/replay.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <map>
#include <set>

#include "llmc/base/error.h"
#include "llmc/base/json.h"
#include "llmc/base/new_file.h"
#include "llmc/base/text.h"

namespace {

using Kind = Record::Entry::Kind;

size_t nodes_of(const std::vector<int>& ranks, int ranks_per_node) {
  std::set<int> nodes;
  for (const int rank : ranks) nodes.insert(rank / ranks_per_node);
  return nodes.size();
}

double log2_hops(size_t count) { return count > 1 ? std::ceil(std::log2(double(count))) : 0; }

}  // namespace

ReplayRates ReplayRates::of(const DeviceInfo& device) {
  REQUIRE(device.bf16_flops > 0 && device.memory_bytes_per_second > 0, "the rates of %s are not known",
          device.name.c_str());
  ReplayRates rates{};
  rates.flops = 0.7 * device.bf16_flops;
  rates.fp8_flops = 2 * rates.flops;
  rates.memory_bytes = 0.85 * device.memory_bytes_per_second;
  return rates;
}

std::string ReplayRates::text() const {
  return format(
      "%.0f TFLOP/s (FP8 %.0f), memory %.2f TB/s, a kernel at least %.1f us; a rank sends %.0f GB/s in its node of "
      "%d and %.0f GB/s to others, a hop takes %.1f and %.1f us; %.0f GB/s to the host and back",
      flops * 1e-12, fp8_flops * 1e-12, memory_bytes * 1e-12, kernel_seconds * 1e6, node_bytes * 1e-9, ranks_per_node,
      network_bytes * 1e-9, node_hop_seconds * 1e6, network_hop_seconds * 1e6, host_bytes * 1e-9);
}

// Rings of several nodes cross from one to the next at as many ranks as the group has in a node, each with a share of
// the data (one network card a rank). NCCL has trees for sums that all ranks get; what it gathers and scatters goes
// around, from rank to rank.
double replayed_seconds(const Record::Entry& work, const ReplayRates& rates) {
  if (work.crossed) return rates.kernel_seconds + double(work.crossed) / rates.host_bytes;
  if (work.ranks.size() < 2)
    return std::max({rates.kernel_seconds, work.flops / (work.fp8 ? rates.fp8_flops : rates.flops),
                     double(work.bytes()) / rates.memory_bytes});
  const size_t nodes = nodes_of(work.ranks, rates.ranks_per_node), in_node = (work.ranks.size() + nodes - 1) / nodes;
  double bandwidth = in_node > 1 ? rates.node_bytes : rates.network_bytes;
  if (nodes > 1) bandwidth = std::min(bandwidth, double(in_node) * rates.network_bytes);
  const double node_hops = work.tree ? log2_hops(in_node) : double(work.ranks.size() - nodes),
               network_hops = work.tree ? log2_hops(nodes) : double(nodes - 1);
  return rates.kernel_seconds + node_hops * rates.node_hop_seconds + network_hops * rates.network_hop_seconds +
         double(work.sent) / bandwidth;
}

Replay replay(const Record& record, const ReplayRates& rates) {
  return replay(record, rates, [&](const Record::Entry& work) { return replayed_seconds(work, rates); });
}

Replay replay(const Record& record, const ReplayRates& rates,
              const std::function<double(const Record::Entry&)>& seconds_of) {
  std::vector<std::deque<int>> queues(record.streams.size());
  std::map<int, double> reached;  // points; those of before the record are reached from the start
  std::map<int, int> done;        // the last work before them
  for (size_t i = 0; i < record.entries.size(); ++i) {
    const Record::Entry& entry = record.entries[i];
    queues[size_t(entry.stream)].push_back(int(i));
    if (entry.kind == Kind::record) reached[entry.point] = -1;
  }
  std::vector<double> free(queues.size(), 0);  // when the stream has done what it did
  std::vector<int> last(queues.size(), -1);    // and the last of it
  double link_free = 0;
  Replay result;
  for (size_t left = record.entries.size(); left;) {
    // What costs no time first; of the rest that which can begin first.
    int best = -1;
    double begin = 0;
    bool moved = false;
    for (size_t s = 0; s < queues.size() && !moved; ++s) {
      if (queues[s].empty()) continue;
      const Record::Entry& head = record.entries[size_t(queues[s].front())];
      if (head.kind == Kind::work) {
        const double able = head.ranks.size() > 1 ? std::max(free[s], link_free) : free[s];
        if (best < 0 || able < begin) best = int(s), begin = able;
        continue;
      }
      const auto point = reached.find(head.point);
      if (head.kind == Kind::wait && point != reached.end() && point->second < 0) continue;  // not reached yet
      if (head.kind == Kind::record) reached[head.point] = free[s], done[head.point] = last[s];
      else if (point != reached.end() && point->second > free[s]) {
        if (s == 0) result.waits.push_back({free[s], point->second, done[head.point]});
        free[s] = point->second;
        last[s] = done[head.point];
      }
      queues[s].pop_front();
      moved = true, --left;
    }
    if (moved) continue;
    REQUIRE(best >= 0, "a record of %zu entries cannot be replayed: its streams wait for each other",
            record.entries.size());
    const int index = queues[size_t(best)].front();
    const Record::Entry& work = record.entries[size_t(index)];
    const double seconds = seconds_of(work);
    queues[size_t(best)].pop_front(), --left;
    free[size_t(best)] = begin + seconds, last[size_t(best)] = index;
    if (work.ranks.size() > 1) {
      link_free = begin + seconds;
      (nodes_of(work.ranks, rates.ranks_per_node) > 1 ? result.between_nodes : result.within_nodes) +=
          double(work.sent);
    }
    if (best == 0) result.compute += seconds;
    result.spans.push_back({index, begin, begin + seconds});
    result.seconds = std::max(result.seconds, begin + seconds);
  }
  result.exposed = result.seconds - result.compute;
  return result;
}

void write_trace(const std::string& path, const Record& record, const std::vector<Record::Span>& spans) {
  Json events = Json::array();
  for (size_t s = 0; s < record.streams.size(); ++s)
    events.push_back(Json::object()
                         .set("name", "thread_name")
                         .set("ph", "M")
                         .set("pid", 0)
                         .set("tid", int64_t(s))
                         .set("args", Json::object().set("name", record.streams[s])));
  for (const Record::Span& span : spans) {
    const Record::Entry& work = record.entries[size_t(span.entry)];
    Json about = Json::object().set("place", work.place).set("bytes", int64_t(work.bytes())).set("flops", work.flops);
    if (work.sent) about.set("sent", int64_t(work.sent)).set("ranks", int64_t(work.ranks.size()));
    events.push_back(Json::object()
                         .set("name", work.name)
                         .set("ph", "X")
                         .set("pid", 0)
                         .set("tid", work.stream)
                         .set("ts", span.begin * 1e6)
                         .set("dur", (span.end - span.begin) * 1e6)
                         .set("args", about));
  }
  write_file(path, Json::object().set("displayTimeUnit", "ms").set("traceEvents", events).dump() + "\n");
}

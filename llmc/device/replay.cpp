#include "llmc/device/replay.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <deque>
#include <unordered_map>

#include "llmc/base/error.h"
#include "llmc/base/json.h"
#include "llmc/base/new_file.h"
#include "llmc/base/text.h"

namespace {

using Kind = Record::Entry::Kind;

double log2_hops(size_t count) { return count > 1 ? std::ceil(std::log2(double(count))) : 0; }

// For each link of a rank: seconds for which a collective or a copy keeps it busy if it has the link alone, or the
// fraction of the link that it uses. The bus to the host is two links, one for each direction.
enum Link { kNode, kNetwork, kToHost, kFromHost, kLinks };
using LinkUse = std::array<double, kLinks>;

// The route of a collective, over `nodes` nodes with `in_node` of its ranks in each. Each rank has one network card.
struct Route {
  size_t nodes = 1, in_node = 1;
  double node_hops = 0, network_hops = 0;
  LinkUse seconds{};
  double by_card = 0;  // bytes that this rank's card sends

  std::string text(const Record::Entry& work) const {
    return format("%s of %zu ranks %s", work.name.c_str(), work.ranks.size(),
                  nodes > 1 ? format("on %zu nodes", nodes).c_str() : "in a node");
  }
  double sending_seconds() const { return *std::max_element(seconds.begin(), seconds.end()); }
};

// GPUs without a link of their own send within the node through the host, which takes both directions at once.
void add_bus(LinkUse& seconds, const ReplayRates& rates) {
  if (rates.node_by_host) seconds[kToHost] = seconds[kFromHost] = seconds[kNode] * rates.node_bytes / rates.host_bytes;
}

// Rings around the nodes, one ring for each of the ranks in a node. Each ring takes an equal share of the data. A
// collective whose result is the same on every rank goes along a tree, as NCCL's all_reduce can. all_gather and
// reduce_scatter go around a ring, from rank to rank.
void go_around(Route& route, const Record::Entry& work, const ReplayRates& rates) {
  const size_t nodes = route.nodes, in_node = route.in_node;
  const double sent = double(work.sent);
  route.node_hops = work.tree ? log2_hops(in_node) : double(work.ranks.size() - nodes);
  route.network_hops = work.tree ? log2_hops(nodes) : double(nodes - 1);
  if (in_node > 1) route.seconds[kNode] = sent / rates.node_bytes;
  if (nodes > 1) route.seconds[kNetwork] = sent / (double(in_node) * rates.network_bytes);
  if (nodes > 1) route.by_card = sent / double(in_node);
}

// Each rank sends to each other one at once, through its own card if that is on another node. A link carries both
// directions at the same time.
void go_directly(Route& route, const Record::Entry& work, const ReplayRates& rates) {
  Exchange node{}, network{};
  for (const Exchange& e : work.exchanges) {
    Exchange& sum = e.other / rates.ranks_per_node == work.own / rates.ranks_per_node ? node : network;
    sum.sent += e.sent, sum.received += e.received;
  }
  (route.nodes > 1 ? route.network_hops : route.node_hops) = 1;
  route.seconds[kNode] = double(std::max(node.sent, node.received)) / rates.node_bytes;
  route.seconds[kNetwork] = double(std::max(network.sent, network.received)) / rates.network_bytes;
  route.by_card = double(network.sent);
}

// The ranks of a group are in ascending or descending order.
Route route_of(const Record::Entry& work, const ReplayRates& rates) {
  const std::vector<int>& ranks = work.ranks;
  Route route;
  for (size_t i = 1; i < ranks.size(); ++i)
    route.nodes += ranks[i] / rates.ranks_per_node != ranks[i - 1] / rates.ranks_per_node;
  route.in_node = (ranks.size() + route.nodes - 1) / route.nodes;
  if (work.exchanges.empty()) go_around(route, work, rates);
  else go_directly(route, work, rates);
  add_bus(route.seconds, rates);
  return route;
}

// The time that the operations take. A multiprocessor has one block of attention, and a launch takes as long as the
// block with the most work.
double computing_seconds(const Record::Entry& work, const ReplayRates& rates) {
  if (work.flops <= 0) return 0;
  const double seconds = counted_flops(work) / rates.flops(work.rate, work.head_size);
  const double blocks = double(work.shape.grid[0]) * work.shape.grid[1] * work.shape.grid[2];
  if (!work.head_size || blocks == 0) return seconds;
  return seconds * std::max(1.0, rates.multiprocessors / blocks * work.imbalance);
}

}  // namespace

// A collective that joins another one in its launch adds its bytes alone.
double replayed_seconds(const Record::Entry& work, const ReplayRates& rates) {
  if (work.crossed) return rates.kernel_seconds + double(work.crossed) / rates.host_bytes;
  if (work.ranks.size() < 2)
    return std::max({rates.kernel_seconds, double(work.bytes()) / rates.memory_bytes, computing_seconds(work, rates)});
  const Route route = route_of(work, rates);
  if (work.joins) return route.sending_seconds();
  return rates.kernel_seconds + route.node_hops * rates.node_hop_seconds +
         route.network_hops * rates.network_hop_seconds + route.sending_seconds();
}

Replay replay(const Record& record, const ReplayRates& rates) {
  return replay(record, rates, [&](const Record::Entry& work) { return replayed_seconds(work, rates); });
}

namespace {

// Works off a record. It knows what each stream does now, and what each stream waits for.
class Player {
 public:
  Player(const Record& record, const ReplayRates& rates, const std::function<double(const Record::Entry&)>& seconds_of)
      : record_(record), rates_(rates), seconds_of_(seconds_of), lines_(record.streams.size()) {
    for (size_t i = 0; i < record.entries.size(); ++i) {
      const Record::Entry& entry = record.entries[i];
      lines_[size_t(entry.stream)].queue.push_back(int(i));
      if (entry.kind == Kind::record) unreached_[entry.point] = entry.stream;
    }
  }

  Replay play() {
    for (start_all(); is_working(); start_all()) {
      const double seconds = until_next_end();
      if (!lines_[0].works()) result_.waits_by_stream[record_.streams[awaited_by_compute()]] += seconds;
      advance(seconds);
    }
    for (const Line& line : lines_)
      REQUIRE(line.queue.empty(), "a record of %zu entries cannot be replayed: its streams wait for each other",
              record_.entries.size());
    result_.seconds = now_;
    result_.exposed = std::max(0.0, result_.seconds - result_.compute);  // not -0.0: the sums are rounded apart
    return std::move(result_);
  }

 private:
  struct Line {
    std::deque<int> queue;
    double left = 0;  // seconds left of its work, if it had the links alone
    LinkUse use{};
    size_t span = 0;      // number of the work's span
    int last = -1;        // the last work that it did or waited for; -1: none
    double waiting = -1;  // the time when its wait began; -1: it does not wait
    bool working = false;
    bool works() const { return working; }
  };

  const Record::Entry& head(const Line& line) const { return record_.entries[size_t(line.queue.front())]; }
  bool is_working() const {
    return std::any_of(lines_.begin(), lines_.end(), [](const Line& line) { return line.works(); });
  }
  bool waits(const Line& line) const {
    return !line.works() && !line.queue.empty() && head(line).kind == Kind::wait && unreached_.count(head(line).point);
  }

  // Takes entries until every stream works, waits or is done.
  void start_all() {
    for (bool moved = true; moved;) {
      moved = false;
      for (Line& line : lines_)
        while (!line.works() && !line.queue.empty() && !waits(line)) take_head(line), moved = true;
    }
    for (Line& line : lines_)
      if (waits(line) && line.waiting < 0) line.waiting = now_;
  }

  void take_head(Line& line) {
    const int index = line.queue.front();
    const Record::Entry& entry = head(line);
    line.queue.pop_front();
    if (entry.kind == Kind::record) unreached_.erase(entry.point), done_[entry.point] = line.last;
    if (entry.kind == Kind::wait) end_wait(line, entry);
    if (entry.kind != Kind::work) return;
    line.last = index;
    line.working = true, line.left = seconds_of_(entry), line.span = result_.spans.size();
    result_.spans.push_back({index, now_, now_});
    if (entry.stream == 0) result_.compute += line.left;
    line.use = {};
    if (entry.crossed) line.use[entry.to_host ? kToHost : kFromHost] = double(entry.crossed) / rates_.host_bytes;
    if (entry.ranks.size() < 2) return use_links(line);
    const Route route = route_of(entry, rates_);
    (route.nodes > 1 ? result_.between_nodes : result_.within_nodes) += double(entry.sent);
    result_.by_card += route.by_card;
    result_.sent[{record_.streams[size_t(entry.stream)], route.text(entry)}] += double(entry.sent);
    line.use = route.seconds;
    use_links(line);
  }
  // Turns the seconds for which its work keeps links busy into the fractions that it uses.
  static void use_links(Line& line) {
    for (double& use : line.use) use = line.left > 0 ? use / line.left : 0;
  }

  void end_wait(Line& line, const Record::Entry& wait) {
    if (line.waiting < 0) return;
    line.last = done_.at(wait.point);
    if (wait.stream == 0) result_.waits.push_back({line.waiting, now_, line.last});
    line.waiting = -1;
  }

  // Collectives and copies that together want more than a link has all slow down by the same factor.
  double speed(const Line& line, const LinkUse& all) const {
    double most = 1;
    for (int link = 0; link < kLinks; ++link)
      if (line.use[size_t(link)] > 0) most = std::max(most, all[size_t(link)]);
    return 1 / most;
  }
  LinkUse use_of_all() const {
    LinkUse all{};
    for (const Line& line : lines_)
      for (size_t link = 0; line.works() && link < kLinks; ++link) all[link] += line.use[link];
    return all;
  }
  double until_next_end() const {
    const LinkUse all = use_of_all();
    double seconds = INFINITY;
    for (const Line& line : lines_)
      if (line.works()) seconds = std::min(seconds, line.left / speed(line, all));
    return seconds;
  }
  void advance(double seconds) {
    const LinkUse all = use_of_all();
    now_ += seconds;
    for (Line& line : lines_) {
      if (!line.works()) continue;
      const bool ends = line.left / speed(line, all) <= seconds;
      line.left -= seconds * speed(line, all);
      if (ends) line.working = false, result_.spans[line.span].end = now_;
    }
  }

  // Returns the stream whose work the compute stream waits for, directly or through other streams that wait.
  size_t awaited_by_compute() const {
    size_t stream = 0;
    for (size_t hops = 0; hops < lines_.size() && waits(lines_[stream]); ++hops)
      stream = size_t(unreached_.at(head(lines_[stream]).point));
    return stream;
  }

  const Record& record_;
  const ReplayRates& rates_;
  const std::function<double(const Record::Entry&)>& seconds_of_;
  std::vector<Line> lines_;
  std::unordered_map<int, int> unreached_;  // point -> its stream; points from before the record are reached
  std::unordered_map<int, int> done_;       // point -> the last work before it
  double now_ = 0;
  Replay result_;
};

}  // namespace

Replay replay(const Record& record, const ReplayRates& rates,
              const std::function<double(const Record::Entry&)>& seconds_of) {
  return Player(record, rates, seconds_of).play();
}

Replay extended(const Replay& first, const Replay& second, double times) {
  const auto further = [&](double a, double b) { return b + times * (b - a); };
  const auto further_each = [&](auto a, auto b) {
    auto sums = b;
    for (auto& [name, sum] : sums) sum = further(a[name], b[name]);
    return sums;
  };
  Replay r;
  r.seconds = further(first.seconds, second.seconds), r.compute = further(first.compute, second.compute);
  r.exposed = std::max(0.0, further(first.exposed, second.exposed));
  r.waits_by_stream = further_each(first.waits_by_stream, second.waits_by_stream);
  r.within_nodes = further(first.within_nodes, second.within_nodes);
  r.between_nodes = further(first.between_nodes, second.between_nodes);
  r.by_card = further(first.by_card, second.by_card);
  r.sent = further_each(first.sent, second.sent);
  return r;
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

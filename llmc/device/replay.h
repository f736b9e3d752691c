// Predicts how long a record would take on a device with given rates. In this model each stream does one thing after
// another. A kernel takes as long as its FLOPs or its bytes, whichever is longer; a copy between host and device as
// long as its bytes; a collective as long as its hops plus its bytes. Collectives and copies of one rank that run at
// the same time share the rank's link within the node, its link to other nodes, and each direction of its bus to the
// host, if they use the same one. Kernels of several streams do not slow each other down.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "llmc/device/rates.h"
#include "llmc/device/record.h"

struct Replay {
  // A time in which the first stream waits for another. `entry` is the last work before the point that it waits for.
  struct Wait {
    double begin, end;
    int entry;
  };
  std::vector<Record::Span> spans;  // in the order in which they begin
  double seconds = 0;               // from the start to the end of the last work
  double compute = 0;               // seconds in which the first stream works
  double exposed = 0;               // seconds in which it does not work: seconds - compute
  std::vector<Wait> waits;          // the waits of which `exposed` consists, without the time after its last work
  // `exposed`, split by the name of the stream that the first stream waits for. The time after the first stream's last
  // work counts under its own name.
  std::map<std::string, double> waits_by_stream;
  double within_nodes = 0, between_nodes = 0;  // bytes that this rank sends in groups within a node, or across nodes
  // Bytes that cross the network card of this rank's GPU: of what it sends across nodes, a ring's part for each of the
  // group's ranks in a node, and of all_to_all the blocks for other nodes.
  double by_card = 0;
  // The same bytes by stream and by collective: "all_gather of 8 ranks in a node".
  std::map<std::pair<std::string, std::string>, double> sent;
};

// Replays with the times of replayed_seconds. Throws if streams wait for each other in a circle, as when a stream waits
// for a point that it records only later. Throws if a rate is missing.
Replay replay(const Record& record, const ReplayRates& rates);

// The same, but `seconds_of` gives the seconds that each operation takes.
Replay replay(const Record& record, const ReplayRates& rates,
              const std::function<double(const Record::Entry&)>& seconds_of);

// Extrapolates to more repetitions. `second` has one repetition of the same work more than `first`; the result has
// `times` more than `second`: second + times x (second - first), without spans and waits.
Replay extended(const Replay& first, const Replay& second, double times);

// Returns the seconds that one operation takes. Throws if its rate is missing.
double replayed_seconds(const Record::Entry& work, const ReplayRates& rates);

// Writes Chrome's trace format, for chrome://tracing and ui.perfetto.dev, with one row per stream.
void write_trace(const std::string& path, const Record& record, const std::vector<Record::Span>& spans);

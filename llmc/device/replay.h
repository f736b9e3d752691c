// How long a record would take on a device with named rates: a model, in which each stream does one thing after the
// other, a kernel takes as long as its FLOPs or its bytes, whichever is longer, a copy between host and device
// as long as its bytes, and a collective as long as its hops and its bytes. Collectives of one rank that travel at once
// share its link in the node and its link to others, as far as they use the same; kernels of several streams do not
// slow each other down.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "llmc/device/rates.h"
#include "llmc/device/record.h"

struct Replay {
  // The first stream waits for another, which last did the work of an entry.
  struct Wait {
    double begin, end;
    int entry;
  };
  std::vector<Record::Span> spans;                // in the order in which they begin
  double seconds = 0;                             // from the first begin to the last end
  double compute = 0;                             // that the first stream works
  double exposed = 0;                             // that it waits for others
  std::vector<Wait> waits;                        // these times, but for the one behind its last work
  std::map<std::string, double> waits_by_stream;  // the same by the name of the stream that it waits for
  double within_nodes = 0, between_nodes = 0;     // bytes that this rank sends in groups of one node, or of several
  // The same by stream and by collective: "all_gather of 8 ranks in a node".
  std::map<std::pair<std::string, std::string>, double> sent;
};

// Throws on a wait for a point that is recorded behind it.
Replay replay(const Record& record, const ReplayRates& rates);

// The same, where each piece of work takes as long as `seconds_of` says.
Replay replay(const Record& record, const ReplayRates& rates,
              const std::function<double(const Record::Entry&)>& seconds_of);

// What a further repetition adds, if the second of two records has one more of the same than the first: second + times
// x (second - first), without spans.
Replay extended(const Replay& first, const Replay& second, double times);

// The time that one piece of work takes.
double replayed_seconds(const Record::Entry& work, const ReplayRates& rates);

// Chrome's trace format, for chrome://tracing and ui.perfetto.dev: a line a stream.
void write_trace(const std::string& path, const Record& record, const std::vector<Record::Span>& spans);

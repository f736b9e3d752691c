// Finds in a record what tensor and context parallelism send while the device computes: which chunks make up one gather
// or one scatter, which waits between them are needless, and for which of them compute waits in a replay.
#pragma once

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "dev/test/record_order.h"
#include "llmc/base/error.h"
#include "llmc/base/text.h"
#include "llmc/device/replay.h"

// A gather, a scatter or another collective that is sent in chunks.
struct Transfer {
  enum class Kind { gather, scatter, parts, largest };
  Kind kind;
  std::vector<std::vector<int>> chunks;  // the entries of each, in their order
};

class CollectiveTrace {
 public:
  // A gather or scatter of `stream` has `most` chunks: what is called for with no event in between, of this rank's rows
  // or heads in their order.
  CollectiveTrace(const Record& record, const char* stream, size_t most) : record_(record), order_(record) {
    const auto place = std::find(record.streams.begin(), record.streams.end(), stream);
    REQUIRE(place != record.streams.end(), "no stream %s was recorded", stream);
    std::vector<int> chunk;
    for (int i = 0; i < int(record.entries.size()); ++i) {
      const Record::Entry& entry = record.entries[size_t(i)];
      if (record.streams[size_t(entry.stream)] != stream) continue;
      if (entry.kind == Record::Entry::Kind::work) chunk.push_back(i);
      else if (!chunk.empty()) add(std::move(chunk), most), chunk.clear();
    }
    if (!chunk.empty()) add(std::move(chunk), most);
  }

  const std::vector<Transfer>& all() const { return all_; }
  size_t count(Transfer::Kind kind) const {
    return size_t(std::count_if(all_.begin(), all_.end(), [&](const Transfer& t) { return t.kind == kind; }));
  }

  // Returns a line for each chunk that waits for what takes or fills another chunk, and for each such work that waits
  // for a chunk that is not its own. `pairs`: how many pairs of chunks were looked at.
  std::vector<std::string> needless_waits(size_t* pairs) const {
    std::vector<std::string> found;
    *pairs = 0;
    for (const Transfer& t : all_)
      for (size_t k = 0; k + 1 < t.chunks.size(); ++k, ++*pairs) {
        const std::vector<int>&chunk = t.chunks[k], &next = t.chunks[k + 1];
        const bool gathers = t.kind == Transfer::Kind::gather;
        const int work = gathers ? taker(chunk) : filler(chunk),
                  next_work = gathers ? taker(next) : first_filler(next, work);
        const auto says = [&](const char* what) {
          found.push_back(format("%s, chunk %zu: %s", record_.entries[size_t(chunk[0])].place.c_str(), k, what));
        };
        if (work < 0 || next_work < 0) says("nothing takes or fills it");
        else if (gathers && order_.orders(work, next[0])) says("what takes it holds up the next chunk");
        else if (work == next_work) continue;  // all of it at once
        else if (gathers && after_gathered(next, work)) says("what takes it waits for the next chunk");
        else if (!gathers && order_.orders(chunk.back(), next_work)) says("it holds up what fills the next chunk");
        else if (!gathers && order_.orders(next_work, chunk[0])) says("it waits for what fills the next chunk");
      }
    return found;
  }

  // Returns the transfer that the entry belongs to, and sets `chunk` to its chunk there. Null: it belongs to none.
  const Transfer* transfer_of(int entry, size_t* chunk) const {
    for (const Transfer& t : all_)
      for (*chunk = 0; *chunk < t.chunks.size(); ++*chunk)
        if (const auto& c = t.chunks[*chunk]; std::find(c.begin(), c.end(), entry) != c.end()) return &t;
    return nullptr;
  }
  // Returns whether one kernel takes all chunks: that of the embedding's gradient, which adds in the order of the
  // tokens.
  bool is_of_embedding(const Transfer& t) const {
    const int takes = taker(t.chunks[0]);
    return takes >= 0 && record_.entries[size_t(takes)].name == "embedding_backward";
  }

  // taker() returns the first work of compute that reads what was gathered, filler() the last that wrote what is sent.
  int taker(const std::vector<int>& chunk) const {
    const Range there = range(chunk, true);
    const Access gathered{there.begin, size_t(there.end - there.begin), true};
    for (int i = chunk.back() + 1; i < int(record_.entries.size()); ++i)
      if (is_compute(i) && touches(record_.entries[size_t(i)], gathered, false) && order_.orders(chunk.back(), i))
        return i;
    return -1;
  }
  int filler(const std::vector<int>& chunk) const {
    for (int i = chunk[0] - 1; i >= 0; --i)
      if (fills(i, chunk)) return i;
    return -1;
  }
  // Returns the first work after `before` that fills the chunk. `before` filled the chunk before this one, and is the
  // result if it filled both.
  int first_filler(const std::vector<int>& chunk, int before) const {
    for (int i = before + 1; i < chunk[0]; ++i)
      if (fills(i, chunk)) return i;
    return fills(before, chunk) ? before : -1;
  }

 private:
  struct Range {
    const char *begin = nullptr, *end = nullptr;
    size_t bytes = 0;
  };
  // Returns all bytes that a chunk's work reads, or writes, without the byte by which collectives take turns, and
  // without sums that are rounded.
  Range range(const std::vector<int>& chunk, bool write) const {
    const auto is_rounded = [&](int i, const Access& sums) {
      return std::any_of(chunk.begin(), chunk.end(), [&](int later) {
        const Record::Entry& entry = record_.entries[size_t(later)];
        return later > i && entry.name == "cast" && entry.accesses[0].data == sums.data;
      });
    };
    Range all;
    for (const int i : chunk)
      for (const Access& a : record_.entries[size_t(i)].accesses) {
        if (a.write != write || a.updated || !a.bytes || (write && is_rounded(i, a))) continue;
        const char* begin = static_cast<const char*>(a.data);
        if (!all.bytes || begin < all.begin) all.begin = begin;
        if (!all.bytes || begin + a.bytes > all.end) all.end = begin + a.bytes;
        all.bytes += a.bytes;
      }
    return all;
  }
  Transfer::Kind kind(const std::vector<int>& chunk) const {
    const Record::Entry& first = record_.entries[size_t(chunk[0])];
    if (first.name == "all_reduce_max") return Transfer::Kind::largest;
    if (first.name == "reduce_scatter_sum") return Transfer::Kind::scatter;
    REQUIRE(first.name == "all_gather", "%s is none of the collectives of tensor and context parallelism",
            first.name.c_str());
    const bool in_place = range(chunk, true).bytes == range(chunk, false).bytes * (first.ranks.size() - 1);
    return in_place ? Transfer::Kind::parts : Transfer::Kind::gather;
  }
  void add(std::vector<int> chunk, size_t most) {
    const Transfer::Kind kind = this->kind(chunk);
    const auto last = std::find_if(all_.rbegin(), all_.rend(), [&](const Transfer& t) { return t.kind == kind; });
    bool more = last != all_.rend() && kind != Transfer::Kind::largest;
    if (more && kind == Transfer::Kind::parts)  // of one pass
      more = std::none_of(all_.rbegin(), last, [](const Transfer& t) { return t.kind == Transfer::Kind::gather; });
    else if (more)
      more = last->chunks.size() < most && range(last->chunks.back(), kind == Transfer::Kind::scatter).end ==
                                               range(chunk, kind == Transfer::Kind::scatter).begin;
    if (more) last->chunks.push_back(std::move(chunk));
    else all_.push_back({kind, {std::move(chunk)}});
  }
  // Returns whether the work is ordered after the chunk by something other than parts of the softmax, which take turns
  // with it.
  bool after_gathered(const std::vector<int>& chunk, int work) const {
    if (!order_.orders(chunk.back(), work)) return false;
    for (const Transfer& t : all_)
      for (const std::vector<int>& part : t.chunks)
        if (t.kind == Transfer::Kind::parts && order_.orders(chunk.back(), part[0]) && order_.orders(part.back(), work))
          return false;
    return true;
  }
  bool fills(int i, const std::vector<int>& chunk) const {
    const Range there = range(chunk, false);
    const Access sent{there.begin, size_t(there.end - there.begin), false};
    return i >= 0 && is_compute(i) && touches(record_.entries[size_t(i)], sent, true);
  }
  bool is_compute(int i) const {
    const Record::Entry& entry = record_.entries[size_t(i)];
    return entry.kind == Record::Entry::Kind::work && entry.stream == 0;
  }
  const Record& record_;
  const Order order_;
  std::vector<Transfer> all_;
};

// How long compute waits for chunks, of each kind:
//
//   first of a gather, last of a scatter, largest numbers, later of the embedding's gradient
//   slow links: …     a later chunk of a gather, if the links never rested since its first chunk; an earlier chunk of a
//                     scatter, if nothing was left to compute after its last product
//   turn of stream …  that stream sends, and the awaited one does not
//   needless: …       anything else
struct Exposed {
  std::set<int> entries;
  size_t sent = 0;  // by this rank, in all of these
  double seconds = 0;
};

inline std::map<std::string, Exposed> exposed_by_kind(const Record& record, const Replay& replayed,
                                                      const std::vector<const CollectiveTrace*>& streams) {
  std::vector<Record::Span> spans(record.entries.size(), {-1, 0, 0});
  for (const Record::Span& span : replayed.spans) spans[size_t(span.entry)] = span;
  std::vector<char> is_sent(record.entries.size());  // a collective, or the rounding of its sums
  for (size_t i = 0; i < is_sent.size(); ++i) is_sent[i] = record.entries[i].ranks.size() > 1;
  for (const CollectiveTrace* of_stream : streams)
    for (const Transfer& t : of_stream->all())
      for (const std::vector<int>& chunk : t.chunks)
        for (const int i : chunk) is_sent[size_t(i)] = true;
  const auto sends = [&](const Record::Span& span) { return span.entry >= 0 && is_sent[size_t(span.entry)]; };
  // Returns the seconds of begin .. end in which nothing is sent, by one stream or by any (-1).
  const auto rest = [&](double begin, double end, int stream = -1) {
    std::vector<std::pair<double, double>> busy;
    for (const Record::Span& span : spans)
      if (sends(span) && (stream < 0 || record.entries[size_t(span.entry)].stream == stream) && span.end > begin &&
          span.begin < end)
        busy.emplace_back(std::max(begin, span.begin), std::min(end, span.end));
    std::sort(busy.begin(), busy.end());
    double seconds = 0;
    for (const auto& [from, to] : busy) {
      seconds += std::max(0.0, from - begin);
      begin = std::max(begin, to);
    }
    return seconds + std::max(0.0, end - begin);
  };
  std::map<std::string, Exposed> all;
  for (const Replay::Wait& wait : replayed.waits)
    for (const CollectiveTrace* of_stream : streams) {
      size_t awaited = 0, there = 0;
      const Transfer* transfer = of_stream->transfer_of(wait.entry, &awaited);
      if (!transfer) continue;
      const auto kind_of = [&](int entry) -> std::string {
        const Transfer* on_links = of_stream->transfer_of(entry, &there);
        if (on_links != transfer)
          return "turn of stream " + record.streams[size_t(record.entries[size_t(entry)].stream)];
        switch (transfer->kind) {
          case Transfer::Kind::largest:
            return "largest numbers";
          case Transfer::Kind::parts:
            return "needless: parts of the softmax";
          case Transfer::Kind::gather:
            if (there == 0 && awaited == 0) return "first of a gather";
            if (of_stream->is_of_embedding(*transfer)) return "later of the embedding's gradient";
            return rest(spans[size_t(transfer->chunks[0][0])].begin, wait.end) < 1e-9 ? "slow links: later of a gather"
                                                                                      : "needless: later of a gather";
          case Transfer::Kind::scatter:
            if (awaited + 1 < transfer->chunks.size()) return "needless: earlier of a scatter";
            return there == awaited ? "last of a scatter" : "slow links: earlier of a scatter";
        }
        return "";
      };
      for (const Record::Span& span : spans) {
        const double begin = std::max(wait.begin, span.begin), end = std::min(wait.end, span.end);
        if (!sends(span) || begin >= end) continue;
        const int stream = record.entries[size_t(wait.entry)].stream;
        const bool awaited_one = record.entries[size_t(span.entry)].stream == stream;
        const double both = awaited_one ? end - begin : rest(begin, end, stream);
        if (both < 1e-9) continue;
        Exposed& exposed = all[kind_of(span.entry)];
        const Record::Entry& entry = record.entries[size_t(span.entry)];
        if (entry.ranks.size() > 1 && exposed.entries.insert(span.entry).second) exposed.sent += entry.sent;
        exposed.seconds += both;
      }
      if (const double quiet = rest(wait.begin, wait.end); quiet > 1e-9)
        all["needless: nothing is sent"].seconds += quiet, all["needless: nothing is sent"].entries.insert(wait.entry);
    }
  return all;
}

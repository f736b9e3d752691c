#include "llmc/device/record.h"

Record::Entry entry_of(const Work& work, int stream) {
  Record::Entry entry{Record::Entry::Kind::work, stream};
  entry.name = work.name;
  entry.place = format("%s:%d", work.site.file, work.site.line);
  entry.flops = work.flops;
  entry.rate = work.rate, entry.head_size = work.head_size, entry.imbalance = work.imbalance;
  entry.accesses.assign(work.accesses, work.accesses + work.access_count);
  entry.sent = work.traffic.sent;
  entry.tree = work.traffic.tree;
  entry.joins = work.traffic.joins;
  entry.crossed = work.crossed, entry.to_host = work.to_host;
  entry.shape = work.shape;
  if (work.traffic.ranks) entry.ranks = *work.traffic.ranks;
  entry.own = work.traffic.own, entry.exchanges = work.traffic.exchanges;
  return entry;
}

double Record::busy_seconds(const char* stream) const {
  double sum = 0;
  for (const Span& span : spans) {
    const Entry& entry = entries[size_t(span.entry)];
    if (streams[size_t(entry.stream)] == stream && entry.crossed == 0) sum += span.end - span.begin;
  }
  return sum;
}

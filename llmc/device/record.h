// A record of the work that the host requests of a device, in the order of the requests. It serves to inspect, compare
// and replay that work (replay.h).
//
//   Record record;
//   device.record_to(&record);
//   trainer->enqueue_step(…);
//   device.record_to(nullptr);
//
// The record has every kernel, product, copy and collective, each with its stream, the bytes that it reads and writes,
// its FLOPs, and the time at which it ran. It also has every event, with the point that the event stands for. A Device
// made from a DeviceInfo alone executes nothing and has no memory behind its addresses. So one process can record any
// rank of any mesh, even of a model that fits on no machine.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "llmc/device/work.h"

struct Record {
  struct Entry {
    enum class Kind { work, record, wait };  // record: a point of the stream; wait: the stream waits for a point
    Kind kind;
    int stream;
    int point = -1;  // for record and wait: the point's number, counted from 0 on each device
    // The following fields are for work only.
    std::string name = {}, place = {};  // "matmul_forward", "llmc/model/block.cpp:31"
    double flops = 0;
    RateClass rate = RateClass::product_bf16;
    int head_size = 0;     // for attention
    double imbalance = 1;  // for attention: the work of the block with the most, divided by the mean
    std::vector<Access> accesses = {};
    size_t sent = 0;                       // bytes that this rank sends to others
    bool tree = false;                     // true: a collective that need not go from rank to rank
    bool joins = false;                    // true: launched as one with the collective before it in the stream
    size_t crossed = 0;                    // bytes that a copy moves between the device and pinned memory of the host
    bool to_host = false;                  // which way they go
    std::vector<int> ranks = {};           // the ranks that a collective spans
    int own = 0;                           // this rank, if there are `exchanges`
    std::vector<Exchange> exchanges = {};  // with each other rank, of an all_to_all
    LaunchShape shape = {};                // the launch shape of a kernel

    size_t bytes() const {  // read plus written; a range that is both counts twice
      size_t sum = 0;
      for (const Access& access : accesses) sum += access.updated ? 2 * access.bytes : access.bytes;
      return sum;
    }
  };
  // The time at which work was executed, in seconds since the first work began (in the CPU backend: since the recording
  // began). In a replay: the predicted time, from 0.
  struct Span {
    int entry;
    double begin, end;
  };
  std::vector<std::string> streams;
  std::vector<Entry> entries;
  std::vector<Span> spans;  // of a device that executes; complete when the recording ends; in no order
  size_t most = SIZE_MAX;   // entries: work beyond them is executed, and not recorded
  bool full() const { return entries.size() >= most; }

  // Returns the seconds for which the work of this stream was executed, without copies to and from the host. The time
  // in which the stream waited for others is not among them; the time in which a GPU waited for the launch itself is.
  double busy_seconds(const char* stream) const;
};

// Returns the record entry of `work` in the stream of this number.
Record::Entry entry_of(const Work& work, int stream);

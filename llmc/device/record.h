// What a device is asked to do, in the order in which the host asks: to be looked at, compared and replayed (replay.h).
//
//   Record record;
//   device.record_to(&record);
//   trainer->enqueue_step(…);
//   device.record_to(nullptr);
//
// Every kernel, product, copy and collective is here with its stream, the bytes that it reads and writes and its FLOPs,
// and every event with the point that it stands for; and when it ran. A Device that is made of a DeviceInfo alone
// executes nothing and has no memory behind its addresses: so one process records any rank of any mesh, also of a model
// that fits nowhere.
#pragma once

#include <string>
#include <vector>

#include "llmc/device/work.h"

struct Record {
  struct Entry {
    enum class Kind { work, record, wait };  // record: a point of the stream; wait: the stream waits for a point
    Kind kind;
    int stream;
    int point = -1;  // of record and wait, counted from 0 as they are recorded
    // Of work:
    std::string name = {}, place = {};  // "matmul_forward", "llmc/model/block.cpp:31"
    double flops = 0;
    RateClass rate = RateClass::product_bf16;
    int head_size = 0;  // of attention
    std::vector<Access> accesses = {};
    size_t sent = 0;              // bytes that this rank sends to others
    bool tree = false;            // of a collective that need not go from rank to rank
    size_t crossed = 0;           // bytes of a copy between the device and pinned memory of the host
    std::vector<int> ranks = {};  // that a collective spans

    size_t bytes() const {  // read plus written: a range that is both counts twice
      size_t sum = 0;
      for (const Access& access : accesses) sum += access.updated ? 2 * access.bytes : access.bytes;
      return sum;
    }
  };
  // When work was executed, in seconds since the first began; or when a replay says that it would be.
  struct Span {
    int entry;
    double begin, end;
  };
  std::vector<std::string> streams;
  std::vector<Entry> entries;
  std::vector<Span> spans;  // of a device that executes, when it is done; in no order
};

// The entry of work in the stream of this number.
Record::Entry entry_of(const Work& work, int stream);

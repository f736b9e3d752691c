#include "dev/softgpu/nccl/collective.h"

#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "dev/softgpu/arithmetic.h"
#include "dev/softgpu/nccl/turn.h"
#include "dev/softgpu/runtime/memory.h"

namespace softgpu {
namespace {

size_t bytes_of(ncclDataType_t type) {
  switch (type) {
    case ncclInt8:
    case ncclUint8:
      return 1;
    case ncclFloat16:
    case ncclBfloat16:
      return 2;
    case ncclInt32:
    case ncclUint32:
    case ncclFloat32:
      return 4;
    default:
      return 8;
  }
}

struct Bf16 {
  u16 bits;
  f32 value() const { return std::bit_cast<f32>(u32(bits) << 16); }
  // Like NCCL, which rounds each partial sum to the type.
  friend Bf16 operator+(Bf16 a, Bf16 b) { return {to_bf16(a.value() + b.value())}; }
  friend bool operator<(Bf16 a, Bf16 b) { return a.value() < b.value(); }
};

// Reduces elements begin … begin + count of all areas, in the order of the ranks.
template <class T>
void reduce(Segment& segment, int size, size_t area_bytes, std::byte* out, size_t begin, size_t count, bool max) {
  std::vector<T> result(count), next(count);
  memcpy(result.data(), segment.area_of(0, area_bytes) + begin * sizeof(T), count * sizeof(T));
  for (int r = 1; r < size; ++r) {
    memcpy(next.data(), segment.area_of(r, area_bytes) + begin * sizeof(T), count * sizeof(T));
    for (size_t i = 0; i < count; ++i) result[i] = max ? std::max(result[i], next[i]) : T(result[i] + next[i]);
  }
  memcpy(out, result.data(), count * sizeof(T));
}

class Execution {
 public:
  Execution(const CollectiveCall& call, ncclComm_t comm)
      : call_(call), comm_(comm), number_(++comm->collectives), turn_(comm) {}

  Progress go_on() {
    if (comm_->aborted) return leave();
    if (!turn_.has_come()) return Progress::waits;
    Segment& segment = *comm_->segment;
    if (!posted_) {
      if (!segment.all_finished(number_ - 1)) return Progress::waits;  // others read this rank's area
      if (sends()) require_written(call_.in, sent(), name());
      memcpy(segment.own_area(std::max<size_t>(sent(), 1)), accessible(call_.in, sent()), sent());
      segment.post(number_, call_.request());
      posted_ = true;
      return Progress::moved;
    }
    if (!segment.all_posted(number_)) return Progress::waits;
    for (int r = 0; r < comm_->size; ++r) require_same(r, segment.request_of(r));
    compute(segment);
    mark_written(call_.out, call_.received_bytes(comm_->size));
    segment.finish(number_);
    return leave();
  }

 private:
  const char* name() const {
    static constexpr const char* kNames[] = {"ncclAllReduce", "ncclAllGather", "ncclReduceScatter", "ncclBroadcast"};
    return kNames[int(call_.kind)];
  }
  bool sends() const { return call_.kind != CollectiveKind::broadcast || call_.detail == comm_->rank; }
  size_t sent() const { return call_.sent_bytes(comm_->size); }

  Progress leave() {
    turn_.end();
    return Progress::done;
  }

  void require_same(int rank, const Request& other) const {
    const Request own = call_.request();
    if (own == other) return;
    fprintf(stderr,
            "software GPU: NCCL: collective %llu of communicator %s is another on rank %d (kind %lld, %lld elements of "
            "type %lld, operation or root %lld) than on rank %d (kind %lld, %lld elements of type %lld, %lld)\n",
            (unsigned long long)number_, comm_->name.c_str(), rank, (long long)other.kind, (long long)other.count,
            (long long)other.type, (long long)other.detail, comm_->rank, (long long)own.kind, (long long)own.count,
            (long long)own.type, (long long)own.detail);
    _exit(1);
  }

  void compute(Segment& segment) const {
    auto* const out = static_cast<std::byte*>(accessible(call_.out, call_.received_bytes(comm_->size)));
    const size_t bytes = call_.count * bytes_of(call_.type);
    switch (call_.kind) {
      case CollectiveKind::broadcast:
        memcpy(out, segment.area_of(call_.detail, sent()), bytes);
        return;
      case CollectiveKind::all_gather:
        for (int r = 0; r < comm_->size; ++r) memcpy(out + size_t(r) * bytes, segment.area_of(r, sent()), bytes);
        return;
      case CollectiveKind::all_reduce:
        return reduce_to(segment, out, 0);
      case CollectiveKind::reduce_scatter:
        return reduce_to(segment, out, call_.count * size_t(comm_->rank));
      default:  // a message is no collective
        abort();
    }
  }

  void reduce_to(Segment& segment, std::byte* out, size_t begin) const {
    const auto run = [&]<class T>(T) {
      reduce<T>(segment, comm_->size, sent(), out, begin, call_.count, call_.detail == ncclMax);
    };
    switch (call_.type) {
      case ncclBfloat16:
        return run(Bf16{});
      case ncclFloat32:
        return run(f32{});
      case ncclFloat64:
        return run(f64{});
      case ncclInt64:
        return run(s64{});
      case ncclInt32:
        return run(s32{});
      case ncclUint8:
        return run(u8{});
      default:
        fprintf(stderr, "software GPU: NCCL: reductions of type %d are not executed\n", int(call_.type));
        _exit(1);
    }
  }

  const CollectiveCall call_;
  const ncclComm_t comm_;
  const uint64_t number_;
  Turn turn_;
  bool posted_ = false;
};

}  // namespace

size_t CollectiveCall::sent_bytes(int size) const {
  return count * bytes_of(type) *
         size_t(kind == CollectiveKind::reduce_scatter ? size : kind != CollectiveKind::receive);
}
size_t CollectiveCall::received_bytes(int size) const {
  return count * bytes_of(type) * size_t(kind == CollectiveKind::all_gather ? size : kind != CollectiveKind::send);
}

std::string wrong_buffers(const CollectiveCall& call, const ncclComm& comm) {
  const size_t sent = call.sent_bytes(comm.size), received = call.received_bytes(comm.size);
  if (call.count == 0) return "";
  if (is_pageable(call.in) || is_pageable(call.out) || !accessible(call.in, sent) || !accessible(call.out, received))
    return "a buffer is not all in the device's memory";
  const auto *in = static_cast<const std::byte*>(call.in), *out = static_cast<const std::byte*>(call.out);
  // "In-place Operations": sendbuff == recvbuff + rank * sendcount, recvbuff == sendbuff + rank * recvcount.
  const size_t part = call.count * bytes_of(call.type) * size_t(comm.rank);
  const bool in_place = call.kind == CollectiveKind::all_gather       ? in == out + part
                        : call.kind == CollectiveKind::reduce_scatter ? out == in + part
                                                                      : in == out;
  if (in < out + received && out < in + sent && !in_place)
    return "its buffers overlap, and not as in-place operations do";
  return "";
}

// A captured collective is executed with each launch of the graph, so it gets its number when its turn comes.
Task collective_task(const CollectiveCall& call, ncclComm_t comm) {
  return [=]() -> Poll { return [execution = std::make_shared<Execution>(call, comm)] { return execution->go_on(); }; };
}

}  // namespace softgpu

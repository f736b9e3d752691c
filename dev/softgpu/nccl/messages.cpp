#include "dev/softgpu/nccl/messages.h"

#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <deque>
#include <map>

#include "dev/softgpu/nccl/turn.h"
#include "dev/softgpu/runtime/memory.h"

namespace softgpu {
namespace {

bool is_send(const CollectiveCall& call) { return call.kind == CollectiveKind::send; }

class Execution {
 public:
  Execution(const std::vector<CollectiveCall>& calls, ncclComm_t comm)
      : calls_(calls), comm_(comm), collectives_(comm->collectives), turn_(comm) {
    for (size_t i = 0; i < calls_.size(); ++i) (is_send(calls_[i]) ? sends_ : receives_)[calls_[i].detail].push_back(i);
  }

  Progress go_on() {
    if (comm_->aborted) return leave();
    if (!turn_.has_come()) return Progress::waits;
    if (offsets_.empty()) {
      if (!comm_->segment->all_finished(collectives_)) return Progress::waits;  // others read this rank's area
      write_area();
      for (const auto& [peer, queue] : sends_) post(queue.front());
      return Progress::moved;
    }
    bool moved = false;
    for (auto& [peer, queue] : sends_) moved |= go_on_sending(peer, queue);
    for (auto& [peer, queue] : receives_) moved |= go_on_receiving(peer, queue);
    for (const auto& queues : {sends_, receives_})
      for (const auto& [peer, queue] : queues)
        if (!queue.empty()) return moved ? Progress::moved : Progress::waits;
    return leave();
  }

 private:
  using Queue = std::deque<size_t>;  // numbers of the calls that are left

  Progress leave() {
    turn_.end();
    return Progress::done;
  }
  size_t bytes_of(const CollectiveCall& call) const {
    return call.sent_bytes(comm_->size) + call.received_bytes(comm_->size);
  }

  void write_area() {
    size_t bytes = 0;
    for (const CollectiveCall& call : calls_) {
      offsets_.push_back(bytes);
      if (is_send(call)) bytes += bytes_of(call);
    }
    std::byte* const area = comm_->segment->own_area(std::max<size_t>(bytes, 1));
    for (size_t i = 0; i < calls_.size(); ++i) {
      const CollectiveCall& call = calls_[i];
      if (!is_send(call) || call.count == 0) continue;
      require_written(call.in, bytes_of(call), "ncclSend");
      memcpy(area + offsets_[i], accessible(call.in, bytes_of(call)), bytes_of(call));
    }
  }

  void post(size_t i) { comm_->segment->send(calls_[i].detail, {offsets_[i], calls_[i].request()}); }

  // The first of the queue was posted. If the peer has taken it, the next one is.
  bool go_on_sending(int peer, Queue& queue) {
    if (queue.empty() || !comm_->segment->was_taken(peer)) return false;
    queue.pop_front();
    if (!queue.empty()) post(queue.front());
    return true;
  }

  bool go_on_receiving(int peer, Queue& queue) {
    const Message* const message = queue.empty() ? nullptr : comm_->segment->message_from(peer);
    if (!message) return false;
    const CollectiveCall& call = calls_[queue.front()];
    require_same(peer, message->request, call);
    if (const size_t bytes = bytes_of(call)) {
      memcpy(accessible(call.out, bytes), comm_->segment->area_of(peer, message->offset + bytes) + message->offset,
             bytes);
      mark_written(call.out, bytes);
    }
    comm_->segment->take(peer);
    queue.pop_front();
    return true;
  }

  void require_same(int peer, const Request& sent, const CollectiveCall& call) const {
    if (sent.count == int64_t(call.count) && sent.type == int64_t(call.type)) return;
    fprintf(stderr,
            "software GPU: NCCL: rank %d of communicator %s receives %zu elements of type %d from rank %d, which sends "
            "%lld of type %lld\n",
            comm_->rank, comm_->name.c_str(), call.count, int(call.type), peer, (long long)sent.count,
            (long long)sent.type);
    _exit(1);
  }

  const std::vector<CollectiveCall> calls_;
  const ncclComm_t comm_;
  const uint64_t collectives_;  // that were begun before
  Turn turn_;
  std::map<int, Queue> sends_, receives_;  // by peer
  std::vector<size_t> offsets_;            // of each call's message in the own area
};

}  // namespace

std::string wrong_messages_to_self(const std::vector<CollectiveCall>& calls, int rank) {
  std::deque<CollectiveCall> sends;
  const auto is_own = [&](const CollectiveCall& call, CollectiveKind kind) {
    return call.detail == rank && call.kind == kind;
  };
  for (const CollectiveCall& call : calls)
    if (is_own(call, CollectiveKind::send)) sends.push_back(call);
  for (const CollectiveCall& call : calls) {
    if (!is_own(call, CollectiveKind::receive)) continue;
    if (sends.empty()) return "it receives from itself, and does not send";
    if (sends.front().count != call.count || sends.front().type != call.type)
      return "it sends itself something else than it receives";
    sends.pop_front();
  }
  return sends.empty() ? "" : "it sends to itself, and does not receive";
}

// Captured messages are sent with each launch of the graph, as collectives are.
Task messages_task(const std::vector<CollectiveCall>& calls, ncclComm_t comm) {
  return
      [=]() -> Poll { return [execution = std::make_shared<Execution>(calls, comm)] { return execution->go_on(); }; };
}

}  // namespace softgpu

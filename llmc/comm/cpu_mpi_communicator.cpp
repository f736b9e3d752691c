// Collectives of the CPU backend between processes, over MPI. Ranks exchange messages of bytes, and this file adds the
// sums in rank order. A collective is work of its stream like any other and is executed in stream order.
#if LLMC_MPI

#include <sched.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <exception>
#include <thread>
#include <vector>

#include "llmc/base/clock.h"
#include "llmc/base/error.h"
#include "llmc/comm/backends.h"
#include "llmc/comm/mpi_check.h"
#include "llmc/device/cpu_stream.h"

namespace {

// Larger buffers are sent and added chunk by chunk, because MPI counts in ints and each box holds one chunk.
constexpr size_t kChunkBytes = size_t(4) << 20;

template <class T>
void add(void* sum, const void* x, size_t count) {
  for (size_t i = 0; i < count; ++i) static_cast<T*>(sum)[i] += static_cast<const T*>(x)[i];
}

void maximum(void* largest, const void* x, size_t count) {
  auto* out = static_cast<float*>(largest);
  for (size_t i = 0; i < count; ++i) out[i] = std::fmax(out[i], static_cast<const float*>(x)[i]);
}

class MpiCommunicator : public Communicator {
 public:
  // Takes ownership of `comm`. `world_ranks` are its ranks, for messages.
  MpiCommunicator(MPI_Comm comm, int rank, std::vector<int> world_ranks, double timeout_seconds)
      : Communicator(rank, std::move(world_ranks)),
        timeout_seconds_(timeout_seconds),
        comm_(comm),
        boxes_(2 * kBoxBytes),
        outbox_(boxes_.data()),
        inbox_(boxes_.data() + kBoxBytes),
        messages_(2 * size_t(size())) {
    REQUIRE(size_t(size()) <= kMostRanks, "%d ranks over MPI on CPUs: expected %zu at most", size(), kMostRanks);
  }
  ~MpiCommunicator() override {
    // After an error, the other ranks may be elsewhere, and MPI may use the boxes until the process ends. The boxes are
    // therefore leaked.
    if (failed_ || std::uncaught_exceptions() > 0) new auto(std::move(boxes_));
    else MPI_Comm_free(&comm_);
  }

  std::string description() const override { return "sums over MPI, in the order of the ranks"; }

 private:
  std::unique_ptr<Communicator> make_group(const std::vector<int>& ranks, int rank) override {
    MPI_Comm group = MPI_COMM_NULL;
    MPI_CHECK(MPI_Comm_split(comm_, ranks[0], rank, &group));
    if (ranks.size() > 1) return std::make_unique<MpiCommunicator>(group, rank, ranks, timeout_seconds_);
    MPI_CHECK(MPI_Comm_free(&group));
    return nullptr;
  }

  struct Message {
    MPI_Request request;
    int peer, bytes;
    bool receives, pending;
  };

  void enqueue(const Work& work, const Collective& c) override {
    cpu_backend::enqueue_collective(work, [this, c, name = work.name, site = work.site] {
      ++number_, name_ = name, site_ = site, bytes_ = c.bytes();
      switch (c.kind) {
        case Collective::Kind::all_reduce:
          return all_reduce(c);
        case Collective::Kind::broadcast:
          return broadcast(c);
        case Collective::Kind::all_gather:
          return all_gather(c);
        case Collective::Kind::reduce_scatter:
          return reduce_scatter(c);
        case Collective::Kind::all_to_all:
          return all_to_all(c);
      }
    });
  }

  // Each rank sums its share of the chunk and then sends the sum to all other ranks.
  void all_reduce(const Collective& c) {
    const size_t width = bytes_of(c.type);
    for (size_t done = 0, n; done < c.count; done += n) {
      n = std::min(kChunkBytes / width, c.count - done);
      std::byte* chunk = at(c.out, done * width);
      const auto begin = [&](int r) { return n * size_t(r) / size_t(size()) * width; };
      const size_t mine = begin(rank() + 1) - begin(rank());
      memcpy(outbox_, chunk, n * width);
      for_others([&](int peer) {
        receive(peer, slot(peer, mine), mine);
        send(peer, outbox_ + begin(peer), begin(peer + 1) - begin(peer));
      });
      wait();
      sum_in_order(c, chunk + begin(rank()), chunk + begin(rank()), mine);
      memcpy(outbox_, chunk + begin(rank()), mine);
      for_others([&](int peer) {
        receive(peer, inbox_ + begin(peer), begin(peer + 1) - begin(peer));
        send(peer, outbox_, mine);
      });
      wait();
      for_others([&](int peer) { memcpy(chunk + begin(peer), inbox_ + begin(peer), begin(peer + 1) - begin(peer)); });
    }
  }

  void reduce_scatter(const Collective& c) {
    const size_t width = bytes_of(c.type);
    for (size_t done = 0, n; done < c.count; done += n) {
      n = std::min(kChunkBytes / width / size_t(size()), c.count - done);
      const size_t bytes = n * width;
      const auto part = [&](int r) { return at(const_cast<void*>(c.in), (size_t(r) * c.count + done) * width); };
      for_others([&](int peer) {
        std::byte* out = outbox_ + (slot(peer, bytes) - inbox_);
        memcpy(out, part(peer), bytes);
        receive(peer, slot(peer, bytes), bytes);
        send(peer, out, bytes);
      });
      wait();
      sum_in_order(c, at(c.out, done * width), part(rank()), bytes);
    }
  }

  void all_gather(const Collective& c) {
    std::byte* mine = at(c.out, size_t(rank()) * c.count);
    if (mine != c.in) memcpy(mine, c.in, c.count);
    for (size_t done = 0, n; done < c.count; done += n) {
      n = std::min(kChunkBytes / size_t(size()), c.count - done);
      memcpy(outbox_, mine + done, n);
      for_others([&](int peer) {
        receive(peer, slot(peer, n), n);
        send(peer, outbox_, n);
      });
      wait();
      for_others([&](int peer) { memcpy(at(c.out, size_t(peer) * c.count + done), slot(peer, n), n); });
    }
  }

  // Chunk by chunk of each block. Two ranks have as many chunks for each other, and others may have more.
  void all_to_all(const Collective& c) {
    const size_t own = size_t(rank()), chunk = kChunkBytes / size_t(size());
    memcpy(at(c.out, c.receives[own].offset), at(const_cast<void*>(c.in), c.sends[own].offset), c.sends[own].bytes);
    size_t longest = 0;
    for_others([&](int peer) {
      longest = std::max({longest, c.sends[size_t(peer)].bytes, c.receives[size_t(peer)].bytes});
    });
    for (size_t done = 0; done < longest; done += chunk) {
      const auto left = [&](const ByteRange& b) { return std::min(chunk, b.bytes - std::min(b.bytes, done)); };
      for_others([&](int peer) {
        const ByteRange &out = c.sends[size_t(peer)], &in = c.receives[size_t(peer)];
        std::byte* box = outbox_ + (slot(peer, chunk) - inbox_);
        memcpy(box, at(const_cast<void*>(c.in), out.offset + std::min(out.bytes, done)), left(out));
        receive(peer, slot(peer, chunk), left(in));
        send(peer, box, left(out));
      });
      wait();
      for_others([&](int peer) {
        const ByteRange& in = c.receives[size_t(peer)];
        memcpy(at(c.out, in.offset + std::min(in.bytes, done)), slot(peer, chunk), left(in));
      });
    }
  }

  void broadcast(const Collective& c) {
    for (size_t done = 0, n; done < c.count; done += n) {
      n = std::min(kChunkBytes, c.count - done);
      std::byte* chunk = at(c.out, done);
      if (rank() == c.root) {
        memcpy(outbox_, chunk, n);
        for_others([&](int peer) { send(peer, outbox_, n); });
        wait();
      } else {
        receive(c.root, inbox_, n);
        wait();
        memcpy(chunk, inbox_, n);
      }
    }
  }

  // out = ((x0 + x1) + x2) + ...: `mine` is this rank's x, and the slots hold those of the others. out may be mine.
  void sum_in_order(const Collective& c, std::byte* out, const std::byte* mine, size_t bytes) {
    const size_t count = bytes / bytes_of(c.type);
    if (c.type == DType::bf16) return sum_bf16(out, mine, count);
    std::byte* sum = rank() == 0 ? out : slot(0, bytes);
    if (rank() == 0 && out != mine) memcpy(out, mine, bytes);
    for (int r = 1; r < size(); ++r) {
      const std::byte* x = r == rank() ? mine : slot(r, bytes);
      if (c.operation == Collective::Operation::max) maximum(sum, x, count);
      else if (c.type == DType::fp32) add<float>(sum, x, count);
      else if (c.type == DType::fp64) add<double>(sum, x, count);
      else add<int64_t>(sum, x, count);
    }
    if (sum != out) memcpy(out, sum, bytes);
  }

  // Adds in fp32 and rounds once.
  void sum_bf16(std::byte* out, const std::byte* mine, size_t count) {
    for (size_t i = 0; i < count; ++i) {
      float sum = 0;
      for (int r = 0; r < size(); ++r) {
        bf16 x;
        memcpy(&x, (r == rank() ? mine : slot(r, count * sizeof(bf16))) + i * sizeof(bf16), sizeof x);
        sum = r == 0 ? to_float(x) : sum + to_float(x);
      }
      const bf16 rounded = from_float<bf16>(sum);
      memcpy(out + i * sizeof(bf16), &rounded, sizeof rounded);
    }
  }

  static std::byte* at(void* data, size_t offset) { return static_cast<std::byte*>(data) + offset; }
  // The place in the inbox that receives the bytes of rank `peer`.
  std::byte* slot(int peer, size_t bytes) { return inbox_ + size_t(peer < rank() ? peer : peer - 1) * bytes; }

  // Starts with the next rank, so that not all ranks send to the same rank first.
  template <class F>
  void for_others(F&& f) {
    for (int i = 1; i < size(); ++i) f((rank() + i) % size());
  }

  void receive(int peer, std::byte* data, size_t bytes) {
    if (bytes == 0) return;
    Message& m = messages_[in_flight_++] = {MPI_REQUEST_NULL, peer, int(bytes), true, true};
    MPI_CHECK(MPI_Irecv(data, m.bytes, MPI_BYTE, peer, kTag, comm_, &m.request));
  }
  void send(int peer, const std::byte* data, size_t bytes) {
    if (bytes == 0) return;
    Message& m = messages_[in_flight_++] = {MPI_REQUEST_NULL, peer, int(bytes), false, true};
    MPI_CHECK(MPI_Isend(data, m.bytes, MPI_BYTE, peer, kTag, comm_, &m.request));
  }

  // Returns when all messages have been sent and received. After 0.2 ms of waiting, a rank sleeps 50 us at a time,
  // which leaves its core to those that compute: there may be more ranks than cores.
  void wait() {
    constexpr double kAwake = 2e-4;
    constexpr std::chrono::microseconds kSleep(50);
    const double start = seconds();
    try {
      while (!all_arrived()) {
        const double waited = seconds() - start;
        if (waited > timeout_seconds_) fail_as_late();
        if (waited < kAwake) sched_yield();
        else std::this_thread::sleep_for(kSleep);
      }
    } catch (const Error&) {
      failed_ = true;
      throw;
    }
    in_flight_ = 0;
  }

  bool all_arrived() {
    bool all = true;
    for (size_t i = 0; i < in_flight_; ++i) all &= arrived(messages_[i]);
    return all;
  }

  bool arrived(Message& m) {
    if (!m.pending) return true;
    int done = 0, bytes = m.bytes;
    MPI_Status status;
    const int code = MPI_Test(&m.request, &done, &status);
    if (code == MPI_SUCCESS && done && m.receives) MPI_CHECK(MPI_Get_count(&status, MPI_BYTE, &bytes));
    int error_class = MPI_SUCCESS;
    if (code != MPI_SUCCESS) MPI_Error_class(code, &error_class);
    REQUIRE(error_class != MPI_ERR_TRUNCATE && bytes == m.bytes,
            "%s: the ranks disagree on its size; here it is %zu bytes\n"
            "  all ranks must make the same calls, in the same order, with the same sizes",
            here().c_str(), bytes_);
    if (code != MPI_SUCCESS)
      fail_as(ExitCode::lost, "%s, message %s rank %d: %s", here().c_str(), m.receives ? "from" : "to",
              world_ranks()[size_t(m.peer)], mpi_error_text(code).c_str());
    m.pending = !done;
    return done;
  }

  [[noreturn]] void fail_as_late() const {
    std::string late;
    for (int r = 0; r < size(); ++r)
      if (std::any_of(messages_.begin(), messages_.begin() + ptrdiff_t(in_flight_),
                      [&](const Message& m) { return m.pending && m.peer == r; }))
        late += (late.empty() ? "" : ", ") + std::to_string(world_ranks()[size_t(r)]);
    fail_as(ExitCode::lost,
            "%s: waited %g s for rank%s %s\n  which is stuck, or far behind; where it reports an error itself, look "
            "at the rank that it waits for",
            here().c_str(), timeout_seconds_, late.find(',') == std::string::npos ? "" : "s", late.c_str());
  }

  // The text is the same on all ranks, so that an error of several ranks is printed once.
  std::string here() const {
    return format("%s (%s:%d), collective %zu of this run", name_, site_.file, site_.line, number_);
  }

  static constexpr int kTag = 0;
  const double timeout_seconds_;
  MPI_Comm comm_;
  // Messages use these boxes instead of the collective's buffers, because MPI may still access them after an error.
  static constexpr size_t kMostRanks = 1024;
  static constexpr size_t kBoxBytes = kChunkBytes + kMostRanks * sizeof(double);  // shares of a chunk are rounded up
  std::vector<std::byte> boxes_;
  std::byte *const outbox_, *const inbox_;
  bool failed_ = false;
  std::vector<Message> messages_;
  size_t in_flight_ = 0;
  // The collective that is being executed.
  size_t number_ = 0, bytes_ = 0;
  const char* name_ = "";
  CallSite site_;
};

}  // namespace

std::unique_ptr<Communicator> make_mpi_communicator(const Ranks& ranks, double timeout_seconds) {
  MPI_Comm comm = MPI_COMM_NULL;
  MPI_CHECK(MPI_Comm_dup(MPI_COMM_WORLD, &comm));
  return std::make_unique<MpiCommunicator>(comm, ranks.rank, Communicator::first_ranks(ranks.size), timeout_seconds);
}

#endif

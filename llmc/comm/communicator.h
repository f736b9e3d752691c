// Collectives between the ranks that train together. They are enqueued in a stream, as kernels and copies are. The same
// calls work for one rank, over MPI (CPU backend, real processes) and over NCCL (CUDA backend).
//
// All ranks make the same calls in the same order with the same sizes. If a rank has several communicators, this holds
// for the order of all their calls together. The collectives of one communicator must be ordered with each other, by
// their stream or by events; the order check reports it if they are not. Each collective declares which bytes it reads
// and writes.
//
// Sums: for one rank and over MPI, the summands are added in rank order, ((x0 + x1) + x2) + ..., so the bits depend
// only on the number of ranks. Sums of bf16 are added in fp32 and rounded once. NCCL has its own order, which is the
// same in every run with the same topology, algorithm and protocol, as long as NVLS is off (backends.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "llmc/base/exit_code.h"
#include "llmc/comm/ranks.h"
#include "llmc/comm/timeouts.h"
#include "llmc/device/device.h"
#include "llmc/device/number.h"
#include "llmc/device/tensor.h"

// Bytes of a buffer, from `offset` on.
struct ByteRange {
  size_t offset = 0, bytes = 0;
};

// A request to a communicator.
struct Collective {
  enum class Kind { all_reduce, broadcast, all_gather, reduce_scatter, all_to_all };
  enum class Operation { copy, sum, max };

  Kind kind;
  DType type;  // uint8: bytes of any numbers, which are copied
  Operation operation;
  const void* in;
  void* out;
  // Elements of the whole buffer (all_reduce, broadcast), of each rank's part (all_gather, reduce_scatter), or of all
  // blocks that this rank sends (all_to_all).
  size_t count;
  int root = 0;
  std::vector<ByteRange> sends = {}, receives = {};  // of all_to_all, by rank

  size_t bytes() const { return count * bytes_of(type); }
};

struct CollectiveWork {
  Work work;
  Collective collective;
};

class Communicator {
 public:
  virtual ~Communicator() = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  int rank() const { return rank_; }
  int size() const { return int(world_ranks_.size()); }
  // The ranks of this communicator, as world ranks.
  const std::vector<int>& world_ranks() const { return world_ranks_; }
  virtual std::string description() const = 0;  // "sums over MPI, in the order of the ranks"

  static std::vector<int> first_ranks(int size);  // returns 0 .. size-1

  // Returns the communicator of a group of these ranks, which must include this rank. `world_ranks` lists the group by
  // world rank; the position in the list is the rank in the group. All ranks call this, each with its own group.
  std::unique_ptr<Communicator> split(const std::vector<int>& world_ranks);

  // Allocates memory for buffers of collectives. All ranks call this with the same size. If it saves copies, the memory
  // is registered with the connection's library, for this communicator and the groups that were split from it so far.
  virtual DeviceMemory allocate(Device& device, size_t bytes) { return DeviceMemory(device, bytes); }

  // data = sum over the ranks, in place, of fp32, bf16, fp64 or int64. The tensors of all collectives are contiguous.
  void all_reduce_sum(Stream& stream, const Tensor& data, CallSite site = CallSite::here());
  // data = maximum over the ranks, in place, of fp32. A NaN loses against any number.
  void all_reduce_max(Stream& stream, const Tensor& data, CallSite site = CallSite::here());
  // data = the root's data.
  void broadcast(Stream& stream, void* data, size_t bytes, int root, CallSite site = CallSite::here());
  // out[size * bytes_each] = in[bytes_each] of all ranks, in rank order. `in` may be this rank's place in `out`;
  // otherwise they must not overlap.
  void all_gather(Stream& stream, void* out, const void* in, size_t bytes_each, CallSite site = CallSite::here());
  // The same for tensors of one type; `out` has size() times the elements of `in`.
  void all_gather(Stream& stream, const Tensor& out, const Tensor& in, CallSite site = CallSite::here());
  // out = sum over the ranks of this rank's part of `in`, which has size() times the elements of `out`, in one type as
  // for all_reduce_sum. `out` may be this rank's part of `in`; otherwise they must not overlap.
  void reduce_scatter_sum(Stream& stream, const Tensor& out, const Tensor& in, CallSite site = CallSite::here());

  // Sends block r of `in`, sends[r], to each rank r, and receives what rank r sends here as block r of `out`: MPI's
  // Alltoallv. Both lists have size() blocks. A block of 0 bytes is none. Throws if the blocks of `out` overlap each
  // other or one of `in`.
  void all_to_all(Stream& stream, void* out, std::vector<ByteRange> receives, const void* in,
                  std::vector<ByteRange> sends, CallSite site = CallSite::here());

  // Enqueues the collectives that `calls` requests of this communicator, all in one stream, as one launch: NCCL then
  // has one kernel for them, and its latency once. They may run at the same time, so that none may touch what another
  // one writes.
  void group(const std::function<void()>& calls);

  // The host waits for the event, or for all work enqueued in the stream. Throws, or ends the process, if a rank was
  // lost or if the wait exceeds the timeout. The host must use these functions whenever collectives may be in flight.
  void wait_for(Event& event) { wait(event); }
  void wait_for(Stream& stream);
  // A graph with collectives of this communicator was launched in the stream.
  virtual void graph_launched(Stream&, CallSite = CallSite::here()) {}

 protected:
  // This rank is number `rank` in the list.
  Communicator(int rank, std::vector<int> world_ranks) : rank_(rank), world_ranks_(std::move(world_ranks)) {}

 private:
  // Makes the communicator of a group in which this rank is number `rank`. All ranks call it, including those whose
  // group has only one rank; for such a group the result is not used.
  virtual std::unique_ptr<Communicator> make_group(const std::vector<int>& world_ranks, int rank) = 0;
  // The host waits for the event. Does not return if a rank was lost or if the event takes too long.
  virtual void wait(Event& event) { event.synchronize(); }
  // Enqueues the collective. Its arguments have been checked, and its count is not 0.
  virtual void enqueue(const Work& work, const Collective& collective) = 0;
  // Enqueues several collectives of one stream as one launch.
  virtual void enqueue_group(const std::vector<CollectiveWork>& works);
  void start(Work work, const Collective& collective);
  void all_reduce(Stream& stream, const char* name, const Tensor& data, Collective::Operation operation, CallSite site);
  // Every collective declares that it writes this byte, so that the order check sees whether they are ordered with each
  // other.
  const std::byte* turn() const { return &turn_; }

  const int rank_;
  const std::vector<int> world_ranks_;
  std::byte turn_{};
  std::vector<CollectiveWork>* grouped_ = nullptr;  // where the collectives of a group wait for the others
};

// The communicator of one rank: it sums nothing, and copies only if out differs from in.
class SingleCommunicator : public Communicator {
 public:
  explicit SingleCommunicator(int world_rank = 0) : Communicator(0, {world_rank}) {}
  std::string description() const override { return "one rank, nothing to communicate"; }

 private:
  std::unique_ptr<Communicator> make_group(const std::vector<int>& world_ranks, int) override;
  void enqueue(const Work& work, const Collective& collective) override;
};

// Returns the communicator of all ranks, for the backend of this build. Throws, with the remedy, if the build cannot
// connect several ranks. `rendezvous` is a file that all ranks can reach, for NCCL without MPI. If some rank does not
// join a collective in time, a later call or wait throws, or the process ends; the error names that rank. MPI has no
// heartbeats, so ranks on CPUs are never silent.
std::unique_ptr<Communicator> make_communicator(Device& device, const Ranks& ranks, const std::string& rendezvous,
                                                Timeouts timeouts = {});

// Host-side functions for the start and the end of a run. They allocate memory and synchronize.
std::string broadcast_text(Communicator& communicator, Stream& stream, std::string text_of_root, int root = 0);
int64_t broadcast_number(Communicator& communicator, Stream& stream, int64_t number_of_root, int root = 0);
std::vector<int64_t> gather_numbers(Communicator& communicator, Stream& stream, int64_t number);  // of all ranks
std::vector<std::string> gather_texts(Communicator& communicator, Stream& stream, std::string text);
int64_t sum_number(Communicator& communicator, Stream& stream, int64_t number);
void barrier(Communicator& communicator, Stream& stream);

// An error that a rank's own work threw: its message, and the exit code that it would have ended with; `done` for none.
struct WorkError {
  std::string text;
  ExitCode code = ExitCode::done;
  bool any() const { return code != ExitCode::done; }
};

// Runs long host work that makes no collectives in a thread of its own. Meanwhile the ranks exchange heartbeats until
// the work of all ranks has ended, so that a slow rank is not taken for lost. The caller's thread calls `meanwhile`
// about 50 times a second. Returns the error that this rank's work threw.
WorkError work_with_heartbeats(Communicator& communicator, Stream& stream, const std::function<void()>& work,
                               const std::function<void()>& meanwhile = {});

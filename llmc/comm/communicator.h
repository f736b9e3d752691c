// Collectives between the ranks that train together, enqueued in a stream like kernels and copies: the same calls for
// one rank, over MPI (CPU world, real processes), and over NCCL (CUDA world).
//
// All ranks make the same calls, in the same order, with the same sizes; where a rank has several communicators, the
// order of all their calls together. The collectives of one communicator are ordered with each other, by their stream
// or by events: the order check says when they are not. Each says which bytes it reads and writes.
//
// Sums: for one rank and over MPI they add in the order of the ranks, ((x0 + x1) + x2) + ..., so that their bits depend
// on the number of ranks alone; those of bf16 add in fp32 and are rounded once. NCCL adds in an order of its own, which
// is the same in each run with the same topology, algorithm and protocol, as long as NVLS is off (backends.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "llmc/comm/ranks.h"
#include "llmc/device/device.h"
#include "llmc/device/number.h"

// What a communicator is asked for, on any number type.
struct Collective {
  enum class Kind { all_reduce, broadcast, all_gather, reduce_scatter };
  enum class Number { byte, bfloat16, float32, float64, int64 };
  enum class Operation { copy, sum, max };

  Kind kind;
  Number number;
  Operation operation;
  const void* in;
  void* out;
  size_t count;  // all_reduce, broadcast: of the whole buffer; all_gather, reduce_scatter: of each rank's part
  int root = 0;

  size_t number_bytes() const;
  size_t bytes() const { return count * number_bytes(); }
};

class Communicator {
 public:
  virtual ~Communicator() = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  int rank() const { return rank_; }
  int size() const { return int(world_ranks_.size()); }
  // The ranks that it spans, by their numbers among all.
  const std::vector<int>& world_ranks() const { return world_ranks_; }
  virtual std::string description() const = 0;  // "4 ranks over MPI, sums in rank order"

  static std::vector<int> first_ranks(int size);  // 0 .. size-1

  // The communicator of a group of these ranks, numbers among all, of which this rank is one: their order is that of
  // its ranks. All ranks call, each with its own group.
  std::unique_ptr<Communicator> split(const std::vector<int>& world_ranks);

  // Memory for buffers that collectives work on, of the same size on all ranks, which all call: registered with what
  // connects them, for this communicator and the groups that it has by now, where that saves copies.
  virtual DeviceMemory allocate(Device& device, size_t bytes) { return DeviceMemory(device, bytes); }

  // data[count] = sum over the ranks, in place.
  void all_reduce_sum(Stream& stream, float* data, size_t count, const char* file = __builtin_FILE(),
                      int line = __builtin_LINE());
  void all_reduce_sum(Stream& stream, bf16* data, size_t count, const char* file = __builtin_FILE(),
                      int line = __builtin_LINE());
  void all_reduce_sum(Stream& stream, double* data, size_t count, const char* file = __builtin_FILE(),
                      int line = __builtin_LINE());
  void all_reduce_sum(Stream& stream, int64_t* data, size_t count, const char* file = __builtin_FILE(),
                      int line = __builtin_LINE());
  // data[count] = largest over the ranks, in place. A NaN loses against any number.
  void all_reduce_max(Stream& stream, float* data, size_t count, const char* file = __builtin_FILE(),
                      int line = __builtin_LINE());
  // data = the root's.
  void broadcast(Stream& stream, void* data, size_t bytes, int root, const char* file = __builtin_FILE(),
                 int line = __builtin_LINE());
  // out[size * bytes_each] = the ranks' in[bytes_each], in the order of the ranks. `in` may be this rank's place in
  // `out`; else they must not overlap.
  void all_gather(Stream& stream, void* out, const void* in, size_t bytes_each, const char* file = __builtin_FILE(),
                  int line = __builtin_LINE());
  // out[each] = sum over the ranks of this rank's part of in[size * each]. `out` may be this rank's part of `in`; else
  // they must not overlap.
  void reduce_scatter_sum(Stream& stream, float* out, const float* in, size_t each, const char* file = __builtin_FILE(),
                          int line = __builtin_LINE());
  void reduce_scatter_sum(Stream& stream, bf16* out, const bf16* in, size_t each, const char* file = __builtin_FILE(),
                          int line = __builtin_LINE());

  // The host waits for the event, or for all that was enqueued in the stream; throws if a rank was lost or what it
  // waits for takes longer than the timeout. Where collectives may be on the way, the host waits by these.
  void wait_for(Event& event, const char* file = __builtin_FILE(), int line = __builtin_LINE());
  void wait_for(Stream& stream);

 protected:
  // This is number `rank` of them.
  Communicator(int rank, std::vector<int> world_ranks) : rank_(rank), world_ranks_(std::move(world_ranks)) {}

 private:
  // Of a group that is not this rank alone, in which it is number `rank`. All ranks call, also with groups of their
  // own.
  virtual std::unique_ptr<Communicator> make_group(const std::vector<int>& world_ranks, int rank) = 0;
  // Returns when the event is reached, or leaves the waiting to it; throws if a rank was lost or it takes too long.
  virtual void watch(Event&) {}
  // Enqueues the collective, whose arguments were checked; its count is not 0.
  virtual void enqueue(const Work& work, const Collective& collective) = 0;
  void start(Work work, const Collective& collective);
  void all_reduce(Stream& stream, const char* name, void* data, size_t count, Collective::Number number,
                  Collective::Operation operation, const char* file, int line);
  template <class T>
  void reduce_scatter(Stream& stream, T* out, const T* in, size_t each, Collective::Number number, const char* file,
                      int line);
  // Every collective declares to write this byte: so the order check sees whether they are ordered with each other.
  const std::byte* turn() const { return &turn_; }

  const int rank_;
  const std::vector<int> world_ranks_;
  std::byte turn_{};
};

// One rank: nothing to sum, copies where out is not in.
class SingleCommunicator : public Communicator {
 public:
  explicit SingleCommunicator(int world_rank = 0) : Communicator(0, {world_rank}) {}
  std::string description() const override { return "one rank, nothing to communicate"; }

 private:
  std::unique_ptr<Communicator> make_group(const std::vector<int>& world_ranks, int) override;
  void enqueue(const Work& work, const Collective& collective) override;
};

// The communicator of all ranks, for what this build has; an error if it has nothing that connects several ranks, with
// the remedy. `rendezvous` is a file that all ranks can reach, for NCCL without MPI. A collective that some rank does
// not come to within the timeout is an error that names that rank.
std::unique_ptr<Communicator> make_communicator(Device& device, const Ranks& ranks, const std::string& rendezvous,
                                                double timeout_seconds = 600);

// Host-side, for the start and the end of a run: they allocate and synchronise.
std::string broadcast_text(Communicator& communicator, Stream& stream, std::string text_of_root, int root = 0);
int64_t broadcast_number(Communicator& communicator, Stream& stream, int64_t number_of_root, int root = 0);
int64_t sum_number(Communicator& communicator, Stream& stream, int64_t number);
void barrier(Communicator& communicator, Stream& stream);

// Long work of the host that has no collectives: it runs in a thread of its own, and the ranks exchange signs of life
// until that of all has ended, so that one that works for long is not taken for lost. The caller's thread calls
// `meanwhile` some 50 times a second. Returns what this rank's work threw, "" if nothing.
std::string work_beside_signs_of_life(Communicator& communicator, Stream& stream, const std::function<void()>& work,
                                      const std::function<void()>& meanwhile = {});

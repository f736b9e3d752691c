// Memory that the ranks of a communicator share. Each is a process of its own on this machine. A rank writes what it
// brings to a collective, or sends to another rank, into an area of its own, and reads the others' areas.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace softgpu {

inline constexpr int kMostRanks = 64;

// What a rank asks for: all ranks must ask for the same.
struct Request {
  int64_t kind, count, type, detail;  // detail: the operation of a reduction, the root of a broadcast
  bool operator==(const Request&) const = default;
};

// A message from one rank to another. It lies in the sender's area until the other has taken it.
struct Message {
  size_t offset;  // in the area
  Request request;
};

class Segment {
 public:
  // Creates or opens the segment of this name, which all ranks do.
  Segment(const std::string& name, int rank, int size);
  ~Segment();
  Segment(const Segment&) = delete;

  // Each of these returns whether all ranks have come so far. It is called again until they have.
  bool all_joined();
  bool all_posted(uint64_t number) const;  // collective `number`, or a later one
  bool all_finished(uint64_t number) const;
  bool all_met(uint64_t number) const;  // at a meeting of the hosts: a split, a window

  std::byte* own_area(size_t bytes);                   // with room for so many bytes
  const std::byte* area_of(int rank, size_t bytes);    // once it was posted
  void post(uint64_t number, const Request& request);  // its area is complete
  const Request& request_of(int rank) const;
  void finish(uint64_t number);                 // it has read all areas
  void send(int to, const Message& message);    // after the one before it was taken
  bool was_taken(int to) const;                 // the last one
  const Message* message_from(int rank) const;  // null: none has come since the last one was taken
  void take(int from);
  void meet(uint64_t number, int64_t word, int64_t other_word);
  std::pair<int64_t, int64_t> words_of(int rank) const;  // that it brought to the meeting

 private:
  struct Rank {
    std::atomic<uint64_t> posted, finished, met;
    Request request;
    int64_t words[2];
  };
  struct Mail {
    std::atomic<uint64_t> sent, taken;  // messages
    Message message;                    // the last one sent
  };
  struct Shared {
    std::atomic<int> joined, opened;
    Rank ranks[kMostRanks];
    Mail mail[kMostRanks][kMostRanks];  // from a rank to another
  };
  struct Area {
    int file = -1;
    std::byte* data = nullptr;
    size_t bytes = 0;
  };
  std::string area_name(int rank) const { return name_ + "-" + std::to_string(rank); }
  void map(Area& area, size_t bytes);

  const std::string name_;
  const int rank_, size_;
  Shared* shared_ = nullptr;
  std::vector<Area> areas_;
  bool opened_ = false;
};

}  // namespace softgpu

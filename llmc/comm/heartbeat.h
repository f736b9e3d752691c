// Signs of life between the ranks of a run, over connections apart from those of collectives. A rank that waits in vain
// learns here which other rank is late, or silent, or gone. Every rank has one TCP connection to rank 0. As long as
// rank 0 hears of all of them, and nobody asks for more, it answers with a few bytes: a thousand ranks cost it little.
//
// Rank 0 listens on the interface with which NCCL starts (NCCL_SOCKET_IFNAME, else the one that NCCL chooses) and on
// the loopback. A connection that does not show within 5 s that it belongs to the run is closed, and so is the oldest
// of more than 64 such connections. A rank has one connection: its next one replaces it.
//
// One thread at a time may call. exchange() waits for nobody, except 50 ms for a new connection.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

class Heartbeat {
 public:
  static constexpr int64_t kLeft = -1, kEnds = -2;
  struct Sign {
    // Collectives that the rank has begun, and that are done. `begun` is kLeft if the rank took leave at its end, and
    // kEnds if it did because it ends the run.
    int64_t begun = 0, done = 0;
    double age = 0;        // seconds since the rank was heard of, or since the start
    bool heard = false;    // at all
    bool gone = false;     // its connection ended, it had not taken leave, and has not come again
    bool counted = false;  // `begun` and `done` are as young as `age`; else they may be old
  };

  // Rank 0 listens at a port that the system chooses, and lets this process open as many more files as it may need for
  // the ranks. If it cannot listen, nobody will be heard of.
  Heartbeat(int rank, int size);
  ~Heartbeat() { leave(); }
  Heartbeat(const Heartbeat&) = delete;

  // Returns where rank 0 listens, in a form for connect() on the other ranks; "" on these.
  const std::string& address() const { return address_; }
  void connect(const std::string& address_of_rank_0) { address_ = address_of_rank_0; }

  // Takes leave, by kLeft or kEnds: the others will not take this rank for lost when its process ends.
  void leave(int64_t how = kLeft);

  // Tells the others how far this rank is. Returns what was heard of every rank; of this rank, its own figures. `asks`:
  // it wants to know how far the others are, and learns it within some exchanges.
  const std::vector<Sign>& exchange(int64_t begun, int64_t done, bool asks);

 private:
  struct Connection {
    int socket = -1, rank = -1;
    double since = 0;          // when it was made
    bool known = false;        // the other side has proved that it belongs to this run
    std::string in, out = {};  // received and not yet understood; to be sent
  };
  void listen();
  void try_address();
  void accept_waiting();
  void close_strangers();
  // Receives until `in` has `most` bytes, or no more have come. Returns false if the connection has ended.
  bool receive(Connection& connection, size_t most);
  void send(Connection& connection);
  // Rank 0: takes the hello. A wrong one closes the connection, and a right one the rank's former connection.
  void take_hello(Connection& connection);
  void take_reports(Connection& connection, bool well);
  bool all_are_well() const;
  void append_answer(Connection& connection, bool lines) const;
  size_t answer_bytes(bool lines) const;
  // Takes one answer from what was received. Returns false if there is no whole one.
  bool take_answer(Connection& connection);
  void hear_ranks();
  void hear_rank_0();
  void close(Connection& connection);
  void end(Connection& connection);

  const int rank_, size_;
  std::string address_;
  uint64_t token_ = 0;          // of this run and this form of messages: others do not know it
  std::vector<int> listeners_;  // sockets
  int backlog_ = 0;
  size_t next_address_ = 0;
  std::vector<Connection> connections_;  // of rank 0 to all; of another rank, the one to rank 0
  std::vector<Sign> signs_;
  std::vector<double> heard_;  // rank 0: when
};

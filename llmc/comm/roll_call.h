// Signs of life between the ranks of a run, beside what connects them for collectives: a rank that waits in vain learns
// here which other rank is behind, or silent, or gone. Every rank has one TCP connection to rank 0. As long as rank 0
// hears of all of them, and nobody asks for more, it answers with a few bytes: a thousand ranks cost it little.
//
// One thread at a time may call. exchange() waits for nobody, except 50 ms for a new connection.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

class RollCall {
 public:
  static constexpr int64_t kLeft = -1, kEnds = -2;
  struct Sign {
    // Collectives that the rank has begun, and that are done. `begun` is kLeft if the rank took leave at its end, and
    // kEnds if it did because it ends the run.
    int64_t begun = 0, done = 0;
    double age = 0;        // seconds since the rank was heard of, or since the start
    bool heard = false;    // at all
    bool gone = false;     // its connection ended, and it had not taken leave
    bool counted = false;  // `begun` and `done` are as young as `age`; else they may be old
  };

  // Rank 0 listens at a port that the system chooses. If it cannot, nobody will be heard of.
  RollCall(int rank, int size);
  ~RollCall() { leave(); }
  RollCall(const RollCall&) = delete;

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
    bool known = false;        // the other side has proved that it belongs to this run
    std::string in, out = {};  // received and not yet understood; to be sent
  };
  void listen();
  void try_address();
  void accept_all();
  // Returns false if the connection has ended.
  bool receive(Connection& connection);
  void send(Connection& connection);
  bool all_are_well() const;
  void append_answer(Connection& connection, bool lines) const;
  // Takes one answer from what was received. Returns false if there is no whole one.
  bool take_answer(Connection& connection);
  void hear_ranks();
  void hear_rank_0();
  void close(Connection& connection);
  void end(Connection& connection);

  const int rank_, size_;
  std::string address_;
  uint64_t token_ = 0;  // of this run and this form of messages: others do not know it
  int listener_ = -1;
  size_t next_address_ = 0;
  double connecting_since_ = 0;
  std::vector<Connection> connections_;  // of rank 0 to all; of another rank, the one to rank 0
  std::vector<Sign> signs_;
  std::vector<double> heard_;  // rank 0: when
};

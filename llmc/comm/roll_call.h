// Signs of life between the ranks of a run, beside what connects them for collectives: a rank that waits in vain learns
// here which other rank is behind, or silent, or gone. Every rank has one TCP connection to rank 0, which passes on
// what it hears.
//
// All functions but the first three are for one thread, and none of them waits for other ranks.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

class RollCall {
 public:
  static constexpr int64_t kLeft = -1;
  struct Sign {
    int64_t begun = 0,
            done = 0;   // collectives that the rank has begun, and that are done; begun is kLeft if it took leave
    double age = 0;     // seconds since the rank was heard of
    bool gone = false;  // its connection ended, and it had not taken leave
  };

  // Rank 0 listens at a port that the system chooses. If it cannot, nobody will be heard of.
  RollCall(int rank, int size);
  ~RollCall() { leave(); }
  RollCall(const RollCall&) = delete;

  // Returns where rank 0 listens, in a form for connect() on the other ranks; "" on these.
  const std::string& address() const { return address_; }
  void connect(const std::string& address_of_rank_0) { address_ = address_of_rank_0; }

  // Takes leave: the others will not take this rank for lost when its process ends.
  void leave();

  // Tells the others how far this rank is. Returns what was heard of every rank; of this rank, its own figures.
  const std::vector<Sign>& exchange(int64_t begun, int64_t done);

 private:
  struct Connection {
    int socket = -1, rank = -1;
    std::string in, out;  // received and not yet understood; to be sent
  };
  void listen();
  bool try_address();
  void accept_all();
  // Returns false if the connection has ended.
  bool receive(Connection& connection);
  void send(Connection& connection);
  void append_lines(Connection& connection) const;
  void hear_ranks();
  void hear_rank_0();
  void close(Connection& connection);
  void end(Connection& connection);

  const int rank_, size_;
  std::string address_;
  uint64_t token_ = 0;  // of this run: strangers do not know it
  int listener_ = -1;
  size_t next_address_ = 0;
  std::vector<Connection> connections_;  // of rank 0 to all; of another rank, the one to rank 0
  std::vector<Sign> signs_;
  std::vector<double> heard_;  // rank 0: when
};

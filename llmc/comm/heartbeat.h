// Signs of life between the ranks of a run, over connections apart from those of collectives. A rank that waits in vain
// learns here which other rank is late, or silent, or gone. Every rank has one TCP connection to rank 0 and reports
// over it how far it is. Rank 0 answers each report with the same few bytes: which ranks are exceptions. Its work in a
// round grows with the number of ranks alone, also while some of them are lost.
//
// Rank 0 listens on the interface with which NCCL starts (NCCL_SOCKET_IFNAME, else the one that NCCL chooses) and on
// the loopback. A connection that does not show within 5 s that it belongs to the run is closed, and so is the oldest
// of more than 64 such connections. A rank has one connection: its next one replaces it.
//
// One thread at a time may call. exchange() waits for nobody, except 50 ms for a new connection.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

class Heartbeat {
 public:
  // A rank that takes leave says these instead of the collectives that it has begun: it is at its end, or it ends the
  // run.
  static constexpr int64_t kLeft = -1, kEnds = -2;

  // Some of the ranks: how many, and the first of them.
  struct Few {
    static constexpr int kNamed = 8;
    int32_t count = 0, first[kNamed] = {};
    int named() const { return count < kNamed ? count : kNamed; }
    void add(int rank) {
      if (count < kNamed) first[count] = rank;
      ++count;
    }
  };
  // The ranks whose number is the smallest.
  struct Least {
    int64_t number = std::numeric_limits<int64_t>::max();
    Few ranks;
    void add(int64_t other, int rank) {
      if (other < number) number = other, ranks = {};
      if (other == number) ranks.add(rank);
    }
  };
  // The findings of rank 0 about the ranks that have not taken leave. They are sent as they are.
  struct News {
    Few gone;           // the connection ended, and has not come again
    Few silent;         // not heard of for `silent_seconds`; if there is none such rank, for 1.5 s
    Few unheard;        // never heard of
    Least begun, done;  // by the number of collectives that the rank has begun, and that are done
    int64_t most_done = 0;
    float silence = 0;           // seconds for which all of the silent ranks were not heard of, at least
    int32_t ends = 0, left = 0;  // some rank ends the run; kLeft or kEnds if rank 0 has taken leave
  };

  // Rank 0 listens at a port that the system chooses, and lets this process open as many more files as it may need for
  // the ranks. If it cannot listen, nobody will be heard of; it warns if this is because of the files. `silent_seconds`
  // (0: no time) makes a silent rank a lost one, and so does it rank 0 if it refuses connections for so long and never
  // took one.
  Heartbeat(int rank, int size, double silent_seconds);
  ~Heartbeat() { leave(); }
  Heartbeat(const Heartbeat&) = delete;

  // Returns where rank 0 listens, in a form for connect() on the other ranks; "" on these.
  const std::string& address() const { return address_; }
  void connect(const std::string& address_of_rank_0);

  // Takes leave, by kLeft or kEnds: the others will not take this rank for lost when its process ends.
  void leave(int64_t how = kLeft);

  // Tells rank 0 how far this rank is. Returns the last news; this rank may be among those of begun and done.
  const News& exchange(int64_t begun, int64_t done);

 private:
  struct Connection {
    int socket = -1;
    double since = 0;               // when it was made, or brought something
    bool made = false;              // the other side's machine has taken it
    bool known = false;             // the other side has proved that it belongs to this run
    bool reported = false;          // and its report has no answer yet
    std::string in = {}, out = {};  // received and not yet understood; to be sent
    bool open() const { return socket >= 0; }
  };
  struct Sign {
    int64_t begun = 0, done = 0;
    double heard_at = 0;  // on clock_
    bool heard = false;   // at all
    bool gone = false;    // its connection ended, it had not taken leave, and has not come again
  };
  void listen();
  void accept_waiting();
  void close_strangers();
  // Receives until `in` has `most` bytes, or no more have come. Returns false if the connection has ended.
  bool receive(Connection& connection, size_t most);
  void send(Connection& connection);
  void close(Connection& connection);
  void end(int rank);

  // Rank 0: takes the hello. A wrong one closes the connection, and a right one the rank's former connection.
  void take_hello(Connection& connection);
  void take_reports(int rank);
  void hear_ranks();
  void gather_news();

  // Another rank.
  void try_host(int64_t done);
  void await_connection(int milliseconds, int64_t done);
  void be_refused(int64_t done);
  void hear_rank_0();
  void judge_rank_0();

  const int rank_, size_;
  const double silent_seconds_;
  std::string address_;
  uint64_t token_ = 0;          // of this run and this form of messages: others do not know it
  std::vector<int> listeners_;  // sockets
  int backlog_ = 0;
  std::vector<Connection> peers_;  // rank 0: by rank; another: the one to rank 0
  std::vector<Connection>
      strangers_;            // rank 0: which have not proved that they are ranks, in the order in which they came
  std::vector<Sign> signs_;  // rank 0: by rank; another: rank 0's
  News news_, told_;         // told_: by rank 0
  // Seconds for which this rank has made exchanges. A machine that is suspended meanwhile makes nobody silent.
  double clock_ = 0, before_;

  // Another rank.
  std::vector<uint32_t> hosts_;  // rank 0's addresses
  size_t next_host_ = 0;
  uint16_t port_ = 0;
  // A connection to rank 0 is possible: one was made, or rank 0 is on this machine. If it now refuses, it has ended.
  bool possible_ = false;
  // On clock_, and below 0 if it did not happen: when rank 0's machine took the first connection, and when it refused.
  double taken_since_ = -1, refused_since_ = -1;
};

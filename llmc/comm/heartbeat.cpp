#include "llmc/comm/heartbeat.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <random>
#include <sstream>

#include "llmc/base/clock.h"

namespace {

// Another rank sends a hello first, and then reports.
struct Hello {
  uint64_t token;
  int64_t rank;
};
struct Report {
  int64_t begun, done, asks;
};
// Rank 0 answers with a line for each rank, or with none if it hears of all. Whoever changes a message changes kForm.
constexpr uint64_t kForm = 2;
struct Answer {
  int64_t lines;
};
struct Line {
  int64_t begun, done;
  double age;
  int32_t heard, gone;
};

template <class T>
void append(std::string& out, const T& value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof value);
}
template <class T>
T value_at(const std::string& in, size_t offset) {
  T value;
  memcpy(&value, in.data() + offset, sizeof value);
  return value;
}

// Rank 0 calls a rank well that it has heard of within this time. The ranks call one silent that was not heard of for
// longer than that, so its line has come by then.
constexpr double kWellSeconds = 1;

constexpr int kQuick = SOCK_NONBLOCK | SOCK_CLOEXEC;
void send_at_once(int socket) {
  const int yes = 1;
  setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
}

// A connection has this time to prove that it belongs to the run. A rank sends its hello as it connects.
constexpr double kProofSeconds = 5;
constexpr size_t kMostUnproved = 64;
// The other side of a rank's connection has this time to prove that it is rank 0.
constexpr double kPatience = 2;
// A rank that has not heard of rank 0 for so long makes a new connection: the network may have lost the old one.
constexpr double kNewConnectionSeconds = 10;
// An exchange reads at most so many bytes of a rank's reports. A rank sends one report in that time.
constexpr size_t kMostReports = 128;

// Returns whether an interface is one of `names`, which is in the form of NCCL_SOCKET_IFNAME: prefixes with commas
// between them; "=" before them means whole names, "^" all interfaces but these.
bool is_named(const std::string& interface, const std::string& names) {
  const bool inverse = names[0] == '^', whole = names[inverse] == '=';
  std::istringstream words(names.substr(size_t(inverse) + whole));
  for (std::string name; std::getline(words, name, ',');)
    if (whole ? interface == name : interface.compare(0, name.size(), name) == 0) return !inverse;
  return inverse;
}

// Returns the IPv4 address of the interface with which NCCL starts: one that the user names, else InfiniBand's, else
// one that leads out of this machine. Returns INADDR_NONE if there is none.
in_addr_t own_address() {
  const char* named = getenv("NCCL_SOCKET_IFNAME");
  const std::vector<std::string> choices = named && *named
                                               ? std::vector<std::string>{named}
                                               : std::vector<std::string>{"ib", "^docker,lo,virbr", "docker", "lo"};
  in_addr_t address = INADDR_NONE;
  ifaddrs* all = nullptr;
  if (getifaddrs(&all) != 0) return address;
  for (const std::string& names : choices)
    for (const ifaddrs* i = all; i && address == INADDR_NONE; i = i->ifa_next)
      if (i->ifa_addr && i->ifa_addr->sa_family == AF_INET && (i->ifa_flags & IFF_RUNNING) &&
          is_named(i->ifa_name, names))
        address = reinterpret_cast<const sockaddr_in*>(i->ifa_addr)->sin_addr.s_addr;
  freeifaddrs(all);
  return address;
}

// Lets this process open `count` files more than it might before, if the system allows it.
void allow_files(rlim_t count) {
  rlimit limit;
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return;
  limit.rlim_cur = std::min(limit.rlim_cur + count, limit.rlim_max);
  setrlimit(RLIMIT_NOFILE, &limit);
}

}  // namespace

Heartbeat::Heartbeat(int rank, int size)
    : rank_(rank), size_(size), signs_(size_t(size)), heard_(size_t(size), seconds()) {
  if (rank_ == 0) listen();
}

// Data that arrives after a close makes TCP drop the data that was sent before. So this function first tells each side,
// and then gives it a moment.
void Heartbeat::leave(int64_t how) {
  signs_[size_t(rank_)] = {how, 0, 0, true, false, true};
  for (Connection& c : connections_) {
    if (!c.known && rank_ == 0) close(c);
    if (c.socket < 0) continue;
    if (rank_ == 0) append_answer(c, true);
    else append(c.out, Report{how, 0, 0});
    send(c);
    shutdown(c.socket, SHUT_WR);
  }
  constexpr double kMoment = 0.3;
  for (const double start = seconds(); seconds() - start < kMoment;) {
    bool open = false;
    for (Connection& c : connections_) {
      c.in.clear();
      if (c.socket >= 0 && receive(c, answer_bytes(true))) open = true;
    }
    if (!open) break;
    poll(nullptr, 0, 10);
  }
  for (Connection& c : connections_) close(c);
  connections_.clear();
  for (const int listener : listeners_) ::close(listener);
  listeners_.clear();
}

// ---------------------------------------------------------------------------------------------- connections

// Ranks of this machine reach the loopback, whatever the other interface is.
void Heartbeat::listen() {
  backlog_ = std::max(size_, 1024);
  sockaddr_in own{};
  own.sin_family = AF_INET;
  std::string hosts;
  for (const in_addr_t host : {own_address(), htonl(INADDR_LOOPBACK)}) {
    if (host == INADDR_NONE || host == own.sin_addr.s_addr) continue;
    own.sin_addr.s_addr = host;  // at the first one's port
    socklen_t length = sizeof own;
    auto* const name = reinterpret_cast<sockaddr*>(&own);
    const int listener = socket(AF_INET, SOCK_STREAM | kQuick, 0);
    if (listener < 0) continue;
    if (bind(listener, name, sizeof own) || ::listen(listener, backlog_) || getsockname(listener, name, &length)) {
      ::close(listener);
      continue;
    }
    listeners_.push_back(listener);
    char text[INET_ADDRSTRLEN];
    hosts += std::string(" ") + inet_ntop(AF_INET, &own.sin_addr, text, sizeof text);
  }
  if (listeners_.empty()) return;
  allow_files(rlim_t(size_) + kMostUnproved);
  const uint64_t token = uint64_t(std::random_device{}()) << 32 | std::random_device{}();
  token_ = token + kForm;
  address_ = std::to_string(token) + " " + std::to_string(ntohs(own.sin_port)) + hosts;
}

// Connects to the next of rank 0's addresses, so that the hello is sent at once. If nobody has answered within 50 ms, a
// later exchange sends it.
void Heartbeat::try_address() {
  std::istringstream words(address_);
  int port = 0;
  words >> token_ >> port;
  token_ += kForm;
  std::vector<std::string> hosts;
  for (std::string host; words >> host;) hosts.push_back(host);
  if (hosts.empty()) return;
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(uint16_t(port));
  inet_pton(AF_INET, hosts[next_address_++ % hosts.size()].c_str(), &to.sin_addr);
  Connection c{socket(AF_INET, SOCK_STREAM | kQuick, 0), 0, seconds(), false, ""};
  if (c.socket < 0) return;
  send_at_once(c.socket);
  ::connect(c.socket, reinterpret_cast<const sockaddr*>(&to), sizeof to);
  pollfd connected{c.socket, POLLOUT, 0};
  poll(&connected, 1, 50);
  append(c.out, Hello{token_, rank_});
  connections_ = {c};
}

// Accepts what waited when it was called: strangers may connect without end. A hello that has come is taken at once, so
// that strangers push out no rank.
void Heartbeat::accept_waiting() {
  for (const int listener : listeners_)
    for (int i = 0; i < backlog_; ++i) {
      const int socket = accept4(listener, nullptr, nullptr, kQuick);
      if (socket < 0) break;
      send_at_once(socket);
      Connection c{socket, -1, seconds(), false, ""};
      receive(c, sizeof(Hello));
      take_hello(c);
      if (c.socket < 0) continue;
      connections_.push_back(c);
      if (!c.known) close_strangers();
    }
}

// Connections are in the order in which they came.
void Heartbeat::close_strangers() {
  size_t unproved = 0;
  for (auto c = connections_.rbegin(); c != connections_.rend(); ++c)
    if (!c->known && (++unproved > kMostUnproved || seconds() - c->since > kProofSeconds)) close(*c);
  std::erase_if(connections_, [](const Connection& c) { return c.socket < 0; });
}

bool Heartbeat::receive(Connection& c, size_t most) {
  char buffer[4096];
  while (c.in.size() < most) {
    const ssize_t n = recv(c.socket, buffer, std::min(most - c.in.size(), sizeof buffer), 0);
    if (n > 0) c.in.append(buffer, size_t(n));
    else return n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR || errno == ENOTCONN);
  }
  return true;
}

void Heartbeat::send(Connection& c) {
  while (!c.out.empty()) {
    const ssize_t n = ::send(c.socket, c.out.data(), c.out.size(), MSG_NOSIGNAL);
    if (n <= 0) return;
    c.out.erase(0, size_t(n));
  }
}

void Heartbeat::close(Connection& c) {
  if (c.socket >= 0) ::close(c.socket);
  c.socket = -1;
}

// The other side has closed the connection, or its process has ended. If only the connection was lost, it comes again.
void Heartbeat::end(Connection& c) {
  if (c.known && signs_[size_t(c.rank)].begun >= 0) signs_[size_t(c.rank)].gone = true;
  close(c);
}

// ---------------------------------------------------------------------------------------------- what is said

bool Heartbeat::all_are_well() const {
  return std::all_of(signs_.begin(), signs_.end(), [](const Sign& sign) {
    return sign.heard && !sign.gone && sign.begun >= 0 && sign.age < kWellSeconds;
  });
}

size_t Heartbeat::answer_bytes(bool lines) const { return sizeof(Answer) + (lines ? size_t(size_) * sizeof(Line) : 0); }

void Heartbeat::append_answer(Connection& c, bool lines) const {
  append(c.out, Answer{lines ? size_ : 0});
  if (!lines) return;
  for (const Sign& sign : signs_) append(c.out, Line{sign.begun, sign.done, sign.age, sign.heard, sign.gone});
}

void Heartbeat::take_hello(Connection& c) {
  if (c.in.size() < sizeof(Hello)) return;
  const auto hello = value_at<Hello>(c.in, 0);
  c.in.erase(0, sizeof hello);
  if (hello.token != token_ || hello.rank < 1 || hello.rank >= size_) return close(c);
  for (Connection& former : connections_)
    if (former.known && former.rank == hello.rank) close(former);
  c.rank = int(hello.rank), c.known = true;
  signs_[size_t(c.rank)].gone = false;
  append(c.out, token_);
}

// Only the last report counts. What a rank does not fetch is not piled up.
void Heartbeat::take_reports(Connection& c, bool well) {
  const size_t reports = c.in.size() / sizeof(Report);
  if (reports == 0) return;
  const auto report = value_at<Report>(c.in, (reports - 1) * sizeof(Report));
  c.in.erase(0, reports * sizeof(Report));
  Sign& sign = signs_[size_t(c.rank)];
  sign.begun = report.begun, sign.done = report.done, sign.heard = sign.counted = true;
  heard_[size_t(c.rank)] = seconds();
  if (c.out.size() <= sizeof token_) append_answer(c, report.asks != 0 || !well);
}

// Rank 0 answers a hello with the token, and every report.
void Heartbeat::hear_ranks() {
  accept_waiting();
  const bool well = all_are_well();
  for (Connection& c : connections_) {
    bool open = true;
    if (c.socket >= 0 && !c.known) open = receive(c, sizeof(Hello)), take_hello(c);
    if (c.socket >= 0 && c.known) open = receive(c, kMostReports * sizeof(Report)), take_reports(c, well), send(c);
    if (c.socket >= 0 && !open) end(c);
  }
  close_strangers();
  for (int r = 1; r < size_; ++r) signs_[size_t(r)].age = seconds() - heard_[size_t(r)];
}

bool Heartbeat::take_answer(Connection& c) {
  if (!c.known || c.in.size() < sizeof(Answer)) return false;
  const bool lines = value_at<Answer>(c.in, 0).lines != 0;
  if (c.in.size() < answer_bytes(lines)) return false;
  for (size_t r = 0; r < signs_.size(); ++r) {
    if (int(r) == rank_) continue;
    Sign& sign = signs_[r];
    if (!lines) {
      sign.heard = true, sign.gone = sign.counted = false, sign.age = 0;
      continue;
    }
    const auto line = value_at<Line>(c.in, sizeof(Answer) + r * sizeof(Line));
    sign = {line.begun, line.done, line.age, line.heard != 0, line.gone != 0, true};
  }
  signs_[0].heard = true;
  c.in.erase(0, answer_bytes(lines));
  return true;
}

void Heartbeat::hear_rank_0() {
  Connection& c = connections_[0];
  bool open = true;
  if (!c.known) {
    open = receive(c, sizeof token_);
    if (c.in.size() == sizeof token_) {
      c.known = value_at<uint64_t>(c.in, 0) == token_;
      open = open && c.known;
      c.in.clear();
    }
  }
  if (c.known) {
    for (;;) {
      open = receive(c, answer_bytes(true));
      if (!take_answer(c)) break;
      heard_[0] = seconds();
    }
  }
  signs_[0].age = seconds() - heard_[0];
  if (!open) end(c);
  else if (seconds() - std::max(c.since, c.known ? heard_[0] : 0) > (c.known ? kNewConnectionSeconds : kPatience))
    close(c);
  if (c.socket < 0) connections_.clear();  // the next exchange connects again
}

const std::vector<Heartbeat::Sign>& Heartbeat::exchange(int64_t begun, int64_t done, bool asks) {
  signs_[size_t(rank_)] = {begun, done, 0, true, false, true};
  if (rank_ == 0) {
    hear_ranks();
    return signs_;
  }
  if (connections_.empty() && !address_.empty() && signs_[0].begun >= 0) try_address();
  if (!connections_.empty()) {
    Connection& c = connections_[0];
    if (c.out.size() < sizeof(Hello) + sizeof(Report)) append(c.out, Report{begun, done, asks});
    send(c);
    hear_rank_0();
  } else {
    signs_[0].age = seconds() - heard_[0];
  }
  return signs_;
}

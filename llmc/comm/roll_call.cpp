#include "llmc/comm/roll_call.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <sstream>

#include "llmc/base/clock.h"

namespace {

// What another rank sends first, and what it sends then, again and again.
struct Hello {
  uint64_t token;
  int64_t rank;
};
struct Report {
  int64_t begun, done;
};
// What rank 0 answers: one for each rank.
struct Line {
  int64_t begun, done;
  double age;
  int64_t gone;
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

void make_quick(int socket) {
  fcntl(socket, F_SETFL, O_NONBLOCK);
  fcntl(socket, F_SETFD, FD_CLOEXEC);
  const int yes = 1;
  setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
}

// The addresses of this machine by which others may reach it; its loopback is the last.
std::string own_addresses() {
  std::string addresses;
  ifaddrs* all = nullptr;
  if (getifaddrs(&all) == 0) {
    for (const ifaddrs* i = all; i; i = i->ifa_next) {
      if (!i->ifa_addr || i->ifa_addr->sa_family != AF_INET) continue;
      char text[INET_ADDRSTRLEN];
      inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in*>(i->ifa_addr)->sin_addr, text, sizeof text);
      if (strncmp(text, "127.", 4) != 0) addresses += std::string(" ") + text;
    }
    freeifaddrs(all);
  }
  return addresses + " 127.0.0.1";
}

}  // namespace

RollCall::RollCall(int rank, int size)
    : rank_(rank), size_(size), signs_(size_t(size)), heard_(size_t(size), seconds()) {
  if (rank_ == 0) listen();
}

void RollCall::leave() {
  signs_[size_t(rank_)].begun = kLeft;
  for (Connection& c : connections_) {
    if (rank_ == 0) append_lines(c);
    else append(c.out, Report{kLeft, 0});
    send(c);
    close(c);
  }
  if (listener_ >= 0) ::close(listener_);
  listener_ = -1;
}

// ---------------------------------------------------------------------------------------------- connections

void RollCall::listen() {
  listener_ = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in any{};
  any.sin_family = AF_INET;
  socklen_t length = sizeof any;
  auto* const name = reinterpret_cast<sockaddr*>(&any);
  if (listener_ < 0 || bind(listener_, name, sizeof any) || ::listen(listener_, size_) ||
      getsockname(listener_, name, &length)) {
    if (listener_ >= 0) ::close(listener_);
    listener_ = -1;
    return;
  }
  make_quick(listener_);
  token_ = uint64_t(std::random_device{}()) << 32 | std::random_device{}();
  address_ = std::to_string(token_) + " " + std::to_string(ntohs(any.sin_port)) + own_addresses();
}

// Tries the next of rank 0's addresses, for a second at most.
bool RollCall::try_address() {
  std::istringstream words(address_);
  int port = 0;
  words >> token_ >> port;
  std::vector<std::string> hosts;
  for (std::string host; words >> host;) hosts.push_back(host);
  if (hosts.empty()) return false;
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(uint16_t(port));
  inet_pton(AF_INET, hosts[next_address_++ % hosts.size()].c_str(), &to.sin_addr);
  Connection c{socket(AF_INET, SOCK_STREAM, 0), 0, "", ""};
  if (c.socket < 0) return false;
  make_quick(c.socket);
  ::connect(c.socket, reinterpret_cast<const sockaddr*>(&to), sizeof to);
  pollfd ready{c.socket, POLLOUT, 0};
  int error = 0;
  socklen_t length = sizeof error;
  if (poll(&ready, 1, 1000) != 1 || getsockopt(c.socket, SOL_SOCKET, SO_ERROR, &error, &length) || error) {
    close(c);
    return false;
  }
  append(c.out, Hello{token_, rank_});
  connections_.push_back(c);
  signs_[0].age = 0;
  heard_[0] = seconds();
  return true;
}

void RollCall::accept_all() {
  for (int socket; listener_ >= 0 && (socket = accept(listener_, nullptr, nullptr)) >= 0;) {
    make_quick(socket);
    connections_.push_back({socket, -1, "", ""});
  }
}

bool RollCall::receive(Connection& c) {
  char buffer[4096];
  for (;;) {
    const ssize_t n = recv(c.socket, buffer, sizeof buffer, 0);
    if (n > 0) c.in.append(buffer, size_t(n));
    else return n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR);
  }
}

void RollCall::send(Connection& c) {
  while (!c.out.empty()) {
    const ssize_t n = ::send(c.socket, c.out.data(), c.out.size(), MSG_NOSIGNAL);
    if (n <= 0) return;
    c.out.erase(0, size_t(n));
  }
}

void RollCall::close(Connection& c) {
  if (c.socket >= 0) ::close(c.socket);
  c.socket = -1;
}

// The other side has closed the connection, or its process has ended.
void RollCall::end(Connection& c) {
  if (c.rank >= 0 && signs_[size_t(c.rank)].begun != kLeft) signs_[size_t(c.rank)].gone = true;
  close(c);
}

// ---------------------------------------------------------------------------------------------- what is said

void RollCall::append_lines(Connection& c) const {
  for (const Sign& sign : signs_) append(c.out, Line{sign.begun, sign.done, sign.age, sign.gone});
}

// Rank 0 answers every report with a line for each rank. What a rank does not fetch is not piled up.
void RollCall::hear_ranks() {
  accept_all();
  for (Connection& c : connections_) {
    if (c.socket < 0) continue;
    const bool open = receive(c);
    if (c.rank < 0 && c.in.size() >= sizeof(Hello)) {
      const auto hello = value_at<Hello>(c.in, 0);
      c.in.erase(0, sizeof hello);
      if (hello.token != token_ || hello.rank < 1 || hello.rank >= size_) {
        close(c);
        continue;
      }
      c.rank = int(hello.rank);
      heard_[size_t(c.rank)] = seconds();
    }
    const size_t reports = c.rank < 0 ? 0 : c.in.size() / sizeof(Report);
    if (reports) {
      const auto report = value_at<Report>(c.in, (reports - 1) * sizeof(Report));
      c.in.erase(0, reports * sizeof(Report));
      signs_[size_t(c.rank)].begun = report.begun, signs_[size_t(c.rank)].done = report.done;
      heard_[size_t(c.rank)] = seconds();
      if (c.out.empty()) append_lines(c);
    }
    send(c);
    if (!open) end(c);
  }
  for (int r = 1; r < size_; ++r) signs_[size_t(r)].age = seconds() - heard_[size_t(r)];
}

void RollCall::hear_rank_0() {
  Connection& c = connections_[0];
  if (c.socket < 0) return;
  const bool open = receive(c);
  const size_t whole = size_t(size_) * sizeof(Line), answers = c.in.size() / whole;
  if (answers) {
    for (int r = 0; r < size_; ++r) {
      const auto line = value_at<Line>(c.in, (answers - 1) * whole + size_t(r) * sizeof(Line));
      if (r != rank_) signs_[size_t(r)] = {line.begun, line.done, line.age, line.gone != 0};
    }
    c.in.erase(0, answers * whole);
    heard_[0] = seconds();
  }
  signs_[0].age = seconds() - heard_[0];
  if (!open) end(c);
}

const std::vector<RollCall::Sign>& RollCall::exchange(int64_t begun, int64_t done) {
  signs_[size_t(rank_)] = {begun, done, 0, false};
  if (rank_ == 0) {
    hear_ranks();
  } else if (!connections_.empty() || (!address_.empty() && try_address())) {
    Connection& c = connections_[0];
    if (c.out.size() < sizeof(Hello) + sizeof(Report)) append(c.out, Report{begun, done});
    if (c.socket >= 0) send(c);
    hear_rank_0();
  }
  return signs_;
}

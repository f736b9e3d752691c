#include "llmc/comm/roll_call.h"

#include <arpa/inet.h>
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

// Data that arrives after a close makes TCP drop the data that was sent before. So this function first tells each side,
// and then gives it a moment.
void RollCall::leave(int64_t how) {
  signs_[size_t(rank_)] = {how, 0, 0, true, false, true};
  for (Connection& c : connections_) {
    if (c.socket < 0) continue;
    if (rank_ == 0) append_answer(c, true);
    else append(c.out, Report{how, 0, 0});
    send(c);
    shutdown(c.socket, SHUT_WR);
  }
  constexpr double kMoment = 0.3;
  for (const double start = seconds(); seconds() - start < kMoment;) {
    bool open = false;
    for (Connection& c : connections_)
      if (c.socket >= 0 && receive(c)) open = true;
    if (!open) break;
    poll(nullptr, 0, 10);
  }
  for (Connection& c : connections_) close(c);
  connections_.clear();
  if (listener_ >= 0) ::close(listener_);
  listener_ = -1;
}

// ---------------------------------------------------------------------------------------------- connections

void RollCall::listen() {
  listener_ = socket(AF_INET, SOCK_STREAM | kQuick, 0);
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
  const uint64_t token = uint64_t(std::random_device{}()) << 32 | std::random_device{}();
  token_ = token + kForm;
  address_ = std::to_string(token) + " " + std::to_string(ntohs(any.sin_port)) + own_addresses();
}

// Connects to the next of rank 0's addresses, so that the hello is sent at once. If nobody has answered within 50 ms, a
// later exchange sends it.
void RollCall::try_address() {
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
  Connection c{socket(AF_INET, SOCK_STREAM | kQuick, 0), 0, false, ""};
  if (c.socket < 0) return;
  send_at_once(c.socket);
  ::connect(c.socket, reinterpret_cast<const sockaddr*>(&to), sizeof to);
  pollfd connected{c.socket, POLLOUT, 0};
  poll(&connected, 1, 50);
  append(c.out, Hello{token_, rank_});
  connections_ = {c};
  connecting_since_ = seconds();
}

void RollCall::accept_all() {
  for (int socket; listener_ >= 0 && (socket = accept4(listener_, nullptr, nullptr, kQuick)) >= 0;) {
    send_at_once(socket);
    connections_.push_back({socket, -1, false, ""});
  }
}

bool RollCall::receive(Connection& c) {
  char buffer[4096];
  for (;;) {
    const ssize_t n = recv(c.socket, buffer, sizeof buffer, 0);
    if (n > 0) c.in.append(buffer, size_t(n));
    else return n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR || errno == ENOTCONN);
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

// The other side has closed the connection, or its process has ended. If only the connection was lost, it comes again.
void RollCall::end(Connection& c) {
  if (c.known && signs_[size_t(c.rank)].begun >= 0) signs_[size_t(c.rank)].gone = true;
  close(c);
}

// ---------------------------------------------------------------------------------------------- what is said

bool RollCall::all_are_well() const {
  return std::all_of(signs_.begin(), signs_.end(), [](const Sign& sign) {
    return sign.heard && !sign.gone && sign.begun >= 0 && sign.age < kWellSeconds;
  });
}

void RollCall::append_answer(Connection& c, bool lines) const {
  append(c.out, Answer{lines ? size_ : 0});
  if (!lines) return;
  for (const Sign& sign : signs_) append(c.out, Line{sign.begun, sign.done, sign.age, sign.heard, sign.gone});
}

// Rank 0 answers a hello with the token, and every report. What a rank does not fetch is not piled up.
void RollCall::hear_ranks() {
  accept_all();
  const bool well = all_are_well();
  for (Connection& c : connections_) {
    const bool open = receive(c);
    if (!c.known && c.in.size() >= sizeof(Hello)) {
      const auto hello = value_at<Hello>(c.in, 0);
      c.in.erase(0, sizeof hello);
      if (hello.token != token_ || hello.rank < 1 || hello.rank >= size_) {
        close(c);
        continue;
      }
      c.rank = int(hello.rank), c.known = true;
      signs_[size_t(c.rank)].gone = false;
      append(c.out, token_);
    }
    if (c.known && c.in.size() >= sizeof(Report)) {
      const size_t reports = c.in.size() / sizeof(Report);
      const auto report = value_at<Report>(c.in, (reports - 1) * sizeof(Report));
      c.in.erase(0, reports * sizeof(Report));
      Sign& sign = signs_[size_t(c.rank)];
      sign.begun = report.begun, sign.done = report.done, sign.heard = sign.counted = true;
      heard_[size_t(c.rank)] = seconds();
      if (c.out.size() <= sizeof token_) append_answer(c, report.asks != 0 || !well);
    }
    send(c);
    if (!open) end(c);
  }
  std::erase_if(connections_, [](const Connection& c) { return c.socket < 0; });
  for (int r = 1; r < size_; ++r) signs_[size_t(r)].age = seconds() - heard_[size_t(r)];
}

bool RollCall::take_answer(Connection& c) {
  if (!c.known || c.in.size() < sizeof(Answer)) return false;
  const int64_t lines = value_at<Answer>(c.in, 0).lines;
  const size_t bytes = sizeof(Answer) + (lines ? size_t(size_) * sizeof(Line) : 0);
  if (c.in.size() < bytes) return false;
  for (size_t r = 0; r < signs_.size(); ++r) {
    if (int(r) == rank_) continue;
    Sign& sign = signs_[r];
    if (lines == 0) {
      sign.heard = true, sign.gone = sign.counted = false, sign.age = 0;
      continue;
    }
    const auto line = value_at<Line>(c.in, sizeof(Answer) + r * sizeof(Line));
    sign = {line.begun, line.done, line.age, line.heard != 0, line.gone != 0, true};
  }
  signs_[0].heard = true;
  c.in.erase(0, bytes);
  return true;
}

void RollCall::hear_rank_0() {
  Connection& c = connections_[0];
  const bool open = receive(c);
  if (!c.known && c.in.size() >= sizeof token_) {
    c.known = value_at<uint64_t>(c.in, 0) == token_;
    if (c.known) c.in.erase(0, sizeof token_);
  }
  while (take_answer(c)) heard_[0] = seconds();
  signs_[0].age = seconds() - heard_[0];
  constexpr double kPatience = 2;  // for somebody at an address to answer
  if (!open || (!c.known && seconds() - connecting_since_ > kPatience)) {
    end(c);
    connections_.clear();  // the next exchange tries again
  }
}

const std::vector<RollCall::Sign>& RollCall::exchange(int64_t begun, int64_t done, bool asks) {
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

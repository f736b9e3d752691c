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
#include <fstream>
#include <random>
#include <sstream>
#include <utility>

#include "llmc/base/clock.h"
#include "llmc/base/error.h"
#include "llmc/base/printable.h"

namespace {

// Another rank sends a hello first, and then reports. Rank 0 answers the hello with the token, and a report with news.
// Whoever changes a message changes kForm.
constexpr uint64_t kForm = 3;
struct Hello {
  uint64_t token;
  int64_t rank;
};
struct Report {
  int64_t begun, done;
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

// A rank that was not heard of for so long is silent: stopped, or its machine is.
constexpr double kSilentSeconds = 1.5;
// A rank 0 that listened, and has refused connections for so long, has ended. One that is alive refuses none.
constexpr double kRefusedSeconds = 2;

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

// Returns what names this machine's loopback: the machine's start and its network namespace. Processes with the same
// one reach each other there.
std::string own_loopback() {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  char network[64] = "";
  const ssize_t n = readlink("/proc/self/ns/net", network, sizeof network - 1);
  return boot + std::string(network, n > 0 ? size_t(n) : 0);
}

// Lets this process open `count` files more than it might before. Returns false if the system forbids it, and too few
// would be left for others, such as NCCL's connections.
bool allow_files(rlim_t count) {
  constexpr rlim_t kOthers = 128;
  rlimit limit;
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return true;
  limit.rlim_cur = std::min(limit.rlim_cur + count, limit.rlim_max);
  setrlimit(RLIMIT_NOFILE, &limit);
  return limit.rlim_cur >= count + kOthers;
}

}  // namespace

Heartbeat::Heartbeat(int rank, int size, double silent_seconds)
    : rank_(rank),
      size_(size),
      silent_seconds_(silent_seconds),
      peers_(rank == 0 ? size_t(size) : 1),
      signs_(peers_.size()),
      before_(seconds()) {
  if (rank_ == 0) listen();
  else
    for (int r = 0; r < size_; ++r)
      if (r != rank_) told_.unheard.add(r);
}

// Data that arrives after a close makes TCP drop the data that was sent before. So this function first tells each side,
// and then gives it a moment.
void Heartbeat::leave(int64_t how) {
  if (rank_ == 0) {
    signs_[0].begun = how;
    gather_news();
    for (Connection& stranger : strangers_) close(stranger);
    strangers_.clear();
  }
  for (Connection& c : peers_) {
    if (!c.open()) continue;
    if (rank_ == 0) append(c.out, news_);
    else append(c.out, Report{how, 0});
    send(c);
    shutdown(c.socket, SHUT_WR);
  }
  constexpr double kMoment = 0.3;
  for (const double start = seconds(); seconds() - start < kMoment;) {
    bool open = false;
    for (Connection& c : peers_) {
      c.in.clear();
      if (c.open() && receive(c, sizeof(News))) open = true;
    }
    if (!open) break;
    poll(nullptr, 0, 10);
  }
  for (Connection& c : peers_) close(c);
  for (const int listener : listeners_) ::close(listener);
  listeners_.clear();
}

// ---------------------------------------------------------------------------------------------- connections

// Ranks of this machine reach the loopback, whatever the other interface is. For the others it leads elsewhere, so its
// address is followed by "@" and what names it.
void Heartbeat::listen() {
  if (const rlim_t files = rlim_t(size_) + kMostUnproved; !allow_files(files))
    return print_error(
        format("warning: this process may not open the %zu files of the ranks' heartbeats: a lost rank is missed after "
               "--comm-timeout alone\n  raise the limit: ulimit -Hn",
               size_t(files)));
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
    if (ntohl(host) >> 24 == IN_LOOPBACKNET) hosts += "@" + own_loopback();
  }
  if (listeners_.empty()) return;
  const uint64_t token = uint64_t(std::random_device{}()) << 32 | std::random_device{}();
  token_ = token + kForm;
  address_ = std::to_string(token) + " " + std::to_string(ntohs(own.sin_port)) + hosts;
}

void Heartbeat::connect(const std::string& address) {
  std::istringstream words(address);
  words >> token_ >> port_;
  token_ += kForm;
  for (std::string host; words >> host;) {
    const size_t at = host.find('@');
    if (at != host.npos && host.substr(at + 1) != own_loopback()) continue;
    if (at != host.npos) possible_ = true;
    hosts_.emplace_back();
    inet_pton(AF_INET, host.substr(0, at).c_str(), &hosts_.back());
  }
}

// Connects to the next of rank 0's addresses, so that the hello is sent at once. If nobody has answered within 50 ms, a
// later exchange sends it.
void Heartbeat::try_host(int64_t done) {
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(port_);
  to.sin_addr.s_addr = hosts_[next_host_++ % hosts_.size()];
  Connection& c = peers_[0] = {socket(AF_INET, SOCK_STREAM | kQuick, 0), seconds()};
  if (!c.open()) return;
  send_at_once(c.socket);
  append(c.out, Hello{token_, rank_});
  if (::connect(c.socket, reinterpret_cast<const sockaddr*>(&to), sizeof to) == 0 || errno == EINPROGRESS)
    return await_connection(50, done);
  if (errno == ECONNREFUSED) be_refused(done);
  close(c);
}

// From the first connection on, rank 0 may become silent: its machine has answered. If it ends the connection without a
// word, it is not rank 0, or has ended.
void Heartbeat::await_connection(int milliseconds, int64_t done) {
  Connection& c = peers_[0];
  pollfd answered{c.socket, POLLOUT, 0};
  if (poll(&answered, 1, milliseconds) <= 0) return;
  int error = 0;
  socklen_t length = sizeof error;
  getsockopt(c.socket, SOL_SOCKET, SO_ERROR, &error, &length);
  c.made = error == 0 || error == ECONNRESET;
  if (c.made) {
    possible_ = true, refused_since_ = -1;
    if (taken_since_ < 0) taken_since_ = clock_;
  }
  if (error == ECONNREFUSED) be_refused(done);
  if (error) close(c);
}

// Nobody listens at rank 0's port, so its process has ended; or a firewall refuses in its place. The latter shows in
// that collectives are done all the same.
void Heartbeat::be_refused(int64_t done) {
  Sign& zero = signs_[0];
  if (!possible_ && done > 0) {
    zero.gone = false;
    return;
  }
  if (refused_since_ < 0) refused_since_ = clock_;
  const double refused = clock_ - refused_since_;
  if (possible_ ? refused > kRefusedSeconds : silent_seconds_ > 0 && refused > silent_seconds_) zero.gone = true;
}

// Accepts what waited when it was called: strangers may connect without end. A hello that has come is taken at once, so
// that strangers push out no rank.
void Heartbeat::accept_waiting() {
  for (const int listener : listeners_)
    for (int i = 0; i < backlog_; ++i) {
      const int socket = accept4(listener, nullptr, nullptr, kQuick);
      if (socket < 0) break;
      send_at_once(socket);
      Connection c{socket, seconds()};
      receive(c, sizeof(Hello));
      take_hello(c);
      if (!c.open()) continue;
      strangers_.push_back(c);
      close_strangers();
    }
}

void Heartbeat::close_strangers() {
  size_t many = strangers_.size();
  for (Connection& c : strangers_)
    if (many-- > kMostUnproved || seconds() - c.since > kProofSeconds) close(c);
  std::erase_if(strangers_, [](const Connection& c) { return !c.open(); });
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
  if (c.open()) ::close(c.socket);
  c.socket = -1;
}

// The other side has closed the connection, or its process has ended. If only the connection was lost, it comes again.
void Heartbeat::end(int rank) {
  Connection& c = peers_[size_t(rank)];
  Sign& sign = signs_[size_t(rank)];
  if (c.known && sign.begun >= 0) sign.gone = true;
  close(c);
}

// ---------------------------------------------------------------------------------------------- rank 0

void Heartbeat::take_hello(Connection& c) {
  if (c.in.size() < sizeof(Hello)) return;
  const auto hello = value_at<Hello>(c.in, 0);
  c.in.erase(0, sizeof hello);
  if (hello.token != token_ || hello.rank < 1 || hello.rank >= size_) return close(c);
  Connection& place = peers_[size_t(hello.rank)];
  close(place);
  place = std::move(c);
  c.socket = -1;
  place.known = true;
  signs_[size_t(hello.rank)].gone = false;
  append(place.out, token_);
}

// Only the last report counts.
void Heartbeat::take_reports(int rank) {
  Connection& c = peers_[size_t(rank)];
  const size_t reports = c.in.size() / sizeof(Report);
  if (reports == 0) return;
  const auto report = value_at<Report>(c.in, (reports - 1) * sizeof(Report));
  c.in.erase(0, reports * sizeof(Report));
  signs_[size_t(rank)] = {report.begun, report.done, clock_, true, false};
  c.reported = true;
}

void Heartbeat::hear_ranks() {
  accept_waiting();
  for (Connection& c : strangers_) {
    const bool open = receive(c, sizeof(Hello));
    take_hello(c);
    if (c.open() && !open) close(c);
  }
  close_strangers();
  for (int r = 1; r < size_; ++r) {
    Connection& c = peers_[size_t(r)];
    if (!c.open()) continue;
    const bool open = receive(c, kMostReports * sizeof(Report));
    take_reports(r);
    if (!open) end(r);
  }
  gather_news();
  // News that a rank does not fetch are not piled up.
  for (Connection& c : peers_) {
    if (!c.open()) continue;
    if (c.reported && c.out.size() <= sizeof token_) append(c.out, news_);
    c.reported = false;
    send(c);
  }
}

void Heartbeat::gather_news() {
  news_ = {};
  Few lost, silent;
  double silence_of_lost = 1e9, silence = 1e9;
  for (int r = 0; r < size_; ++r) {
    const Sign& sign = signs_[size_t(r)];
    if (sign.begun == kEnds) news_.ends = 1;
    if (sign.begun < 0) continue;
    const double age = clock_ - sign.heard_at;
    if (sign.gone) news_.gone.add(r);
    else if (!sign.heard) news_.unheard.add(r);
    else if (silent_seconds_ > 0 && age >= silent_seconds_)
      lost.add(r), silence_of_lost = std::min(silence_of_lost, age);
    else if (age > kSilentSeconds) silent.add(r), silence = std::min(silence, age);
    if (!sign.heard) continue;
    news_.begun.add(sign.begun, r);
    news_.done.add(sign.done, r);
    news_.most_done = std::max(news_.most_done, sign.done);
  }
  news_.silent = lost.count ? lost : silent;
  news_.silence = float(lost.count ? silence_of_lost : silence);
  news_.left = signs_[0].begun < 0 ? int32_t(signs_[0].begun) : 0;
}

// ---------------------------------------------------------------------------------------------- another rank

void Heartbeat::hear_rank_0() {
  Connection& c = peers_[0];
  bool open = true;
  if (!c.known) {
    open = receive(c, sizeof token_);
    if (c.in.size() == sizeof token_) {
      c.known = value_at<uint64_t>(c.in, 0) == token_;
      open = open && c.known;
      c.in.clear();
    }
  }
  while (c.known) {
    open = receive(c, sizeof(News));
    if (c.in.size() < sizeof(News)) break;
    told_ = value_at<News>(c.in, 0);
    c.in.clear();
    c.since = seconds();
    signs_[0] = {told_.left, 0, clock_, true, false};
  }
  if (!open && !c.known) taken_since_ = -1;
  if (!open) end(0);
  else if (seconds() - c.since > (c.known ? kNewConnectionSeconds : kPatience)) close(c);
  // The next exchange connects again.
}

// Only rank 0 tells of the others, so once it is silent nothing is known of them.
void Heartbeat::judge_rank_0() {
  news_ = told_;
  const Sign& zero = signs_[0];
  const double since = zero.heard ? zero.heard_at : taken_since_, silence = clock_ - since;
  if (zero.begun < 0) return;
  if (zero.gone) {
    news_.gone = {1, {0}};
    for (int i = 0; i < told_.gone.named(); ++i) news_.gone.add(told_.gone.first[i]);
    news_.gone.count = 1 + told_.gone.count;
  } else if (since >= 0 && silence > kSilentSeconds) {
    news_.silent = {1, {0}};
    news_.silence = float(silence);
  }
}

const Heartbeat::News& Heartbeat::exchange(int64_t begun, int64_t done) {
  const double now = seconds();
  clock_ += std::min(now - before_, 1.);
  before_ = now;
  if (rank_ == 0) {
    signs_[0] = {begun, done, clock_, true, false};
    hear_ranks();
    return news_;
  }
  Connection& c = peers_[0];
  if (!c.open() && !hosts_.empty() && signs_[0].begun >= 0) try_host(done);
  else if (c.open() && !c.made) await_connection(0, done);
  if (c.open() && c.made) {
    if (c.out.size() < sizeof(Hello) + sizeof(Report)) append(c.out, Report{begun, done});
    send(c);
    hear_rank_0();
  } else if (c.open() && now - c.since > kPatience) {
    close(c);
  }
  judge_rank_0();
  return news_;
}

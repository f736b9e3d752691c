#include "llmc/comm/ras.h"

#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <sstream>

#include "llmc/base/clock.h"
#include "llmc/base/printable.h"

namespace {

constexpr const char* kAddress = "127.0.0.1:28028";  // NCCL's default

// A connection that gives up at a moment of seconds()'s clock.
class Line {
 public:
  Line(const std::string& address, double until) : until_(until) {
    const size_t colon = address.rfind(':');
    if (colon == address.npos) return;
    std::string host = address.substr(0, colon);
    if (host == "localhost") host = "127.0.0.1";
    if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
    addrinfo hints{}, *found = nullptr;
    hints.ai_socktype = SOCK_STREAM;
    hints.ai_flags = AI_NUMERICHOST;  // a name might take longer than there is time
    if (getaddrinfo(host.c_str(), address.substr(colon + 1).c_str(), &hints, &found) != 0) return;
    for (const addrinfo* i = found; i && socket_ < 0; i = i->ai_next) connect_to(*i);
    freeaddrinfo(found);
  }
  ~Line() {
    if (socket_ >= 0) close(socket_);
  }
  Line(const Line&) = delete;

  bool say(const std::string& text) {
    return socket_ >= 0 && send(socket_, text.data(), text.size(), MSG_NOSIGNAL) == ssize_t(text.size());
  }
  // Returns what comes until a line ends; or, if not `one_line`, until the other side closes the connection.
  std::string hear(bool one_line) {
    std::string text;
    char buffer[4096];
    while (text.size() < kMost && !(one_line && text.ends_with('\n')) && ready(POLLIN)) {
      const ssize_t n = recv(socket_, buffer, sizeof buffer, 0);
      if (n <= 0) break;
      text.append(buffer, size_t(n));
    }
    return text;
  }

 private:
  static constexpr size_t kMost = 1 << 20;
  bool ready(short what) {
    pollfd waited{socket_, what, 0};
    for (double left; (left = until_ - seconds()) > 0;)
      if (const int count = poll(&waited, 1, int(left * 1e3)); count >= 0 || errno != EINTR) return count > 0;
    return false;
  }
  void connect_to(const addrinfo& address) {
    socket_ = socket(address.ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    int error = 0;
    socklen_t length = sizeof error;
    if (socket_ >= 0 && (connect(socket_, address.ai_addr, address.ai_addrlen) == 0 ||
                         (errno == EINPROGRESS && ready(POLLOUT) &&
                          getsockopt(socket_, SOL_SOCKET, SO_ERROR, &error, &length) == 0 && error == 0)))
      return;
    if (socket_ >= 0) close(socket_);
    socket_ = -1;
  }

  const double until_;
  int socket_ = -1;
};

}  // namespace

// The answer has parts with a title, which a line of "=" follows.
std::string faults_of_ras(const std::string& answer) {
  constexpr int kMostLines = 12;
  std::string errors, warnings, before, line;
  std::string* part = nullptr;
  std::istringstream lines(answer);
  PrintableText printable;
  int count = 0;
  const auto add = [&](const std::string& text) {
    if (part && !text.empty() && count++ < kMostLines)
      *part += (part->empty() ? "    " : "\n    ") + printable.take(text);
  };
  for (; std::getline(lines, line); before = line) {
    if (line.find_first_not_of('=') == line.npos && line.size() > 3) {
      part = before == "Errors" ? &errors : before == "Warnings" ? &warnings : nullptr;
      count = 0;
      line.clear();
    } else {
      add(before);
    }
  }
  add(before);
  return errors.empty() ? warnings : errors;
}

std::string ask_ras(double patience) {
  const char* named = getenv("NCCL_RAS_ADDR");
  Line line(named && *named ? named : kAddress, seconds() + patience);
  if (!line.say("CLIENT PROTOCOL 2\n") || !line.hear(true).starts_with("SERVER PROTOCOL")) return "";
  if (!line.say("TIMEOUT 1\n") || line.hear(true) != "OK\n" || !line.say("VERBOSE STATUS\n")) return "";
  return faults_of_ras(line.hear(false));
}

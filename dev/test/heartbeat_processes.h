// Processes and connections for the tests of heartbeats.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <sstream>
#include <string>
#include <thread>

#include "llmc/base/error.h"
#include "llmc/comm/ranks.h"

inline void sleep_for(double seconds) { std::this_thread::sleep_for(std::chrono::duration<double>(seconds)); }

inline Ranks rank_of(int rank, int size) {
  Ranks ranks;
  ranks.rank = rank, ranks.size = size;
  return ranks;
}

// Runs `body` in a process of its own. No other thread may run at that moment: the child would find a lock that it
// held, as the allocator's, locked for ever.
class Process {
 public:
  explicit Process(const std::function<void()>& body) {
    int ends[2];
    REQUIRE(pipe(ends) == 0, "no pipe");
    child_ = fork();
    if (child_ == 0) {
      dup2(ends[1], STDERR_FILENO);
      body();
      _exit(0);
    }
    close(ends[1]);
    says_ = ends[0];
  }
  void kill(int signal = SIGKILL) const { ::kill(child_, signal); }
  // Waits for its end. Returns what it wrote to stderr, and its exit code.
  std::string ended(int& code) const {
    std::string said;
    char buffer[1000];
    for (ssize_t n; (n = read(says_, buffer, sizeof buffer)) > 0;) said.append(buffer, size_t(n));
    close(says_);
    int status = 0;
    waitpid(child_, &status, 0);
    code = WEXITSTATUS(status);
    return said;
  }

 private:
  pid_t child_ = -1;
  int says_ = -1;
};

inline std::string ended(const std::function<void()>& body, int& code) { return Process(body).ended(code); }

// Returns a connection to the port of `address` on this machine's loopback `host`, or -1.
inline int connection(const std::string& address, const char* host = "127.0.0.1") {
  std::istringstream words(address);
  std::string token;
  int port = 0;
  words >> token >> port;
  sockaddr_in to{};
  to.sin_family = AF_INET, to.sin_port = htons(uint16_t(port));
  inet_pton(AF_INET, host, &to.sin_addr);
  const int made = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (connect(made, reinterpret_cast<const sockaddr*>(&to), sizeof to) == 0) return made;
  close(made);
  return -1;
}

inline bool is_open(int connection) {
  char byte;
  return recv(connection, &byte, 1, MSG_DONTWAIT) < 0 && (errno == EAGAIN || errno == EWOULDBLOCK);
}

// Rank 0 listens on the loopback, where strangers of these tests find it.
[[maybe_unused]] inline const int on_loopback = setenv("NCCL_SOCKET_IFNAME", "lo", 1);

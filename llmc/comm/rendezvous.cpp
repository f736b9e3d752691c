#include "llmc/comm/rendezvous.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <random>
#include <sstream>
#include <thread>
#include <utility>
#include <vector>

#include "llmc/base/clock.h"
#include "llmc/base/error.h"

namespace {

namespace fs = std::filesystem;

constexpr const char* kCall = "llmc-call";      // llmc-call RUN
constexpr const char* kHello = "hello";         // hello RUN WORDS: the reply to that call; WORDS are in hexadecimal
constexpr const char* kAnswer = "llmc-answer";  // llmc-answer RUN, WORDS of each rank, end
constexpr const char* kHeard = "heard";         // heard RUN: confirms that the answer was read

// Returns 128 random bits, which no other rank or run has.
std::string random_number() {
  std::random_device device;
  return format("%08x%08x%08x%08x", device(), device(), device(), device());
}

std::string to_hex(const std::string& bytes) {
  std::string text = "-";  // never empty
  for (unsigned char c : bytes) text += format("%02x", c);
  return text;
}

std::string from_hex(const std::string& text) {
  std::string bytes;
  for (size_t i = 1; i + 1 < text.size(); i += 2) bytes += char(std::stoi(text.substr(i, 2), nullptr, 16));
  return bytes;
}

// Returns the words of a file, or nothing if the file does not exist.
std::vector<std::string> read_words(const std::string& path) {
  std::ifstream file(path);
  std::vector<std::string> words;
  for (std::string word; file >> word;) words.push_back(word);
  return words;
}

void write_whole(const std::string& path, const std::string& text) {
  const std::string partial = path + "." + random_number();
  const int descriptor = open(partial.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);  // it holds a secret
  FILE* file = descriptor < 0 ? nullptr : fdopen(descriptor, "w");
  REQUIRE_FILE(file, lost,
               "rendezvous: cannot write %s: %s\n  --rendezvous names a file in a directory that all ranks share",
               partial.c_str(), strerror(errno));
  const bool written = fputs(text.c_str(), file) >= 0;
  const bool closed = fclose(file) == 0;
  if (written && closed && rename(partial.c_str(), path.c_str()) == 0) return;
  const int error = errno;
  remove(partial.c_str());
  fail_as(code_of_file_error(error, ExitCode::lost), "rendezvous: cannot write %s: %s", path.c_str(), strerror(error));
}

std::string file_of(const std::string& path, int rank) { return path + ".rank" + std::to_string(rank); }

// The ranks that look at rank 0's file open it about so many times a second all together, and rank 0 opens theirs as
// often: thousands of ranks start on one file system, which others use, too.
constexpr double kLooksPerSecond = 400;

// Pauses between looks at files. With time the looks become rarer, down to one a second: who waits for a machine that
// is late starts a little later still.
class Looks {
 public:
  explicit Looks(double timeout_seconds) : timeout_seconds_(timeout_seconds) {}
  bool in_time() const { return waited() <= timeout_seconds_; }
  // The caller is one of `lookers`, and looks at one file of `files` at a time.
  void pause(double lookers, double files = 1) const {
    const double time = std::max(lookers / kLooksPerSecond, std::min(1., waited() / 20) / files);
    const double left = std::max(timeout_seconds_ - waited(), 0.);
    std::this_thread::sleep_for(std::chrono::duration<double>(std::min(time, left)));
  }

 private:
  double waited() const { return seconds() - begin_; }
  const double timeout_seconds_, begin_ = seconds();
};

// Looks at the files of ranks 1 to size - 1 in turn until `taken` has returned true for each of them. Returns those
// that are missing at the end of the time.
template <class F>
std::vector<int> look_at_all(const std::string& path, int size, double timeout_seconds, F&& taken) {
  std::vector<int> missing(static_cast<size_t>(size - 1));
  std::iota(missing.begin(), missing.end(), 1);
  const Looks looks(timeout_seconds);
  while (!missing.empty() && looks.in_time()) {
    const double files = double(missing.size());
    std::erase_if(missing, [&](int r) {
      const bool came = taken(r, read_words(file_of(path, r)));
      if (!came) looks.pause(1, files);
      return came;
    });
  }
  return missing;
}

std::vector<std::string> answer_all(const std::string& path, int size, const std::string& own, double timeout_seconds) {
  const std::string run = random_number();
  std::vector<std::string> words(static_cast<size_t>(size));  // in hexadecimal; empty until they arrive
  words[0] = to_hex(own);
  write_whole(path, format("%s %s\n", kCall, run.c_str()));
  std::vector<int> missing = look_at_all(path, size, timeout_seconds, [&](int r, const std::vector<std::string>& said) {
    if (said.size() != 3 || said[0] != kHello || said[1] != run) return false;
    words[size_t(r)] = said[2];
    return true;
  });
  if (missing.empty()) {
    std::string text = format("%s %s", kAnswer, run.c_str());
    for (const std::string& hex : words) text += " " + hex;
    write_whole(path, text + " end\n");
    missing = look_at_all(path, size, timeout_seconds, [&](int, const std::vector<std::string>& said) {
      return said == std::vector<std::string>{kHeard, run};
    });
  }
  std::error_code ignored;
  fs::remove(path, ignored);
  for (int r = 1; r < size; ++r) fs::remove(file_of(path, r), ignored);
  std::string names;
  for (const int r : missing) names += (names.empty() ? "" : ", ") + std::to_string(r);
  if (!missing.empty())
    fail_as(ExitCode::lost,
            "rendezvous at %s: of %d ranks, these did not come within %g s: %s\n"
            "  do they run, with the same --rendezvous file on a file system that all ranks share, and the same "
            "WORLD_SIZE?",
            path.c_str(), size, timeout_seconds, names.c_str());
  for (std::string& hex : words) hex = from_hex(hex);
  return words;
}

std::vector<std::string> ask(const std::string& path, int rank, int size, const std::string& own,
                             double timeout_seconds) {
  write_whole(file_of(path, rank), "here\n");
  std::string run;  // the run whose call this rank has answered
  std::vector<std::string> words;
  const auto look = [&] {
    const std::vector<std::string> said = read_words(path);
    if (said.size() == 2 && said[0] == kCall && said[1] != run) {
      run = said[1];
      write_whole(file_of(path, rank), format("%s %s %s\n", kHello, run.c_str(), to_hex(own).c_str()));
    }
    if (said.size() != size_t(size) + 3 || said[0] != kAnswer || said[1] != run || said.back() != "end") return false;
    for (size_t r = 0; r < size_t(size); ++r) words.push_back(from_hex(said[2 + r]));
    write_whole(file_of(path, rank), format("%s %s\n", kHeard, run.c_str()));
    return true;
  };
  const auto fail_as_late = [&] {
    std::error_code ignored;
    fs::remove(file_of(path, rank), ignored);
    fail_as(ExitCode::lost,
            "rendezvous at %s: rank %d of %d had no answer from rank 0 within %g s\n"
            "  do all ranks run, with the same --rendezvous file on a file system that they share, and the same "
            "WORLD_SIZE?",
            path.c_str(), rank, size, timeout_seconds);
  };
  const Looks looks(timeout_seconds);
  // Ranks that started together look at different times.
  double lookers = rank;
  while (!look()) {
    if (!looks.in_time()) fail_as_late();
    looks.pause(std::exchange(lookers, size));
  }
  return words;
}

}  // namespace

std::vector<std::string> rendezvous(const std::string& path, int rank, int size, const std::string& words,
                                    double timeout_seconds) {
  REQUIRE(!path.empty() && size >= 1 && rank >= 0 && rank < size, "rendezvous of rank %d of %d at '%s'", rank, size,
          path.c_str());
  if (size == 1) return {words};
  return rank ? ask(path, rank, size, words, timeout_seconds) : answer_all(path, size, words, timeout_seconds);
}

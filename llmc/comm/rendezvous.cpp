#include "llmc/comm/rendezvous.h"

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <sstream>
#include <thread>
#include <vector>

#include "llmc/base/clock.h"
#include "llmc/base/error.h"

namespace {

namespace fs = std::filesystem;

constexpr const char* kHello = "hello";           // hello NUMBER
constexpr const char* kHeard = "heard";           // heard NUMBER RUN: rank 0's answer of that run was read
constexpr const char* kAnswer = "llmc-answer-1";  // llmc-answer-1 RUN SIZE NUMBER... WORDS (in hexadecimal) end

// 128 random bits that no other rank or run has.
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

// The words of a file that may not be there.
std::vector<std::string> read_words(const std::string& path) {
  std::ifstream file(path);
  std::vector<std::string> words;
  for (std::string word; file >> word;) words.push_back(word);
  return words;
}

void write_whole(const std::string& path, const std::string& text) {
  const std::string beside = path + "." + random_number();
  FILE* file = fopen(beside.c_str(), "w");
  REQUIRE(file, "rendezvous: cannot write %s: %s\n  --rendezvous names a file in a directory that all ranks share",
          beside.c_str(), strerror(errno));
  const bool written = fputs(text.c_str(), file) >= 0;
  const bool closed = fclose(file) == 0;
  if (written && closed && rename(beside.c_str(), path.c_str()) == 0) return;
  const int error = errno;
  remove(beside.c_str());
  fail("rendezvous: cannot write %s: %s", path.c_str(), strerror(error));
}

std::string file_of(const std::string& path, int rank) { return path + ".rank" + std::to_string(rank); }

// Looks again and again until `found`, or until the deadline; false then.
template <class F>
bool poll(double timeout_seconds, F&& found) {
  const double deadline = seconds() + timeout_seconds;
  while (!found()) {
    if (seconds() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  return true;
}

void answer_all(const std::string& path, int size, const std::string& words, double timeout_seconds) {
  const std::string run = random_number();
  const size_t count = size_t(size);
  std::vector<std::string> numbers(count), answered;
  std::vector<bool> heard(count);
  const auto everybody_heard = [&] {
    bool all_came = true, all_heard = true;
    for (int r = 1; r < size; ++r) {
      if (heard[size_t(r)]) continue;
      const std::vector<std::string> said = read_words(file_of(path, r));
      if (said.size() == 2 && said[0] == kHello) numbers[size_t(r)] = said[1];
      heard[size_t(r)] = said.size() == 3 && said[0] == kHeard && said[2] == run;
      all_came &= !numbers[size_t(r)].empty();
      all_heard &= heard[size_t(r)];
    }
    if (all_came && !all_heard && numbers != answered) {
      std::string text = format("%s %s %d", kAnswer, run.c_str(), size);
      for (int r = 1; r < size; ++r) text += " " + numbers[size_t(r)];
      write_whole(path, text + " " + to_hex(words) + " end\n");
      answered = numbers;
    }
    return all_heard;
  };
  const bool all_heard = poll(timeout_seconds, everybody_heard);
  std::error_code ignored;
  fs::remove(path, ignored);
  for (int r = 1; r < size; ++r) fs::remove(file_of(path, r), ignored);
  if (all_heard) return;
  std::string missing;
  const bool all_came = answered.size() > 0;
  for (int r = 1; r < size; ++r)
    if (all_came ? !heard[size_t(r)] : numbers[size_t(r)].empty())
      missing += (missing.empty() ? "" : ", ") + std::to_string(r);
  fail(
      "rendezvous at %s: of %d ranks, these did not come within %g s: %s\n"
      "  do they run, with the same --rendezvous file on a file system that all ranks share, and the same WORLD_SIZE?",
      path.c_str(), size, timeout_seconds, missing.c_str());
}

std::string ask(const std::string& path, int rank, int size, double timeout_seconds) {
  const std::string number = random_number();
  write_whole(file_of(path, rank), format("%s %s\n", kHello, number.c_str()));
  std::string words;
  const bool answered = poll(timeout_seconds, [&] {
    const std::vector<std::string> said = read_words(path);
    if (said.size() != size_t(size) + 4 || said[0] != kAnswer || said[2] != std::to_string(size)) return false;
    if (said.back() != "end") return false;
    if (said[size_t(rank) + 2] != number) return false;  // an earlier run's, or to what an earlier run left
    words = from_hex(said[size_t(size) + 2]);
    write_whole(file_of(path, rank), format("%s %s %s\n", kHeard, number.c_str(), said[1].c_str()));
    return true;
  });
  if (answered) return words;
  std::error_code ignored;
  fs::remove(file_of(path, rank), ignored);
  fail(
      "rendezvous at %s: rank %d of %d had no answer from rank 0 within %g s\n"
      "  do all ranks run, with the same --rendezvous file on a file system that they share, and the same WORLD_SIZE?",
      path.c_str(), rank, size, timeout_seconds);
}

}  // namespace

std::string rendezvous(const std::string& path, int rank, int size, const std::string& words, double timeout_seconds) {
  REQUIRE(!path.empty() && size >= 1 && rank >= 0 && rank < size, "rendezvous of rank %d of %d at '%s'", rank, size,
          path.c_str());
  if (size == 1) return words;
  if (rank) return ask(path, rank, size, timeout_seconds);
  answer_all(path, size, words, timeout_seconds);
  return words;
}

// Covers: ranks without MPI find each other through a file, whatever an earlier run left there; NCCL starts with NVLS
// off, unless the user has asked for it
#include "llmc/comm/rendezvous.h"

#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <thread>
#include <vector>

#include "dev/test/test.h"
#include "llmc/comm/backends.h"

namespace fs = std::filesystem;

namespace {

struct Folder {
  fs::path path = fs::temp_directory_path() / ("llmc_rendezvous_" + std::to_string(getpid()));
  Folder() { fs::create_directory(path); }
  ~Folder() { fs::remove_all(path); }
  std::string file() const { return (path / "meet").string(); }
  size_t files() const { return size_t(std::distance(fs::directory_iterator(path), {})); }
  void leave(const std::string& name, const std::string& text) const { std::ofstream(path / name) << text; }
  std::string read(const std::string& name) const {
    std::ifstream file(path / name);
    return std::string(std::istreambuf_iterator<char>(file), {});
  }
};

void sleep_ms(int ms) { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); }

// Each rank's words, or its error; rank r comes after delays_ms[r].
std::vector<std::string> meet(const Folder& folder, const std::string& words, const std::vector<int>& delays_ms,
                              double timeout_seconds = 30) {
  const int size = int(delays_ms.size());
  std::vector<std::string> heard(delays_ms.size());
  std::vector<std::thread> threads;
  for (int r = 0; r < size; ++r)
    threads.emplace_back([&, r] {
      sleep_ms(delays_ms[size_t(r)]);
      try {
        heard[size_t(r)] = rendezvous(folder.file(), r, size, r ? "" : words, timeout_seconds);
      } catch (const Error& error) {
        heard[size_t(r)] = std::string("error: ") + error.what();
      }
    });
  for (std::thread& thread : threads) thread.join();
  return heard;
}

}  // namespace

TEST_CASE("all ranks get rank 0's words, whoever comes first, and leave no file") {
  const Folder folder;
  const std::string words("any bytes: \0\xff\n and a blank", 26);
  for (const std::vector<int>& delays : {std::vector<int>{0, 0, 0, 0}, {200, 0, 50, 100}, {0, 150, 80, 10}, {0}}) {
    CHECK(meet(folder, words, delays) == std::vector<std::string>(delays.size(), words));
    CHECK(folder.files() == 0);
  }
  CHECK(meet(folder, "", {0, 0}) == std::vector<std::string>{"", ""});
}

TEST_CASE("what an earlier run left is not taken for this one's") {
  const Folder folder;
  // An earlier run of 3 ranks died after rank 0 had answered: 1 had heard it, 2 had not.
  folder.leave("meet", "llmc-answer-1 oldrun 3 number1 number2 -6f6c64 end\n");  // "old"
  folder.leave("meet.rank1", "heard number1 oldrun\n");
  folder.leave("meet.rank2", "hello number2\n");
  SUBCASE("rank 0 comes first") { CHECK(meet(folder, "new", {0, 200, 300}) == std::vector<std::string>(3, "new")); }
  SUBCASE("rank 0 comes last") { CHECK(meet(folder, "new", {300, 0, 100}) == std::vector<std::string>(3, "new")); }
  SUBCASE("rank 0 answers the old greeting first") {
    CHECK(meet(folder, "new", {0, 0, 400}) == std::vector<std::string>(3, "new"));
  }
  SUBCASE("the earlier run had another size") {
    CHECK(meet(folder, "new", {200, 0}) == std::vector<std::string>(2, "new"));
  }
}

TEST_CASE("a half-written answer is not read") {
  const Folder folder;
  std::thread rank1([&] {
    CHECK(error_of([&] { rendezvous(folder.file(), 1, 2, "", 0.5); }).find("rank 1 of 2 had no answer from rank 0") !=
          std::string::npos);
  });
  while (!fs::exists(folder.path / "meet.rank1")) sleep_ms(1);
  const std::string number = folder.read("meet.rank1").substr(6, 32);
  folder.leave("meet", "llmc-answer-1 run 2 " + number + " -6f6c");
  rank1.join();
}

TEST_CASE("who does not come is named") {
  const Folder folder;
  const std::vector<std::string> heard = meet(folder, "x", {0, 0, 3000, 0, 3000}, 1);
  CHECK(heard[0].find("of 5 ranks, these did not come within 1 s: 2, 4\n") != std::string::npos);
  CHECK(heard[1].find("rank 1 of 5 had no answer from rank 0 within 1 s") != std::string::npos);
  CHECK(heard[4].find("rank 4 of 5 had no answer from rank 0 within 1 s") != std::string::npos);
  CHECK(folder.files() == 0);
}

TEST_CASE("a file that cannot be written is an error at once") {
  const std::string message = error_of([] { rendezvous("/nowhere/at/all", 1, 2, "", 30); });
  CHECK(message.find("cannot write /nowhere/at/all.rank1") != std::string::npos);
  CHECK(message.find("No such file or directory") != std::string::npos);
  CHECK(error_of([] { rendezvous("", 1, 2, "", 30); }) == "rendezvous of rank 1 of 2 at ''");
}

TEST_CASE("NCCL's sums keep their order unless the user gives it up") {
  unsetenv("NCCL_NVLS_ENABLE");
  const std::string kept = settle_order_of_sums();
  CHECK(std::string(getenv("NCCL_NVLS_ENABLE")) == "0");
  CHECK(kept.find("the same in each run") != std::string::npos);
  CHECK(settle_order_of_sums() == kept);
  for (const char* value : {"1", "2"}) {
    setenv("NCCL_NVLS_ENABLE", value, 1);
    const std::string given_up = settle_order_of_sums();
    CHECK(std::string(getenv("NCCL_NVLS_ENABLE")) == value);
    CHECK(given_up.find("may change from run to run") != std::string::npos);
    CHECK(given_up.find(std::string("NCCL_NVLS_ENABLE=") + value) != std::string::npos);
  }
  unsetenv("NCCL_NVLS_ENABLE");
}

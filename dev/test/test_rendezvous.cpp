// Covers: ranks without MPI find each other through a file, whatever an earlier run left there, and thousands of them
// open it some hundreds of times a second; which GPU a rank takes, and that no two take the same; how many ranks of a
// Slurm job are on a node; NCCL starts with NVLS off, unless the user has asked for it
#include "llmc/comm/rendezvous.h"

#include <sys/inotify.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <map>
#include <thread>
#include <vector>

#include "dev/test/test.h"
#include "dev/test/token_files.h"
#include "llmc/base/clock.h"
#include "llmc/comm/backends.h"
#include "llmc/comm/ranks.h"
#include "llmc/device/gpu_choice.h"

namespace {

// Returns the words that each of so many ranks must hear.
std::vector<std::string> all_of(const std::string& words, size_t size) {
  std::string all;
  for (size_t r = 0; r < size; ++r) all += words + std::to_string(r) + "|";
  return std::vector<std::string>(size, all);
}

void sleep_ms(int ms) { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); }

// Returns the words that each rank heard, joined by "|", or its error. Rank r comes after delays_ms[r] and says `words`
// and its number; one with a negative delay never comes.
std::vector<std::string> meet(const TemporaryFolder& folder, const std::string& words,
                              const std::vector<int>& delays_ms, double timeout_seconds = 30) {
  const int size = int(delays_ms.size());
  std::vector<std::string> heard(delays_ms.size());
  std::vector<std::thread> threads;
  for (int r = 0; r < size; ++r)
    if (delays_ms[size_t(r)] >= 0)
      threads.emplace_back([&, r] {
        sleep_ms(delays_ms[size_t(r)]);
        try {
          for (const std::string& said :
               rendezvous(folder / "meet", r, size, words + std::to_string(r), timeout_seconds))
            heard[size_t(r)] += said + "|";
        } catch (const Error& error) {
          heard[size_t(r)] = format("error %d: %s", int(error.exit_code), error.what());
        }
      });
  for (std::thread& thread : threads) thread.join();
  return heard;
}

// Counts how often each file of a folder is opened. The system reports equal events that follow each other once, so it
// also reports when a file is closed.
class Opens {
 public:
  explicit Opens(const std::string& folder) : events_(inotify_init1(IN_NONBLOCK | IN_CLOEXEC)) {
    REQUIRE(inotify_add_watch(events_, folder.c_str(), IN_OPEN | IN_CLOSE) >= 0, "no inotify");
  }
  ~Opens() { close(events_); }
  std::map<std::string, int> taken() const {
    std::map<std::string, int> opens;
    alignas(inotify_event) char bytes[4096];
    for (ssize_t n; (n = read(events_, bytes, sizeof bytes)) > 0;)
      for (const char* at = bytes; at < bytes + n;) {
        const auto* const event = reinterpret_cast<const inotify_event*>(at);
        if (event->len && event->mask & IN_OPEN) ++opens[event->name];
        at += sizeof *event + event->len;
      }
    return opens;
  }

 private:
  const int events_;
};

}  // namespace

TEST_CASE("all ranks get the words of all, whoever comes first, and leave no file") {
  const TemporaryFolder folder;
  const std::string words("any bytes: \0\xff\n and a blank", 26);
  for (const std::vector<int>& delays : {std::vector<int>{0, 0, 0, 0}, {70, 0, 20, 40}, {0, 50, 30, 10}, {0}}) {
    CHECK(meet(folder, words, delays) == all_of(words, delays.size()));
    CHECK(folder.count() == 0);
  }
  CHECK(rendezvous(folder / "meet", 0, 1, "", 30) == std::vector<std::string>{""});
}

TEST_CASE("nobody else can read what ranks tell each other") {
  const TemporaryFolder folder;
  const mode_t before = umask(022);
  const std::string call = folder / "meet";
  std::thread waits([&] {  // for a rank that comes when the file was looked at
    CHECK(rendezvous(call, 0, 2, "secret", 30).size() == 2);
  });
  struct stat status = {};
  while (stat(call.c_str(), &status) != 0) sleep_ms(1);
  CHECK((status.st_mode & 07777) == 0600);
  CHECK(rendezvous(call, 1, 2, "secret", 30).size() == 2);
  waits.join();
  umask(before);
}

TEST_CASE("what an earlier run left is not taken for this one's") {
  const TemporaryFolder folder;
  // An earlier run of 3 ranks died after rank 0 had called, or answered: 1 had heard it, 2 had not.
  bool answered = false;
  SUBCASE("a call") {}
  SUBCASE("an answer") { answered = true; }
  const auto leave = [&] {
    folder.write("meet",
                 answered ? "llmc-answer oldrun -6f6c64 -6f6c64 -6f6c64 end\n" : "llmc-call oldrun\n");  // "old"
    folder.write("meet.rank1", "heard oldrun\n");
    folder.write("meet.rank2", "hello oldrun -6f6c64\n");
  };
  for (const std::vector<int>& delays :
       {std::vector<int>{0, 70, 100}, {100, 0, 30}, {0, 0, 130}, {70, 0}}) {  // and two ranks, not three
    leave();
    CHECK(meet(folder, "new", delays) == all_of("new", delays.size()));
  }
}

TEST_CASE("a half-written answer is not read") {
  const TemporaryFolder folder;
  std::thread rank1([&] {
    says(error_of([&] { rendezvous(folder / "meet", 1, 2, "", 1.5); }), "rank 1 of 2 had no answer from rank 0");
  });
  folder.write("meet", "llmc-call run\n");
  while (folder.read("meet.rank1") != "hello run -\n") sleep_ms(1);
  folder.write("meet", "llmc-answer run -6f6c -6f6c");
  rank1.join();
}

TEST_CASE("who does not come is named") {
  const TemporaryFolder folder;
  const std::vector<std::string> heard = meet(folder, "x", {0, 0, -1, 0, -1}, 2);
  const std::string lost = format("error %d: ", int(ExitCode::lost));
  says(heard[0], lost, "of 5 ranks, these did not come within 2 s: 2, 4\n");
  for (const int r : {1, 3})
    says(heard[size_t(r)], lost, format("rank %d of 5 had no answer from rank 0 within 2 s", r));
  CHECK(folder.count() == 0);
}

TEST_CASE("thousands of ranks look at rank 0's file some hundreds of times a second, and so does rank 0 at theirs") {
  const TemporaryFolder folder;
  folder.write("meet", "llmc-call oldrun\n");
  const Opens opens(folder / "");
  error_of([&] { rendezvous(folder / "meet", 40, 4000, "", 1); });
  const int times = opens.taken()["meet"];  // at once, 0.1 s later, and at the end of the time
  CHECK((times >= 1 && times <= 3));
  for (int r = 1; r < 1000; ++r) folder.write("meet.rank" + std::to_string(r), "here\n");
  opens.taken();
  const double begin = seconds();
  error_of([&] { rendezvous(folder / "meet", 0, 1000, "", 1); });
  int looks = 0;
  for (const auto& [name, times] : opens.taken())
    if (name.size() <= strlen("meet.rank999")) looks += times;  // not a file that is being written
  CHECK(looks >= 999);                                          // the last look is one at all files
  CHECK(looks < 999 + 400 * (seconds() - begin));
}

TEST_CASE("a file that cannot be written is an error at once") {
  const std::string message = error_of([] { rendezvous("/nowhere/at/all", 1, 2, "", 30); });
  says(message, "cannot write /nowhere/at/all.rank1", "No such file or directory");
  CHECK(error_of([] { rendezvous("", 1, 2, "", 30); }) == "rendezvous of rank 1 of 2 at ''");
}

TEST_CASE("NCCL's sums keep their order unless the user gives it up") {
  unsetenv("NCCL_NVLS_ENABLE");
  const std::string kept = settle_order_of_sums();
  CHECK(std::string(getenv("NCCL_NVLS_ENABLE")) == "0");
  says(kept, "the same in each run");
  CHECK(settle_order_of_sums() == kept);
  for (const char* value : {"1", "2"}) {
    setenv("NCCL_NVLS_ENABLE", value, 1);
    const std::string given_up = settle_order_of_sums();
    CHECK(std::string(getenv("NCCL_NVLS_ENABLE")) == value);
    says(given_up, "may change from run to run", std::string("NCCL_NVLS_ENABLE=") + value);
  }
  unsetenv("NCCL_NVLS_ENABLE");
}

TEST_CASE("a rank takes the one GPU that its process sees, else that of its number") {
  for (int local_rank : {0, 1, 7}) CHECK(choose_gpu(1, local_rank) == 0);  // a GPU for each task, or two ranks on one
  for (int local_rank : {0, 1, 7}) CHECK(choose_gpu(8, local_rank) == local_rank);
  CHECK(choose_gpu(2, 1) == 1);
  const std::string message = error_of([] { choose_gpu(2, 2); });
  says(message, "more ranks than the 2 GPUs that a process sees\n", "--gpus 2", "mpirun -np 2");
}

TEST_CASE("ranks that took the same GPU are named, with it and the way out") {
  CHECK(shared_gpus({}).empty());
  CHECK(shared_gpus({{"a", "GPU-1"}, {"a", "GPU-2"}, {"b", "GPU-3"}}).empty());
  CHECK(shared_gpus({{"rank0", "GPU-1"}, {"rank1", "GPU-1"}}).empty());  // an NCCL_HOSTID each: a rehearsal
  CHECK(shared_gpus({{"a", ""}, {"a", ""}}).empty());                    // a driver that does not tell
  says(shared_gpus({{"a", "GPU-1"}, {"b", "GPU-2"}, {"a", "GPU-1"}, {"b", "GPU-2"}, {"a", "GPU-3"}, {"a", "GPU-1"}}),
       "ranks 0, 2, 5 of 6 take the same GPU, GPU-1 on host a\n",
       "\n  ranks 1, 3 of 6 take the same GPU, GPU-2 on host b\n", "srun --gpus-per-task=1", "CUDA_VISIBLE_DEVICES",
       "NCCL_HOSTID");
}

TEST_CASE("GPUs and machines have the names that nvidia-smi and NCCL give them") {
  const char zeroes[16] = {};
  CHECK(gpu_uuid_text(zeroes).empty());
  const char bytes[16] = {'\x8a', 0x6e, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, '\xff'};
  CHECK(gpu_uuid_text(bytes) == "GPU-8a6e0001-0203-0405-0607-08090a0b0cff");
  unsetenv("NCCL_HOSTID");
  char name[256] = "";
  gethostname(name, sizeof name);
  CHECK(host_of_this_rank() == name);
  setenv("NCCL_HOSTID", "rank7", 1);
  CHECK(host_of_this_rank() == "rank7");
  unsetenv("NCCL_HOSTID");
}

TEST_CASE("Slurm's lists of tasks per node") {
  const auto tasks = [](const char* list, int node) { return tasks_on_node("SLURM_STEP_TASKS_PER_NODE", list, node); };
  CHECK(tasks("8", 0) == 8);
  for (int node : {0, 1, 2}) CHECK(tasks("4(x2),3", node) == (node < 2 ? 4 : 3));
  for (int node : {0, 1, 9, 10, 11, 12}) CHECK(tasks("2,16(x10),1(x2)", node) == (node == 0 ? 2 : node < 11 ? 16 : 1));
  CHECK(error_of([&] { tasks("4(x2),3", 3); }) ==
        "SLURM_STEP_TASKS_PER_NODE=4(x2),3: a list of 3 nodes, but this is number 3, from 0 on");
  for (const char* list : {"", "x", "0", "-1", "4,", ",4", "4(x2", "4(x)", "4(x0)", "4(x-1)", "4(2)", "4 ,3", "4(x2)3",
                           "4;3", "99999999999", "4(x99999999999)"}) {
    CAPTURE(list);
    CHECK(error_of([&] { tasks(list, 5); }) ==
          format("SLURM_STEP_TASKS_PER_NODE=%s: expected a list of tasks per node, such as 4(x2),3", list));
  }
}

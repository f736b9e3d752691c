#include "llmc/comm/ranks.h"

#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <numeric>
#include <thread>
#include <vector>

#include "llmc/base/clock.h"
#include "llmc/base/error.h"
#include "llmc/base/printable.h"
#include "llmc/comm/launch.h"
#include "llmc/comm/mpi_check.h"
#include "llmc/comm/versions.h"

namespace {

// The environment variables with which a launcher gives each process its rank.
struct Launcher {
  const char* how;
  const char *rank, *size, *local_rank, *local_size;
  bool starts_mpi;  // MPI_Init finds the other ranks
  bool slurm;       // lists with the tasks of each node are also set
};
constexpr int kMostRanks = 1 << 20;

// The first launcher whose size variable is set is used.
constexpr Launcher kLaunchers[] = {
    {"started by --gpus", "LLMC_RANK", "LLMC_WORLD_SIZE", "LLMC_RANK", "LLMC_WORLD_SIZE", false, false},
    {"started by mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE", true, false},
    {"told by RANK, WORLD_SIZE and LOCAL_RANK", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", false, false},
    {"started by mpirun (MVAPICH)", "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_LOCAL_RANK",
     "MV2_COMM_WORLD_LOCAL_SIZE", true, false},
    {"started by mpirun (PMI)", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", true, false},
    {"started by srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_NTASKS_PER_NODE", false, true},
};

// Returns the integer in an environment variable. Throws if it is not set, not an integer, or outside
// [lowest, highest].
int number_in(const Launcher& launcher, const char* variable, int lowest, int highest) {
  const char* text = getenv(variable);
  REQUIRE(text, "%s=%s is set, but %s is not\n  a launcher sets %s, %s and %s, or none of them", launcher.size,
          getenv(launcher.size), variable, launcher.rank, launcher.size, launcher.local_rank);
  char* end;
  const long value = strtol(text, &end, 10);
  REQUIRE(*text && *end == 0 && value >= lowest && value <= highest, "%s=%s: expected a number from %d to %d", variable,
          text, lowest, highest);
  return int(value);
}

// Returns the number of ranks on this machine, or 0 if the launcher does not give it. Slurm's list for the step is read
// first, because SLURM_NTASKS_PER_NODE is a maximum, and may belong to a job whose step has fewer tasks.
int told_local_size(const Launcher& launcher, int local_rank, int size) {
  const auto in_list = [&](const char* variable) {
    const char* list = getenv(variable);
    if (!launcher.slurm || !list || !getenv("SLURM_NODEID")) return 0;
    const int told = tasks_on_node(variable, list, number_in(launcher, "SLURM_NODEID", 0, kMostRanks));
    REQUIRE(told > local_rank, "%s=%s: %d tasks on node %s, but %s=%d", variable, list, told, getenv("SLURM_NODEID"),
            launcher.local_rank, local_rank);
    return told;
  };
  int told = in_list("SLURM_STEP_TASKS_PER_NODE");
  if (!told && getenv(launcher.local_size))
    told = number_in(launcher, launcher.local_size, local_rank + 1, launcher.slurm ? kMostRanks : size);
  if (!told) told = in_list("SLURM_TASKS_PER_NODE");
  return std::min(told, size);
}

// Returns true if the launcher gives both the local rank and the local size.
bool read_local(Ranks& ranks, const Launcher& launcher) {
  if (!getenv(launcher.local_rank)) return false;
  ranks.local_rank = number_in(launcher, launcher.local_rank, 0, ranks.size - 1);
  ranks.local_size = told_local_size(launcher, ranks.local_rank, ranks.size);
  return ranks.local_size > 0;
}

// launch.h runs /proc/self/exe, whose name says nothing in a list of processes.
void become_launched(Ranks& ranks) {
  prctl(PR_SET_NAME, program_invocation_short_name);
  const char* const file = getenv("LLMC_RENDEZVOUS");
  REQUIRE(file, "LLMC_WORLD_SIZE is set, but LLMC_RENDEZVOUS is not\n  unset LLMC_WORLD_SIZE: --gpus sets both");
  ranks.rendezvous = file;
}

void read_environment(Ranks& ranks, const Launcher& launcher) {
  ranks.size = number_in(launcher, launcher.size, 1, kMostRanks);
  ranks.rank = number_in(launcher, launcher.rank, 0, ranks.size - 1);
  ranks.how = format("%s, without MPI", launcher.how);
  if (ranks.size == 1 && !getenv(launcher.local_rank)) return;
  number_in(launcher, launcher.local_rank, 0, ranks.size - 1);
  if (read_local(ranks, launcher)) return;
  ranks.local_size = ranks.size;
  if (ranks.size > 1)
    ranks.how += format("; %s is not set, so all ranks count as ranks of this machine", launcher.local_size);
}

}  // namespace

int tasks_on_node(const char* variable, const std::string& list, int node) {
  const auto wrong = [&] { fail("%s=%s: expected a list of tasks per node, such as 4(x2),3", variable, list.c_str()); };
  int nodes = 0;
  for (const char* at = list.c_str();; ++at) {
    char* end;
    const long tasks = strtol(at, &end, 10);
    if (!isdigit((unsigned char)*at) || tasks < 1 || tasks > kMostRanks) wrong();
    long times = 1;
    if (strncmp(end, "(x", 2) == 0) {
      at = end + 2, times = strtol(at, &end, 10);
      if (!isdigit((unsigned char)*at) || times < 1 || times > kMostRanks || *end++ != ')') wrong();
    }
    nodes += int(times);
    if (node < nodes) return int(tasks);
    if (!*end) break;
    if (*end != ',') wrong();
    at = end;
  }
  fail("%s=%s: a list of %d nodes, but this is number %d, from 0 on", variable, list.c_str(), nodes, node);
}

std::string Ranks::name() const { return format("rank %d of %d", rank, size); }

namespace {

// Returns "rank 2 of 4", "ranks 0, 1 of 4" or "all 4 ranks".
std::string names_of(const std::vector<int>& ranks, int size) {
  if (int(ranks.size()) == size) return format("all %d ranks", size);
  std::string text = ranks.size() == 1 ? "rank" : "ranks";
  for (size_t i = 0; i < ranks.size(); ++i) text += format("%s %d", i ? "," : "", ranks[i]);
  return text + format(" of %d", size);
}

}  // namespace

std::string joint_error(const std::map<int, std::string>& errors, int size) {
  std::map<std::string, std::vector<int>> by_text;
  for (const auto& [rank, text] : errors) by_text[text].push_back(rank);
  std::string all;
  for (const auto& [rank, text] : errors)
    if (const std::vector<int>& from = by_text[text]; from[0] == rank)
      all += (all.empty() ? "" : "\n") + ("error on " + names_of(from, size)) + ": " + text;
  return all;
}

// ---------------------------------------------------------------------------------------------- with MPI

#if LLMC_MPI

// Owns MPI from MPI_Init to MPI_Finalize.
class Ranks::Session {
 public:
  Session(int* argc, char*** argv) {
    // Waiting ranks yield their cores to those that compute.
    setenv("OMPI_MCA_mpi_yield_when_idle", "1", 0);
    int provided = 0;
    MPI_CHECK(MPI_Init_thread(argc, argv, MPI_THREAD_FUNNELED, &provided));
    // The process has other threads, though only this one calls MPI.
    REQUIRE(provided >= MPI_THREAD_FUNNELED,
            "MPI_Init_thread provides thread level %d: expected MPI_THREAD_FUNNELED (%d) or higher\n"
            "  this MPI allows no threads: build with another one (make doctor names it)",
            provided, MPI_THREAD_FUNNELED);
    MPI_CHECK(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN));
    MPI_CHECK(MPI_Comm_dup(MPI_COMM_WORLD, &words_));
  }
  ~Session() {
    if (std::uncaught_exceptions() > 0) return;  // after an error, the other ranks may never call MPI_Finalize
    MPI_Comm_free(&words_);
    MPI_Finalize();
  }

  static int size() {
    int size = 0;
    MPI_CHECK(MPI_Comm_size(MPI_COMM_WORLD, &size));
    return size;
  }

  static void describe(Ranks& ranks, const Launcher& launcher) {
    ranks.mpi = true;
    ranks.size = size();
    MPI_CHECK(MPI_Comm_rank(MPI_COMM_WORLD, &ranks.rank));
    int told = 0;  // 1: both given; 0: not; -1: a variable is wrong
    std::string trouble = "another rank has a wrong variable of its launcher: it says which";
    try {
      told = read_local(ranks, launcher);
    } catch (const Error& error) {
      told = -1, trouble = error.what();
    }
    // All ranks use the launcher's numbers, or none does.
    MPI_CHECK(MPI_Allreduce(MPI_IN_PLACE, &told, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD));
    REQUIRE(told >= 0, "%s", trouble.c_str());
    if (!told) {
      MPI_Comm machine;
      MPI_CHECK(MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, ranks.rank, MPI_INFO_NULL, &machine));
      MPI_CHECK(MPI_Comm_rank(machine, &ranks.local_rank));
      MPI_CHECK(MPI_Comm_size(machine, &ranks.local_size));
      MPI_CHECK(MPI_Comm_free(&machine));
    }
    ranks.how = format("%s, %s", launcher.how, mpi_version().c_str());
  }

  // Each failing rank sends its message to all lower ranks. A rank that learns of a lower failing rank lets that one
  // report. The lowest failing rank waits 0.5 s for messages of the others, prints all of them, and ends every rank.
  [[noreturn]] void end(const Ranks& ranks, const std::string& text, int code) {
    std::map<int, std::string> words{{ranks.rank, text}};
    std::vector<MPI_Request> requests;
    const auto send = [&](int to, int tag, const std::string& message) {
      MPI_Isend(message.data(), int(message.size()), MPI_CHAR, to, tag, words_, &requests.emplace_back());
    };
    for (int lower = 0; lower < ranks.rank; ++lower) send(lower, kWords, words.begin()->second);
    double deadline = seconds() + kMoment;
    while (seconds() < deadline && int(words.size()) < ranks.size) {
      int here = 0;
      MPI_Status status;
      while (MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, words_, &here, &status) == MPI_SUCCESS && here) {
        int bytes = 0;
        MPI_Get_count(&status, MPI_CHAR, &bytes);
        std::string message(size_t(bytes), '\0');
        MPI_Recv(message.data(), bytes, MPI_CHAR, status.MPI_SOURCE, status.MPI_TAG, words_, MPI_STATUS_IGNORE);
        if (status.MPI_TAG == kWords) {
          words[status.MPI_SOURCE] = message;
          send(status.MPI_SOURCE, kHeard, kNothing);
        } else {
          deadline = seconds() + kPatience;  // a lower rank reports and ends this one; if it does not, this one does
        }
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    print_error(joint_error(words, ranks.size));
    // The abort of some MPIs runs the exit handlers, which may hang.
    const Deadline in_any_case(kPatience, "", ExitCode(code));
    MPI_Abort(MPI_COMM_WORLD, code);
    _exit(code);
  }

 private:
  static constexpr int kWords = 1, kHeard = 2;
  static constexpr double kMoment = 0.5, kPatience = 10;  // seconds
  const std::string kNothing;
  MPI_Comm words_ = MPI_COMM_NULL;
};

std::string Ranks::from_rank_0(const std::string& words) const {
  if (size == 1) return words;
  REQUIRE(mpi, "Ranks::from_rank_0 of %zu bytes: no MPI connects these %d ranks", words.size(), size);
  constexpr int kFromRank0 = 7;
  if (rank == 0) {
    std::vector<MPI_Request> requests(static_cast<size_t>(size), MPI_REQUEST_NULL);
    for (int r = 1; r < size; ++r)
      MPI_CHECK(
          MPI_Isend(words.data(), int(words.size()), MPI_CHAR, r, kFromRank0, MPI_COMM_WORLD, &requests[size_t(r)]));
    MPI_CHECK(MPI_Waitall(size, requests.data(), MPI_STATUSES_IGNORE));
    return words;
  }
  MPI_Status status;
  int bytes = 0;
  MPI_CHECK(MPI_Probe(0, kFromRank0, MPI_COMM_WORLD, &status));
  MPI_CHECK(MPI_Get_count(&status, MPI_CHAR, &bytes));
  std::string heard(size_t(bytes), '\0');
  MPI_CHECK(MPI_Recv(heard.data(), bytes, MPI_CHAR, 0, kFromRank0, MPI_COMM_WORLD, MPI_STATUS_IGNORE));
  return heard;
}

std::vector<std::string> Ranks::all_gather(const std::string& words) const {
  if (size == 1) return {words};
  REQUIRE(mpi, "Ranks::all_gather of %zu bytes: no MPI connects these %d ranks\n  use the communicator's", words.size(),
          size);
  std::vector<int> bytes(static_cast<size_t>(size)), begin(bytes.size());
  const int mine = int(words.size());
  MPI_CHECK(MPI_Allgather(&mine, 1, MPI_INT, bytes.data(), 1, MPI_INT, MPI_COMM_WORLD));
  std::partial_sum(bytes.begin(), bytes.end() - 1, begin.begin() + 1);
  std::string all(size_t(begin.back() + bytes.back()), '\0');
  MPI_CHECK(
      MPI_Allgatherv(words.data(), mine, MPI_CHAR, all.data(), bytes.data(), begin.data(), MPI_CHAR, MPI_COMM_WORLD));
  std::vector<std::string> heard;
  for (size_t r = 0; r < bytes.size(); ++r) heard.push_back(all.substr(size_t(begin[r]), size_t(bytes[r])));
  return heard;
}

// ---------------------------------------------------------------------------------------------- without MPI

#else

class Ranks::Session {};

std::string Ranks::from_rank_0(const std::string& words) const {
  REQUIRE(size == 1, "Ranks::from_rank_0 of %zu bytes: no MPI connects these %d ranks", words.size(), size);
  return words;
}

std::vector<std::string> Ranks::all_gather(const std::string& words) const {
  REQUIRE(size == 1, "Ranks::all_gather of %zu bytes: no MPI connects these %d ranks", words.size(), size);
  return {words};
}

#endif

// ---------------------------------------------------------------------------------------------- start and end

Ranks::Ranks() = default;
Ranks::~Ranks() { finish(); }
Ranks::Ranks(Ranks&&) noexcept = default;
Ranks& Ranks::operator=(Ranks&&) noexcept = default;

Ranks Ranks::start([[maybe_unused]] int* argc, [[maybe_unused]] char*** argv) {
  Ranks ranks;
  const Launcher* deaf = nullptr;  // a launcher that told the number of ranks, but no way to reach them
  for (const Launcher& launcher : kLaunchers) {
    if (!getenv(launcher.size)) continue;
    [[maybe_unused]] const bool starts_mpi = launcher.starts_mpi || getenv("PMIX_RANK");
#if LLMC_MPI
    if (starts_mpi) {
      auto session = std::make_unique<Session>(argc, argv);
      if (Session::size() == number_in(launcher, launcher.size, 1, kMostRanks)) {
        Session::describe(ranks, launcher);
        ranks.session_ = std::move(session);
        return ranks;
      }
      // MPI does not support this launcher and sees only one rank. The launcher's numbers are then used without MPI.
    }
#endif
    // srun gives the local rank in its own variables, which come later in the list.
    if (launcher.starts_mpi && !getenv(launcher.local_rank)) {
      deaf = &launcher;
      continue;
    }
    read_environment(ranks, launcher);
    if (&launcher == kLaunchers) become_launched(ranks);
    return ranks;
  }
  REQUIRE(
      !deaf || number_in(*deaf, deaf->size, 1, kMostRanks) == 1,
      "%s=%s, but MPI does not see the other ranks: it was built for another launcher\n"
      "  start with the mpirun of the MPI in this build (make doctor names it), or set RANK, WORLD_SIZE, LOCAL_RANK",
      deaf->size, getenv(deaf->size));
  REQUIRE(!getenv("RANK"), "RANK=%s is set, but WORLD_SIZE is not\n  set RANK, WORLD_SIZE and LOCAL_RANK, or none",
          getenv("RANK"));
  return ranks;
}

int Ranks::launcher_size() {
  for (const Launcher& launcher : kLaunchers)
    if (const char* size = getenv(launcher.size)) return atoi(size);
  return 0;
}

void Ranks::finish() noexcept { session_.reset(); }

void end_all_ranks(Ranks& ranks, const std::exception& error) {
  const ExitCode code = exit_code_of(error);
  fflush(stdout);
#if LLMC_MPI
  if (ranks.session_ && ranks.size > 1) ranks.session_->end(ranks, error.what(), int(code));
#endif
  if (send_error_to_launcher(ranks, error.what(), int(code))) end_now("", code);
  end_now((ranks.size > 1 ? "error on " + ranks.name() : "error") + ": " + error.what(), code);
}

void end_now(const std::string& error, ExitCode code) {
  if (!error.empty()) print_error(error);
  _exit(int(code));
}

struct Deadline::State {
  std::mutex mutex;
  std::condition_variable changed;
  bool met = false;
};

Deadline::Deadline(double seconds, std::string error, ExitCode code) : state_(std::make_shared<State>()) {
  std::thread([state = state_, seconds, error = std::move(error), code] {
    std::unique_lock lock(state->mutex);
    if (!state->changed.wait_for(lock, std::chrono::duration<double>(seconds), [&] { return state->met; }))
      end_now(error, code);
  }).detach();
}
Deadline::~Deadline() {
  const std::lock_guard lock(state_->mutex);
  state_->met = true;
  state_->changed.notify_all();
}

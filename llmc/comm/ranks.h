// This process's rank among those that train together, and how all of them end when one fails.
//
//   int main(int argc, char** argv) {
//     Ranks ranks;
//     try {
//       ranks = Ranks::start(&argc, &argv);
//       ...
//     } catch (const std::exception& error) {
//       end_all_ranks(ranks, error);
//     }
//     ranks.finish();
//   }
//
// Ranks are started by mpirun (also by srun with PMI or PMIx), or by RANK, WORLD_SIZE and LOCAL_RANK in the
// environment. torchrun sets these; srun's SLURM_PROCID, SLURM_STEP_NUM_TASKS and SLURM_LOCALID work too. launch.h
// starts the ranks of one machine. Without any of these there is one rank, and MPI is not initialized, because that
// takes half a second and may print warnings.
#pragma once

#include <exception>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "llmc/base/exit_code.h"

struct Ranks;

// Prints the error to stderr and ends this rank and all others with its exit code. If MPI connects the ranks, an error
// that several ranks have (for example a wrong option) is printed once, by the lowest of them, with the list of those
// ranks; so it is for the ranks of launch.h. Other ranks without MPI each print their own error, and their launcher
// ends the others.
//
// No destructor and no exit handler runs after this, because those of a failed CUDA, NCCL or MPI may wait forever.
[[noreturn]] void end_all_ranks(Ranks& ranks, const std::exception& error);

// Returns the errors of ranks of `size` as one text, in which an error that several ranks have stands once, with the
// list of those ranks.
std::string joint_error(const std::map<int, std::string>& errors, int size);

// Prints the error with one write and ends this process at once, whatever its other threads do. The launcher ends the
// other ranks.
[[noreturn]] void end_now(const std::string& error, ExitCode code = ExitCode::lost);

// Unless it is destroyed before, prints `error` (if it is not empty) after `seconds` and ends this process. For calls
// that may hang.
class Deadline {
 public:
  Deadline(double seconds, std::string error, ExitCode code = ExitCode::lost);
  ~Deadline();
  Deadline(const Deadline&) = delete;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

// Slurm gives the number of tasks on each node as a list: 4(x2),3 means 4, 4 and 3. Returns the tasks of node number
// `node`, which counts from 0. Throws, with the name of the variable that held the list, if the list is malformed or
// has no such node.
int tasks_on_node(const char* variable, const std::string& list, int node);

struct Ranks {
  int rank = 0, size = 1;
  // On this machine. If nothing tells how many ranks it has, `local_size` is `size`, and `how` says so.
  int local_rank = 0, local_size = 1;
  bool mpi = false;                      // MPI runs and connects the ranks
  std::string how = "no launcher seen";  // "started by mpirun (Open MPI v4.1.4)", for the banner
  std::string rendezvous;                // the file through which the ranks of launch.h meet; "" for others

  Ranks();
  ~Ranks();  // calls finish(), which leaves MPI running while an error is being thrown
  Ranks(Ranks&&) noexcept;
  Ranks& operator=(Ranks&&) noexcept;

  // Reads the environment and starts MPI if needed. Throws if the environment gives an impossible rank.
  static Ranks start(int* argc = nullptr, char*** argv = nullptr);

  // Returns how many ranks the launcher that started this process tells of; 0 if there is none.
  static int launcher_size();

  // Every rank calls this at its end. It waits for the other ranks, then ends MPI.
  void finish() noexcept;

  // Returns "rank 2 of 4"
  std::string name() const;

  // Returns the words of rank 0 on every rank. They come from rank 0 directly: a lost rank keeps no other one waiting.
  // Throws unless MPI connects the ranks or there is only one.
  std::string from_rank_0(const std::string& words) const;

  // Returns the `words` of every rank, in rank order, on every rank. Throws unless MPI connects the ranks or there is
  // only one.
  std::vector<std::string> all_gather(const std::string& words) const;

 private:
  class Session;
  std::unique_ptr<Session> session_;
  friend void end_all_ranks(Ranks& ranks, const std::exception& error);
};

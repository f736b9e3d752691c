// Who am I among the processes that train together, and how all of them end when one fails.
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
// Ranks are started by mpirun (also srun with PMI or PMIx), or by RANK, WORLD_SIZE and LOCAL_RANK in the environment
// (torchrun sets them; srun's own SLURM_PROCID, SLURM_STEP_NUM_TASKS and SLURM_LOCALID do too). Without either there is
// one rank, and MPI is not initialised: that takes half a second and may print warnings.
#pragma once

#include <exception>
#include <memory>
#include <string>
#include <vector>

struct Ranks;

// Prints the error to stderr and ends this rank and all others with this exit code. Where MPI connects the
// ranks, an error that several of them have (a wrong option, say) is printed once, by the lowest of them, with the
// ranks that it is from. Ranks without MPI each print theirs; their launcher ends the others.
//
// No destructor and no exit handler runs any more: those of a CUDA, NCCL or MPI that has failed may wait for ever.
[[noreturn]] void end_all_ranks(Ranks& ranks, const std::exception& error, int code = 1);

// For an error that is on its way to end_all_ranks through calls that may hang: unless the process ends before, it
// prints `error` (unless that is empty) and ends with this code after so many seconds.
void end_within(double seconds, const std::string& error, int code = 1);

// Slurm tells the tasks of its nodes in a list: 4(x2),3 means 4, 4 and 3. Returns those of the node with this number,
// from 0 on; throws, with the variable that held the list, where it is no such list or has no such node.
int tasks_on_node(const char* variable, const std::string& list, int node);

struct Ranks {
  int rank = 0, size = 1;
  // On this machine. Where nobody tells how many ranks it has, `local_size` is `size`, and `how` says so.
  int local_rank = 0, local_size = 1;
  bool mpi = false;                      // MPI runs and connects the ranks
  std::string how = "no launcher seen";  // "started by mpirun (Open MPI v4.1.4)", for the banner

  Ranks();
  ~Ranks();  // finishes, if nobody did and no error is under way
  Ranks(Ranks&&) noexcept;
  Ranks& operator=(Ranks&&) noexcept;

  // Throws when the environment names a rank that cannot be.
  static Ranks start(int* argc = nullptr, char*** argv = nullptr);

  // All ranks come here at their end: waits for the others, then ends MPI.
  void finish() noexcept;

  // "rank 2 of 4"
  std::string name() const;

  // The words of each rank, on every rank; for ranks that MPI connects, or one alone.
  std::vector<std::string> all_gather(const std::string& words) const;

 private:
  class Session;
  std::unique_ptr<Session> session_;
  friend void end_all_ranks(Ranks& ranks, const std::exception& error, int code);
};

// Gives the readers of files from strangers sound inputs with changes of their structure, and says which of them end a
// reader otherwise than with success or an Error, take more than 1 GiB of memory, or more than 20 s of a processor.
//
//   fuzz_readers [--seed N] [--count N] [--only READER] [--number N] [--keep DIR]
//
// Each input has a number, by which the readers take turns. --seed (1) and the number decide all of it: --number 17
// makes and reads that one again, in this process, for a debugger. --keep DIR keeps the files of faulty inputs. Build
// it with SANITIZE=address: without it, only the address space is limited, and reads beyond a buffer go unseen.
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <ctime>
#include <map>
#include <new>
#include <typeinfo>

#include "dev/test/fuzz_inputs.h"
#include "llmc/base/clock.h"
#include "llmc/base/printable.h"
#include "llmc/base/text.h"

#ifdef __SANITIZE_ADDRESS__  // whose headers are not installed with every compiler
extern "C" int __sanitizer_install_malloc_and_free_hooks(void (*)(const volatile void*, size_t),
                                                         void (*)(const volatile void*));
extern "C" size_t __sanitizer_get_allocated_size(const volatile void*);
#endif

namespace fs = std::filesystem;

namespace {

constexpr size_t kMostMemory = size_t(1) << 30;  // bytes beyond what the process has before
constexpr double kMostSeconds = 20;              // of a processor: ten times what the slowest sound input takes
constexpr size_t kMostMessage = 4000;            // bytes beyond those of the input
constexpr int kBatch = 500;                      // inputs of a process

enum Outcome : int { running, accepted, refused, faulty };

// A process that reads inputs tells its parent this.
struct Progress {
  std::atomic<int64_t> number;
  std::atomic<int64_t> began;  // processor time of the process in microseconds, when this input began
  std::atomic<size_t> most_memory, outcomes[4];
  char fault[400];
};

struct Arguments {
  uint64_t seed = 1;
  int64_t count = 1000, number = -1;
  std::string only, keep;
};

int64_t own_microseconds() { return int64_t(clock()) * 1'000'000 / CLOCKS_PER_SEC; }

// ---------------------------------------------------------------------------------------------- memory

std::atomic<int64_t> memory{0}, memory_peak{0};

#ifdef __SANITIZE_ADDRESS__
void count_allocation(const volatile void* pointer, size_t) {
  const auto now = memory += int64_t(__sanitizer_get_allocated_size(pointer));
  if (now > memory_peak) memory_peak = now;
  if (now <= int64_t(kMostMemory)) return;
  memory = INT64_MIN / 2;  // the report allocates, too
  fputs("more than 1 GiB of memory\n", stderr);
  abort();
}
void count_free(const volatile void* pointer) {
  if (pointer) memory -= int64_t(__sanitizer_get_allocated_size(pointer));
}
void limit_memory() { __sanitizer_install_malloc_and_free_hooks(count_allocation, count_free); }
#else
void limit_memory() {
  size_t pages = 0;
  if (FILE* file = fopen("/proc/self/statm", "r")) {
    if (fscanf(file, "%zu", &pages) != 1) pages = 0;
    fclose(file);
  }
  const rlimit limit{pages * size_t(getpagesize()) + kMostMemory, RLIM_INFINITY};
  setrlimit(RLIMIT_AS, &limit);
}
#endif

// ---------------------------------------------------------------------------------------------- one input

const fuzz::Reader& reader_of(int64_t number, const std::string& only) {
  for (const fuzz::Reader& reader : fuzz::kReaders)
    if (only == reader.name) return reader;
  REQUIRE(only.empty(), "--only %s: no reader has this name", only.c_str());
  return fuzz::kReaders[size_t(number) % std::size(fuzz::kReaders)];
}

// The bytes of all files of the folder.
size_t bytes_in(const std::string& folder) {
  size_t bytes = 0;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder))
    if (fs::is_regular_file(entry.symlink_status())) bytes += entry.file_size();
  return bytes;
}

// Makes and reads an input. `fault` is set if it ends otherwise than with success or an Error.
Outcome try_input(const Arguments& arguments, int64_t number, const std::string& folder, std::string& fault) {
  fs::remove_all(folder);
  fs::create_directories(folder);
  Chance chance(arguments.seed, uint64_t(number));
  const fuzz::Reader& reader = reader_of(number, arguments.only);
  reader.make(chance, folder);
  const size_t bytes = bytes_in(folder);
  memory = memory_peak = 0;
  try {
    reader.read(folder);
    return accepted;
  } catch (const Error& error) {
    const std::string text = error.what();
    if (text.size() > bytes + kMostMessage) fault = format("a message of %zu bytes about %zu", text.size(), bytes);
    if (text.empty()) fault = "an empty message";
    if (arguments.number >= 0) printf("%s\n", printable_message(text).c_str());
  } catch (const std::exception& error) {
    fault = format("%s: %s", typeid(error).name(), error.what());
  }
  return fault.empty() ? refused : faulty;
}

// Reads inputs number … end-1 in this process, and ends it after the first fault.
[[noreturn]] void read_batch(const Arguments& arguments, int64_t end, const std::string& folder, Progress& progress) {
  limit_memory();
  while (progress.number < end) {
    progress.began = own_microseconds();
    std::string fault;
    const Outcome outcome = try_input(arguments, progress.number, folder, fault);
    if (memory_peak > int64_t(progress.most_memory)) progress.most_memory = size_t(memory_peak);
    snprintf(progress.fault, sizeof progress.fault, "%s", fault.c_str());
    if (outcome == faulty) _exit(1);
    ++progress.outcomes[outcome];
    ++progress.number;
  }
  _exit(0);
}

// ---------------------------------------------------------------------------------------------- all inputs

// Waits for the process. Returns what was wrong with the input that it ended at; empty: it came to its end.
std::string wait_for(pid_t process, const Progress& progress) {
  clockid_t its_clock;
  const bool has_clock = clock_getcpuclockid(process, &its_clock) == 0;
  bool late = false;
  for (int status = 0;; usleep(5000)) {
    if (waitpid(process, &status, WNOHANG) == process) {
      if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return "";
      if (late) return format("takes more than %.0f s", kMostSeconds);
      if (WIFEXITED(status) && WEXITSTATUS(status) == 1 && progress.fault[0]) return progress.fault;
      return WIFSIGNALED(status) ? format("ends by signal %d", WTERMSIG(status))
                                 : format("ends with code %d: the report stands above", WEXITSTATUS(status));
    }
    timespec now{};
    if (!has_clock || clock_gettime(its_clock, &now) != 0) continue;
    const int64_t took = now.tv_sec * 1'000'000 + now.tv_nsec / 1000 - progress.began;
    if (!late && double(took) * 1e-6 > kMostSeconds) late = kill(process, SIGKILL) == 0;
  }
}

int try_all(const Arguments& arguments) {
  const TemporaryFolder folder;
  auto* progress =
      new (mmap(nullptr, sizeof(Progress), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0)) Progress{};
  int64_t faults = 0;
  const double begin = seconds();
  while (progress->number < arguments.count) {
    const int64_t end = std::min(arguments.count, int64_t(progress->number) + kBatch);
    fflush(stdout);
    progress->began = 0;
    const pid_t process = fork();
    REQUIRE(process >= 0, "cannot start a process");
    if (process == 0) read_batch(arguments, end, folder / "input", *progress);
    const std::string fault = wait_for(process, *progress);
    if (fault.empty()) continue;
    ++faults;
    const int64_t number = progress->number++;
    printf("FAULT: %s of --seed %llu --number %lld: %s\n", reader_of(number, arguments.only).name,
           (unsigned long long)arguments.seed, (long long)number, printable_message(fault).c_str());
    if (arguments.keep.empty()) continue;
    const std::string kept =
        format("%s/%s-%lld", arguments.keep.c_str(), reader_of(number, arguments.only).name, (long long)number);
    fs::create_directories(arguments.keep);
    fs::copy(folder / "input", kept,
             fs::copy_options::recursive | fs::copy_options::overwrite_existing | fs::copy_options::copy_symlinks);
  }
  printf("seed %llu: %lld inputs in %.0f s: %zu accepted, %zu refused, %lld faults; at most %s of memory\n",
         (unsigned long long)arguments.seed, (long long)arguments.count, seconds() - begin,
         size_t(progress->outcomes[accepted]), size_t(progress->outcomes[refused]), (long long)faults,
         human_bytes(progress->most_memory).c_str());
  return faults > 0;
}

Arguments arguments_of(const std::vector<std::string>& words) {
  Arguments arguments;
  for (size_t i = 0; i < words.size(); i += 2) {
    REQUIRE(i + 1 < words.size(), "%s needs a value", words[i].c_str());
    const std::string& value = words[i + 1];
    if (words[i] == "--seed") arguments.seed = std::stoull(value);
    else if (words[i] == "--count") arguments.count = std::stoll(value);
    else if (words[i] == "--number") arguments.number = std::stoll(value);
    else if (words[i] == "--only") arguments.only = value;
    else if (words[i] == "--keep") arguments.keep = value;
    else fail("%s: expected --seed, --count, --only, --number or --keep", words[i].c_str());
  }
  return arguments;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const Arguments arguments = arguments_of(std::vector<std::string>(argv + 1, argv + argc));
    if (arguments.number < 0) return try_all(arguments);
    const TemporaryFolder folder;
    std::string fault;
    const Outcome outcome = try_input(arguments, arguments.number, folder / "input", fault);
    printf("%s\n", outcome == accepted ? "accepted" : outcome == refused ? "refused" : fault.c_str());
    return outcome == faulty;
  } catch (const std::exception& error) {
    fprintf(stderr, "%s\n", error.what());
    return 2;
  }
}

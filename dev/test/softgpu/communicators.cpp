// Communicators of NCCL that do not block, on two processes:  communicators
//
// Rank 0 goes ahead and looks at what its calls return while rank 1 has not come. The expectations are those of the
// documentation of ncclConfig_t::blocking, ncclCommGetAsyncError, ncclCommFinalize and ncclCommAbort.
#include <cuda_runtime.h>
#include <nccl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

namespace {

int rank_here = 0, failed = 0;
int pipes[2][2];  // into which each rank writes

void say(const ncclUniqueId& id) {
  if (write(pipes[rank_here][1], &id, sizeof id) != ssize_t(sizeof id)) exit(2);
}
ncclUniqueId hear() {
  ncclUniqueId id;
  if (read(pipes[1 - rank_here][0], &id, sizeof id) != ssize_t(sizeof id)) exit(2);
  return id;
}
// Rank 1 goes on when rank 0 has come here.
void let_rank_1_go_on() {
  if (rank_here == 0) say({});
  else hear();
}

void expect(const char* what, int got, int wanted) {
  if (got == wanted) return;
  printf("FAIL  rank %d: %s: %d, expected %d\n", rank_here, what, got, wanted);
  ++failed;
}
void sleep_ms(int milliseconds) { std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds)); }
ncclResult_t state(ncclComm_t comm) {
  ncclResult_t result = ncclInternalError;
  expect("ncclCommGetAsyncError", ncclCommGetAsyncError(comm, &result), ncclSuccess);
  return result;
}
// Waits until a call that returned ncclInProgress is complete, 10 s at most, and returns its result.
ncclResult_t end_of_call(ncclComm_t comm) {
  for (int i = 0; i < 10000; ++i) {
    if (const ncclResult_t result = state(comm); result != ncclInProgress) return result;
    sleep_ms(1);
  }
  return ncclInProgress;
}

// Rank 0 makes the communicator's name. Rank 1 comes when rank 0 has said so once more.
ncclComm_t begin_communicator() {
  ncclUniqueId id;
  if (rank_here == 0) ncclGetUniqueId(&id), say(id);
  else id = hear(), hear();
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  ncclComm_t comm = nullptr;
  expect("ncclCommInitRankConfig", ncclCommInitRankConfig(&comm, 2, id, rank_here, &config), ncclInProgress);
  return comm;
}
ncclComm_t communicator() {
  const ncclComm_t comm = begin_communicator();
  if (rank_here == 0) say({});
  expect("the start of a communicator", end_of_call(comm), ncclSuccess);
  return comm;
}

constexpr size_t kCount = 64;
float* numbers(float value) {
  float* p = nullptr;
  const std::vector<float> host(kCount, value);
  cudaMalloc(reinterpret_cast<void**>(&p), kCount * sizeof(float));
  cudaMemcpyAsync(p, host.data(), kCount * sizeof(float), cudaMemcpyDefault, nullptr);
  return p;
}
ncclResult_t all_reduce(float* p, ncclComm_t comm) {
  const ncclResult_t result = ncclAllReduce(p, p, kCount, ncclFloat32, ncclSum, comm, nullptr);
  return result == ncclInProgress ? end_of_call(comm) : result;
}
cudaEvent_t recorded() {
  cudaEvent_t event;
  cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
  cudaEventRecord(event, nullptr);
  return event;
}

void start_and_sum() {
  const ncclComm_t comm = begin_communicator();
  if (rank_here == 0) {
    sleep_ms(100);
    expect("the start of a communicator whose rank 1 has not come", state(comm), ncclInProgress);
    float* const p = numbers(0);
    expect("a collective before the start is complete",
           ncclAllReduce(p, p, kCount, ncclFloat32, ncclSum, comm, nullptr), ncclInvalidArgument);
    say({});
  }
  expect("the start", end_of_call(comm), ncclSuccess);
  float *const p = numbers(float(1 + rank_here)), host[kCount];
  expect("ncclAllReduce", all_reduce(p, comm), ncclSuccess);
  cudaMemcpyAsync(host, p, sizeof host, cudaMemcpyDefault, nullptr);
  for (const float x : host) expect("the sum of 1 and 2", int(x), 3);
  expect("ncclCommDestroy", ncclCommDestroy(comm), ncclSuccess);
}

void finalize() {
  const ncclComm_t comm = communicator();
  if (rank_here == 1) hear();
  expect("ncclAllReduce", all_reduce(numbers(1), comm), ncclSuccess);
  expect("ncclCommFinalize", ncclCommFinalize(comm), ncclInProgress);
  if (rank_here == 0) {
    sleep_ms(100);
    expect("ncclCommFinalize while a collective waits for rank 1", state(comm), ncclInProgress);
    say({});
  }
  expect("the end of ncclCommFinalize", end_of_call(comm), ncclSuccess);
  expect("ncclCommDestroy", ncclCommDestroy(comm), ncclSuccess);
}

void abort_a_collective() {
  const ncclComm_t comm = communicator();
  if (rank_here == 0) {
    expect("ncclAllReduce", all_reduce(numbers(1), comm), ncclSuccess);
    const cudaEvent_t event = recorded();
    sleep_ms(100);
    expect("a collective to which rank 1 never comes", cudaEventQuery(event), cudaErrorNotReady);
    expect("ncclCommAbort", ncclCommAbort(comm), ncclSuccess);
    expect("the collective after ncclCommAbort", cudaEventQuery(event), cudaSuccess);
  }
  let_rank_1_go_on();
}

void abort_the_start() {
  if (rank_here == 0) {
    ncclUniqueId id;
    ncclGetUniqueId(&id);
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    ncclComm_t comm = nullptr;
    expect("ncclCommInitRankConfig", ncclCommInitRankConfig(&comm, 2, id, 0, &config), ncclInProgress);
    expect("ncclCommAbort of a start", ncclCommAbort(comm), ncclSuccess);
  }
  let_rank_1_go_on();
}

}  // namespace

int main() {
  setvbuf(stdout, nullptr, _IONBF, 0);
  if (pipe(pipes[0]) || pipe(pipes[1])) return 2;
  const pid_t child = fork();
  rank_here = child == 0;
  for (const auto& test : {start_and_sum, finalize, abort_a_collective, abort_the_start}) test();
  int status = 0;
  if (child && (waitpid(child, &status, 0) != child || status)) ++failed;
  if (child) printf("%s\n", failed ? "failed" : "communicators that do not block: as documented");
  return failed != 0;
}

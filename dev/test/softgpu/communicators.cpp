// Communicators of NCCL that do not block, and messages, on two processes:
//
//   communicators             all checks
//   communicators mismatch    rank 1 receives fewer elements than rank 0 sends, and must end with an error
//
// Rank 0 goes ahead and looks at what its calls return while rank 1 has not come. The expectations are those of the
// documentation of ncclConfig_t::blocking, ncclCommGetAsyncError, ncclCommFinalize, ncclCommAbort, ncclSend and
// ncclRecv.
#include <cuda_runtime.h>
#include <nccl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
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

// ---------------------------------------------------------------------------------------------- messages

ncclComm_t blocking_communicator() {
  ncclUniqueId id;
  if (rank_here == 0) ncclGetUniqueId(&id), say(id);
  else id = hear();
  ncclComm_t comm = nullptr;
  expect("ncclCommInitRank", ncclCommInitRank(&comm, 2, id, rank_here), ncclSuccess);
  return comm;
}
// Looks at the first and the last of `count` numbers, and at the one after them.
void expect_numbers(const char* what, const float* p, size_t count, int value, int value_after) {
  float host[kCount];
  cudaMemcpyAsync(host, p, sizeof host, cudaMemcpyDefault, nullptr);
  expect(what, int(host[0]), value);
  expect(what, int(host[count - 1]), value);
  if (count < kCount) expect(what, int(host[count]), value_after);
}

// Two messages to the other rank and one to itself, and as many that come.
struct Messages {
  const ncclComm_t comm;
  const int other = 1 - rank_here;
  float *const first = numbers(float(10 + rank_here)), *const second = numbers(float(20 + rank_here)),
               *const own = numbers(float(30 + rank_here));
  float *const first_here = numbers(0), *const second_here = numbers(0), *const own_here = numbers(0);

  // Receives stand before and after sends: within a group none waits for another.
  ncclResult_t exchange(cudaStream_t stream) const {
    ncclGroupStart();
    expect("ncclRecv", ncclRecv(first_here, kCount, ncclFloat32, other, comm, stream), ncclSuccess);
    expect("ncclSend", ncclSend(first, kCount, ncclFloat32, other, comm, stream), ncclSuccess);
    expect("ncclSend", ncclSend(second, kCount / 2, ncclFloat32, other, comm, stream), ncclSuccess);
    expect("ncclSend to itself", ncclSend(own, kCount / 4, ncclFloat32, rank_here, comm, stream), ncclSuccess);
    expect("ncclRecv", ncclRecv(second_here, kCount / 2, ncclFloat32, other, comm, stream), ncclSuccess);
    expect("ncclRecv", ncclRecv(own_here, kCount / 4, ncclFloat32, rank_here, comm, stream), ncclSuccess);
    return ncclGroupEnd();
  }
  void expect_here() const {
    expect_numbers("the first message", first_here, kCount, 10 + other, 0);
    expect_numbers("the second message", second_here, kCount / 2, 20 + other, 0);
    expect_numbers("the message to itself", own_here, kCount / 4, 30 + rank_here, 0);
    for (float* p : {first_here, second_here, own_here}) cudaMemsetAsync(p, 0, kCount * sizeof(float), nullptr);
    cudaStreamSynchronize(nullptr);
  }
};

void exchange_messages() {
  const ncclComm_t comm = blocking_communicator();
  const Messages messages{comm};
  if (rank_here == 1) hear();
  expect("ncclGroupEnd", messages.exchange(nullptr), ncclSuccess);
  if (rank_here == 0) {
    const cudaEvent_t event = recorded();
    sleep_ms(100);
    expect("messages to a rank that has not come", cudaEventQuery(event), cudaErrorNotReady);
    say({});
  }
  messages.expect_here();

  // A rank's messages to itself concern no other one, and collectives go on after them.
  if (rank_here == 0) {
    float* const here = numbers(0);
    ncclGroupStart();
    ncclSend(messages.own, kCount, ncclFloat32, 0, comm, nullptr);
    ncclRecv(here, kCount, ncclFloat32, 0, comm, nullptr);
    expect("ncclGroupEnd", ncclGroupEnd(), ncclSuccess);
    expect_numbers("rank 0's message to itself", here, kCount, 30, 0);
    expect("empty messages", ncclSend(messages.first, 0, ncclFloat32, 1, comm, nullptr), ncclSuccess);
  } else {
    expect("empty messages", ncclRecv(messages.first_here, 0, ncclFloat32, 0, comm, nullptr), ncclSuccess);
  }
  float* const sum = numbers(float(1 + rank_here));
  expect("ncclAllReduce", all_reduce(sum, comm), ncclSuccess);
  expect_numbers("the sum after messages", sum, kCount, 3, 0);
  // In a group with messages, collectives come first, wherever they stand.
  ncclGroupStart();
  if (rank_here == 0) ncclSend(messages.first, kCount, ncclFloat32, 1, comm, nullptr);
  all_reduce(sum, comm);
  if (rank_here == 1) ncclRecv(messages.first_here, kCount, ncclFloat32, 0, comm, nullptr);
  expect("ncclGroupEnd", ncclGroupEnd(), ncclSuccess);
  expect_numbers("the sum in a group with messages", sum, kCount, 6, 0);
  if (rank_here == 1) expect_numbers("the message in a group with a sum", messages.first_here, kCount, 10, 0);

  // Each launch of a graph sends again.
  cudaStream_t stream = nullptr;
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, -5);
  cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal);
  expect("ncclGroupEnd in a capture", messages.exchange(stream), ncclSuccess);
  expect("the end of a capture", cudaStreamEndCapture(stream, &graph), cudaSuccess);
  expect("a graph", cudaGraphInstantiate(&executable, graph, 0), cudaSuccess);
  for (int i = 0; i < 2; ++i) {
    cudaGraphLaunch(executable, stream);
    cudaStreamSynchronize(stream);
    messages.expect_here();
  }
  expect("ncclCommDestroy", ncclCommDestroy(comm), ncclSuccess);
}

void refuse_messages() {
  const ncclComm_t comm = blocking_communicator();
  float *const a = numbers(1), *const b = numbers(2);
  expect("a message to rank 2 of 2", ncclSend(a, kCount, ncclFloat32, 2, comm, nullptr), ncclInvalidArgument);
  expect("a send to itself alone", ncclSend(a, kCount, ncclFloat32, rank_here, comm, nullptr), ncclInvalidUsage);
  expect("a receive from itself alone", ncclRecv(a, kCount, ncclFloat32, rank_here, comm, nullptr), ncclInvalidUsage);
  ncclGroupStart();
  ncclSend(a, kCount, ncclFloat32, rank_here, comm, nullptr);
  ncclRecv(b, kCount / 2, ncclFloat32, rank_here, comm, nullptr);
  expect("another size from itself", ncclGroupEnd(), ncclInvalidUsage);
  // Nothing is launched: else rank 1 would wait for the first.
  ncclGroupStart();
  ncclRecv(a, kCount, ncclFloat32, 1 - rank_here, comm, nullptr);
  ncclSend(b, kCount, ncclFloat32, -1, comm, nullptr);
  expect("a group of which one fails", ncclGroupEnd(), ncclInvalidArgument);
  // Warned of: this receives what it sends.
  ncclGroupStart();
  ncclSend(a, kCount, ncclFloat32, 1 - rank_here, comm, nullptr);
  expect("a message into one that is sent", ncclRecv(a + kCount - 1, 1, ncclFloat32, 1 - rank_here, comm, nullptr),
         ncclInvalidUsage);
  expect("its group", ncclGroupEnd(), ncclInvalidUsage);
  expect("the GPU after them", cudaStreamSynchronize(nullptr), cudaSuccess);
  // "This operation is blocking for the GPU": two that wait for each other in turn, outside of a group.
  expect("ncclSend", ncclSend(a, kCount, ncclFloat32, 1 - rank_here, comm, nullptr), ncclSuccess);
  expect("ncclRecv", ncclRecv(b, kCount, ncclFloat32, 1 - rank_here, comm, nullptr), ncclSuccess);
  const cudaEvent_t event = recorded();
  sleep_ms(100);
  expect("sends of two ranks to each other before they receive", cudaEventQuery(event), cudaErrorNotReady);
  let_rank_1_go_on();
  expect("ncclCommAbort", ncclCommAbort(comm), ncclSuccess);
}

void mismatch() {
  const ncclComm_t comm = blocking_communicator();
  float* const p = numbers(1);
  if (rank_here == 0) ncclSend(p, kCount, ncclFloat32, 1, comm, nullptr);
  else ncclRecv(p, kCount / 2, ncclFloat32, 0, comm, nullptr), cudaStreamSynchronize(nullptr);
}

}  // namespace

int main(int argc, char** argv) {
  setvbuf(stdout, nullptr, _IONBF, 0);
  if (pipe(pipes[0]) || pipe(pipes[1])) return 2;
  const pid_t child = fork();
  rank_here = child == 0;
  if (argc > 1 && !strcmp(argv[1], "mismatch")) mismatch();
  else
    for (const auto& test :
         {start_and_sum, finalize, abort_a_collective, abort_the_start, exchange_messages, refuse_messages})
      test();
  int status = 0;
  if (child && (waitpid(child, &status, 0) != child || status)) ++failed;
  if (child) printf("%s\n", failed ? "failed" : "communicators that do not block, and messages: as documented");
  return failed != 0;
}

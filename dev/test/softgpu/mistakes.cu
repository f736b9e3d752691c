// Does one thing wrong, and prints what CUDA says:  mistakes NAME  (without NAME: the names)
//
// Each mistake prints the name of the error that it ends with. mistakes.sh compares that with what a GPU gives.
#include <cublasLt.h>
#include <cuda_runtime.h>
#include <nccl.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <string>
#include <thread>
#include <vector>

namespace {

__global__ void read_one(const float* from, float* to) { *to = *from; }
__global__ void write_one(float* to, int at) { to[at] = 1; }
__global__ void read_vector(const float* from, float4* to) { *to = *reinterpret_cast<const float4*>(from + 1); }
__global__ void __launch_bounds__(128) bounded(float* to) { to[threadIdx.x] = 1; }
__global__ void two_barriers(float* to) {
  __shared__ volatile int sum;
  if (threadIdx.x < 32) {
    sum = 1;
    __syncthreads();
  } else {
    sum = 2;
    __syncthreads();
    sum = 3;
  }
  to[threadIdx.x] = float(sum);
}
__global__ void lost_thread(float* to) {
  if (threadIdx.x == 5) return;
  asm volatile("bar.sync 1, 64;");
  to[threadIdx.x] = 1;
}
__global__ void outside_shared(float* to, int at) {
  extern __shared__ float shared[];
  shared[at] = 1;
  __syncthreads();
  *to = shared[at];
}
__global__ void local_array(float* to, int at) {
  float values[8];
  for (int i = 0; i < 8; ++i) values[i] = float(i) * to[i];
  values[at] = 1;
  for (int i = 0; i < 8; ++i) to[i] = values[i] + values[(i + at) & 7];
}
__global__ void stop() { __trap(); }
__device__ unsigned counts[2];  // threads, and those that found a clock that goes backwards
__global__ void count_by_exchange() {
  const long long before = clock64();
  for (unsigned seen = 0, was; (was = atomicCAS(&counts[0], seen, seen + 1)) != seen; seen = was) {
  }
  if (clock64() < before) atomicAdd(&counts[1], 1u);
}

float* device(size_t floats, bool written = true) {
  float* p = nullptr;
  cudaMalloc(reinterpret_cast<void**>(&p), floats * sizeof(float));
  if (written) cudaMemsetAsync(p, 0, floats * sizeof(float), nullptr);
  return p;
}
cudaError_t done() {
  const cudaError_t launched = cudaGetLastError();
  return launched != cudaSuccess ? launched : cudaDeviceSynchronize();
}
cudaStream_t stream() {
  cudaStream_t s;
  cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking);
  return s;
}
cudaStream_t capturing() {
  const cudaStream_t s = stream();
  cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal);
  return s;
}
cudaError_t end(cudaStream_t s) {
  cudaGraph_t graph;
  return cudaStreamEndCapture(s, &graph);
}
cudaEvent_t event() {
  cudaEvent_t e;
  cudaEventCreateWithFlags(&e, cudaEventDisableTiming);
  return e;
}

// D = A B in fp32, 16 x 16 each, with leading dimension 16. A's columns lie `leading` apart.
void multiply(const float* a, uint64_t leading, float* d, uint64_t leading_d = 16) {
  cublasLtHandle_t handle;
  cublasLtMatmulDesc_t product;
  cublasLtMatrixLayout_t of_a, of_b, of_d;
  cublasLtCreate(&handle);
  cublasLtMatmulDescCreate(&product, CUBLAS_COMPUTE_32F, CUDA_R_32F);
  cublasLtMatrixLayoutCreate(&of_a, CUDA_R_32F, 16, 16, int64_t(leading));
  cublasLtMatrixLayoutCreate(&of_b, CUDA_R_32F, 16, 16, 16);
  cublasLtMatrixLayoutCreate(&of_d, CUDA_R_32F, 16, 16, int64_t(leading_d));
  const float one = 1, zero = 0;
  cublasLtMatmul(handle, product, &one, a, of_a, device(256), of_b, &zero, d, of_d, d, of_d, nullptr, nullptr, 0,
                 nullptr);
}
// 16 columns of 16 numbers, and between them padding that nobody writes.
float* padded() {
  float* const p = device(16 * 32, false);
  for (int column = 0; column < 16; ++column) cudaMemsetAsync(p + column * 32, 0, 64, nullptr);
  return p;
}
void all_reduce(const float* from, float* to) {
  ncclUniqueId id;
  ncclComm_t communicator;
  ncclGetUniqueId(&id);
  ncclCommInitRank(&communicator, 1, id, 0);
  ncclAllReduce(from, to, 64, ncclFloat32, ncclSum, communicator, nullptr);
}

// Calls `call` while a stream waits for the host. Returns cudaSuccess if the call waits until the stream goes on.
cudaError_t waits(const std::function<void(cudaStream_t)>& call) {
  static std::atomic<bool> goes_on{false};
  const cudaStream_t s = stream();
  const auto wait = [](void*) {
    while (!goes_on) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  };
  cudaLaunchHostFunc(s, wait, nullptr);
  std::atomic<bool> returned{false};
  std::thread caller([&] { call(s), returned = true; });
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  const bool waited = !returned;
  goes_on = true;
  caller.join();
  return waited ? cudaDeviceSynchronize() : cudaErrorNotReady;
}

const std::map<std::string, std::function<cudaError_t()>> kMistakes = {
    {"none", [] { return read_one<<<1, 1>>>(device(1), device(1)), done(); }},
    {"host_memory_in_a_kernel", [] { return read_one<<<1, 1>>>(new float(1), device(1)), done(); }},
    {"device_memory_on_the_host", [] { return printf("%f\n", double(*device(1))), cudaSuccess; }},
    {"read_beyond_an_allocation", [] { return read_one<<<1, 1>>>(device(64) + 64, device(1)), done(); }},
    {"write_beyond_an_allocation", [] { return write_one<<<1, 1>>>(device(64), 64), done(); }},
    {"write_before_an_allocation", [] { return write_one<<<1, 1>>>(device(64), -1), done(); }},
    {"memory_never_written", [] { return read_one<<<1, 1>>>(device(64, false), device(1)), done(); }},
    {"copied_memory_never_written",
     [] {
       float *from = device(64, false), *to = device(64);
       cudaMemcpyAsync(to, from, 256, cudaMemcpyDefault, nullptr);
       return read_one<<<1, 1>>>(to, device(1)), done();
     }},
    {"product_of_memory_never_written", [] { return multiply(device(256, false), 16, device(256)), done(); }},
    {"product_next_to_padding",  // that is not read: no mistake
     [] {
       float* const d = device(256, false);
       return multiply(padded(), 32, d), read_one<<<1, 1>>>(d + 255, device(1)), done();
     }},
    {"padding_of_a_product",
     [] {
       float* const d = device(16 * 32, false);
       return multiply(padded(), 32, d, 32), read_one<<<1, 1>>>(d + 16, device(1)), done();
     }},
    {"collective_of_memory_never_written", [] { return all_reduce(device(64, false), device(64)), done(); }},
    {"collective_that_writes",  // no mistake
     [] {
       float* const d = device(64, false);
       return all_reduce(device(64), d), read_one<<<1, 1>>>(d + 63, device(1)), done();
     }},
    {"misaligned_vector",
     [] { return read_vector<<<1, 1>>>(device(8), reinterpret_cast<float4*>(device(4))), done(); }},
    {"memory_that_was_freed",
     [] {
       float* p = device(64);
       cudaFree(p);
       return write_one<<<1, 1>>>(p, 0), done();
     }},
    {"two_barriers", [] { return two_barriers<<<1, 64>>>(device(64)), done(); }},
    {"lost_thread", [] { return lost_thread<<<1, 64>>>(device(64)), done(); }},
    {"outside_shared_memory", [] { return outside_shared<<<1, 1, 1024>>>(device(1), 256), done(); }},
    {"outside_a_local_array", [] { return local_array<<<1, 1>>>(device(8), 1000), done(); }},
    {"trap", [] { return stop<<<1, 1>>>(), done(); }},
    {"variables_of_a_module",  // no mistake
     [] {
       const unsigned ten = 10;
       unsigned both[2];
       cudaMemcpyToSymbol(counts, &ten, sizeof ten);
       count_by_exchange<<<3, 64>>>();
       cudaMemcpyFromSymbol(both, counts, sizeof both);
       printf("counted %u, %u\n", both[0], both[1]);
       return done();
     }},
    {"beyond_a_variable",
     [] {
       unsigned three[3];
       return cudaMemcpyFromSymbol(three, counts, sizeof three);
     }},
    {"every_call_after_an_error",
     [] {
       stop<<<1, 1>>>();
       cudaDeviceSynchronize();
       cudaGetLastError();
       void* p;
       return cudaMalloc(&p, 4);
     }},
    {"shared_memory_without_an_attribute", [] { return outside_shared<<<1, 1, 64 << 10>>>(device(1), 0), done(); }},
    {"shared_memory_beyond_the_gpu",
     [] { return cudaFuncSetAttribute(outside_shared, cudaFuncAttributeMaxDynamicSharedMemorySize, 228 << 10); }},
    {"threads_beyond_the_launch_bounds", [] { return bounded<<<1, 256>>>(device(256)), done(); }},
    {"empty_grid", [] { return bounded<<<0, 128>>>(device(256)), done(); }},
    {"grid_too_high", [] { return bounded<<<dim3(1, 65536), 128>>>(device(256)), done(); }},
    {"too_many_threads", [] { return write_one<<<1, 2048>>>(device(1), 0), done(); }},
    {"copy_beyond_an_allocation",
     [] {
       std::vector<float> host(128);
       return cudaMemcpyAsync(device(64), host.data(), 512, cudaMemcpyDefault, nullptr);
     }},
    {"more_memory_than_there_is",
     [] {
       void* p;
       return cudaMalloc(&p, size_t(1) << 40);
     }},
    {"allocation_in_a_capture",
     [] {
       capturing();
       void* p;
       return cudaMalloc(&p, 4);
     }},
    {"spoiled_capture",
     [] {
       const cudaStream_t s = capturing();
       cudaDeviceSynchronize();
       return end(s);
     }},
    {"wait_in_a_capture", [] { return cudaStreamSynchronize(capturing()); }},
    {"query_in_a_capture",
     [] {
       const cudaEvent_t e = event();
       cudaEventRecord(e, stream());
       capturing();
       return cudaEventQuery(e);
     }},
    {"query_during_a_capture",  // by another thread: no mistake
     [] {
       const cudaEvent_t e = event();
       cudaEventRecord(e, stream());
       cudaEventSynchronize(e);
       capturing();
       cudaError_t result;
       std::thread([&] { result = cudaEventQuery(e); }).join();
       return result;
     }},
    {"query_of_a_captured_event",
     [] {
       const cudaEvent_t e = event();
       cudaEventRecord(e, capturing());
       cudaError_t result;
       std::thread([&] { result = cudaEventQuery(e); }).join();
       return result;
     }},
    {"capture_not_joined",
     [] {
       const cudaStream_t s = capturing(), other = stream();
       const cudaEvent_t e = event();
       cudaEventRecord(e, s);
       cudaStreamWaitEvent(other, e, 0);
       write_one<<<1, 1, 0, other>>>(nullptr, 0);
       return end(s);
     }},
    {"capture_waits_for_other_work",
     [] {
       const cudaEvent_t e = event();
       cudaEventRecord(e, stream());
       return cudaStreamWaitEvent(capturing(), e, 0);
     }},
    {"capture_ended_by_another_thread",
     [] {
       const cudaStream_t s = capturing();
       cudaError_t result;
       std::thread([&] { result = end(s); }).join();
       return result;
     }},
    // These are no mistakes. The call waits here, so a program may hang in it.
    {"wait_for_room_in_a_stream",
     [] {
       float* p = device(1);
       return waits([=](cudaStream_t s) {
         for (int i = 0; i < 1100; ++i) cudaMemsetAsync(p, 0, 4, s);
       });
     }},
    {"room_for_a_thousand",
     [] {
       float* p = device(1);
       return waits([=](cudaStream_t s) {
         for (int i = 0; i < 1000; ++i) cudaMemsetAsync(p, 0, 4, s);
       });
     }},
    {"destruction_of_a_stream", [] { return waits([](cudaStream_t s) { cudaStreamDestroy(s); }); }},
    {"work_of_a_stream_that_was_destroyed",
     [] {
       float *p = device(1, false), *to = device(1);
       const cudaStream_t s = stream();
       const cudaEvent_t e = event();
       cudaLaunchHostFunc(
           s, [](void*) { std::this_thread::sleep_for(std::chrono::milliseconds(100)); }, nullptr);
       cudaMemsetAsync(p, 0, 4, s);
       cudaEventRecord(e, s);
       cudaStreamDestroy(s);
       cudaEventSynchronize(e);
       return read_one<<<1, 1>>>(p, to), done();
     }},
    {"wait_of_free", [] { return waits([](cudaStream_t) { cudaFree(device(1)); }); }},
    {"wait_of_a_pageable_copy",
     [] {
       float *p = device(1), host;
       return waits([&](cudaStream_t s) { cudaMemcpyAsync(&host, p, 4, cudaMemcpyDefault, s); });
     }},
    {"work_time_before_it_is_done",
     [] {
       cudaEvent_t a, b;
       cudaEventCreate(&a), cudaEventCreate(&b);
       cudaEventRecord(a, nullptr);
       float milliseconds;
       return cudaEventElapsedTime(&milliseconds, a, b);
     }},
};

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    for (const auto& [name, mistake] : kMistakes) puts(name.c_str());
    return 0;
  }
  puts(cudaGetErrorName(kMistakes.at(argv[1])()));
}

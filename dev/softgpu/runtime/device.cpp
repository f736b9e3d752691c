#include "dev/softgpu/runtime/device.h"

#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <set>
#include <string>

#include "dev/softgpu/runtime/api.h"
#include "dev/softgpu/runtime/engine.h"

namespace softgpu {
namespace {

// From "Technical Specifications per Compute Capability" of the CUDA C++ Programming Guide and the vendor's data
// sheets.
struct KnownGpu {
  const char *word, *name;
  int major, minor, multiprocessors;
  size_t shared_opt_in, shared_per_multiprocessor;  // KiB
};
constexpr KnownGpu kKnown[] = {
    {"h100", "NVIDIA H100 80GB HBM3 (software)", 9, 0, 132, 227, 228},
    {"a100", "NVIDIA A100-SXM4-80GB (software)", 8, 0, 108, 163, 164},
    {"rtx4090", "NVIDIA GeForce RTX 4090 (software)", 8, 9, 128, 99, 100},
};

std::string setting(const char* name, const char* otherwise) {
  const char* text = getenv(name);
  return text && *text ? text : otherwise;
}

cudaDeviceProp read_properties() {
  const std::string word = setting("LLMC_SOFTGPU", kKnown[0].word);
  std::string words;
  for (const KnownGpu& gpu : kKnown) {
    words += std::string(" ") + gpu.word;
    if (word != gpu.word) continue;
    cudaDeviceProp p{};
    strncpy(p.name, gpu.name, sizeof p.name - 1);
    p.major = gpu.major, p.minor = gpu.minor;
    p.multiProcessorCount = gpu.multiprocessors;
    p.totalGlobalMem = strtoull(setting("LLMC_SOFTGPU_MEMORY", "8589934592").c_str(), nullptr, 0);
    p.sharedMemPerBlock = 48 << 10;
    p.sharedMemPerBlockOptin = gpu.shared_opt_in << 10;
    p.sharedMemPerMultiprocessor = gpu.shared_per_multiprocessor << 10;
    p.reservedSharedMemPerBlock = 1 << 10;
    p.regsPerBlock = p.regsPerMultiprocessor = 64 << 10;
    p.warpSize = 32;
    p.maxThreadsPerBlock = 1024;
    p.maxThreadsPerMultiProcessor = gpu.major == 8 && gpu.minor == 9 ? 1536 : 2048;
    return p;
  }
  fprintf(stderr, "software GPU: LLMC_SOFTGPU=%s is none that is known\n  choose one of:%s\n", word.c_str(),
          words.c_str());
  exit(1);
}

int device_count() { return atoi(setting("LLMC_SOFTGPU_COUNT", "8").c_str()); }
std::atomic<bool> late{false};
thread_local int current_device = 0;
thread_local cudaError_t last_error = cudaSuccess;

}  // namespace

const cudaDeviceProp& device_properties() {
  static const cudaDeviceProp properties = read_properties();
  return properties;
}

bool runs_on_device(const std::string& target) {
  const int capability = device_properties().major * 10 + device_properties().minor, wanted = atoi(target.c_str());
  return target.back() == 'a' ? wanted == capability : wanted <= capability;
}

cudaError_t give(cudaError_t error) {
  if (error != cudaSuccess) last_error = error;
  return error;
}

void warn(const char* pattern, ...) {
  char text[400];
  va_list arguments;
  va_start(arguments, pattern);
  vsnprintf(text, sizeof text, pattern, arguments);
  va_end(arguments);
  static std::mutex mutex;
  static std::set<std::string>& said = *new std::set<std::string>;
  const std::lock_guard lock(mutex);
  if (said.insert(text).second) fprintf(stderr, "software GPU: warning: %s\n", text);
}

void be_late() {
  if (late.exchange(false)) sleep(60);
}
void lose(const char* where) {
  static const char* const text = getenv("LLMC_SOFTGPU_LOSE");
  static int calls = 0;
  int number = 0;
  char wanted[20] = "", how[8] = "";
  if (!text || sscanf(text, "%19s %d %7s", wanted, &number, how) != 3) return;
  if (strcmp(wanted, where) != 0 || ++calls != number) return;
  fprintf(stderr, "software GPU: lost in %s %d: %s\n", where, number, how);
  if (!strcmp(how, "late") && !strcmp(where, "start")) sleep(60);
  else if (!strcmp(how, "late")) late = true;
  else kill(getpid(), !strcmp(how, "kill") ? SIGKILL : SIGSTOP);
}

}  // namespace softgpu

using namespace softgpu;

SOFTGPU_API cudaError_t cudaGetDeviceCount(int* count) {
  *count = device_count();
  return give(*count ? cudaSuccess : cudaErrorNoDevice);
}
SOFTGPU_API cudaError_t cudaSetDevice(int device) {
  if (device < 0 || device >= device_count()) return give(cudaErrorInvalidDevice);
  lose("start");
  current_device = device;
  return give(Engine::get().error());
}
SOFTGPU_API cudaError_t cudaGetDevice(int* device) {
  *device = current_device;
  return cudaSuccess;
}
SOFTGPU_API cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  if (device < 0 || device >= device_count()) return give(cudaErrorInvalidDevice);
  *properties = device_properties();
  properties->uuid.bytes[0] = 's', properties->uuid.bytes[15] = char(device);
  return cudaSuccess;
}
SOFTGPU_API cudaError_t cudaDriverGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}
SOFTGPU_API cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}
SOFTGPU_API cudaError_t cudaDeviceSynchronize() {
  if (const cudaError_t e = unsafe_during_capture("cudaDeviceSynchronize")) return e;
  return give(Engine::get().synchronize());
}

// What ended the GPU is every call's error, whether or not it was read.
SOFTGPU_API cudaError_t cudaGetLastError() {
  const cudaError_t error = last_error;
  last_error = Engine::get().error();
  return error;
}
SOFTGPU_API cudaError_t cudaPeekAtLastError() { return last_error; }

namespace {
// The names and texts of the errors that the software GPU gives.
struct ErrorText {
  cudaError_t error;
  const char *name, *text;
};
#define ERROR(name, text) \
  { name, #name, text }
constexpr ErrorText kErrors[] = {
    ERROR(cudaSuccess, "no error"),
    ERROR(cudaErrorInvalidValue, "invalid argument"),
    ERROR(cudaErrorMemoryAllocation, "out of memory"),
    ERROR(cudaErrorInvalidConfiguration, "invalid configuration argument"),
    ERROR(cudaErrorInvalidDeviceFunction, "invalid device function"),
    ERROR(cudaErrorNoDevice, "no CUDA-capable device is detected"),
    ERROR(cudaErrorInvalidDevice, "invalid device ordinal"),
    ERROR(cudaErrorNoKernelImageForDevice, "no kernel image is available for execution on the device"),
    ERROR(cudaErrorInvalidResourceHandle, "invalid resource handle"),
    ERROR(cudaErrorNotReady, "device not ready"),
    ERROR(cudaErrorIllegalAddress, "an illegal memory access was encountered"),
    ERROR(cudaErrorLaunchOutOfResources, "too many resources requested for launch"),
    ERROR(cudaErrorLaunchTimeout, "the launch timed out and was terminated"),
    ERROR(cudaErrorMisalignedAddress, "misaligned address"),
    ERROR(cudaErrorLaunchFailure, "unspecified launch failure"),
    ERROR(cudaErrorStreamCaptureUnsupported, "operation not permitted when stream is capturing"),
    ERROR(cudaErrorStreamCaptureInvalidated, "operation failed due to a previous error during capture"),
    ERROR(cudaErrorStreamCaptureMerge, "operation would result in a merge of separate capture sequences"),
    ERROR(cudaErrorStreamCaptureUnmatched, "capture was not ended in the same stream as it began"),
    ERROR(cudaErrorStreamCaptureUnjoined, "capturing stream has unjoined work"),
    ERROR(cudaErrorStreamCaptureIsolation, "dependency created on uncaptured work in another stream"),
    ERROR(cudaErrorCapturedEvent, "operation not permitted on an event last recorded in a capturing stream"),
    ERROR(cudaErrorStreamCaptureWrongThread,
          "attempt to terminate a thread-local capture sequence from another thread"),
};
#undef ERROR
const ErrorText* text_of(cudaError_t error) {
  for (const ErrorText& e : kErrors)
    if (e.error == error) return &e;
  return nullptr;
}
}  // namespace
SOFTGPU_API const char* cudaGetErrorName(cudaError_t error) {
  const ErrorText* text = text_of(error);
  return text ? text->name : "unrecognized error code";
}
SOFTGPU_API const char* cudaGetErrorString(cudaError_t error) {
  const ErrorText* text = text_of(error);
  return text ? text->text : "unrecognized error code";
}

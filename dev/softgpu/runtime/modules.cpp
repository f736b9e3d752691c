// Kernels: registration of the PTX that nvcc put into the program, translation at a kernel's first launch, launches.
#include <dlfcn.h>
#include <fcntl.h>
#include <spawn.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "dev/softgpu/executor.h"
#include "dev/softgpu/runtime/api.h"
#include "dev/softgpu/runtime/device.h"
#include "dev/softgpu/runtime/graph.h"
#include "dev/softgpu/runtime/memory.h"

extern char** environ;

using namespace softgpu;

namespace {

// What nvcc embeds for one .cu file: its PTX for one or more targets.
struct Module {
  std::map<std::string, std::string> ptx;  // by target
  std::map<std::string, void*> variables;  // those that were needed: where they lie
};
struct HostVariable {
  Module* module;
  std::string name;
  size_t bytes;
};

struct Function {
  Module* module = nullptr;
  std::string name;
  const KernelInfo* kernel = nullptr;
  cudaError_t error = cudaSuccess;
  size_t dynamic_limit = 48 << 10;
  std::set<std::pair<u32, u32>> launched;  // threads of a block, bytes of dynamic shared memory
};

std::mutex mutex;  // guards the maps, and translates one kernel at a time
std::map<const void*, Function>& functions() {
  static auto& map = *new std::map<const void*, Function>;  // programs register before main(), in any order
  return map;
}

std::map<const void*, HostVariable>& host_variables() {
  static auto& map = *new std::map<const void*, HostVariable>;
  return map;
}

[[noreturn]] void stop(const std::string& why) {
  fprintf(stderr, "software GPU: %s\n", why.c_str());
  _exit(1);
}

// ---------------------------------------------------------------------------------------------- translation

u64 hash_of(const std::string& text) {  // FNV-1a
  u64 hash = 14695981039346656037ull;
  for (const char c : text) hash = (hash ^ u8(c)) * 1099511628211ull;
  return hash;
}

// The tree that this library was built in: SOFTGPU_TREE is the way there from the library's folder, so that a tree may
// be copied with its build.
const std::string& tree() {
  static const std::string path = [] {
    Dl_info library;
    if (!dladdr(reinterpret_cast<const void*>(&hash_of), &library)) stop("the folder of libcudart.so is not known");
    const std::string file = library.dli_fname;
    return file.substr(0, file.rfind('/') + 1) + SOFTGPU_TREE;
  }();
  return path;
}
const std::string& cache() {
  static const std::string path = tree() + "/build/softgpu-kernels";
  return path;
}

// Runs `translate`, which prints nothing unless it fails.
void translate(const std::string& ptx_file, const std::string& kernel, const std::string& library) {
  const std::string program = tree() + "/dev/softgpu/translate";
  const char* const arguments[] = {program.c_str(),
                                   ptx_file.c_str(),
                                   kernel.c_str(),
                                   library.c_str(),
                                   *SOFTGPU_SANITIZER ? SOFTGPU_SANITIZER : nullptr,
                                   nullptr};
  pid_t child;
  // A variable that makes MPI's or a sanitizer's library part of every process is not for the compiler.
  std::vector<char*> variables;
  for (char** v = environ; *v; ++v)
    if (strncmp(*v, "LD_PRELOAD=", 11)) variables.push_back(*v);
  variables.push_back(nullptr);
  if (posix_spawn(&child, program.c_str(), nullptr, nullptr, const_cast<char**>(arguments), variables.data()))
    stop("cannot start " + program);
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (!WIFEXITED(status) || WEXITSTATUS(status)) stop("cannot translate " + kernel);
}

void write_file(const std::string& path, const std::string& text) {
  const std::string own = path + "." + std::to_string(getpid());
  FILE* const file = fopen(own.c_str(), "w");
  if (!file || fwrite(text.data(), 1, text.size(), file) != text.size() || fclose(file)) stop("cannot write " + own);
  rename(own.c_str(), path.c_str());
}

// LLMC_SOFTGPU_EXECUTED=FOLDER: each process writes there, at its end, which kernels its program has, how they were
// launched and which of their instructions were executed (dev/softgpu/executed.py reads it).
const char* executed_folder() {
  static const char* const folder = getenv("LLMC_SOFTGPU_EXECUTED");
  return folder && *folder ? folder : nullptr;
}

// LLMC_SOFTGPU_PTX='s/wgmma.fence/…/' (a sed expression) changes the PTX before it is translated: wrong kernels on
// purpose.
std::string edited(const std::string& ptx) {
  const char* const expression = getenv("LLMC_SOFTGPU_PTX");
  if (!expression || !*expression) return ptx;
  const std::string file = cache() + "/edited." + std::to_string(getpid());
  write_file(file, ptx);
  FILE* const sed = popen(("sed -E '" + std::string(expression) + "' " + file).c_str(), "r");
  std::string result;
  char buffer[65536];
  for (size_t n; sed && (n = fread(buffer, 1, sizeof buffer, sed)) > 0;) result.append(buffer, n);
  if (!sed || pclose(sed)) stop("LLMC_SOFTGPU_PTX is no expression of sed: " + std::string(expression));
  unlink(file.c_str());
  static bool changed = false;
  if (!changed)
    atexit([] {
      if (!changed) fprintf(stderr, "software GPU: LLMC_SOFTGPU_PTX changed nothing\n");
    });
  changed = changed || result != ptx;
  return result;
}

// The best PTX for this GPU: an architecture's own before a general one, a later one before an earlier one.
const std::string* ptx_for_device(const Module& module) {
  const std::string* best = nullptr;
  std::string best_target;
  for (const auto& [target, ptx] : module.ptx) {
    if (!runs_on_device(target)) continue;
    const auto rank = [](const std::string& t) { return std::make_pair(atoi(t.c_str()), t.back() == 'a'); };
    if (!best || rank(target) > rank(best_target)) best = &ptx, best_target = target;
  }
  return best;
}

// Returns the address of a variable. The first call makes it, of zeros.
void* variable_of(Module& module, const std::string& name, size_t bytes) {
  void*& p = module.variables[name];
  if (!p) {
    if (allocate(&p, bytes, MemoryKind::device) != cudaSuccess) stop("no memory for " + name);
    memset(accessible(p, bytes), 0, bytes);
    mark_written(p, bytes);
  }
  return p;
}

// The kernel, translated: from the cache, which `translate` fills, or from now on.
const KernelInfo* kernel_of(Function& function) {
  if (function.kernel || function.error) return function.kernel;
  const std::string* const embedded = ptx_for_device(*function.module);
  if (!embedded) {
    function.error = cudaErrorNoKernelImageForDevice;
    return nullptr;
  }
  mkdir(cache().c_str(), 0777);
  const std::string ptx = edited(*embedded);
  char stem[40];
  snprintf(stem, sizeof stem, "/%016llx-%016llx",
           (unsigned long long)hash_of(ptx + SOFTGPU_TOOLS + (executed_folder() ? "marks" : "")),
           (unsigned long long)hash_of(function.name));
  const std::string library = cache() + stem + ".so",
                    ptx_file = cache() + stem + "." + std::to_string(getpid()) + ".ptx";
  if (access(library.c_str(), R_OK)) {
    write_file(ptx_file, ptx);
    translate(ptx_file, function.name, library);
    unlink(ptx_file.c_str());
  }
  void* const loaded = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!loaded) stop(dlerror());
  function.kernel = static_cast<const KernelInfo*>(dlsym(loaded, "softgpu_kernel"));
  if (!function.kernel || function.name != function.kernel->name) stop(library + " is not " + function.name);
  for (u32 i = 0; i < function.kernel->variable_count; ++i) {
    const Variable& v = function.kernel->variables[i];
    *v.address = reinterpret_cast<u64>(variable_of(*function.module, v.name, v.bytes));
  }
  return function.kernel;
}

void write_executed() {
  std::string text;
  const std::lock_guard lock(mutex);
  for (const auto& [_, f] : functions()) {
    text += "kernel\t" + f.name + "\n";
    for (const auto& [threads, shared] : f.launched)
      text += "launch\t" + std::to_string(threads) + "\t" + std::to_string(shared) + "\n";
    for (u32 i = 0; f.kernel && i < f.kernel->instruction_count; ++i)
      text += (f.kernel->executed[i] ? "executed\t" : "not\t") + std::string(f.kernel->instructions[i]) + "\n";
  }
  write_file(executed_folder() + ("/" + std::to_string(getpid())), text);
}

// ---------------------------------------------------------------------------------------------- launches

void kernel_failed(KernelError error) {
  Engine::get().end(error == KernelError::illegal_address      ? cudaErrorIllegalAddress
                    : error == KernelError::misaligned_address ? cudaErrorMisalignedAddress
                    : error == KernelError::timeout            ? cudaErrorLaunchTimeout
                                                               : cudaErrorLaunchFailure);
}

struct alignas(128) Parameters {
  u8 bytes[4096];
};

// What the driver refuses. The limits are those of "Technical Specifications per Compute Capability".
cudaError_t refused(const Function& function, dim3 grid, dim3 block, size_t dynamic_shared) {
  const KernelInfo& kernel = *function.kernel;
  const size_t threads = size_t(block.x) * block.y * block.z;
  if (threads == 0 || threads > 1024 || block.z > 64 || grid.x == 0 || grid.y == 0 || grid.z == 0 ||
      grid.x > 0x7fffffff || grid.y > 65535 || grid.z > 65535)
    return cudaErrorInvalidConfiguration;
  if (threads > kernel.max_threads) return cudaErrorLaunchOutOfResources;
  if (dynamic_shared > function.dynamic_limit - std::min<size_t>(function.dynamic_limit, kernel.static_shared))
    return cudaErrorInvalidValue;
  if (kernel.parameter_bytes > sizeof(Parameters)) return cudaErrorInvalidValue;
  return cudaSuccess;
}

cudaError_t launch(Function& function, dim3 grid, dim3 block, void** arguments, size_t dynamic_shared,
                   cudaStream_t stream) {
  be_late();
  const auto parameters = std::make_shared<Parameters>();
  const KernelInfo* kernel;
  {
    const std::lock_guard lock(mutex);
    kernel = kernel_of(function);
    if (!kernel) return give(function.error);
    if (const cudaError_t e = refused(function, grid, block, dynamic_shared)) return give(e);
    if (executed_folder()) function.launched.insert({block.x * block.y * block.z, u32(dynamic_shared)});
  }
  for (u32 i = 0; i < kernel->parameter_count; ++i)
    memcpy(parameters->bytes + kernel->parameters[i].offset, arguments[i], kernel->parameters[i].bytes);
  return submit(stream, [=]() -> Poll {
    execute({.kernel = kernel,
             .parameters = parameters->bytes,
             .grid = {grid.x, grid.y, grid.z},
             .block = {block.x, block.y, block.z},
             .dynamic_shared_bytes = u32(dynamic_shared)},
            kernel_failed);
    return nullptr;
  });
}

struct Configuration {
  dim3 grid, block;
  size_t shared;
  cudaStream_t stream;
};
thread_local std::vector<Configuration> configurations;

}  // namespace

// ---------------------------------------------------------------------------------------------- what nvcc's code calls

// A fat binary is a header and entries, each with a header of its own: the kind (1: PTX), its size, the size of what
// follows. The format is not documented; it has been the same since CUDA 4.
SOFTGPU_API void** __cudaRegisterFatBinary(void* wrapper) {
  struct Wrapper {
    int magic, version;
    const u8* data;
  };
  const auto& w = *static_cast<const Wrapper*>(wrapper);
  if (w.magic != 0x466243b1) stop("what nvcc registered is no fat binary");
  auto* const module = new Module;
  const u8* at = w.data + load<u16>(w.data + 6);
  for (const u8* const end = at + load<u64>(w.data + 8); at < end;) {
    const u8* const payload = at + load<u32>(at + 4);
    const u64 bytes = load<u64>(at + 8);
    if (load<u16>(at) == 1) {
      const std::string ptx(reinterpret_cast<const char*>(payload),
                            strnlen(reinterpret_cast<const char*>(payload), bytes));
      const size_t target = ptx.find("\n.target sm_");
      if (target == std::string::npos) stop("the program's PTX is compressed: build it with make softgpu");
      module->ptx[ptx.substr(target + 12, ptx.find_first_of(" ,\n", target + 12) - target - 12)] = ptx;
    }
    at = payload + bytes;
  }
  return reinterpret_cast<void**>(module);
}
SOFTGPU_API void __cudaRegisterFatBinaryEnd(void**) {}
SOFTGPU_API void __cudaUnregisterFatBinary(void**) {}
SOFTGPU_API char __cudaInitModule(void**) { return 1; }
SOFTGPU_API void __cudaRegisterFunction(void** module, const char* host, char*, const char* name, int, uint3*, uint3*,
                                        dim3*, dim3*, int*) {
  const std::lock_guard lock(mutex);
  if (executed_folder() && functions().empty()) {
    if (mkdir(executed_folder(), 0777) && errno != EEXIST)
      stop(std::string("cannot make the folder LLMC_SOFTGPU_EXECUTED=") + executed_folder());
    atexit(write_executed);
  }
  functions()[host] = {.module = reinterpret_cast<Module*>(module), .name = name};
}
SOFTGPU_API void __cudaRegisterVar(void** module, char* host, char*, const char* name, int, size_t bytes, int, int) {
  const std::lock_guard lock(mutex);
  host_variables()[host] = {reinterpret_cast<Module*>(module), name, bytes};
}
namespace {
// The part of a variable that a copy reads or writes; null: there is none.
u8* part_of_variable(const void* host, size_t bytes, size_t offset) {
  const std::lock_guard lock(mutex);
  const auto at = host_variables().find(host);
  if (at == host_variables().end() || offset > at->second.bytes || bytes > at->second.bytes - offset) return nullptr;
  return static_cast<u8*>(variable_of(*at->second.module, at->second.name, at->second.bytes)) + offset;
}
// These copies wait for all that the null stream was given before.
cudaError_t copy_and_wait(void* to, const void* from, size_t bytes) {
  if (!to || !from) return give(cudaErrorInvalidValue);
  if (const cudaError_t e = cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, nullptr)) return e;
  return cudaStreamSynchronize(nullptr);
}
}  // namespace
SOFTGPU_API cudaError_t cudaMemcpyFromSymbol(void* to, const void* symbol, size_t bytes, size_t offset,
                                             cudaMemcpyKind) {
  return copy_and_wait(to, part_of_variable(symbol, bytes, offset), bytes);
}
SOFTGPU_API cudaError_t cudaMemcpyToSymbol(const void* symbol, const void* from, size_t bytes, size_t offset,
                                           cudaMemcpyKind) {
  return copy_and_wait(part_of_variable(symbol, bytes, offset), from, bytes);
}
SOFTGPU_API unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, cudaStream_t stream) {
  configurations.push_back({grid, block, shared, stream});
  return 0;
}
SOFTGPU_API cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, size_t* shared, void* stream) {
  const Configuration c = configurations.back();
  configurations.pop_back();
  *grid = c.grid, *block = c.block, *shared = c.shared, *static_cast<cudaStream_t*>(stream) = c.stream;
  return cudaSuccess;
}
SOFTGPU_API cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* host) {
  const std::lock_guard lock(mutex);
  const auto at = functions().find(host);
  if (at == functions().end()) return give(cudaErrorInvalidDeviceFunction);
  *kernel = reinterpret_cast<cudaKernel_t>(&at->second);
  return cudaSuccess;
}
SOFTGPU_API cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void** arguments, size_t shared,
                                           cudaStream_t stream) {
  return launch(*reinterpret_cast<Function*>(kernel), grid, block, arguments, shared, stream);
}
SOFTGPU_API cudaError_t cudaLaunchKernel(const void* host, dim3 grid, dim3 block, void** arguments, size_t shared,
                                         cudaStream_t stream) {
  cudaKernel_t kernel;
  if (const cudaError_t e = __cudaGetKernel(&kernel, host)) return e;
  return __cudaLaunchKernel(kernel, grid, block, arguments, shared, stream);
}
SOFTGPU_API cudaError_t cudaFuncSetAttribute(const void* host, cudaFuncAttribute attribute, int value) {
  const std::lock_guard lock(mutex);
  const auto at = functions().find(host);
  if (at == functions().end()) return give(cudaErrorInvalidDeviceFunction);
  Function& function = at->second;
  if (!kernel_of(function)) return give(function.error);
  switch (attribute) {
    case cudaFuncAttributeMaxDynamicSharedMemorySize:
      if (value < 0 || size_t(value) + function.kernel->static_shared > device_properties().sharedMemPerBlockOptin)
        return give(cudaErrorInvalidValue);
      function.dynamic_limit = size_t(value) + function.kernel->static_shared;
      return cudaSuccess;
    case cudaFuncAttributePreferredSharedMemoryCarveout:
      return give(value >= -1 && value <= 100 ? cudaSuccess : cudaErrorInvalidValue);
    default:
      return give(cudaErrorInvalidValue);
  }
}

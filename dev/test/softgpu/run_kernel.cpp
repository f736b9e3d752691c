// Executes one translated kernel:  run_kernel LIBRARY THREADS IN OUT BYTES
//
// The kernel has two parameters: the address of what the file IN holds, and that of BYTES bytes, which go to the file
// OUT. One block of THREADS threads is executed.
#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>

#include "dev/softgpu/executor.h"
#include "dev/softgpu/runtime/memory.h"

using namespace softgpu;

namespace {

u64 on_device(const std::string& bytes) {
  void* p = nullptr;
  if (allocate(&p, bytes.size(), MemoryKind::device) != cudaSuccess) exit(2);
  memcpy(bytes_at(reinterpret_cast<u64>(p)), bytes.data(), bytes.size());
  mark_written(p, bytes.size());
  return reinterpret_cast<u64>(p);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 6) return 2;
  void* const library = dlopen(argv[1], RTLD_NOW);
  const auto* const kernel = library ? static_cast<const KernelInfo*>(dlsym(library, "softgpu_kernel")) : nullptr;
  if (!kernel) return fprintf(stderr, "%s\n", dlerror()), 2;
  std::ifstream in(argv[3], std::ios::binary);
  const std::string bytes((std::istreambuf_iterator<char>(in)), {});
  const size_t out_bytes = size_t(atoi(argv[5]));
  alignas(128) u64 parameters[2] = {on_device(bytes), on_device(std::string(out_bytes, '\0'))};
  execute({.kernel = kernel,
           .parameters = reinterpret_cast<const u8*>(parameters),
           .grid = {1, 1, 1},
           .block = {u32(atoi(argv[2])), 1, 1},
           .dynamic_shared_bytes = 0},
          [](KernelError) { _Exit(1); });
  std::ofstream(argv[4], std::ios::binary)
      .write(reinterpret_cast<const char*>(bytes_at(parameters[1])), long(out_bytes));
}

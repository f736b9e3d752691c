#include "llmc/device/cpu_hopper.h"

#include "llmc/device/cpu_hopper_state.h"

namespace cpu_backend {

// The running block's Hopper state, for the length of one statement. Meanwhile ThreadSanitizer sees only the accesses
// that reads() and writes() report.
namespace {
class Hopper {
 public:
  HopperState* operator->() const { return &current_block->hopper(); }

 private:
  Block::Unwatched unwatched_{*current_block};
};
}  // namespace
static Hopper hopper() { return {}; }

uint32_t smem_address(const void* pointer) {
  const auto* at = static_cast<const std::byte*>(pointer);
  const std::byte* const shared = current_block->shared();
  if (at < shared || at > shared + current_block->shared_bytes())
    stop_kernel("smem_address: %p is not in the block's %zu bytes of shared memory", pointer,
                current_block->shared_bytes());
  return kSharedWindowBegin + uint32_t(at - shared);
}

void mbarrier_init(uint64_t* barrier, int arrivals, const Place& place) {
  hopper()->barriers.initialize(barrier, arrivals, place);
}
void fence_mbarrier_init(const Place&) { hopper()->barriers.publish(); }
void mbarrier_arrive(uint64_t* barrier, int expected_bytes, const Place& place) {
  hopper()->barriers.arrive(barrier, expected_bytes, place);
}
void mbarrier_wait(uint64_t* barrier, int parity, const Place& place) {
  hopper()->barriers.wait(barrier, parity, place);
}
void arrive_named(int barrier, int threads, const Place& place) {
  current_block->arrive_named(barrier, threads, place);
}
void change_registers(int registers, bool more, const Place& place) {
  hopper()->warpgroups.change_registers(registers, more, place);
}

void tma_load(void* to, const TensorMap& map, uint64_t* barrier, const BoxPlace& from, const Place& place) {
  hopper()->proxy.load(to, map, barrier, from, place);
}
void tma_store(const TensorMap& map, const void* from, const BoxPlace& to, const Place& place) {
  hopper()->proxy.store(map, from, to, place);
}
void tma_store_commit_group(const Place&) { hopper()->proxy.commit_stores(); }
void tma_store_wait_group_read(const Place&) { hopper()->proxy.wait_for_stores(); }
void fence_async_proxy(const Place&) { hopper()->proxy.fence(); }
void store_for_async_proxy(void* to, const void* value, int bytes, const Place& place) {
  hopper()->proxy.stage(to, value, bytes, place);
}

void wgmma_fence(const Place& place) { hopper()->warpgroups.begin_products(place); }
void multiply(const ProductArguments& arguments, const Place& place) {
  hopper()->warpgroups.multiply(arguments, place);
}
void wgmma_commit_group(const Place& place) { hopper()->warpgroups.commit_products(place); }
void wgmma_wait_group(int under_way, const Place& place) { hopper()->warpgroups.wait_for_products(under_way, place); }

}  // namespace cpu_backend

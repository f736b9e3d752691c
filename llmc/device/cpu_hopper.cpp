#include "llmc/device/cpu_hopper.h"

#include "llmc/device/cpu_hopper_state.h"

namespace cpu_world {

uint32_t shared_window(const void* pointer) {
  const auto* at = static_cast<const std::byte*>(pointer);
  const std::byte* const shared = current_block->shared();
  if (at < shared || at > shared + current_block->shared_bytes())
    stop_kernel("shared_window: %p is not in the block's %zu bytes of shared memory", pointer,
                current_block->shared_bytes());
  return kSharedWindowBegin + uint32_t(at - shared);
}

void barrier_initialize(uint64_t* barrier, int arrivals, const Place& place) {
  current_block->hopper().barriers.initialize(barrier, arrivals, place);
}
void barriers_publish(const Place&) { current_block->hopper().barriers.publish(); }
void barrier_arrive(uint64_t* barrier, int expected_bytes, const Place& place) {
  current_block->hopper().barriers.arrive(barrier, expected_bytes, place);
}
void barrier_wait(uint64_t* barrier, int parity, const Place& place) {
  current_block->hopper().barriers.wait(barrier, parity, place);
}
void arrive_named(int barrier, int threads, const Place& place) {
  current_block->arrive_named(barrier, threads, place);
}
void change_registers(int registers, bool more, const Place& place) {
  current_block->hopper().warpgroups.change_registers(registers, more, place);
}

void load_box(void* to, const TensorMap& map, uint64_t* barrier, const BoxPlace& from, const Place& place) {
  current_block->hopper().proxy.load(to, map, barrier, from, place);
}
void store_box(const TensorMap& map, const void* from, const BoxPlace& to, const Place& place) {
  current_block->hopper().proxy.store(map, from, to, place);
}
void stores_commit(const Place&) { current_block->hopper().proxy.commit_stores(); }
void stores_wait_read(const Place&) { current_block->hopper().proxy.wait_for_stores(); }
void fence_async_proxy(const Place&) { current_block->hopper().proxy.fence(); }
void stage_shared(void* to, const void* value, int bytes, const Place& place) {
  current_block->hopper().proxy.stage(to, value, bytes, place);
}

void products_begin(const Place& place) { current_block->hopper().warpgroups.begin_products(place); }
void multiply(const ProductArguments& arguments, const Place& place) {
  current_block->hopper().warpgroups.multiply(arguments, place);
}
void products_commit(const Place& place) { current_block->hopper().warpgroups.commit_products(place); }
void products_wait(int under_way, const Place& place) {
  current_block->hopper().warpgroups.wait_for_products(under_way, place);
}

}  // namespace cpu_world

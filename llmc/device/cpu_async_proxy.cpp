#include "llmc/device/cpu_async_proxy.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdio>

#include "llmc/device/cpu_block_state.h"

namespace cpu_backend {
namespace {

// The size is a constant, so the compiler expands the copy inline. No sanitizer then attributes it to the running
// thread: TMA makes this access.
void copy_chunk(std::byte* to, const std::byte* from) { __builtin_memcpy(to, from, kChunkBytes); }
void copy_few(std::byte* to, const std::byte* from, size_t bytes) {  // `bytes` is 4, 8 or 16
  if (bytes == 4) __builtin_memcpy(to, from, 4);
  else if (bytes == 8) __builtin_memcpy(to, from, 8);
  else copy_chunk(to, from);
}

}  // namespace

AsyncProxy::~AsyncProxy() {
  if (view_) unmap(view_, kSharedMapping);
}

void AsyncProxy::begin() {
  poisoned_ = false;
  actors_.resize(size_t(block_.count()));
  for (Actor& actor : actors_) {
    actor.staged.clear();
    actor.stores = actor.group = 0;
  }
}

void AsyncProxy::poison() {
  if (!view_) {
    void* memory = mmap(nullptr, kSharedMapping, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) stop_kernel("no memory for a block's asynchronous view of shared memory");
    view_ = static_cast<std::byte*>(memory);
  }
  memset(view_, 0xff, block_.shared_bytes());
  poisoned_ = true;
  ++version_;
}

void AsyncProxy::end() {
  if (loads_.empty()) return;
  const Box& box = loads_.front();
  stop_kernel("%s:%d: %s: the block ended while the box was under way to byte %zu of shared memory", box.call.file,
              box.call.line, box.call.what, box.offset);
}

void AsyncProxy::thread_returns(int thread) const {
  if (actors_[size_t(thread)].stores == 0) return;
  const auto box = std::find_if(stores_.begin(), stores_.end(), [&](const Box& b) { return b.thread == thread; });
  stop_kernel("%s:%d: %s: thread %d returned with %d box(es) %s", box->call.file, box->call.line, box->call.what,
              thread, actors_[size_t(thread)].stores,
              box->group == actors_[size_t(thread)].group ? "not committed (tma_store_commit_group)"
                                                          : "not waited for (tma_store_wait_group_read)");
}

// ---------------------------------------------------------------------------------------------- ordinary writes

void AsyncProxy::stage(void* to, const void* value, int bytes, const Place& place) {
  Actor& actor = actors_[size_t(block_.current())];
  const size_t offset = block_.shared_offset(to, size_t(bytes), size_t(bytes), "the target", place);
  block_.writes(to, size_t(bytes));
  copy_few(static_cast<std::byte*>(to), static_cast<const std::byte*>(value), size_t(bytes));
  actor.staged.push_back({uint32_t(offset), uint32_t(bytes)});
}

void AsyncProxy::fence() {
  Actor& actor = actors_[size_t(block_.current())];
  if (actor.staged.empty()) return;
  std::byte* const view = this->view();
  for (const Staged& s : actor.staged) copy_few(view + s.offset, block_.shared() + s.offset, s.bytes);
  actor.staged.clear();
  ++version_;
}

// ---------------------------------------------------------------------------------------------- boxes

void require_tensor_map(const TensorMap& map, const Place& place) {
  if (unpack(map).magic != kTensorMapMagic)
    stop_kernel("%s:%d: %s: the map is not one that tensor_map() made", place.file, place.line, place.what);
}

AsyncProxy::Box AsyncProxy::make_box(const TensorMap& packed, const void* shared, const BoxPlace& place,
                                     const Place& call) const {
  Box box{unpack(packed), place, 0, block_.current(), 2, -1, 0, false, false, call};
  require_tensor_map(packed, call);
  for (const int size : box.map.box) box.bytes *= size;
  const uint32_t line = line_bytes(box.map.swizzle);
  box.offset = block_.shared_offset(shared, size_t(box.bytes), box.map.swizzle == Swizzle::none ? 128 : line * 8,
                                    "the box's place", call);
  if (box.map.swizzle != Swizzle::none && box.map.box[0] * 2u != line)
    stop_kernel("%s:%d: %s: a line of the box has %d bytes, that of its swizzle %u: shorter lines are not modelled",
                call.file, call.line, call.what, box.map.box[0] * 2, line);
  // An H200 ends such a kernel with an illegal instruction.
  if (place[0] % kChunkElements != 0)
    stop_kernel("%s:%d: %s: the box begins at coordinate %lld of dimension 0, which is no multiple of 16 bytes",
                call.file, call.line, call.what, (long long)place[0]);
  return box;
}

const std::vector<BoxChunk>& AsyncProxy::chunks_of(const Box& box) {
  chunks_.clear();
  append_chunks(box.map, box.place, uint32_t(box.offset), chunks_);
  return chunks_;
}

void AsyncProxy::land(const Box& box) {
  ++version_;
  std::byte *const shared = block_.shared(), *const view = this->view();
  for (const auto& [to, row, first] : chunks_of(box)) {
    alignas(kChunkBytes) std::byte chunk[kChunkBytes] = {};
    if (row && first >= 0 && first + kChunkElements <= box.map.sizes[0]) {
      copy_chunk(chunk, row + first * 2);
    } else if (row) {
      for (int e = 0; e < kChunkElements; ++e)
        if (first + e >= 0 && first + e < box.map.sizes[0]) __builtin_memcpy(chunk + e * 2, row + (first + e) * 2, 2);
    }
    copy_chunk(shared + to, chunk);
    copy_chunk(view + to, chunk);
  }
  barriers_.bytes_came(box.barrier, box.bytes, box.call);
}

void AsyncProxy::read(Box& box) {
  const std::byte* const view = this->view();
  for (const auto& [from, row, first] : chunks_of(box)) {
    if (!row) continue;
    if (LLMC_TSAN && block_.current() == box.thread) block_.reads(block_.shared() + from, kChunkBytes);
    for (int e = 0; e < kChunkElements; ++e)
      if (first + e >= 0 && first + e < box.map.sizes[0]) {
        auto* const to = const_cast<std::byte*>(row) + (first + e) * 2;
        if (LLMC_TSAN && block_.current() == box.thread) block_.writes(to, 2);
        __builtin_memcpy(to, view + from + e * 2, 2);
      }
  }
  box.read = true;
}

bool AsyncProxy::randomly_now() {
  const auto timing = block_.backend().copy_timing;
  return timing == CpuBackend::CopyTiming::early ||
         (timing == CpuBackend::CopyTiming::random && block_.random().below(2));
}

void AsyncProxy::load(void* to, const TensorMap& map, uint64_t* barrier, const BoxPlace& from, const Place& place) {
  Box box = make_box(map, to, from, place);
  box.barrier = barriers_.number_for_copy(barrier, place);
  if (randomly_now()) return land(box);
  ++version_;
  // A thread that reads before the box has landed reads poison.
  std::byte *const shared = block_.shared(), *const view = this->view();
  alignas(kChunkBytes) std::byte chunk[kChunkBytes];
  std::fill_n(chunk, kChunkBytes, std::byte{0xff});
  for (const BoxChunk& c : chunks_of(box)) {
    copy_chunk(shared + c.offset, chunk);
    copy_chunk(view + c.offset, chunk);
  }
  box.late = block_.random().below(4) == 0;
  loads_.push_back(box);
}

void AsyncProxy::land_number(size_t i) {
  const Box box = loads_[i];
  loads_.erase(loads_.begin() + ptrdiff_t(i));
  land(box);
}

bool AsyncProxy::land_one(Which which) {
  if (loads_.empty()) return false;
  const size_t last = loads_.size() - 1;
  land_number(which == Which::any ? block_.random().below(last + 1) : which == Which::newest ? last : 0);
  return true;
}

void AsyncProxy::land_early() {
  if (loads_.empty()) return;
  const size_t i = block_.random().below(loads_.size());
  if (!loads_[i].late) land_number(i);
}

void AsyncProxy::store(const TensorMap& map, const void* from, const BoxPlace& to, const Place& place) {
  Box box = make_box(map, from, to, place);
  // An H200 ends a kernel that stores at negative coordinates with an illegal instruction, and writes whole 16 bytes.
  if (std::any_of(to.begin(), to.end(), [](int64_t c) { return c < 0; }))
    stop_kernel("%s:%d: %s: the box begins before the tensor: a GPU loads such a box, but does not store it",
                place.file, place.line, place.what);
  if (box.map.sizes[0] % kChunkElements != 0)
    stop_kernel("%s:%d: %s: rows of %lld elements are not whole 16 bytes: a GPU would write beyond them", place.file,
                place.line, place.what, (long long)box.map.sizes[0]);
  Actor& actor = actors_[size_t(box.thread)];
  box.group = actor.group;
  ++actor.stores;
  if (randomly_now()) read(box);
  stores_.push_back(box);
}

void AsyncProxy::commit_stores() { ++actors_[size_t(block_.current())].group; }

void AsyncProxy::wait_for_stores() {
  const int me = block_.current();
  Actor& actor = actors_[size_t(me)];
  size_t kept = 0;
  for (Box& box : stores_) {
    if (box.thread != me || box.group == actor.group) {
      stores_[kept++] = box;
      continue;
    }
    if (!box.read) read(box);
    --actor.stores;
  }
  stores_.erase(stores_.begin() + ptrdiff_t(kept), stores_.end());
}

bool AsyncProxy::read_one() {
  for (Box& box : stores_)
    if (!box.read) return read(box), true;
  return false;
}

void AsyncProxy::describe() const {
  for (const Box& box : loads_)
    fprintf(stderr, "  a box of %d bytes is under way to byte %zu of shared memory, %s of thread %d at %s:%d\n",
            box.bytes, box.offset, box.call.what, box.thread, box.call.file, box.call.line);
  for (const Box& box : stores_)
    if (!box.read)
      fprintf(stderr, "  a box of %d bytes is under way from byte %zu of shared memory, %s of thread %d at %s:%d\n",
              box.bytes, box.offset, box.call.what, box.thread, box.call.file, box.call.line);
}

}  // namespace cpu_backend

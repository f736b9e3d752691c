// The units of a multiprocessor that threads share. Barriers, warps' rendezvous, asynchronous copies, mbarriers and
// wgmma are the CPU backend's. Shuffles, reductions, mma, ldmatrix and TMA's boxes are written here a second time, from
// the text of the PTX ISA alone, so that a misreading in the CPU backend shows as a difference.
#include <algorithm>
#include <bit>
#include <cstring>
#include <thread>
#include <vector>

#include "dev/softgpu/kernel.h"
#include "llmc/base/clock.h"
#include "llmc/device/cpu_block_state.h"
#include "llmc/device/cpu_box.h"
#include "llmc/device/cpu_hopper_state.h"

namespace softgpu {
namespace {

// Both structs have the same members.
const cpu_backend::Place& place_of(const Place& place) {
  static_assert(sizeof(Place) == sizeof(cpu_backend::Place));
  return reinterpret_cast<const cpu_backend::Place&>(place);
}

// One rendezvous of a warp. Each lane brings its arguments and gets its results in them; the last to come calls
// Arguments::meet with those of all lanes, null for a lane that takes no part.
template <class Arguments>
void meet(u32 mask, Arguments& own, const Place& place) {
  const auto together = [](uint64_t* posted, uint32_t lanes) {
    Arguments* all[32] = {};
    for (int l = 0; l < 32; ++l)
      if (lanes >> l & 1) all[l] = cpu_backend::from_posted<Arguments*>(posted[l]);
    Arguments::meet(all);
  };
  cpu_backend::sync_warp(mask, together, cpu_backend::to_posted(&own), place_of(place));
}

}  // namespace

// ---------------------------------------------------------------------------------------------- blocks

void bar_sync(u32 barrier, const Place& place) {
  if (barrier == 0) cpu_backend::sync_block(place_of(place));
  else cpu_backend::sync_named(int(barrier), cpu_backend::current_block->count(), place_of(place));
}
void bar_sync(u32 barrier, u32 threads, const Place& place) {
  cpu_backend::sync_named(int(barrier), int(threads), place_of(place));
}
// Spinning threads take turns, and leave the host's other threads time to execute the block that they wait for.
void yield(const Place& place) {
  cpu_backend::Block& block = *cpu_backend::current_block;
  block.make_ready(block.current());
  block.wait_at(place_of(place));
  std::this_thread::yield();
}
u64 clock64() { return u64(seconds() * 1.755e9); }
void bar_arrive(u32 barrier, u32 threads, const Place& place) {
  cpu_backend::arrive_named(int(barrier), int(threads), place_of(place));
}

// ---------------------------------------------------------------------------------------------- warps

void bar_warp_sync(u32 mask, const Place& place) { cpu_backend::sync_warp(mask, nullptr, 0, place_of(place)); }

namespace {

// The pseudo-code of shfl.sync. Each kind is a type of its own, so that lanes in different ones are seen to diverge.
template <Shuffle how>
struct ShuffleArguments {
  u32 value, lane, clamp_and_segment, result = 0;
  bool in_range = false;

  static void meet(ShuffleArguments* (&all)[32]) {
    for (u32 me = 0; me < 32; ++me) {
      if (!all[me]) continue;
      const u32 b = all[me]->lane & 31, clamp = all[me]->clamp_and_segment & 31;
      const u32 segment = all[me]->clamp_and_segment >> 8 & 31;
      const s32 most = s32((me & segment) | (clamp & ~segment)), least = s32(me & segment);
      s32 from = 0;
      bool in_range = false;
      switch (how) {
        case Shuffle::up:
          from = s32(me) - s32(b), in_range = from >= most;
          break;
        case Shuffle::down:
          from = s32(me + b), in_range = from <= most;
          break;
        case Shuffle::bfly:
          from = s32(me ^ b), in_range = from <= most;
          break;
        case Shuffle::idx:
          from = least | s32(b & ~segment), in_range = from <= most;
          break;
      }
      if (!in_range) from = s32(me);
      all[me]->in_range = in_range;
      all[me]->result = all[from] ? all[from]->value : ~0u;  // of a lane that takes no part: undefined
    }
  }
};
template <Shuffle how>
u32 shuffle(ShuffleArguments<how> arguments, u32 mask, bool& in_range, const Place& place) {
  meet(mask, arguments, place);
  in_range = arguments.in_range;
  return arguments.result;
}

struct BallotArguments {
  bool predicate;
  u32 result = 0;

  static void meet(BallotArguments* (&all)[32]) {
    u32 ballot = 0;
    for (int l = 0; l < 32; ++l) ballot |= u32(all[l] && all[l]->predicate) << l;
    for (BallotArguments* lane : all)
      if (lane) lane->result = ballot;
  }
};

template <Redux how>
struct ReduxArguments {
  u32 value;

  static void meet(ReduxArguments* (&all)[32]) {
    u32 result = how == Redux::min ? ~0u : 0;
    for (const ReduxArguments* lane : all)
      if (lane)
        result = how == Redux::add   ? result + lane->value
                 : how == Redux::max ? std::max(result, lane->value)
                                     : std::min(result, lane->value);
    for (ReduxArguments* lane : all)
      if (lane) lane->value = result;
  }
};
template <Redux how>
u32 reduce(u32 value, u32 mask, const Place& place) {
  ReduxArguments<how> arguments{value};
  meet(mask, arguments, place);
  return arguments.value;
}

void require_whole_warp(bool whole, const char* what) {
  if (!whole) cpu_backend::stop_kernel("%s is executed by part of a warp", what);
}

f64 bf16_of(u32 pair, int which) { return std::bit_cast<f32>(which ? pair & 0xffff0000u : pair << 16); }

// Fragments of mma.m16n8k16 with bf16 ("Matrix Fragments for mma.m16n8k16 with floating point type"): element i of a
// lane's fragment of A (8 elements), B (4) and C or D (4). The 16 exact products and c are added in double precision; a
// tensor core's sum has an order and roundings of its own.
struct MmaArguments {
  f32* d;
  const u32 *a, *b;
  const f32* c;

  static void meet(MmaArguments* (&all)[32]) {
    f64 A[16][16], B[16][8];
    for (int lane = 0; lane < 32; ++lane) {
      require_whole_warp(all[lane], "mma");
      const int group = lane >> 2, in_group = lane % 4;
      for (int i = 0; i < 8; ++i) {
        const int row = i < 2 || (i >= 4 && i < 6) ? group : group + 8;
        const int column = in_group * 2 + (i & 1) + (i >= 4 ? 8 : 0);
        A[row][column] = bf16_of(all[lane]->a[i / 2], i & 1);
      }
      for (int i = 0; i < 4; ++i)
        B[in_group * 2 + (i & 1) + (i >= 2 ? 8 : 0)][group] = bf16_of(all[lane]->b[i / 2], i & 1);
    }
    for (int lane = 0; lane < 32; ++lane)
      for (int i = 0; i < 4; ++i) {
        const int row = i < 2 ? lane >> 2 : (lane >> 2) + 8, column = lane % 4 * 2 + (i & 1);
        f64 sum = all[lane]->c[i];
        for (int k = 0; k < 16; ++k) sum += A[row][k] * B[k][column];
        all[lane]->d[i] = canonical(f32(sum));
      }
  }
};

// ldmatrix.x4: lanes 8m to 8m + 7 give the rows of matrix m. A lane gets two neighbours of row lane / 4; with .trans
// the matrix is read as if its rows were columns.
struct LdmatrixArguments {
  const u8* row;
  bool transposed;
  u32 r[4] = {};

  static void meet(LdmatrixArguments* (&all)[32]) {
    for (const LdmatrixArguments* lane : all) require_whole_warp(lane, "ldmatrix");
    for (int matrix = 0; matrix < 4; ++matrix) {
      u16 elements[8][8];
      for (int row = 0; row < 8; ++row) memcpy(elements[row], all[matrix * 8 + row]->row, 16);
      for (int lane = 0; lane < 32; ++lane) {
        const int row = lane / 4, column = lane % 4 * 2;
        const u16 low = all[lane]->transposed ? elements[column][row] : elements[row][column];
        const u16 high = all[lane]->transposed ? elements[column + 1][row] : elements[row][column + 1];
        all[lane]->r[matrix] = u32(high) << 16 | low;
      }
    }
  }
};

}  // namespace

u32 shfl(Shuffle how, u32 value, u32 lane, u32 clamp_and_segment, u32 mask, bool& in_range, const Place& place) {
  switch (how) {
    case Shuffle::up:
      return shuffle(ShuffleArguments<Shuffle::up>{value, lane, clamp_and_segment}, mask, in_range, place);
    case Shuffle::down:
      return shuffle(ShuffleArguments<Shuffle::down>{value, lane, clamp_and_segment}, mask, in_range, place);
    case Shuffle::bfly:
      return shuffle(ShuffleArguments<Shuffle::bfly>{value, lane, clamp_and_segment}, mask, in_range, place);
    case Shuffle::idx:
      break;
  }
  return shuffle(ShuffleArguments<Shuffle::idx>{value, lane, clamp_and_segment}, mask, in_range, place);
}
u32 vote_ballot(u32 mask, bool predicate, const Place& place) {
  BallotArguments arguments{predicate};
  meet(mask, arguments, place);
  return arguments.result;
}
u32 redux(Redux how, u32 value, u32 mask, const Place& place) {
  return how == Redux::add   ? reduce<Redux::add>(value, mask, place)
         : how == Redux::max ? reduce<Redux::max>(value, mask, place)
                             : reduce<Redux::min>(value, mask, place);
}
void mma_m16n8k16(f32 (&d)[4], const u32 (&a)[4], const u32 (&b)[2], const f32 (&c)[4], const Place& place) {
  MmaArguments arguments{d, a, b, c};
  meet(~0u, arguments, place);
}
void ldmatrix_x4(u32 (&r)[4], const u8* row, bool transposed, const Place& place) {
  cpu_backend::current_block->reads(row, 16);
  LdmatrixArguments arguments{row, transposed};
  meet(~0u, arguments, place);
  memcpy(r, arguments.r, sizeof r);
}

// ---------------------------------------------------------------------------------------------- asynchronous copies

void cp_async(u8* to, u64 from, u32 bytes, u32 source_bytes, const Place& place) {
  static constexpr u8 kZeros[16] = {};
  if (source_bytes != 0 && source_bytes != bytes)
    cpu_backend::stop_kernel("%s:%d: cp.async of %u of %u bytes is not executed", place.file, place.line, source_bytes,
                             bytes);
  const u8* source = kZeros;
  if (source_bytes == 16) source = global_memory<Access::read, 16>(from, place.file, place.line);
  else if (source_bytes == 8) source = global_memory<Access::read, 8>(from, place.file, place.line);
  else if (source_bytes == 4) source = global_memory<Access::read, 4>(from, place.file, place.line);
  cpu_backend::async_copy(to, source, int(bytes), place_of(place));
}
void cp_async_commit_group() { cpu_backend::async_copy_commit(); }
void cp_async_wait_group(u32 under_way) { cpu_backend::async_copy_wait(int(under_way)); }

// ---------------------------------------------------------------------------------------------- Hopper

namespace {
uint64_t* words(u8* p) { return reinterpret_cast<uint64_t*>(p); }
const TensorMap& tensor_map(const u8* p) { return *reinterpret_cast<const TensorMap*>(p); }
cpu_backend::BoxPlace box_place(BoxPlace place) { return {place.at[0], place.at[1], place.at[2], place.at[3]}; }

// The checks of global memory that an ordinary access has, for the part of a box that lies inside its tensor.
template <Access access>
void check_box(const CpuTensorMap& map, BoxPlace at, const Place& place) {
  thread_local std::vector<cpu_backend::BoxChunk> chunks;
  chunks.clear();
  cpu_backend::append_chunks(map, box_place(at), 0, chunks);
  for (const auto& [offset, row, first] : chunks) {
    if (!row) continue;
    const u64 address = reinterpret_cast<u64>(row) - kMemory;
    const s64 begin = std::max<s64>(first, 0), end = std::min<s64>(first + 8, map.sizes[0]);
    if (end - begin == 8 && (address + u64(begin) * 2) % 16 == 0)
      global_memory<access, 16>(address + u64(begin) * 2, place.file, place.line);
    else
      for (s64 i = begin; i < end; ++i) global_memory<access, 2>(address + u64(i) * 2, place.file, place.line);
  }
}
}  // namespace

void mbarrier_init(u8* barrier, u32 arrivals, const Place& place) {
  cpu_backend::mbarrier_init(words(barrier), int(arrivals), place_of(place));
}
void mbarrier_arrive(u8* barrier, u32 expected_bytes, const Place& place) {
  cpu_backend::mbarrier_arrive(words(barrier), int(expected_bytes), place_of(place));
}
// It waits for a time that the system chooses, and may return false.
bool mbarrier_try_wait(u8* barrier, u32 parity, const Place& place) {
  cpu_backend::Block& block = *cpu_backend::current_block;
  if (block.random().below(4) == 0) {
    yield(place);
    return false;
  }
  cpu_backend::mbarrier_wait(words(barrier), int(parity), place_of(place));
  return true;
}
// Boxes land although some thread can always go on.
bool mbarrier_test_wait(u8* barrier, u32 parity, const Place& place) {
  cpu_backend::Block& block = *cpu_backend::current_block;
  if (block.hopper().barriers.passed(words(barrier), int(parity), place_of(place))) {
    cpu_backend::mbarrier_wait(words(barrier), int(parity), place_of(place));
    return true;
  }
  if (block.random().below(16) == 0) block.hopper().proxy.land_one(cpu_backend::AsyncProxy::Which::any);
  yield(place);
  return false;
}
void fence_mbarrier_init(const Place& place) { cpu_backend::fence_mbarrier_init(place_of(place)); }
void fence_proxy_async(const Place& place) { cpu_backend::fence_async_proxy(place_of(place)); }
void store_shared(u8* to, const void* value, u32 bytes, const Place& place) {
  cpu_backend::store_for_async_proxy(to, value, int(bytes), place_of(place));
}
void tma_load(u8* to, u8* barrier, const u8* map, BoxPlace from, const Place& place) {
  check_box<Access::read>(unpack(tensor_map(map)), from, place);
  cpu_backend::tma_load(to, tensor_map(map), words(barrier), box_place(from), place_of(place));
}
void tma_store(const u8* from, const u8* map, BoxPlace to, const Place& place) {
  check_box<Access::write>(unpack(tensor_map(map)), to, place);
  cpu_backend::tma_store(tensor_map(map), from, box_place(to), place_of(place));
}
void tma_commit_group(const Place& place) { cpu_backend::tma_store_commit_group(place_of(place)); }
void tma_wait_group_read(const Place& place) { cpu_backend::tma_store_wait_group_read(place_of(place)); }
void wgmma_fence(const Place& place) { cpu_backend::wgmma_fence(place_of(place)); }
void wgmma(const Wgmma& p, const Place& place) {
  cpu_backend::multiply({p.d, int(p.columns), p.fragments, p.a, p.b, Major(p.major_a), Major(p.major_b), p.accumulate},
                        place_of(place));
}
void wgmma_commit_group(const Place& place) { cpu_backend::wgmma_commit_group(place_of(place)); }
void wgmma_wait_group(u32 under_way, const Place& place) {
  cpu_backend::wgmma_wait_group(int(under_way), place_of(place));
}
void setmaxnreg(u32 registers, bool more, const Place& place) {
  cpu_backend::change_registers(int(registers), more, place_of(place));
}

}  // namespace softgpu

// ---------------------------------------------------------------------------------------------- boxes

namespace cpu_backend {

// In the place of llmc/device/cpu_box.cpp, from "Tensor Data", "Tensor Access Modes" (tiled) and "Swizzling Modes" of
// the PTX ISA. The box fills shared memory densely, dimension 0 innermost. In a swizzled pattern of 32, 64 or 128 bytes
// a line, chunk c of 16 bytes in line l of shared memory, counted in lines of 128 bytes, lies at chunk c XOR (l mod 2),
// XOR (l mod 4) or XOR (l mod 8).
void append_chunks(const CpuTensorMap& map, const BoxPlace& place, uint32_t offset, std::vector<BoxChunk>& chunks) {
  const int64_t bytes_of_row = map.box[0] * 2;
  const int64_t rows = int64_t(map.box[1]) * map.box[2] * map.box[3];
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t place_of_row[3] = {row % map.box[1], row / map.box[1] % map.box[2], row / map.box[1] / map.box[2]};
    bool inside = true;
    int64_t at = 0;
    for (int d = 1; d < 4; ++d) {
      const int64_t coordinate = place[size_t(d)] + place_of_row[d - 1];
      inside = inside && coordinate >= 0 && coordinate < map.sizes[d];
      at += coordinate * map.strides[d - 1];
    }
    for (int64_t byte = 0; byte < bytes_of_row; byte += 16) {
      const int64_t dense = offset + row * bytes_of_row + byte;
      const int64_t line = dense / 128, chunk = dense / 16 % 8;
      int64_t swizzled = chunk;
      if (map.swizzle == Swizzle::bytes128) swizzled = chunk ^ line % 8;
      if (map.swizzle == Swizzle::bytes64) swizzled = chunk ^ line % 4;
      if (map.swizzle == Swizzle::bytes32) swizzled = chunk ^ line % 2;
      chunks.push_back({size_t(line * 128 + swizzled * 16), inside ? map.data + at : nullptr, place[0] + byte / 2});
    }
  }
}

}  // namespace cpu_backend

// Covers: promise 2: collectives of one rank against a plain reference; comm.sh runs this on several ranks
//
//   comm                 all checks, on as many ranks as it was started with
//   comm SCENARIO [N]    what comm.sh looks at from outside: who am I, how ranks end (see `scenarios` below)
#include <unistd.h>

#include <bit>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <thread>
#include <vector>

#include "dev/test/comm_bench.h"
#include "dev/test/error_of.h"
#include "dev/test/ranks_main.h"
#include "llmc/base/error.h"
#include "llmc/comm/communicator.h"
#include "llmc/device/device.h"

namespace {

// ---------------------------------------------------------------------------------------------- tools

#if LLMC_DEVICE_CUDA
constexpr int kPatienceSeconds = 20;  // NCCL's start, which takes some, is waited for as long
#else
constexpr int kPatienceSeconds = 2;
#endif

void sleep_ms(int ms) { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); }

// ---------------------------------------------------------------------------------------------- collectives

template <class T>
void check_all_reduce_sum(Bench& b, const char* type) {
  const size_t size = size_t(b.ranks.size);
  const size_t largest = 5 * (size_t(2) << 20) / sizeof(T) + size + 1;  // 10 MiB: three chunks over MPI
  for (size_t count : {size_t(0), size_t(1), size - 1, size, size + 1, size_t(1000), size_t(4099), largest}) {
    const std::vector<T> want = sum_of_ranks<T>(b.ranks.size, count);
    for (int repeat = 0; repeat < (count < largest ? 2 : 1); ++repeat) {
      Buffer<T> data(b, count);
      data.put(values<T>(b.ranks.rank, count));
      b.communicator->all_reduce_sum(b.compute, data.tensor());
      b.check(agree(b, data.get(), want), format("all_reduce_sum of %zu %s", count, type));
    }
    if constexpr (std::is_floating_point_v<T>)
      if (count >= 1000 && size >= 3)
        b.check(want != sum_of_ranks<T>(b.ranks.size, count, 0, true), "another order of the ranks gives other bits");
  }
}

void check_all_reduce_max(Bench& b) {
  for (size_t count : {size_t(1), size_t(4099), (size_t(1) << 20) + 3}) {
    std::vector<float> mine = values<float>(b.ranks.rank, count), want = values<float>(0, count);
    for (int r = 1; r < b.ranks.size; ++r)
      for (size_t i = 0; i < count; ++i) want[i] = std::max(want[i], value<float>(r, i));
    if (b.ranks.rank) mine[0] = NAN;  // loses against rank 0's number
    want[0] = value<float>(0, 0);
    Buffer<float> data(b, count);
    data.put(mine);
    b.communicator->all_reduce_max(b.compute, data.tensor());
    b.check(agree(b, data.get(), want), format("all_reduce_max of %zu", count));
  }
}

void check_broadcast(Bench& b) {
  using Byte = unsigned char;
  for (int root = 0; root < b.ranks.size; ++root)
    for (size_t count : {size_t(0), size_t(1), size_t(4099), (size_t(9) << 20) + 1}) {
      Buffer<Byte> data(b, count);
      data.put(values<Byte>(b.ranks.rank, count));
      b.communicator->broadcast(b.compute, data.data(), count, root);
      b.check(agree(b, data.get(), values<Byte>(root, count)), format("broadcast of %zu bytes from %d", count, root));
    }
}

void check_all_gather(Bench& b) {
  using Byte = unsigned char;
  for (size_t each : {size_t(0), size_t(1), size_t(1001), (size_t(5) << 20) + 1})
    for (bool in_place : {false, true}) {
      std::vector<Byte> want;
      for (int r = 0; r < b.ranks.size; ++r) {
        const std::vector<Byte> part = values<Byte>(r, each);
        want.insert(want.end(), part.begin(), part.end());
      }
      Buffer<Byte> out(b, want.size()), in(b, each);
      const size_t place = size_t(b.ranks.rank) * each;
      in.put(values<Byte>(b.ranks.rank, each));
      if (in_place) out.put(values<Byte>(b.ranks.rank, each), place);
      b.communicator->all_gather(b.compute, out.data(), in_place ? out.data() + place : in.data(), each);
      b.check(agree(b, out.get(), want), format("all_gather of %zu bytes each%s", each, in_place ? ", in place" : ""));
    }
}

template <class T>
void check_reduce_scatter(Bench& b, const char* type) {
  for (size_t each : {size_t(0), size_t(1), size_t(1001), (size_t(1) << 20) + 5})
    for (bool in_place : {false, true}) {
      const size_t mine = size_t(b.ranks.rank) * each;
      const std::vector<T> want = sum_of_ranks<T>(b.ranks.size, each, mine);
      Buffer<T> in(b, size_t(b.ranks.size) * each), out(b, each);
      in.put(values<T>(b.ranks.rank, in.size()));
      b.communicator->reduce_scatter_sum(b.compute, in_place ? in.part(mine, each) : out.tensor(), in.tensor());
      std::vector<T> got = in_place ? in.get() : out.get();
      if (in_place) got = std::vector<T>(got.begin() + ptrdiff_t(mine), got.begin() + ptrdiff_t(mine + each));
      b.check(agree(b, got, want),
              format("reduce_scatter_sum of %zu %s each%s", each, type, in_place ? ", in place" : ""));
    }
}

// Each rank sends each rank another number of bytes, and some none; `out` has gaps, and blocks in another order.
void check_all_to_all(Bench& b) {
  using Byte = unsigned char;
  const int size = b.ranks.size, own = b.ranks.rank;
  for (size_t unit : {size_t(0), size_t(1), size_t(1001), (size_t(3) << 20) / size_t(size) + 7}) {
    const auto bytes = [&](int from, int to) { return unit * size_t((from + 2 * to) % (size + 1)); };
    std::vector<ByteRange> sends(static_cast<size_t>(size)), receives = sends;
    size_t sent = 5, received = 3;
    for (int r = 0; r < size; ++r) sends[size_t(r)] = {sent, bytes(own, r)}, sent += bytes(own, r) + 2;
    for (int r = size - 1; r >= 0; --r) receives[size_t(r)] = {received, bytes(r, own)}, received += bytes(r, own) + 1;
    std::vector<Byte> want(received, 0xff);
    for (int r = 0; r < size; ++r) {
      const std::vector<Byte> block = values<Byte>(r * size + own, bytes(r, own));
      std::copy(block.begin(), block.end(), want.begin() + ptrdiff_t(receives[size_t(r)].offset));
    }
    Buffer<Byte> in(b, sent), out(b, received);
    for (int r = 0; r < size; ++r)
      if (bytes(own, r)) in.put(values<Byte>(own * size + r, bytes(own, r)), sends[size_t(r)].offset);
    b.communicator->all_to_all(b.compute, out.data(), receives, in.data(), sends);
    b.check(agree(b, out.get(), want), format("all_to_all of blocks of up to %zu times %zu bytes", size_t(size), unit));
  }
}

void check_refusals(Bench& b) {
  Communicator& c = *b.communicator;
  Buffer<float> data(b, 100 * size_t(b.ranks.size));
  const auto sum = [&](Stream& stream, size_t at) { c.all_reduce_sum(stream, data.part(at, 10)); };
  const std::pair<const char*, std::function<void()>> calls[] = {
      {"one touches what the other writes", [&] { c.group([&] { sum(b.compute, 0), sum(b.compute, 9); }); }},
      {"in two streams", [&] { c.group([&] { sum(b.compute, 0), sum(b.communication, 10); }); }},
      {"within a group", [&] { c.group([&] { c.group([] {}); }); }},
      {"expected a rank from 0 to", [&] { c.broadcast(b.compute, data.data(), 4, b.ranks.size); }},
      {"expected a rank from 0 to", [&] { c.broadcast(b.compute, data.data(), 4, -1); }},
      {"expected fp32, bf16, fp64 or int64",
       [&] {
         c.all_reduce_sum(b.compute, {(int32_t*)data.data(), {4}});
       }},
      {"12 numbers at a null pointer",
       [&] {
         c.all_reduce_sum(b.compute, {(float*)nullptr, {12}});
       }},
      {"dev/test/comm.cpp",
       [&] {
         c.all_reduce_sum(b.compute, {(float*)nullptr, {12}});
       }},
      {"expected one for each of", [&] { c.all_to_all(b.compute, data.data(), {}, data.data(), {}); }},
      {"overlap each other, or those that are sent",
       [&] {
         const std::vector<ByteRange> to(size_t(b.ranks.size), {0, 4}), from(size_t(b.ranks.size), {2, 4});
         c.all_to_all(b.compute, data.data(), to, data.data(), from);
       }},
      {"overlap", [&] { c.all_gather(b.compute, data.data(), data.data() + 1, 100 * sizeof(float)); }},
      {"overlap", [&] {
         c.reduce_scatter_sum(b.compute, {data.data() + 1, {100}}, data.tensor());
       }}};
  for (const auto& [expected, call] : calls) b.says(error_of(call), expected);
}

// ---------------------------------------------------------------------------------------------- launched as one

// Sums, gathers and scattered sums of one launch have the bits of those that are launched one by one.
void check_launched_together(Bench& b) {
  constexpr size_t kCount = 1003;
  const size_t size = size_t(b.ranks.size);
  Communicator& c = *b.communicator;
  Buffer<float> sums(b, 3 * kCount), own(b, kCount), all(b, kCount * size), part(b, kCount);
  Buffer<bf16> narrow(b, kCount);
  sums.put(values<float>(b.ranks.rank, 3 * kCount)), own.put(values<float>(b.ranks.rank, kCount, 5));
  narrow.put(values<bf16>(b.ranks.rank, kCount));
  Buffer<float> scattered(b, kCount * size);
  scattered.put(values<float>(b.ranks.rank, kCount * size, 9));
  c.group([&] {
    for (size_t at : {size_t(0), 2 * kCount}) c.all_reduce_sum(b.compute, sums.part(at, kCount));
    c.all_gather(b.compute, all.data(), own.data(), kCount * sizeof(float));
    c.all_reduce_sum(b.compute, narrow.tensor());
    c.reduce_scatter_sum(b.compute, part.tensor(), scattered.tensor());
  });
  c.group([] {});
  std::vector<float> gathered, expected = sum_of_ranks<float>(b.ranks.size, kCount);
  for (const float x : values<float>(b.ranks.rank, kCount, kCount)) expected.push_back(x);
  for (const float x : sum_of_ranks<float>(b.ranks.size, kCount, 2 * kCount)) expected.push_back(x);
  for (int r = 0; r < b.ranks.size; ++r)
    for (const float x : values<float>(r, kCount, 5)) gathered.push_back(x);
  b.check(agree(b, sums.get(), expected), "sums of one launch, and what lies between");
  b.check(agree(b, all.get(), gathered), "a gather of one launch with them");
  b.check(agree(b, narrow.get(), sum_of_ranks<bf16>(b.ranks.size, kCount)), "a sum of bf16 of the same launch");
  b.check(agree(b, part.get(), sum_of_ranks<float>(b.ranks.size, kCount, 9 + size_t(b.ranks.rank) * kCount)),
          "a scattered sum of the same launch");
}

// ---------------------------------------------------------------------------------------------- streams

// Work as a training step has it: chunks are computed in one stream, and summed in another while the next is computed.
void check_pipeline(Bench& b) {
  constexpr size_t kChunks = 4, kCount = 5000, kSteps = 5;
  Communicator& c = *b.communicator;
  std::vector<Buffer<float>> chunks;
  std::vector<Event> computed, summed;
  std::vector<std::vector<float>> inputs(kSteps * kChunks), results(kSteps * kChunks, std::vector<float>(kCount));
  for (size_t p = 0; p < kChunks; ++p) {
    chunks.emplace_back(b, kCount);
    computed.emplace_back(b.device);
    summed.emplace_back(b.device);
  }
  for (size_t step = 0; step < kSteps; ++step) {
    for (size_t p = 0; p < kChunks; ++p) {
      const size_t k = step * kChunks + p;
      inputs[k] = values<float>(b.ranks.rank, kCount, k * kCount);
      copy(b.compute, chunks[p].data(), inputs[k].data(), kCount);
      computed[p].record(b.compute);
      b.communication.wait(computed[p]);
      c.all_reduce_sum(b.communication, chunks[p].tensor());
      summed[p].record(b.communication);
    }
    for (size_t p = 0; p < kChunks; ++p) {
      b.compute.wait(summed[p]);
      copy(b.compute, results[step * kChunks + p].data(), chunks[p].data(), kCount);
    }
  }
  b.compute.synchronize();
  for (size_t k = 0; k < results.size(); ++k)
    b.check(agree(b, results[k], sum_of_ranks<float>(b.ranks.size, kCount, k * kCount)),
            format("chunk %zu of a pipeline of two streams", k));
}

// Groups of even and odd ranks, and groups of one.
void check_groups(Bench& b) {
  const int rank = b.ranks.rank, size = b.ranks.size, color = rank % 2;
  std::vector<int> members;
  for (int r = color; r < size; r += 2) members.push_back(r);
  const std::unique_ptr<Communicator> group = b.communicator->split(members), alone = b.communicator->split({rank});
  b.check(group->world_ranks() == members && alone->world_ranks() == std::vector<int>{rank}, "who is in a group");
  if (size > 1) b.says(error_of([&] { b.communicator->split({(rank + 1) % size}); }), "this rank's");
  b.check(group->size() == int(members.size()) && members[size_t(group->rank())] == rank, "a group's size and ranks");
  b.check(alone->size() == 1 && alone->rank() == 0, "a group of one");

  constexpr size_t kCount = 4099;
  std::vector<float> want = values<float>(members[0], kCount);
  for (size_t m = 1; m < members.size(); ++m)
    for (size_t i = 0; i < kCount; ++i) want[i] += value<float>(members[m], i);
  Buffer<float> data(b, kCount);
  data.put(values<float>(rank, kCount));
  group->all_reduce_sum(b.compute, data.tensor());
  b.check(agree(b, data.get(), want), "a sum in the order of the group");
  // Spanned the other way round: what is gathered comes in that order.
  const std::vector<int> backwards(members.rbegin(), members.rend());
  const std::unique_ptr<Communicator> reversed = b.communicator->split(backwards);
  b.check(reversed->world_ranks() == backwards && backwards[size_t(reversed->rank())] == rank,
          "a group in another order");
  Buffer<float> parts(b, members.size() * 5);
  std::vector<float> gathered;
  for (const int member : backwards)
    for (const float x : values<float>(member, 5)) gathered.push_back(x);
  Buffer<float> mine(b, 5);
  mine.put(values<float>(rank, 5));
  reversed->all_gather(b.compute, parts.data(), mine.data(), 5 * sizeof(float));
  b.check(agree(b, parts.get(), gathered), "what it gathers");
  alone->all_reduce_sum(b.compute, data.tensor());
  b.check(agree(b, data.get(), want), "a sum of one");
  Buffer<float> all(b, kCount * members.size());
  group->all_gather(b.compute, all.data(), data.data(), kCount * sizeof(float));
  std::vector<float> repeated;
  for (size_t m = 0; m < members.size(); ++m) repeated.insert(repeated.end(), want.begin(), want.end());
  b.check(agree(b, all.get(), repeated), "a gather within the group");
}

// Two communicators in two streams that nothing orders: each rank looks at another one first, and none waits forever.
void check_two_streams(Bench& b) {
  const std::unique_ptr<Communicator> second = b.communicator->split(b.communicator->world_ranks());
  constexpr size_t kCount = 1000;
  Buffer<float> one(b, kCount), two(b, kCount);
  for (int repeat = 0; repeat < 4; ++repeat) {
    one.put(values<float>(b.ranks.rank, kCount));
    two.put(values<float>(b.ranks.rank, kCount, 7));
    second->all_reduce_sum(b.communication, two.tensor());
    b.communicator->all_reduce_sum(b.compute, one.tensor());
    Stream& first = b.ranks.rank % 2 ? b.compute : b.communication;
    first.synchronize();
    b.device.synchronize();
    b.check(agree(b, one.get(), sum_of_ranks<float>(b.ranks.size, kCount)), "a sum in one stream");
    b.check(agree(b, two.get(), sum_of_ranks<float>(b.ranks.size, kCount, 7)), "a sum in another");
  }
}

void check_order(Bench& b) {
  if (b.device.info().gpu) return;  // the CPU backend's check
  Communicator& c = *b.communicator;
  Buffer<float> data(b, 1000), other(b, 1000);
  const auto unordered = [&](std::vector<const char*> names, const std::function<void()>& call) {
    const std::string message = error_of(call);
    for (const char* name : names) b.says(message, name);
    b.device.synchronize();
  };
  clear(b.compute, data.data(), data.size());
  unordered(
      {"unordered access: all_reduce_sum writes", "'communication' (dev/test/comm.cpp", "fill writes", "'compute'"},
      [&] { c.all_reduce_sum(b.communication, data.tensor()); });
  c.all_reduce_sum(b.communication, data.tensor());
  unordered({"unordered access: fill writes", "all_reduce_sum writes"},
            [&] { clear(b.compute, data.data() + 999, 1); });
  clear(b.compute, data.data(), 250);
  if (b.ranks.size <= 4)
    unordered({"unordered access: all_gather writes", "fill writes"}, [&] {
      c.all_gather(b.communication, data.data(), other.data(), 1000 / size_t(b.ranks.size) * sizeof(float));
    });
  clear(b.compute, other.data(), other.size());
  unordered({"unordered access: reduce_scatter_sum reads", "fill writes"}, [&] {
    const size_t each = 1000 / size_t(b.ranks.size);
    c.reduce_scatter_sum(b.communication, data.part(0, each), other.part(0, each * size_t(b.ranks.size)));
  });
  // Two collectives of one communicator, on buffers that have nothing in common.
  c.all_reduce_sum(b.communication, data.tensor());
  unordered({"unordered access: broadcast writes 1 bytes", "all_reduce_sum writes"},
            [&] { c.broadcast(b.compute, other.data(), 4000, 0); });
  Event done(b.device);
  c.all_reduce_sum(b.communication, data.tensor());
  done.record(b.communication);
  b.compute.wait(done);
  b.check(error_of([&] { c.broadcast(b.compute, other.data(), 4000, 0); }).empty(), "an event orders two collectives");
  b.compute.synchronize();
}

void check_host_helpers(Bench& b) {
  Communicator& c = *b.communicator;
  if (b.ranks.mpi || b.ranks.size == 1) {
    std::vector<std::string> want;
    for (int r = 0; r < b.ranks.size; ++r) want.push_back(std::string(size_t(r), 'x'));
    b.check(b.ranks.all_gather(want[size_t(b.ranks.rank)]) == want, "all_gather of the ranks' words, the first empty");
  }
  const std::string text = "runs/2026-11-21-tiny of rank ";
  for (int root = 0; root < b.ranks.size; ++root)
    b.check(broadcast_text(c, b.compute, text + std::to_string(b.ranks.rank), root) == text + std::to_string(root),
            "broadcast_text");
  b.check(broadcast_text(c, b.compute, b.ranks.rank ? "not this" : "").empty(), "broadcast_text of nothing");
  // Rank r has r letters: texts of unequal length, and an empty one.
  const std::vector<std::string> texts = gather_texts(c, b.compute, std::string(size_t(b.ranks.rank), 'x'));
  b.check(texts.size() == size_t(b.ranks.size), "gather_texts: a text of each rank");
  for (size_t rank = 0; rank < texts.size(); ++rank)
    b.check(texts[rank] == std::string(rank, 'x'), "gather_texts of rank " + std::to_string(rank));
  b.check(broadcast_number(c, b.compute, 1000000000000 + b.ranks.rank) == 1000000000000, "broadcast_number");
  namespace fs = std::filesystem;
  const std::string file =
      broadcast_text(c, b.compute, (fs::temp_directory_path() / ("llmc_barrier_" + std::to_string(getpid()))).string());
  if (b.ranks.rank == b.ranks.size - 1) {
    sleep_ms(100);
    std::ofstream(file) << "here";
  }
  barrier(c, b.compute);
  b.check(fs::exists(file), "what the last rank did before a barrier");
  barrier(c, b.compute);
  if (b.ranks.rank == 0) fs::remove(file);
}

void check_all(const Ranks& ranks) {
  Bench b(ranks);
  check_all_reduce_sum<float>(b, "float");
  check_all_reduce_sum<double>(b, "double");
  check_all_reduce_sum<int64_t>(b, "int64");
  check_all_reduce_sum<bf16>(b, "bf16");
  check_all_reduce_max(b);
  check_broadcast(b);
  check_all_to_all(b);
  check_all_gather(b);
  check_reduce_scatter<float>(b, "float");
  check_reduce_scatter<bf16>(b, "bf16");
  check_refusals(b);
  check_groups(b);
  check_launched_together(b);
  check_pipeline(b);
  check_two_streams(b);
  check_order(b);
  check_host_helpers(b);
  if (ranks.rank == 0)
    printf("%d checks passed on each of %d ranks: %s\n", b.checks, ranks.size, b.communicator->description().c_str());
}

// ---------------------------------------------------------------------------------------------- scenarios

// All ranks work together until something ends them.
void work_for_ever(const Ranks& ranks, double timeout_seconds, const std::function<void(int step)>& before_step) {
  Bench b(ranks, timeout_seconds);
  Buffer<float> data(b, 100000);
  for (int step = 0;; ++step) {
    before_step(step);
    clear(b.compute, data.data(), data.size());
    b.communicator->all_reduce_sum(b.compute, data.tensor());
    b.communicator->wait_for(b.compute);
    sleep_ms(1);
  }
}

const std::map<std::string, std::function<void(const Ranks&, int)>> scenarios = {
    {"", [](const Ranks& ranks, int) { check_all(ranks); }},
    {"who",
     [](const Ranks& ranks, int) {
       printf("%s, local %d of %d, %s\n", ranks.name().c_str(), ranks.local_rank, ranks.local_size, ranks.how.c_str());
     }},
    // Rank 0 works for longer than a collective may take; rank 1 cannot do its work.
    {"long-work",
     [](const Ranks& ranks, int) {
       Bench b(ranks, kPatienceSeconds);
       int calls = 0;
       const auto work = [&] {
         if (ranks.rank == 0) sleep_ms(1500 * kPatienceSeconds);
         if (ranks.rank == 1) fail_as(ExitCode::lost, "trouble with the work");
       };
       const WorkError why = work_with_heartbeats(*b.communicator, b.compute, work, [&] { ++calls; });
       b.check(why.text == (ranks.rank == 1 ? "trouble with the work" : ""), "what the work threw: " + why.text);
       b.check(why.code == (ranks.rank == 1 ? ExitCode::lost : ExitCode::done), "and the exit code of it");
       b.check(calls > 2, "the caller is called meanwhile");
       if (ranks.rank == 0) printf("%d checks passed on each of %d ranks\n", b.checks, ranks.size);
     }},
    {"connect", [](const Ranks& ranks, int) { Bench b(ranks); }},
    // Rank N alone fails, while the others work.
    {"fail-one",
     [](const Ranks& ranks, int n) {
       work_for_ever(ranks, 60,
                     [&](int step) { REQUIRE(step < 20 || ranks.rank != n, "trouble of one rank\n  in two lines"); });
     }},
    // All but rank 0 fail with the same words, while it works.
    {"fail-others",
     [](const Ranks& ranks, int) {
       work_for_ever(ranks, 60, [&](int step) { REQUIRE(step < 20 || ranks.rank == 0, "trouble of the others"); });
     }},
    {"fail-all", [](const Ranks&, int) { fail("trouble of all"); }},
    // The same, but the lower ranks come to it later.
    {"fail-late",
     [](const Ranks& ranks, int) {
       sleep_ms(80 * (ranks.size - ranks.rank));
       fail("trouble of all");
     }},
    {"fail-at-exit",
     [](const Ranks&, int) {
       std::atexit([] { sleep_ms(1000000); });
       fail("trouble before exit handlers that hang");
     }},
    {"fail-in-destructors",
     [](const Ranks&, int) {
       struct Hangs {
         ~Hangs() { sleep_ms(1000000); }
       } hangs;
       new Deadline(0.5, "trouble before destructors that hang");
       fail("never printed");
     }},
    {"fail-each", [](const Ranks& ranks, int) { fail("trouble number %d", ranks.rank); }},
    // Rank N stays away from a collective.
    {"stay-away",
     [](const Ranks& ranks, int n) {
       work_for_ever(ranks, kPatienceSeconds, [&](int step) {
         if (step == 20 && ranks.rank == n) sleep_ms(3000 * kPatienceSeconds);
       });
     }},
    // Rank N asks for another number of elements than the others.
    {"disagree",
     [](const Ranks& ranks, int n) {
       Bench b(ranks);
       Buffer<float> data(b, 2000);
       b.communicator->all_reduce_sum(b.compute, data.part(0, ranks.rank == n ? 2000 : 1000));
       b.communicator->wait_for(b.compute);
     }},
};

void run(const Ranks& ranks, const Words& words) {
  const std::string name = words.empty() ? "" : words[0];
  REQUIRE(scenarios.count(name), "comm %s: no such scenario", name.c_str());
  scenarios.at(name)(ranks, words.size() > 1 ? std::stoi(words[1]) : 0);
}

}  // namespace

int main(int argc, char** argv) { return ranks_main(argc, argv, {{"comm [SCENARIO] [N]", run}}); }

#include "llmc/comm/communicator.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <thread>

#include "llmc/base/error.h"
#include "llmc/comm/backends.h"
#include "llmc/device/work.h"
#if LLMC_DEVICE_CPU
#include "llmc/device/cpu_stream.h"
#endif

// ---------------------------------------------------------------------------------------------- arguments and order

namespace {

const std::byte* bytes_of(const void* data) { return static_cast<const std::byte*>(data); }
std::byte* bytes_of(void* data) { return static_cast<std::byte*>(data); }

// Returns the bytes that one rank sends to others, around a ring where the collective uses one.
size_t ring_bytes(const Collective& c, size_t ranks) {
  switch (c.kind) {
    case Collective::Kind::all_reduce:
      return 2 * (c.bytes() / ranks) * (ranks - 1);
    case Collective::Kind::broadcast:
    case Collective::Kind::all_to_all:
      return c.bytes();
    case Collective::Kind::all_gather:
    case Collective::Kind::reduce_scatter:
      break;
  }
  return c.bytes() * (ranks - 1);
}

}  // namespace

std::vector<int> Communicator::first_ranks(int size) {
  std::vector<int> ranks(static_cast<size_t>(size));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

std::unique_ptr<Communicator> Communicator::split(const std::vector<int>& group) {
  const int own = world_ranks_[size_t(rank_)];
  const auto place = std::find(group.begin(), group.end(), own);
  std::vector<int> ascending = group, all = world_ranks_;
  std::sort(ascending.begin(), ascending.end());
  std::sort(all.begin(), all.end());
  REQUIRE(place != group.end() && std::adjacent_find(ascending.begin(), ascending.end()) == ascending.end() &&
              std::includes(all.begin(), all.end(), ascending.begin(), ascending.end()),
          "a group of %zu of %d ranks: expected numbers of them, each once, with %d, this rank's", group.size(), size(),
          own);
  std::unique_ptr<Communicator> made = make_group(group, int(place - group.begin()));
  if (group.size() == 1) return std::make_unique<SingleCommunicator>(own);
  return made;
}

void Communicator::start(Work work, const Collective& collective) {
  if (size() > 1) {
    work.traffic = {ring_bytes(collective, size_t(size())), &world_ranks_,
                    collective.kind == Collective::Kind::all_reduce || collective.kind == Collective::Kind::broadcast};
    work.traffic.own = world_ranks_[size_t(rank_)];
    for (size_t r = 0; r < collective.sends.size(); ++r)
      if (int(r) != rank_)
        work.traffic.exchanges.push_back({world_ranks_[r], collective.sends[r].bytes, collective.receives[r].bytes});
  }
  REQUIRE(!grouped_ || collective.kind != Collective::Kind::all_to_all, "%s in a group of collectives", work.name);
  if (grouped_) grouped_->push_back({work, collective});
  else enqueue(work, collective);
}

namespace {

// Throws if a collective touches what another one writes.
void require_independent(const std::vector<CollectiveWork>& works, int ranks) {
  struct Range {
    const std::byte *begin, *end;
    size_t number;  // of the collective
    bool written;
  };
  std::vector<Range> ranges;
  for (size_t i = 0; i < works.size(); ++i) {
    const Collective& c = works[i].collective;
    const size_t sent = c.bytes() * (c.kind == Collective::Kind::reduce_scatter ? size_t(ranks) : 1),
                 received = c.bytes() * (c.kind == Collective::Kind::all_gather ? size_t(ranks) : 1);
    ranges.push_back({bytes_of(c.in), bytes_of(c.in) + sent, i, false});
    ranges.push_back({bytes_of(c.out), bytes_of(c.out) + received, i, true});
  }
  std::sort(ranges.begin(), ranges.end(), [](const Range& a, const Range& b) { return a.begin < b.begin; });
  for (size_t i = 0; i < ranges.size(); ++i)
    for (size_t j = i + 1; j < ranges.size() && ranges[j].begin < ranges[i].end; ++j)
      if (const Range& a = ranges[i], &b = ranges[j]; a.number != b.number && (a.written || b.written)) {
        const Work &one = works[a.number].work, &other = works[b.number].work;
        fail(
            "%s (%s:%d) and %s (%s:%d) are of one group, and one touches what the other writes\n"
            "  enqueue one of them after the group",
            one.name, one.site.file, one.site.line, other.name, other.site.file, other.site.line);
      }
}

}  // namespace

void Communicator::group(const std::function<void()>& calls) {
  REQUIRE(!grouped_, "a group of collectives within a group");
  std::vector<CollectiveWork> works;
  grouped_ = &works;
  try {
    calls();
  } catch (...) {
    grouped_ = nullptr;
    throw;
  }
  grouped_ = nullptr;
  if (works.empty()) return;
  for (size_t i = 1; i < works.size(); ++i) {
    works[i].work.traffic.joins = true;
    REQUIRE(&works[i].work.stream == &works[0].work.stream, "a group of collectives in two streams, '%s' and '%s'",
            works[0].work.stream.name(), works[i].work.stream.name());
  }
  require_independent(works, size());
  enqueue_group(works);
}

void Communicator::enqueue_group(const std::vector<CollectiveWork>& works) {
  for (const CollectiveWork& w : works) enqueue(w.work, w.collective);
}

namespace {

void require_collective_tensor(const char* name, const Tensor& data, CallSite site) {
  REQUIRE(data && data.contiguous(), "%s (%s:%d) of a tensor %s\n  expected a contiguous one", name, site.file,
          site.line, data.text().c_str());
  REQUIRE(data.data || data.size() == 0, "%s (%s:%d): %lld numbers at a null pointer", name, site.file, site.line,
          (long long)data.size());
}

void require_summed(const char* name, DType type, CallSite site) {
  const bool sums = type == DType::fp32 || type == DType::bf16 || type == DType::fp64 || type == DType::int64;
  REQUIRE(sums, "%s (%s:%d) of %s\n  expected fp32, bf16, fp64 or int64", name, site.file, site.line, dtype_name(type));
}

// `whole` holds a part of as many elements as `part` for each rank.
void require_parts(const char* name, const Tensor& whole, const Tensor& part, int ranks, CallSite site) {
  require_collective_tensor(name, whole, site);
  require_collective_tensor(name, part, site);
  REQUIRE(whole.type == part.type && whole.size() == part.size() * ranks,
          "%s (%s:%d) between a tensor %s of %s and parts %s of %s for %d ranks", name, site.file, site.line,
          whole.text().c_str(), dtype_name(whole.type), part.text().c_str(), dtype_name(part.type), ranks);
}

}  // namespace

void Communicator::all_reduce(Stream& stream, const char* name, const Tensor& data, Collective::Operation operation,
                              CallSite site) {
  require_collective_tensor(name, data, site);
  if (data.size() == 0) return;
  start(Work(stream, name, {updates(data), updates(turn(), 1)}, 0, site),
        {Collective::Kind::all_reduce, data.type, operation, data.data, data.data, size_t(data.size())});
}

void Communicator::all_reduce_sum(Stream& stream, const Tensor& data, CallSite site) {
  require_summed("all_reduce_sum", data.type, site);
  all_reduce(stream, "all_reduce_sum", data, Collective::Operation::sum, site);
}

void Communicator::all_reduce_max(Stream& stream, const Tensor& data, CallSite site) {
  REQUIRE(data.type == DType::fp32, "all_reduce_max (%s:%d) of %s\n  expected fp32", site.file, site.line,
          dtype_name(data.type));
  all_reduce(stream, "all_reduce_max", data, Collective::Operation::max, site);
}

void Communicator::broadcast(Stream& stream, void* data, size_t bytes, int root, CallSite site) {
  REQUIRE(root >= 0 && root < size(), "broadcast (%s:%d) from rank %d: expected a rank from 0 to %d", site.file,
          site.line, root, size() - 1);
  if (bytes == 0) return;
  REQUIRE(data, "broadcast (%s:%d): %zu bytes at a null pointer", site.file, site.line, bytes);
  const Access access = rank_ == root ? reads(bytes_of(data), bytes) : writes(bytes_of(data), bytes);
  start(Work(stream, "broadcast", {access, updates(turn(), 1)}, 0, site),
        {Collective::Kind::broadcast, DType::uint8, Collective::Operation::copy, data, data, bytes, root});
}

void Communicator::all_gather(Stream& stream, void* out, const void* in, size_t bytes_each, CallSite site) {
  if (bytes_each == 0) return;
  const size_t all = size_t(size()) * bytes_each;
  REQUIRE(out && in, "all_gather (%s:%d): %zu bytes from %p to %p", site.file, site.line, bytes_each, in, out);
  REQUIRE(in == bytes_of(out) + size_t(rank_) * bytes_each || !overlap(out, all, in, bytes_each),
          "all_gather (%s:%d): the %zu bytes at %p overlap the %zu at %p, but are not the place of rank %d in them",
          site.file, site.line, bytes_each, in, all, out, rank_);
  // If `in` is already in its place in `out`, that part is not written.
  const size_t before = size_t(rank_) * bytes_each, own = in == bytes_of(out) + before ? bytes_each : 0;
  start(Work(stream, "all_gather",
             {reads(bytes_of(in), bytes_each), writes(bytes_of(out), before),
              writes(bytes_of(out) + before + own, all - before - own), updates(turn(), 1)},
             0, site),
        {Collective::Kind::all_gather, DType::uint8, Collective::Operation::copy, in, out, bytes_each});
}

void Communicator::all_gather(Stream& stream, const Tensor& out, const Tensor& in, CallSite site) {
  require_parts("all_gather", out, in, size(), site);
  all_gather(stream, out.data, in.data, in.span_bytes(), site);
}

void Communicator::reduce_scatter_sum(Stream& stream, const Tensor& out, const Tensor& in, CallSite site) {
  require_parts("reduce_scatter_sum", in, out, size(), site);
  require_summed("reduce_scatter_sum", out.type, site);
  if (out.size() == 0) return;
  REQUIRE(out.data == bytes_of(in.data) + size_t(rank_) * out.span_bytes() || !overlap(out, in),
          "reduce_scatter_sum (%s:%d): the %lld numbers at %p overlap the %lld at %p, but are not the part of rank %d",
          site.file, site.line, (long long)out.size(), out.data, (long long)in.size(), in.data, rank_);
  start(
      Work(stream, "reduce_scatter_sum", {reads(in), writes(out), updates(turn(), 1)}, 0, site),
      {Collective::Kind::reduce_scatter, out.type, Collective::Operation::sum, in.data, out.data, size_t(out.size())});
}

namespace {

// Returns the bytes from the first to the last block.
ByteRange hull_of(const std::vector<ByteRange>& blocks) {
  size_t begin = SIZE_MAX, end = 0;
  for (const ByteRange& b : blocks)
    if (b.bytes) begin = std::min(begin, b.offset), end = std::max(end, b.offset + b.bytes);
  return begin < end ? ByteRange{begin, end - begin} : ByteRange{};
}

}  // namespace

void Communicator::all_to_all(Stream& stream, void* out, std::vector<ByteRange> receives, const void* in,
                              std::vector<ByteRange> sends, CallSite site) {
  REQUIRE(receives.size() == size_t(size()) && sends.size() == size_t(size()),
          "all_to_all (%s:%d) of %zu and %zu blocks: expected one for each of %d ranks", site.file, site.line,
          receives.size(), sends.size(), size());
  std::vector<ByteRange> received = receives;
  std::erase_if(received, [](const ByteRange& b) { return b.bytes == 0; });
  std::sort(received.begin(), received.end(),
            [](const ByteRange& a, const ByteRange& b) { return a.offset < b.offset; });
  const ByteRange to = hull_of(receives), from = hull_of(sends);
  bool apart = !overlap(bytes_of(out) + to.offset, to.bytes, bytes_of(in) + from.offset, from.bytes);
  for (size_t i = 1; i < received.size(); ++i)
    apart = apart && received[i - 1].offset + received[i - 1].bytes <= received[i].offset;
  REQUIRE(apart, "all_to_all (%s:%d): blocks that are received overlap each other, or those that are sent", site.file,
          site.line);
  size_t sent = 0;  // to others
  for (size_t r = 0; r < sends.size(); ++r) sent += int(r) == rank_ ? 0 : sends[r].bytes;
  Work work(
      stream, "all_to_all",
      {reads(bytes_of(in) + from.offset, from.bytes), writes(bytes_of(out) + to.offset, to.bytes), updates(turn(), 1)},
      0, site);
  start(work, {Collective::Kind::all_to_all, DType::uint8, Collective::Operation::copy, in, out, sent, 0,
               std::move(sends), std::move(receives)});
}

void Communicator::wait_for(Stream& stream) {
  Event done(stream.device());
  done.record(stream);
  wait_for(done);
}

// ---------------------------------------------------------------------------------------------- one rank

std::unique_ptr<Communicator> SingleCommunicator::make_group(const std::vector<int>&, int) { return nullptr; }

void SingleCommunicator::enqueue(const Work& work, const Collective& c) {
  const bool own = c.kind == Collective::Kind::all_to_all;  // this rank's block to itself
  void* const to = own ? bytes_of(c.out) + c.receives[0].offset : c.out;
  const void* const from = own ? bytes_of(c.in) + c.sends[0].offset : c.in;
  const size_t bytes = own ? c.sends[0].bytes : c.bytes();
#if LLMC_DEVICE_CPU
  cpu_backend::enqueue(work, [to, from, bytes] {
    if (to != from) memcpy(to, from, bytes);
  });
#else
  if (to != from) copy_bytes(work.stream, to, from, bytes, work.site);
#endif
}

// ---------------------------------------------------------------------------------------------- which one

std::string settle_order_of_sums() {
  setenv("NCCL_NVLS_ENABLE", "0", 0);
  const std::string nvls = getenv("NCCL_NVLS_ENABLE");
  if (nvls == "0") return "sums in its own order, the same in each run (NVLS is off)";
  return "sums in an order that may change from run to run, and so may the last bits of every loss, since "
         "NCCL_NVLS_ENABLE=" +
         nvls + " lets NVLS add them: unset it for runs that repeat to the bit";
}

std::unique_ptr<Communicator> make_communicator([[maybe_unused]] Device& device, const Ranks& ranks,
                                                [[maybe_unused]] const std::string& rendezvous,
                                                [[maybe_unused]] Timeouts timeouts) {
  if (ranks.size == 1) return std::make_unique<SingleCommunicator>();
#if LLMC_DEVICE_CPU && LLMC_MPI
  REQUIRE(ranks.mpi,
          "%d ranks, %s: on CPUs ranks need MPI to reach each other; --rendezvous is for GPUs\n"
          "  start them with mpirun -np %d, or scripts/run -n %d (unset WORLD_SIZE for one rank)",
          ranks.size, ranks.how.c_str(), ranks.size, ranks.size);
  return make_mpi_communicator(ranks, timeouts.comm);
#elif LLMC_DEVICE_CPU
  fail(
      "%d ranks, %s: this build has no MPI, and on the CPU several ranks need it\n"
      "  install it (make doctor tells how: Debian, Ubuntu: apt-get install libopenmpi-dev openmpi-bin), then make\n"
      "  or train on one rank: start without mpirun, and unset WORLD_SIZE",
      ranks.size, ranks.how.c_str());
#elif LLMC_NCCL
  return make_nccl_communicator(device, ranks, rendezvous, timeouts);
#else
  fail(
      "%d ranks, %s: this build has no NCCL, and on GPUs several ranks need it\n"
      "  install it or set NCCL_HOME (make doctor tells how), then make DEVICE=cuda; or train on one rank",
      ranks.size, ranks.how.c_str());
#endif
}

// ---------------------------------------------------------------------------------------------- for the host

std::string broadcast_text(Communicator& communicator, Stream& stream, std::string text, int root) {
  text.resize(size_t(broadcast_number(communicator, stream, int64_t(text.size()), root)));
  if (text.empty()) return text;
  DeviceMemory memory(stream.device(), text.size());
  copy_bytes(stream, memory.data(), text.data(), text.size());
  communicator.broadcast(stream, memory.data(), text.size(), root);
  copy_bytes(stream, text.data(), memory.data(), text.size());
  communicator.wait_for(stream);
  return text;
}

int64_t broadcast_number(Communicator& communicator, Stream& stream, int64_t number, int root) {
  DeviceMemory memory(stream.device(), sizeof number);
  copy_bytes(stream, memory.data(), &number, sizeof number);
  communicator.broadcast(stream, memory.data(), sizeof number, root);
  copy_bytes(stream, &number, memory.data(), sizeof number);
  communicator.wait_for(stream);
  return number;
}

std::vector<int64_t> gather_numbers(Communicator& communicator, Stream& stream, int64_t number) {
  std::vector<int64_t> numbers(size_t(communicator.size()));
  DeviceMemory memory(stream.device(), numbers.size() * sizeof number);
  auto* all = reinterpret_cast<int64_t*>(memory.data());
  copy(stream, all + communicator.rank(), &number, 1);
  communicator.all_gather(stream, all, all + communicator.rank(), sizeof number);
  copy(stream, numbers.data(), all, numbers.size());
  communicator.wait_for(stream);
  return numbers;
}

std::vector<std::string> gather_texts(Communicator& communicator, Stream& stream, std::string text) {
  const std::vector<int64_t> bytes = gather_numbers(communicator, stream, int64_t(text.size()));
  const size_t each = size_t(*std::max_element(bytes.begin(), bytes.end()));
  std::vector<std::string> texts(bytes.size());
  if (each == 0) return texts;
  text.resize(each);
  std::string all(each * texts.size(), '\0');
  DeviceMemory memory(stream.device(), all.size());
  copy_bytes(stream, memory.data() + size_t(communicator.rank()) * each, text.data(), each);
  communicator.all_gather(stream, memory.data(), memory.data() + size_t(communicator.rank()) * each, each);
  copy_bytes(stream, all.data(), memory.data(), all.size());
  communicator.wait_for(stream);
  for (size_t rank = 0; rank < texts.size(); ++rank) texts[rank] = all.substr(rank * each, size_t(bytes[rank]));
  return texts;
}

int64_t sum_number(Communicator& communicator, Stream& stream, int64_t number) {
  DeviceMemory memory(stream.device(), sizeof number);
  auto* sum = reinterpret_cast<int64_t*>(memory.data());
  copy(stream, sum, &number, 1);
  communicator.all_reduce_sum(stream, {sum, {1}});
  copy(stream, &number, sum, 1);
  communicator.wait_for(stream);
  return number;
}

void barrier(Communicator& communicator, Stream& stream) { sum_number(communicator, stream, 0); }

WorkError work_with_heartbeats(Communicator& communicator, Stream& stream, const std::function<void()>& work,
                               const std::function<void()>& meanwhile) {
  WorkError why;
  std::atomic<bool> done = false;
  std::thread worker([&] {
    try {
      work();
    } catch (const std::exception& error) {
      why = {error.what(), exit_code_of(error)};
    }
    done = true;
  });
  try {
    while (sum_number(communicator, stream, !done) > 0) {
      if (meanwhile) meanwhile();
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
  } catch (...) {
    worker.join();
    throw;
  }
  worker.join();
  return why;
}

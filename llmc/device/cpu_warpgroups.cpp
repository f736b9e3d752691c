#include "llmc/device/cpu_warpgroups.h"

#include <algorithm>
#include <cstring>

namespace cpu_backend {
namespace {

const char* name(Major major) { return major == Major::k ? "k" : "mn"; }
const uint32_t kPoison = ~0u;

// Calls f(held, r) for every pair of neighbours of D that `lane` holds. `held`: the address of the pair in a warp's d.
// `r`: the thread's register that holds the first of the two.
template <class F>
void each_pair(float* d, int lane, int columns, F&& f) {
  float* const row = d + product_row(lane, 0) * kMostProductColumns + product_column(lane, 0);
  for (int r = 0; r < columns / 2; r += 4) {
    f(row + r * 2, r);
    f(row + 8 * kMostProductColumns + r * 2, r + 2);
  }
}

int group_number(int thread) { return thread / kWarpgroupSize; }

}  // namespace

void Warpgroups::begin() {
  const int threads = block_.count();
  groups_.resize(size_t(threads / kWarpgroupSize));
  for (size_t g = 0; g < groups_.size(); ++g) {
    Group& group = groups_[g];
    group.number = int(g);
    group.steps.clear();
    std::fill(std::begin(group.position), std::end(group.position), 0);
    group.taken = 0;
    group.begun = false;
    group.uncommitted = group.batches = group.waited_batches = 0;
    group.waiters.clear();
    group.registers = std::min(65536 / threads / 8 * 8, 256);
    group.wanted = 0;
  }
  free_registers_ = 0;
}

// ---------------------------------------------------------------------------------------------- steps

Warpgroups::Group& Warpgroups::group_of_caller(const Place& place) {
  const int me = block_.current();
  if (size_t(group_number(me)) >= groups_.size())
    stop_kernel("%s:%d: %s: thread %d is in no whole warpgroup: the block has %d threads", place.file, place.line,
                place.what, me, block_.count());
  return groups_[size_t(group_number(me))];
}

void Warpgroups::require_same(const Group& group, const Step& first, const Step& mine, int member) const {
  const int base = group.number * kWarpgroupSize;
  if (first.kind != mine.kind || first.place.line != mine.place.line ||
      (first.place.file != mine.place.file && strcmp(first.place.file, mine.place.file) != 0))
    stop_kernel("divergence in warpgroup %d: thread %d is in %s at %s:%d, thread %d in %s at %s:%d", group.number,
                base + first.first, first.place.what, first.place.file, first.place.line, base + member,
                mine.place.what, mine.place.file, mine.place.line);
  const auto differ = [&](const char* what, const std::string& one, const std::string& other) {
    if (one != other)
      stop_kernel("%s:%d: %s: %s differs within warpgroup %d: %s in thread %d, %s in thread %d", mine.place.file,
                  mine.place.line, mine.place.what, what, group.number, one.c_str(), base + first.first, other.c_str(),
                  base + member);
  };
  const auto hex = [](uint64_t bits) { return format("%016llx", static_cast<unsigned long long>(bits)); };
  if (first.value != mine.value) differ("the number", std::to_string(first.value), std::to_string(mine.value));
  const ProductArguments &one = first.product, &other = mine.product;
  if (mine.kind != Step::multiply ||
      (one.a == other.a && one.b == other.b && one.columns == other.columns && one.major_a == other.major_a &&
       one.major_b == other.major_b && one.accumulate == other.accumulate && !one.fragments == !other.fragments))
    return;
  differ("the descriptor of A", hex(one.a), hex(other.a));
  differ("the descriptor of B", hex(one.b), hex(other.b));
  differ("the number of columns", std::to_string(one.columns), std::to_string(other.columns));
  differ("A's major", name(one.major_a), name(other.major_a));
  differ("B's major", name(one.major_b), name(other.major_b));
  differ("accumulate", one.accumulate ? "true" : "false", other.accumulate ? "true" : "false");
  differ("A's place", one.fragments ? "registers" : "shared memory", other.fragments ? "registers" : "shared memory");
}

// Returns the caller's next step. The first thread to take a step checks its arguments and applies its effects on the
// whole warpgroup; the others must take the same step.
std::shared_ptr<Warpgroups::Step> Warpgroups::take_step(Group& group, Step&& mine) {
  const int member = block_.current() % kWarpgroupSize;
  const size_t at = size_t(group.position[member]++ - group.taken);
  if (at == group.steps.size()) {
    for (int t = 0; t < kWarpgroupSize; ++t)
      if (block_.returned(group.number * kWarpgroupSize + t)) stop_for_returned(group, mine, t);
    mine.first = member;
    switch (mine.kind) {
      case Step::begin:
        group.begun = true;
        break;
      case Step::multiply:
        if (!group.begun)
          stop_kernel("%s:%d: %s: a batch of products begins with wgmma_fence()", mine.place.file, mine.place.line,
                      mine.place.what);
        require_operands(mine.product, mine.place);
        mine.batch = group.batches;
        if (mine.product.fragments) mine.fragments.resize(kWarpgroupSize);
        ++group.uncommitted;
        group.last = mine.place;
        break;
      case Step::commit:
        group.begun = false;
        group.uncommitted = 0;
        ++group.batches;
        group.last = mine.place;
        break;
      case Step::wait:
        mine.batch = group.batches - mine.value;
        group.waited_batches = std::max(group.waited_batches, mine.batch);
        break;
      case Step::change:
        break;
    }
    group.steps.push_back(std::make_shared<Step>(std::move(mine)));
  } else {
    require_same(group, *group.steps[at], mine, member);
  }
  std::shared_ptr<Step> step = group.steps[at];
  ++step->came[member / kWarpSize];
  if (++step->count == kWarpgroupSize) {  // it is the first of the steps: all threads took those before
    group.steps.pop_front();
    ++group.taken;
  }
  return step;
}

void Warpgroups::stop_for_returned(const Group& group, const Step& step, int member) const {
  stop_kernel("%s:%d: %s is for a whole warpgroup, but thread %d of warpgroup %d has returned", step.place.file,
              step.place.line, step.place.what, group.number * kWarpgroupSize + member, group.number);
}

void Warpgroups::thread_returns(int thread) const {
  if (size_t(group_number(thread)) >= groups_.size()) return;
  const Group& group = groups_[size_t(group_number(thread))];
  const int member = thread % kWarpgroupSize;
  const auto next = size_t(group.position[member] - group.taken);
  if (next < group.steps.size()) stop_for_returned(group, *group.steps[next], member);
  if (group.uncommitted)
    stop_kernel(
        "%s:%d: %s: thread %d returned while %d product(s) of its warpgroup were not committed (wgmma_commit_group)",
        group.last.file, group.last.line, group.last.what, thread, group.uncommitted);
  if (group.waited_batches < group.batches)
    stop_kernel(
        "%s:%d: %s: thread %d returned while %d group(s) of products of its warpgroup were not waited for "
        "(wgmma_wait_group)",
        group.last.file, group.last.line, group.last.what, thread, group.batches - group.waited_batches);
}

// ---------------------------------------------------------------------------------------------- products

bool Warpgroups::randomly_now() {
  const auto timing = block_.backend().copy_timing;
  return timing == CpuBackend::CopyTiming::early ||
         (timing == CpuBackend::CopyTiming::random && block_.random().below(2));
}

void Warpgroups::require_operands(const ProductArguments& product, const Place& place) {
  const auto require = [&](const char* which, uint64_t bits, Major major, int count) {
    const ProductOperand operand{MatrixDescriptor(bits), major, count};
    std::string wrong = operand_refused(operand);
    if (wrong.empty()) {
      const auto [begin, end] = unit_.extent(operand);
      if (begin < kSharedWindowBegin || end > kSharedWindowBegin + block_.shared_bytes())
        wrong = format("it reaches from byte %td to %td of the block's %zu bytes of shared memory",
                       ptrdiff_t(begin) - ptrdiff_t(kSharedWindowBegin), ptrdiff_t(end) - ptrdiff_t(kSharedWindowBegin),
                       block_.shared_bytes());
    }
    if (wrong.empty()) return;
    const MatrixDescriptor& d = operand.descriptor;
    stop_kernel("%s:%d: %s: %s's descriptor %016llx (%s-major, start %u, leading %u, stride %u, lines of %u bytes): %s",
                place.file, place.line, place.what, which, static_cast<unsigned long long>(bits), name(major), d.start,
                d.leading, d.stride, line_bytes(d.swizzle), wrong.c_str());
  };
  if (!product.fragments) require("A", product.a, product.major_a, kProductRows);
  require("B", product.b, product.major_b, product.columns);
}

Warpgroups::Accumulators* Warpgroups::new_accumulators(WarpProducts& warp, int columns) {
  if (warp.unused.empty()) {
    warp.used.push_back(std::make_unique<Accumulators>());
  } else {
    warp.used.push_back(std::move(warp.unused.back()));
    warp.unused.pop_back();
  }
  Accumulators* accumulators = warp.used.back().get();
  accumulators->columns = columns;
  accumulators->products = 0;
  std::fill(std::begin(accumulators->target), std::end(accumulators->target), nullptr);
  return accumulators;
}

// From this call on, the member's accumulator registers belong to the product and hold poison.
void Warpgroups::hold(Group& group, Step& step, int member, const ProductArguments& product) {
  const int lane = member % kWarpSize;
  WarpProducts& warp = group.warps[member / kWarpSize];
  Accumulators*& of_step = step.accumulators[member / kWarpSize];
  Accumulators* held = nullptr;  // the accumulators, if earlier products in flight have them
  for (const auto& accumulators : warp.used)
    if (accumulators->target[lane] == product.d) held = accumulators.get();
  if (!of_step) {
    of_step = held ? held : new_accumulators(warp, product.columns);
    ++of_step->products;
  }
  Accumulators& mine = *of_step;
  if ((held && held != &mine) || (mine.target[lane] && mine.target[lane] != product.d))
    stop_kernel("%s:%d: %s: the threads of warp %d have different accumulators, seen in thread %d", step.place.file,
                step.place.line, step.place.what, block_.current() / kWarpSize, block_.current());
  if (mine.columns != product.columns)
    stop_kernel("%s:%d: %s: %d columns, but a product under way has %d in the same accumulators", step.place.file,
                step.place.line, step.place.what, product.columns, mine.columns);
  if (!step.fragments.empty()) step.fragments[size_t(member)] = product.fragments;
  if (held) return;
  mine.target[lane] = product.d;
  if (product.accumulate)
    each_pair(mine.d, lane, product.columns, [&](float* held, int r) { __builtin_memcpy(held, product.d + r, 8); });
  for (int r = 0; r < product.columns / 2; ++r) __builtin_memcpy(&product.d[r], &kPoison, sizeof kPoison);
}

// Executes the warp's part of the oldest product that it has issued.
void Warpgroups::execute(Group& group, int warp) {
  const std::shared_ptr<Step> step = std::move(group.warps[warp].issued.front());
  group.warps[warp].issued.pop_front();
  const ProductArguments& product = step->product;
  const ProductOperand a{MatrixDescriptor(product.a), product.major_a, kProductRows};
  const ProductOperand b{MatrixDescriptor(product.b), product.major_b, product.columns};
  const std::byte* const view = proxy_.view();
  Accumulators* const accumulators = step->accumulators[warp];
  unit_.multiply(accumulators->d, warp, view, proxy_.view_version(), &a,
                 step->fragments.empty() ? nullptr : step->fragments.data() + warp * kWarpSize, b, product.accumulate);
  if (--accumulators->products == 0) give_back(group, warp, accumulators, step->place);
}

void Warpgroups::give_back(Group& group, int warp, Accumulators* accumulators, const Place& place) {
  for (int l = 0; l < kWarpSize; ++l) {
    float* const d = accumulators->target[l];
    uint32_t written = 0;
    for (int r = 0; r < accumulators->columns / 2; ++r) written |= float_to_bits(d[r]) ^ kPoison;
    if (written)
      stop_kernel("%s:%d: %s: thread %d wrote its accumulators while the product was under way", place.file, place.line,
                  place.what, group.number * kWarpgroupSize + warp * kWarpSize + l);
    each_pair(accumulators->d, l, accumulators->columns, [&](float* held, int r) { __builtin_memcpy(d + r, held, 8); });
  }
  auto& [issued, used, unused, waiters, met] = group.warps[warp];
  const auto at = std::find_if(used.begin(), used.end(), [&](auto& p) { return p.get() == accumulators; });
  unused.push_back(std::move(*at));
  used.erase(at);
}

bool Warpgroups::execute_one() {
  for (Group& group : groups_)
    for (int w = kWarps; w-- > 0;)
      if (!group.warps[w].issued.empty()) return execute(group, w), true;
  return false;
}

void Warpgroups::begin_products(const Place& place) { take_step(group_of_caller(place), {Step::begin, place}); }

void Warpgroups::multiply(const ProductArguments& arguments, const Place& place) {
  Group& group = group_of_caller(place);
  const int member = block_.current() % kWarpgroupSize, w = member / kWarpSize;
  const std::shared_ptr<Step> step = take_step(group, {Step::multiply, place, 0, arguments});
  hold(group, *step, member, arguments);
  if (step->came[w] < kWarpSize) return;
  group.warps[w].issued.push_back(step);
  if (randomly_now())
    while (!group.warps[w].issued.empty()) execute(group, w);
}

void Warpgroups::commit_products(const Place& place) { take_step(group_of_caller(place), {Step::commit, place}); }

void Warpgroups::wait_for_products(int under_way, const Place& place) {
  Group& group = group_of_caller(place);
  const int me = block_.current(), w = me % kWarpgroupSize / kWarpSize;
  const std::shared_ptr<Step> step = take_step(group, {Step::wait, place, under_way});
  WarpProducts& warp = group.warps[w];
  if (LLMC_TSAN && step->came[w] == kWarpSize) tell_reads(warp, step->batch);
  warp.met.release();
  if (step->came[w] < kWarpSize) {
    warp.waiters.push_back(uint16_t(me));
    block_.wait_at(place);
  } else {
    while (!warp.issued.empty() && warp.issued.front()->batch < step->batch) execute(group, w);
    for (const int thread : warp.waiters) block_.make_ready(thread);
    warp.waiters.clear();
    block_.step_aside();
  }
  warp.met.acquire();
}

// Tells ThreadSanitizer that the running thread has read the operands of the products before this batch.
void Warpgroups::tell_reads(const WarpProducts& warp, int batch) {
  for (const auto& step : warp.issued) {
    if (step->batch >= batch) return;
    const auto read = [&](uint32_t window) { block_.reads(block_.shared() + window - kSharedWindowBegin, 16); };
    const ProductArguments& p = step->product;
    if (!p.fragments) unit_.each_chunk({MatrixDescriptor(p.a), p.major_a, kProductRows}, read);
    unit_.each_chunk({MatrixDescriptor(p.b), p.major_b, p.columns}, read);
  }
}

// ---------------------------------------------------------------------------------------------- registers

void Warpgroups::change_registers(int registers, bool more, const Place& place) {
  if (block_.count() % kWarpgroupSize)
    stop_kernel("%s:%d: %s: the block has %d threads, expected whole warpgroups", place.file, place.line, place.what,
                block_.count());
  Group& group = group_of_caller(place);
  if (more ? registers < group.registers : registers > group.registers)
    stop_kernel("%s:%d: %s: %d registers, but the thread has %d", place.file, place.line, place.what, registers,
                group.registers);
  const bool last = take_step(group, {Step::change, place, registers})->count == kWarpgroupSize;
  if (last && !more) {
    free_registers_ += (group.registers - registers) * kWarpgroupSize;
    group.registers = registers;
    hand_out_registers();
  }
  if (!more) return;
  group.waiters.push_back(uint16_t(block_.current()));
  if (last) {
    group.wanted = registers;
    hand_out_registers();
  }
  block_.wait_at(place);
}

// Gives free registers to the warpgroups that want some, as long as there are enough.
void Warpgroups::hand_out_registers() {
  for (Group& group : groups_) {
    const int missing = (group.wanted - group.registers) * kWarpgroupSize;
    if (group.wanted == 0 || missing > free_registers_) continue;
    free_registers_ -= missing;
    group.registers = group.wanted;
    group.wanted = 0;
    for (const int thread : group.waiters) block_.make_ready(thread);
    group.waiters.clear();
  }
}

void Warpgroups::describe_waiting(const DescribeThread& add) const {
  for (const Group& group : groups_) {
    for (const int thread : group.waiters)
      add(thread, group.wanted ? format(", warpgroup %d has %d registers a thread and wants %d: %d more, %d are free",
                                        group.number, group.registers, group.wanted,
                                        (group.wanted - group.registers) * kWarpgroupSize, free_registers_)
                               : format(", warpgroup %d, where %zu of 128 threads have come", group.number,
                                        group.waiters.size()));
    for (const WarpProducts& warp : group.warps)
      for (const int thread : warp.waiters)
        add(thread, format(", warp %d, where %zu of 32 threads have come", thread / kWarpSize, warp.waiters.size()));
  }
}

}  // namespace cpu_backend

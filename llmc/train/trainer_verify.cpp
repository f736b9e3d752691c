// Trainer::verify(): whether ranks hold and compute the same bits where they must, and which rank is wrong if not.
//
// The pass enqueues what a step enqueues, but sums no gradients and makes no update: forward and backward of a
// micro-batch write only to memory that has no meaning between steps. FP8 histories and counts are left alone.
#include <algorithm>

#include "llmc/base/error.h"
#include "llmc/device/range.h"
#include "llmc/kernels/hash.h"
#include "llmc/train/trainer.h"

namespace {

constexpr Hashed kWeights[] = {Hashed::weights, Hashed::fp8_weights};
constexpr Hashed kState[] = {Hashed::master, Hashed::first_moment, Hashed::second_moment};
constexpr Hashed kOwn[] = {Hashed::gradients, Hashed::losses},
                 kOther[] = {Hashed::other_gradients, Hashed::other_losses};

Hashed hashed(StateKind kind) { return kState[int(kind)]; }

bool all(Hashed, size_t) { return true; }

}  // namespace

class Trainer::Verification {
 public:
  explicit Verification(Trainer& trainer)
      : t_(trainer),
        mesh_(trainer.mesh_),
        hashes_(*trainer.hashes_),
        data_rank_(trainer.mesh_.data_rank()),
        before_(trainer.mesh_.data_degree() > 1) {
    for (const ParameterInfo& tensor : t_.layout_.tensors)
      if (!std::count(classes_.begin(), classes_.end(), tensor.copies)) classes_.push_back(tensor.copies);
    REQUIRE(classes_.size() <= kMostClasses, "verify: %zu kinds of copies of tensors, at most %zu", classes_.size(),
            kMostClasses);
  }

  std::optional<WrongBits> run(const MicroBatchOf& micro_batch) {
    const Range range("verification");
    if (t_.scales_) t_.scales_->remember(false);
    hashes_.clear(t_.compute_);
    compute_both(micro_batch);
    hash_weights();
    hash_state();
    fetch();
    std::optional<WrongBits> wrong = compare_all(micro_batch);
    if (t_.scales_) t_.scales_->remember(true);
    t_.parameters_.changed();  // the next step gathers and quantizes as after every update
    return wrong;
  }

 private:
  static constexpr size_t kMostClasses = 3;  // of tensors: without copies, in some ranks and in all of a tensor group

  // ---- what is hashed

  // Computes a micro-batch, with the losses divided by as many labels as a step has at most.
  void compute(const StepInput& input, Hashed gradients, Hashed losses) {
    const TrainerSettings& s = t_.settings_;
    StepState state{};
    state.step = input.step;
    state.label_count = int64_t(input.labels.size()) * mesh_.data_degree() * s.micro_batches;
    t_.step_states_.send(t_.compute_, state);
    t_.batches_.send(t_.compute_, 1, input.inputs.data(), input.labels.data(),
                     input.positions.empty() ? nullptr : input.positions.data(), s.B, s.T, t_.whole_config_.V, 0,
                     input.sources.empty() ? nullptr : input.sources.data());
    const MicroBatch batch = t_.batches_.micro_batch();
    t_.gradients_->look_at([&](int unit, const Tensor& whole) {
      for (const ParameterInfo& tensor : t_.layout_.tensors_of(unit))
        hash_bits(t_.compute_, hashes_.of(gradients, index(tensor)), whole.elements(tensor.offset, tensor.size()));
    });
    t_.transformer_.forward(batch, true);
    t_.transformer_.backward(batch, t_.step_states_.on_device(), *t_.gradients_, true, false);
    t_.gradients_->look_at({});
    hash_bits(t_.compute_, hashes_.of(losses, 0), t_.transformer_.losses());
    t_.step_states_.fetch(t_.compute_);
  }

  void compute_both(const MicroBatchOf& micro_batch) {
    compute(micro_batch(data_rank_), Hashed::gradients, Hashed::losses);
    compute(micro_batch(data_rank_before(before_)), Hashed::other_gradients, Hashed::other_losses);
  }

  int data_rank_before(int back) const {
    return (data_rank_ - back % mesh_.data_degree() + mesh_.data_degree()) % mesh_.data_degree();
  }

  // The weights as the products of a step take them: gathered, and in FP8 both operands.
  void hash_weights() {
    for (int unit = 0; unit < int(t_.layout_.units.size()); ++unit) {
      t_.parameters_.gather(unit);
      const UnitTensors weights = t_.parameters_.get(unit);
      for (const ParameterInfo& tensor : t_.layout_.tensors_of(unit))
        if (const Tensor whole = weights.of(tensor))
          hash_bits(t_.compute_, hashes_.of(Hashed::weights, index(tensor)), whole);
      const int layer = t_.layout_.units[size_t(unit)].layer;
      if (layer >= 0)
        for (const LayerProjection& p : t_.layout_.projections.of(layer)) hash_operands(p);
      t_.parameters_.release(unit);
    }
  }

  void hash_operands(const LayerProjection& p) {
    const QuantizedWeight weight = t_.parameters_.quantized(p);
    uint64_t place = 0;
    for (const QuantizedTensor& operand : {weight.rowwise, weight.columnwise}) {
      if (!operand) continue;
      uint64_t* const hash = hashes_.of(Hashed::fp8_weights, size_t(p.index));
      hash_bits(t_.compute_, hash, Tensor(operand.data, {operand.bytes()}), place);
      place += operand.bytes();
      hash_bits(t_.compute_, hash, Tensor(operand.scale_inv, {operand.scale_inv_count()}), place);
      place += operand.scale_inv_count();
    }
  }

  void hash_state() {
    OptimizerState& state = t_.optimizer_state_;
    for (const StateKind kind : kStateKinds) {
      if (kind == StateKind::master && !state.has_master()) continue;  // the weights
      for (const auto& [unit, shard, _] : state.shards(kind).entries())
        state.get(kind, unit, shard, [&, unit = unit, begin = shard.first](const Tensor& from, size_t first) {
          for (const Slice& slice : t_.layout_.slices(unit, begin + first, size_t(from.size())))
            hash_bits(t_.compute_, hashes_.of(hashed(kind), index(*slice.tensor)), from.elements(slice.at, slice.count),
                      slice.first);
        });
    }
  }

  // The host gets the hashes of what was enqueued.
  void fetch() {
    t_.join();
    hashes_.fetch(t_.compute_, t_.communicator_);
    while (t_.step_states_.under_way()) t_.step_states_.wait_for_oldest(t_.communicator_);
  }

  size_t index(const ParameterInfo& tensor) const { return size_t(&tensor - t_.layout_.tensors.data()); }

  // ---- what is compared

  using Numbers = std::array<uint64_t, BitHashes::kNumbers>;
  BitHashes::OfRanks exchange(const Numbers& own) { return hashes_.exchange(t_.reduce_stream_, t_.communicator_, own); }

  std::optional<WrongBits> compare_all(const MicroBatchOf& micro_batch) {
    Numbers own{};
    for (size_t c = 0; c < classes_.size(); ++c) {
      const auto counts = [&](Hashed kind, size_t tensor) { return class_of(kind, tensor) == classes_[c]; };
      own[2 * c] = hashes_.digest(kWeights, counts), own[2 * c + 1] = hashes_.digest(kState, counts);
    }
    own[6] = hashes_.digest(kOwn, all), own[7] = hashes_.digest(kOther, all);
    const BitHashes::OfRanks of_ranks = exchange(own);
    for (size_t c = 0; c < classes_.size(); ++c)
      for (const bool is_state : {false, true}) {
        const std::vector<int64_t> keys = keys_of(is_state, classes_[c]);
        if (const Suspects odd = odd_copies(keys, of_ranks[2 * c + is_state]); odd.any())
          return WrongBits{WrongBits::Kind::copies, odd, first_odd_copy(is_state, classes_[c], keys)};
      }
    const Computed once{of_ranks[6], of_ranks[7]};
    if (!differ(mesh_, once)) return {};
    return judge(once, micro_batch);
  }

  // How many ranks of a tensor group have what is hashed there.
  int class_of(Hashed kind, size_t i) const {
    if (kind != Hashed::fp8_weights) return t_.layout_.tensors[i].copies;
    return 1;
  }

  // Ranks that hold the same elements of the tensors of this class have the same key.
  std::vector<int64_t> keys_of(bool is_state, int copies) const {
    const bool in_parts = is_state && t_.placement_.front().updates_part();
    std::vector<int64_t> keys;
    for (int rank = 0; rank < mesh_.world_size; ++rank) {
      const int part = in_parts ? rank / mesh_.tensor_degree % mesh_.state_shards() : 0;
      keys.push_back(int64_t(rank % mesh_.tensor_degree / copies) * mesh_.state_shards() + part);
    }
    return keys;
  }

  std::string first_odd_copy(bool is_state, int copies, const std::vector<int64_t>& keys) {
    std::vector<std::pair<Hashed, size_t>> items;
    for (const Hashed kind : is_state ? std::span<const Hashed>(kState) : std::span<const Hashed>(kWeights))
      for (size_t i = 0; i < t_.layout_.tensors.size(); ++i)
        if (class_of(kind, i) == copies) items.emplace_back(kind, i);
    for (size_t first = 0; first < items.size(); first += BitHashes::kNumbers) {
      Numbers own{};
      const size_t count = std::min(BitHashes::kNumbers, items.size() - first);
      for (size_t i = 0; i < count; ++i) own[i] = hashes_.value(items[first + i].first, items[first + i].second);
      const BitHashes::OfRanks of_ranks = exchange(own);
      for (size_t i = 0; i < count; ++i)
        if (odd_copies(keys, of_ranks[i]).any()) return name_of(items[first + i].first, items[first + i].second);
    }
    return "";
  }

  std::string name_of(Hashed kind, size_t i) const {
    if (kind == Hashed::fp8_weights)
      return t_.layout_.projections.name(t_.layout_.projections.all()[i].id(Role::weight)) + ", in FP8";
    const char* const what = kind == Hashed::weights         ? "the weights"
                             : kind == Hashed::master        ? "the master weights"
                             : kind == Hashed::first_moment  ? "the first moments"
                             : kind == Hashed::second_moment ? "the second moments"
                                                             : "the gradient";
    return what + (" of " + t_.layout_.tensors[i].name);
  }

  // ---- who is wrong

  // What the ranks computed differs: computes it again, and by a third group, as far as that decides.
  WrongBits judge(const Computed& once, const MicroBatchOf& micro_batch) {
    const std::string what = first_other_result();
    std::vector<uint64_t> own_steps, other_steps;
    hashes_.clear(t_.compute_);
    const Computed again = compute_observed(micro_batch, own_steps, other_steps);
    WrongBits wrong{WrongBits::Kind::repetition, unsteady(mesh_, once, again), what};
    if (!wrong.suspects.any()) {
      hashes_.clear(t_.compute_);
      compute(micro_batch(data_rank_before(2)), Hashed::other_gradients, Hashed::other_losses);
      fetch();
      Numbers own{};
      own[0] = hashes_.digest(kOther, all);
      wrong = {WrongBits::Kind::computation, outvoted(mesh_, once, exchange(own)[0]), what};
    }
    if (mesh_.tensor_degree * mesh_.context_degree > 1)
      wrong.suspects = narrowed(wrong.suspects, own_steps, other_steps);
    return wrong;
  }

  // The losses, or the first gradient in the order of backward, that differ from group to group.
  std::string first_other_result() {
    std::vector<std::array<uint64_t, 2>> results{
        {hashes_.value(Hashed::losses, 0), hashes_.value(Hashed::other_losses, 0)}};
    const size_t tensors = t_.layout_.tensors.size();
    for (size_t i = tensors; i-- > 0;)
      results.push_back({hashes_.value(Hashed::gradients, i), hashes_.value(Hashed::other_gradients, i)});
    for (size_t first = 0; first < results.size(); first += kAtOnce) {
      const auto of_ranks = exchange_pairs([&](size_t i) { return results[i]; }, first, results.size());
      for (size_t i = 0; i < of_ranks.size(); ++i)
        if (differ(mesh_, of_ranks[i]))
          return first + i == 0 ? "the losses" : name_of(Hashed::gradients, tensors - first - i);
    }
    return "";
  }

  static constexpr size_t kAtOnce = BitHashes::kNumbers / 2;  // pairs that are exchanged at once
  template <class F>
  std::vector<Computed> exchange_pairs(const F& pair, size_t first, size_t end) {
    Numbers own{};
    const size_t count = std::min(kAtOnce, end - first);
    for (size_t i = 0; i < count; ++i) own[2 * i] = pair(first + i)[0], own[2 * i + 1] = pair(first + i)[1];
    const BitHashes::OfRanks of_ranks = exchange(own);
    std::vector<Computed> computed;
    for (size_t i = 0; i < count; ++i) computed.push_back({of_ranks[2 * i], of_ranks[2 * i + 1]});
    return computed;
  }

  // Computes both micro-batches again. The hash of each tensor of the passes goes to the lists.
  Computed compute_observed(const MicroBatchOf& micro_batch, std::vector<uint64_t>& own_steps,
                            std::vector<uint64_t>& other_steps) {
    const DeviceMemory memory(t_.device_, sizeof(uint64_t));
    auto* const hash = reinterpret_cast<uint64_t*>(memory.data());
    for (const bool is_other : {false, true}) {
      t_.transformer_.observe_tensors([&](const ObservedTensor& seen) {
        uint64_t value = 0;
        copy(t_.compute_, hash, &value, 1);
        hash_bits(t_.compute_, hash, seen.tensor);
        copy(t_.compute_, &value, hash, 1);
        t_.communicator_.wait_for(t_.compute_);
        (is_other ? other_steps : own_steps).push_back(value);
      });
      if (is_other) compute(micro_batch(data_rank_before(before_)), Hashed::other_gradients, Hashed::other_losses);
      else compute(micro_batch(data_rank_), Hashed::gradients, Hashed::losses);
    }
    t_.transformer_.observe_tensors({});
    fetch();
    Numbers own{hashes_.digest(kOwn, all), hashes_.digest(kOther, all)};
    const BitHashes::OfRanks of_ranks = exchange(own);
    return {of_ranks[0], of_ranks[1]};
  }

  Suspects narrowed(const Suspects& suspects, const std::vector<uint64_t>& own_steps,
                    const std::vector<uint64_t>& other_steps) {
    const size_t steps = std::min(own_steps.size(), other_steps.size());
    std::vector<Computed> seen;
    return first_to_differ(mesh_, suspects, [&](size_t number) -> std::optional<Computed> {
      if (number >= steps) return {};
      if (number % kAtOnce == 0)
        seen = exchange_pairs([&](size_t i) { return std::array{own_steps[i], other_steps[i]}; }, number, steps);
      return seen[number % kAtOnce];
    });
  }

  Trainer& t_;
  const Mesh& mesh_;
  BitHashes& hashes_;
  const int data_rank_, before_;  // before_: 1, or 0 with one data rank
  std::vector<int> classes_;      // how many ranks of a tensor group have a tensor: each number that occurs
};

std::optional<WrongBits> Trainer::verify(const MicroBatchOf& micro_batch) {
  REQUIRE(hashes_, "a verification was asked for, and none was planned");
  REQUIRE(step_states_.under_way() == 0, "a verification was asked for while a step is under way");
  return Verification(*this).run(micro_batch);
}

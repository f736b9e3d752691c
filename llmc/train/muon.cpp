#include "llmc/train/muon.h"

#include <algorithm>

#include "llmc/base/philox.h"
#include "llmc/kernels/global_norm.h"
#include "llmc/kernels/newton_schulz.h"

Muon::Muon(MemoryPlan& plan, std::vector<OwnedMatrix> matrices, OptimizerState& state, const TrainerSettings& settings,
           Communicator& ranks, Stream& compute, Stream& transfer)
    : matrices_(std::move(matrices)),
      state_(state),
      settings_(settings),
      type_(settings.dtype),
      ranks_(ranks),
      compute_(compute),
      transfer_(transfer),
      lead_(ranks.size() > 1 ? 1 : 0),
      ready_(compute.device()) {
  for (auto first = matrices_.begin(), end = first; first != matrices_.end(); first = end) {
    end = std::find_if(first, matrices_.end(), [&](const OwnedMatrix& m) { return m.round != first->round; });
    list_slices(rounds_.emplace_back(), {first, end});
  }
  plan_memory(plan);
}

// Each rank plans what the largest slices and matrices of any rank take, so that all plan the same here: --plan and
// --dry-run look at the first rank alone.
void Muon::plan_memory(MemoryPlan& plan) {
  const auto add = [&](std::vector<PlannedTensor>& slots, int count, const char* name, auto&& size_of) {
    std::vector<int64_t> sizes(static_cast<size_t>(count));
    for (size_t i = 0; i < rounds_.size(); ++i)
      sizes[i % sizes.size()] = std::max(sizes[i % sizes.size()], size_of(rounds_[i]));
    for (const int64_t size : sizes)
      slots.push_back(size ? plan.add(Segment::device, "Muon", name, type_, {size}) : PlannedTensor());
  };
  const auto largest_of = [](const Round& r) { return r.largest; };
  add(slices_, 1 + 2 * lead_, "slices of matrices", [](const Round& r) { return std::ranges::max(r.elements); });
  add(parts_, 1 + lead_, "parts of a matrix", largest_of);
  add(matrix_buffers_, 1 + lead_, "a matrix", largest_of);
  for (size_t i = 0; i < slices_.size(); ++i) returned_.emplace_back(compute_.device());
  for (size_t i = 0; i < parts_.size(); ++i) arrived_.emplace_back(compute_.device());

  int64_t largest = 0, shorter = 0;
  for (const OwnedMatrix& m : matrices_) {
    largest = std::max(largest, m.rows() * m.columns());
    shorter = std::max(shorter, std::min(m.rows(), m.columns()));
  }
  gram_ = plan.add(Segment::device, "Muon", "Newton-Schulz, gram matrix", type_, {shorter, shorter});
  polynomial_ = plan.add(Segment::device, "Muon", "Newton-Schulz, polynomial", type_, {shorter, shorter});
  partials_ = plan.add(Segment::device, "Muon", "Newton-Schulz, partial norms", DType::fp64,
                       {global_norm_partials(size_t(largest))});
  square_sum_ = plan.add(Segment::device, "Muon", "Newton-Schulz, norm", DType::fp64, {1});
}

void Muon::list_slices(Round& round, std::span<const OwnedMatrix> matrices) {
  const size_t width = bytes_of(type_);
  round.elements.resize(size_t(ranks_.size()));
  for (std::vector<ByteRange>* list :
       {&round.slices_sent, &round.own_parts, &round.own_results, &round.slices_received})
    list->resize(size_t(ranks_.size()));
  for (const OwnedMatrix& m : matrices) {
    const bool owns = m.owner == ranks_.rank();
    if (owns) round.own = &m;
    round.largest = std::max(round.largest, m.rows() * m.columns());
    for (const MatrixPart& part : m.parts) {
      const ByteRange here{part.at * width, part.shard.count * width};
      if (owns) round.own_parts[size_t(part.source)] = here;
      for (const int keeper : part.keepers) {
        if (owns) round.own_results[size_t(keeper)] = here;
        const auto at = size_t(round.elements[size_t(keeper)]);
        round.elements[size_t(keeper)] += int64_t(part.shard.count);
        if (keeper != ranks_.rank()) continue;
        const ByteRange kept{at * width, here.bytes};
        round.slices.push_back({&m, &part, at});
        round.slices_received[size_t(m.owner)] = kept;
        if (part.source == ranks_.rank()) round.slices_sent[size_t(m.owner)] = kept;
      }
    }
  }
}

void Muon::update(Matmul& matmul, const GradientStore& gradients, ParameterStore& parameters, const StepState* state) {
  const int rounds = int(rounds_.size());
  const auto exists = [&](int round) { return round >= 0 && round < rounds; };
  for (int round = -lead_; round < rounds + lead_; ++round) {
    if (exists(round + lead_)) begin(round + lead_, gradients, state);
    if (exists(round)) orthogonalize(round, matmul);
    if (exists(round - lead_)) finish(round - lead_, parameters, state);
  }
}

MuonSlice Muon::slice_of(const KeptSlice& kept) const {
  return {philox_key(kept.matrix->tensor->name, settings_.seed), kept.part->window};
}

// Computes the momentum of this rank's slices, and sends them to the owners.
void Muon::begin(int number, const GradientStore& gradients, const StepState* state) {
  const Round& round = rounds_[size_t(number)];
  const Tensor& slices = slices_[size_t(number) % slices_.size()];
  for (const KeptSlice& kept : round.slices) {
    const auto& [unit, shard] = std::pair(kept.part->unit, kept.part->shard);
    const MuonSlice slice = slice_of(kept);
    const bool sends = kept.part->source == ranks_.rank();
    const SweepArray arrays[] = {state_.sweep_array(StateKind::first_moment, unit, shard),
                                 state_.gradient_array(gradients.sums_from(unit, shard))};
    state_.sweep().run(arrays, [&](std::span<const Tensor> here, size_t first) {
      const Tensor &m = here[0], &g = here[1];
      muon_momentum(compute_, m, sends ? slices.elements(kept.at + first, g.size()) : Tensor(), g, state,
                    settings_.muon_momentum, {slice.key, slice.window.from(first)});
    });
  }
  ready_.record(compute_);
  transfer_.wait(ready_);
  const size_t at = size_t(number) % parts_.size();
  ranks_.all_to_all(transfer_, parts_[at]->data, round.own_parts, slices.data, round.slices_sent);
  arrived_[at].record(transfer_);
}

// Computes the own matrix, and sends the results to the ranks that keep its slices.
void Muon::orthogonalize(int number, Matmul& matmul) {
  const Round& round = rounds_[size_t(number)];
  const size_t at = size_t(number) % parts_.size(), slot = size_t(number) % slices_.size();
  if (round.own) {
    const OwnedMatrix& m = *round.own;
    const Tensor parts = parts_[at]->first({m.rows(), m.columns()}),
                 matrix = matrix_buffers_[at]->first({m.rows(), m.columns()});
    const NewtonSchulzScratch scratch{gram_, polynomial_, partials_, square_sum_};
    const auto each_part = [&](auto&& move) {
      for (const MatrixPart& p : m.parts)
        move(parts.elements(p.at, p.shard.count), matrix.elements(p.at, p.shard.count), p.window);
    };
    compute_.wait(arrived_[at]);
    // The iteration's result is in the other buffer; the results are sent from matrix_buffers_.
    if (m.is_cut()) {
      each_part([&](const Tensor& part, const Tensor&, const ShardWindow& window) {
        scatter_window(compute_, matrix, part, window);
      });
      newton_schulz(matmul, compute_, matrix, parts, scratch);
      each_part([&](const Tensor&, const Tensor& part, const ShardWindow& window) {
        gather_window(compute_, part, parts, window);
      });
    } else {
      newton_schulz(matmul, compute_, parts, matrix, scratch);
    }
  }
  ready_.record(compute_);
  transfer_.wait(ready_);
  ranks_.all_to_all(transfer_, slices_[slot]->data, round.slices_received, matrix_buffers_[at]->data,
                    round.own_results);
  returned_[slot].record(transfer_);
}

// Updates this rank's slices.
void Muon::finish(int number, ParameterStore& parameters, const StepState* state) {
  const Round& round = rounds_[size_t(number)];
  const size_t slot = size_t(number) % slices_.size();
  const Tensor amaxes = parameters.weight_amax();
  compute_.wait(returned_[slot]);
  for (const KeptSlice& kept : round.slices) {
    const auto& [unit, shard] = std::pair(kept.part->unit, kept.part->shard);
    const OwnedMatrix& m = *kept.matrix;
    const MuonSlice slice = slice_of(kept);
    const MuonRates rates{settings_.muon_rate_factor, settings_.muon_weight_decay,
                          muon_scale(settings_.muon_scale, m.rows(), m.columns())};
    const int index = settings_.fp8.weight_amax_index(m.tensor->projection);
    const Tensor amax = amaxes && index >= 0 ? amaxes.elements(index, 1) : Tensor();
    const SweepArray arrays[] = {state_.sweep_array(StateKind::master, unit, shard), state_.weights_array(unit, shard)};
    state_.sweep().run(arrays, [&](std::span<const Tensor> here, size_t first) {
      const Tensor &master = here[0], &weights = here[1];
      muon_update(compute_, master ? master : weights, master ? weights : Tensor(),
                  slices_[slot]->elements(kept.at + first, weights.size()), state, rates,
                  {slice.key, slice.window.from(first)}, amax);
    });
  }
}

// The trainer's state, weights, moments and FP8 scales: how it is set, and how it is saved.
#include <algorithm>
#include <cmath>

#include "llmc/base/error.h"
#include "llmc/base/philox.h"
#include "llmc/kernels/initialize.h"
#include "llmc/train/trainer.h"
#include "llmc/train/weights_io.h"

// Calls f for each slice of a tensor that this rank updates, split further if the state requires it, with the address
// on the device to which f must write the slice's fp32 numbers. Sets the padding to 0.
template <class F>
void Trainer::set_slices(StateKind kind, F&& f) {
  for (const auto& [unit, shard, _] : optimizer_state_.shards(kind).entries()) {
    const auto clear_between = [&, unit = unit, shard = shard](size_t begin, size_t end) {
      if (end > begin)
        optimizer_state_.set(kind, unit, {shard.first + begin, end - begin},
                             [&](const Tensor& to, size_t) { clear(compute_, to); });
    };
    size_t end = 0;
    for (const Slice& slice : layout_.slices(unit, shard.first, shard.count)) {
      clear_between(end, slice.at);
      optimizer_state_.set(kind, unit, {shard.first + slice.at, slice.count}, [&](const Tensor& to, size_t first) {
        f(Slice{slice.tensor, slice.first + first, size_t(to.size()), slice.at + first}, to);
      });
      end = slice.at + slice.count;
    }
    clear_between(end, shard.count);
  }
}

void Trainer::initialize(Init init, uint64_t seed) {
  const float normal_std = float(config_.init_std);
  const float residual_std = init == Init::depth_scaled ? normal_std / std::sqrt(2.0f * float(config_.L)) : normal_std;
  set_slices(StateKind::master, [&](const Slice& slice, const Tensor& to) {
    const ParameterInfo& t = *slice.tensor;
    if (t.row->init == InitRule::ones || t.row->init == InitRule::zeros)
      initialize_constant(compute_, to, t.row->init == InitRule::ones ? 1.0f : 0.0f);
    else
      initialize_normal(compute_, to, philox_key(t.name, seed), slice.window(),
                        t.row->init == InitRule::residual ? residual_std : normal_std);
  });
  reset_state();
  begin_training();
}

void Trainer::load(const Safetensors& weights) {
  require_weights_fit(layout_, weights, true);
  set_slices(StateKind::master,
             [&](const Slice& slice, const Tensor& to) { load_slice(compute_, to.as<float>(), slice, weights); });
  reset_state();
  begin_training();
}

void Trainer::restore(const Checkpoint& checkpoint) {
  reset_state(checkpoint.state().get_int("optimizer_steps"));
  std::vector<float> numbers;
  for (const StateKind kind : kStateKinds) {
    set_slices(kind, [&](const Slice& slice, const Tensor& to) {
      for (size_t done = 0; done < slice.count; done += numbers.size()) {
        numbers.resize(std::min(kCheckpointChunk, slice.count - done));
        slice.window().from(done).for_runs(numbers.size(), [&](size_t at, uint64_t first, size_t count) {
          checkpoint.read(kind, slice.tensor->name, first, count, numbers.data() + at);
        });
        copy(compute_, to.as<float>() + done, numbers.data(), numbers.size());
        compute_.synchronize();
      }
    });
  }
  if (scales_ && settings_.fp8.delayed()) {
    const Fp8Scales::History history{checkpoint.other("fp8_scales"), checkpoint.other("fp8_amax_history"),
                                     checkpoint.other("fp8_settings")};
    if (!history.scales.empty()) scales_->restore(history);  // else the checkpoint had another recipe
  }
  if (spikes_) spikes_->restore(checkpoint);
  begin_training();
}

// Must be called when the weights are new: updates the products' copy from the master.
void Trainer::begin_training() {
  optimizer_state_.set_weights();
  parameters_.updated();
  reset_graph();
  compute_.synchronize();
}

// Resets everything but the weights to its state before the first step.
void Trainer::reset_state(int64_t updates) {
  if (optimizer_) optimizer_->reset(updates);
  updates_ = updates;
  if (scales_) scales_->reset();
  forget_losses();
}

void Trainer::forget_losses() {
  if (spikes_) spikes_->reset();
}

// ---------------------------------------------------------------------------------------------- out

std::vector<NamedNumbers> Trainer::other_state(bool of_snapshot) {
  std::vector<NamedNumbers> state;
  if (scales_ && settings_.fp8.delayed()) {
    const Fp8Scales::History history =
        of_snapshot ? scales_->history(snapshot_->copy_of(scales_->state()).as<float>(), snapshot_recorded_)
                    : scales_->history();
    state = {{"fp8_scales", history.scales}, {"fp8_settings", history.settings}};
    if (!history.amax.empty()) state.push_back({"fp8_amax_history", history.amax});
  }
  if (spikes_)
    for (NamedNumbers& numbers :
         of_snapshot ? Spikes::numbers(snapshot_->copy_of(spikes_->state())) : spikes_->numbers())
      state.push_back(std::move(numbers));
  return state;
}

void Trainer::take_snapshot() {
  REQUIRE(snapshot_, "a snapshot was asked for, and none was planned");
  snapshot_recorded_ = scales_ ? scales_->recorded() : 0;
  snapshot_waits_ = step_states_.under_way();
  snapshot_->take(compute_);
}

const Snapshot& Trainer::wait_for_snapshot() {
  snapshot_->finish(communicator_);
  return *snapshot_;
}

std::string Trainer::save(const std::string& directory) {
  std::optional<WeightsWriter> writer;
  const ParameterLayout layout(whole_config_);
  if (!directory.empty()) writer.emplace(directory, layout, whole_config_);
  for (int unit = 0; unit < int(layout.units.size()); ++unit) {
    const float* here = whole_weights(unit).as<float>();
    std::vector<std::vector<float>> joined;
    if (tensor_) joined = full_tensors_->of(unit, here);
    if (writer)
      writer->write_unit(unit, [&](const ParameterInfo& t, size_t first, size_t count, float* out) {
        const size_t number = size_t(&t - &layout.tensors[size_t(layout.units[size_t(unit)].first_tensor)]);
        if (tensor_) std::copy_n(joined[number].data() + first, count, out);
        else copy(compute_, out, here + t.offset + first, count), compute_.synchronize();
      });
  }
  if (!writer) return "";
  writer->finish();
  return writer->not_finite();
}

// Returns the unit's master weights as fp32, on the device. The conditions are those of whole_unit().
Tensor Trainer::whole_weights(int unit) {
  const Shard& shard = placement_[size_t(unit)].state;
  if (optimizer_state_.is_plain(StateKind::master))
    return whole_unit(unit, optimizer_state_.view(StateKind::master, unit, shard));
  REQUIRE(gradients_, "whole weights were asked for, and only forward passes were planned");
  const Tensor own = gradients_->borrow_buffer(unit).elements(shard.first, shard.count);
  optimizer_state_.get(StateKind::master, unit, shard, [&](const Tensor& from, size_t first) {
    copy(compute_, own.elements(first, from.size()), from);
  });
  compute_.synchronize();
  return whole_unit(unit, own);
}

// Gathers a whole unit; each rank has the shard that it updates in `own`. All ranks call, between steps, when the host
// has waited for earlier work. The result is valid until the next call.
Tensor Trainer::whole_unit(int unit, const Tensor& own) {
  if (!placement_[size_t(unit)].updates_part()) return own;
  REQUIRE(gradients_, "a whole unit was asked for, and only forward passes were planned");
  const Tensor whole = gradients_->borrow_buffer(unit);
  placement_[size_t(unit)].group->reduce.all_gather(reduce_stream_, whole, own);
  to_compute_.record(reduce_stream_);
  compute_.wait(to_compute_);
  return whole;
}

std::vector<float> Trainer::download(const Tensor& unit, const ParameterInfo& t) {
  if (tensor_)
    return full_tensors_->of(t.unit, unit.as<float>())[size_t(&t - &layout_.tensors[0]) - first_tensor(t.unit)];
  std::vector<float> values(t.size());
  copy(compute_, values.data(), unit.as<float>() + t.offset, t.size());
  compute_.synchronize();
  return values;
}

std::vector<float> Trainer::weights(const std::string& name) {
  const ParameterInfo& t = layout_.tensor(name);
  return download(whole_weights(t.unit), t);
}

std::vector<float> Trainer::gradients(const std::string& name) {
  const ParameterInfo& t = layout_.tensor(name);
  Tensor own = gradients_->sums_from(t.unit, placement_[size_t(t.unit)].state);
  if (settings_.state.gradients_on_host && placement_[size_t(t.unit)].updates_part()) {
    const Tensor here = gradients_->borrow_buffer(t.unit).elements(placement_[size_t(t.unit)].state.first, own.size());
    copy(compute_, here, own);
    compute_.synchronize();
    own = here;
  }
  return download(whole_unit(t.unit, own), t);
}

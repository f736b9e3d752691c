// All of a training's state on this rank, to compare it bit by bit; and models whose weights a test chooses.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "dev/test/tiny_trainer.h"

struct TrainingState {
  std::vector<std::vector<float>> numbers;
  std::vector<std::string> names;
  LossSum measured;  // a loss that shows what the training computes with
  int64_t updates;
};
// `batch` is measured, its first micro-batch.
inline TrainingState state_of(Training& training, const Batch& batch) {
  TrainingState state{{}, {}, {}, training->updates()};
  for (const StateKind kind : kStateKinds)
    for (const auto& [unit, shard, _] : training->saved()[kind].entries()) {
      state.names.push_back(format("%s of unit %d", checkpoint_name(kind), unit));
      state.numbers.emplace_back(shard.count);
      training->read_state(kind, unit, shard, state.numbers.back().data());
    }
  for (const NamedNumbers& other : training->other_state(false))
    state.names.push_back(other.name), state.numbers.push_back(other.numbers);
  const size_t micro = size_t(training.settings.B) * size_t(training.settings.T);
  state.measured = training->evaluate({batch.inputs.begin(), batch.inputs.begin() + std::ptrdiff_t(micro)},
                                      {batch.labels.begin(), batch.labels.begin() + std::ptrdiff_t(micro)});
  return state;
}
inline void require_same(const std::string& what, const TrainingState& got, const TrainingState& want) {
  REQUIRE(got.names == want.names, "%s: the state has other parts", what.c_str());
  for (size_t i = 0; i < want.names.size(); ++i)
    require_same_bits(what + ": " + want.names[i], got.numbers[i], want.numbers[i]);
  require_same_bits<double>(what + ": the loss", {got.measured.nats}, {want.measured.nats});
  REQUIRE(got.updates == want.updates, "%s: %lld updates, expected %lld", what.c_str(), (long long)got.updates,
          (long long)want.updates);
}

// Writes the weights weight(tensor, row, column).
inline void write_model(const std::string& path, const ModelConfig& config,
                        const std::function<float(const ParameterInfo&, size_t, size_t)>& weight) {
  const ParameterLayout layout(config);
  std::vector<TensorSpec> specs;
  for (const ParameterInfo& t : layout.tensors) {
    const std::vector<int64_t> shape = t.whole_shape();
    specs.push_back({t.name, StoredType::F32, {shape.begin(), shape.end()}});
  }
  SafetensorsWriter writer(path, specs);
  for (const ParameterInfo& t : layout.tensors) {
    std::vector<float> values;
    for (size_t i = 0; i < t.size(); ++i) values.push_back(weight(t, i / size_t(t.columns), i % size_t(t.columns)));
    writer.write(t.name, values.data(), values.size() * sizeof(float));
  }
  writer.finish();
}

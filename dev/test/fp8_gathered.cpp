// Compares, byte by byte, the operands of all FP8 products of trainings whose ranks share products out with what one
// rank makes of the same bf16 numbers:
//
//   fp8_gathered        on 2 or 4 ranks under mpirun
//
// What the ranks gather is put together here in bf16, from the rows that each quantized, and quantized plainly
// (number.h, quantize.h) by its largest number; so are whole weights, of which each rank must have its rows and
// columns. What is not gathered has its rank's own scale. Delayed scales are the trainer's; before there are any, all
// ranks share the largest number. The input of the first block's qkv comes from the embedding alone: it must be what a
// training of one rank quantizes, in bf16, and with one scale of the running pass also in FP8.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>

#include "dev/test/arrays.h"
#include "dev/test/observed_source.h"
#include "dev/test/tiny_trainer.h"
#include "llmc/config/context_part.h"

namespace {

using Axis = Mesh::Axis;
using Kind = ProductKind;

constexpr int kMicroSteps = 2;

ModelConfig small() { return tiny({.L = 2, .NH = 8, .FF = 72, .init_std = 0.08}); }

struct Way {
  std::string name;
  int tensor = 2, context = 1, stage = 0;
  int B = 1, T = 21;  // which no tensor-parallel degree divides
  bool all_gather = false, precompute = true;
  int chunks = 1;  // in which a tensor is gathered: B x T is a multiple of as many tiles of 128 for each rank
  Recompute recompute = Recompute::none;
};

struct Operand {
  std::vector<uint8_t> bytes;  // (rows, columns)
  float factor = 0;
};

Operand quantized(const std::vector<bf16>& values, Fp8Format format, float scale) {
  Operand operand{std::vector<uint8_t>(values.size()), 1.0f / scale};
  for (size_t i = 0; i < values.size(); ++i)
    operand.bytes[i] = fp8_bits(to_float(values[i]) * scale, format == Fp8Format::e4m3 ? 4 : 5, Overflow::saturate);
  return operand;
}

Operand transposed(const Operand& x, size_t rows, size_t columns) {
  return {::transposed(x.bytes, rows, columns), x.factor};
}

float largest(const std::vector<bf16>& values) {
  float amax = 0;
  for (const bf16 x : values) amax = std::max(amax, std::fabs(to_float(x)));
  return amax;
}

// Reads an operand on the host; its padding must be 0.
Operand downloaded(Stream& stream, const std::string& name, const QuantizedTensor& t) {
  const UnpaddedOperand u = unpadded(name, t, download<uint8_t>(stream, t.data, t.bytes()),
                                     download<float>(stream, t.scale_inv, t.scale_inv_count()));
  Operand operand{std::vector<uint8_t>(u.data.bytes.size()), 0};
  memcpy(operand.bytes.data(), u.data.bytes.data(), u.data.bytes.size());
  memcpy(&operand.factor, u.inverse.bytes.data(), sizeof operand.factor);
  return operand;
}

// The weight of a product of a block: all of it, and the rows and columns that this rank has.
struct Weight {
  std::vector<bf16> values;
  std::vector<int64_t> rows, columns;
  int64_t whole_columns = 0;
};
using Weights = std::map<int, Weight>;  // by LayerProjection::index

Weights weights_of(Trainer& trainer) {
  Weights weights;
  for (const ParameterInfo& t : trainer.layout().tensors) {
    if (!t.projection) continue;
    Weight& w = weights[t.projection->index];
    const int64_t before = w.whole_columns ? int64_t(w.values.size()) / w.whole_columns : 0;
    for (const float x : trainer.weights(t.name)) w.values.push_back(from_float<bf16>(x));
    for (int64_t r = 0; r < t.rows; ++r) w.rows.push_back(before + t.first_row + r);
    w.columns.clear();
    for (int64_t c = 0; c < t.columns; ++c) w.columns.push_back(t.first_column + c);
    w.whole_columns = t.whole_columns;
  }
  return weights;
}

// An input as one rank quantized it.
struct Alone {
  std::vector<bf16> values;
  Operand operand;
};

// Compares each product's operands as it is enqueued, when all before it was executed. All ranks see the same ones.
class Observer {
 public:
  Observer(Device& device, Communicator& communicator, const Mesh& mesh, const ModelConfig& config,
           const TrainerSettings& settings, const std::vector<Alone>& alone)
      : device_(device),
        mesh_(mesh),
        config_(config.tensor_part(mesh.tensor_degree, mesh.tensor_rank)),
        settings_(settings),
        alone_(alone),
        tensor_(communicator.split(mesh.group({Axis::tensor}))),
        all_(communicator.split(Communicator::first_ranks(communicator.size()))),
        stream_(device, "observer") {}

  // `scales` by LayerProjection::id(), the same on all ranks; empty: they follow from the largest numbers.
  void begin_step(int step, Weights weights, std::vector<float> scales) {
    step_ = step, weights_ = std::move(weights), scales_ = std::move(scales);
    for (size_t i = 0; i < scales_.size(); ++i)
      REQUIRE(scales_[i] == largest_of_all(scales_[i]), "rank %d: the scale of %s is not that of all ranks", mesh_.rank,
              LayerProjections(config_).name(int(i)).c_str());
  }
  int seen_alone() const { return seen_alone_; }
  size_t operands() const { return operands_; }
  size_t gathered() const { return gathered_; }

  void see(const ObservedProduct& p) {
    device_.synchronize();
    const LayerProjection& here = p.projection;
    const bool gathers_inputs = here.row().parallel == Parallel::column;
    const std::string name = format("rank %d: layers.%d.%s.%s", mesh_.rank, here.layer, here.name(), kind_name(p.kind));
    const size_t N = size_t(p.N);
    Operand &x = inputs_[here.index], &dy = output_gradients_[here.index];
    // Forward and for the weight, an input; for the input and for the weight, an output gradient.
    if (mesh_.tensor_degree > 1 && p.kind != (gathers_inputs ? Kind::dgrad : Kind::forward)) ++gathered_;
    if (p.kind == Kind::forward) {
      const std::vector<bf16> values = all_rows(*p.source, p.N, gathers_inputs);
      x = quantized_as(values, p, Role::input);
      compare(name + ".x", p.a, x);
      compare(name + ".weight", p.b, weight(p, false));
      // Later steps have other weights than one rank's.
      if (step_ == 0 && here.index == 0) compare_to_one_rank(name, values, x);
    } else if (p.kind == Kind::dgrad) {
      dy = quantized_as(all_rows(*p.source, p.N, !gathers_inputs), p, Role::output_gradient);
      compare(name + ".dy", p.a, dy);
      compare(name + ".weight", p.b, weight(p, true));
    } else {
      compare(name + ".dy", p.a, transposed(dy, N, size_t(here.OC)));
      compare(name + ".x", p.b, transposed(x, N, size_t(here.IC)));
    }
  }

 private:
  // The tensor (N, columns), of which each rank of the group has some rows where it is gathered, in the tokens' order.
  std::vector<bf16> all_rows(const QuantizeSource& source, int N, bool gathered) {
    const std::vector<bf16> own = computed(stream_, source, float(config_.norm_eps));
    if (!gathered) return own;
    const auto [R, columns] = shape_of(source);
    const int degree = mesh_.tensor_degree;
    const DeviceMemory memory(device_, own.size() * sizeof(bf16) * size_t(degree));
    bf16* ranks = reinterpret_cast<bf16*>(memory.data());
    copy(stream_, ranks + own.size() * size_t(mesh_.tensor_rank), own.data(), own.size());
    tensor_->all_gather(stream_, ranks, ranks + own.size() * size_t(mesh_.tensor_rank), own.size() * sizeof(bf16));
    const std::vector<bf16> theirs = download<bf16>(stream_, ranks, own.size() * size_t(degree));
    // The ranks have as many rows of each chunk, one rank's after the other's.
    std::vector<bf16> all(size_t(N) * size_t(columns));
    const int chunk_rows = R / settings_.tensor_chunks;
    for (int token = 0; token < N; ++token) {
      const int chunk = token / (chunk_rows * degree), rank = token / chunk_rows % degree;
      const int row = chunk * chunk_rows + token % chunk_rows;
      std::copy_n(theirs.data() + size_t(rank * R + row) * size_t(columns), columns,
                  all.data() + size_t(token) * size_t(columns));
    }
    return all;
  }

  Operand quantized_as(const std::vector<bf16>& values, const ObservedProduct& p, Role role) {
    const Fp8Format format = settings_.fp8.format(role);
    if (!scales_.empty()) return quantized(values, format, scales_[size_t(p.projection.id(role))]);
    float amax = largest(values);
    if (settings_.fp8.delayed()) amax = largest_of_all(amax);
    return quantized(values, format, fp8_scale(amax, format, settings_.fp8.power_of_two));
  }
  float largest_of_all(float number) {
    const DeviceMemory memory(device_, sizeof(float));
    float* there = reinterpret_cast<float*>(memory.data());
    copy(stream_, there, &number, 1);
    all_->all_reduce_max(stream_, {there, {1}});
    return download<float>(stream_, there, 1)[0];
  }

  // This rank's part of the whole weight's bytes: W (OC, IC), or its transpose.
  Operand weight(const ObservedProduct& p, bool columnwise) {
    const Weight& w = weights_.at(p.projection.index);
    const Operand whole = quantized_as(w.values, p, Role::weight);
    Operand part{{}, whole.factor};
    for (const int64_t r : w.rows)
      for (const int64_t c : w.columns) part.bytes.push_back(whole.bytes[size_t(r * w.whole_columns + c)]);
    return columnwise ? transposed(part, w.rows.size(), w.columns.size()) : part;
  }

  void compare(const std::string& name, const QuantizedTensor& t, const Operand& expected) {
    const Operand amax_step = downloaded(stream_, name, t);
    REQUIRE(amax_step.factor == expected.factor, "%s is multiplied with %.9g, one rank's with %.9g", name.c_str(),
            double(amax_step.factor), double(expected.factor));
    REQUIRE(amax_step.bytes.size() == expected.bytes.size(), "%s has %zu bytes, one rank's %zu", name.c_str(),
            amax_step.bytes.size(), expected.bytes.size());
    for (size_t i = 0; i < amax_step.bytes.size(); ++i)
      REQUIRE(amax_step.bytes[i] == expected.bytes[i], "%s: byte %zu of row %zu is 0x%02x, one rank's 0x%02x",
              name.c_str(), i % size_t(t.columns), i / size_t(t.columns), amax_step.bytes[i], expected.bytes[i]);
    ++operands_;
  }

  // One rank goes through the micro-batches of all data ranks, whose sequences are whole there.
  void compare_to_one_rank(const std::string& name, const std::vector<bf16>& values, const Operand& operand) {
    const Alone& alone = alone_[size_t(mesh_.data_rank() * kMicroSteps + seen_alone_++)];
    const ContextPart part{mesh_.context_degree, mesh_.context_rank};
    const size_t C = size_t(config_.C);
    for (size_t i = 0; i < values.size() / C; ++i)
      REQUIRE(memcmp(&values[i * C], &alone.values[part.place(i, settings_.B, settings_.T) * C], C * sizeof(bf16)) == 0,
              "%s: the input of token %zu has other bits than one rank's", name.c_str(), i);
    // Scales of the running pass are those of a micro-batch, of which a context-parallel rank has a part; delayed ones
    // are those of all ranks'.
    if (!part.whole() || settings_.fp8.delayed()) return;
    REQUIRE(operand.factor == alone.operand.factor && operand.bytes == alone.operand.bytes,
            "%s: the input has other bytes than one rank's", name.c_str());
  }

  Device& device_;
  const Mesh mesh_;
  const ModelConfig config_;  // this rank's part
  const TrainerSettings& settings_;
  const std::vector<Alone>& alone_;  // micro-batch by micro-batch
  const std::unique_ptr<Communicator> tensor_, all_;
  Stream stream_;
  Weights weights_;
  std::vector<float> scales_;
  std::map<int, Operand> inputs_, output_gradients_;  // of the running micro-batch, by LayerProjection::index
  int step_ = 0, seen_alone_ = 0;
  size_t operands_ = 0, gathered_ = 0;  // compared; those of them that were gathered as bytes
};

TrainerSettings settings_of(const std::string& recipe, const Way& way) {
  TrainerSettings s = settings_in(recipe, small());
  s.B = way.B, s.T = way.T, s.micro_batches = kMicroSteps, s.zero_stage = way.stage;
  s.tensor_chunks = way.chunks, s.activations.recompute = way.recompute;
  s.fp8.all_gather = way.all_gather, s.fp8.precompute_scales = way.precompute;
  return s;
}

// One rank goes through the micro-batches of all data ranks.
std::vector<Alone> train_alone(TrainerSettings settings, int data_ranks) {
  settings.zero_stage = 0, settings.tensor_chunks = 1, settings.micro_batches = kMicroSteps * data_ranks;
  settings.fp8.all_gather = false;
  World world;
  Stream stream(world.device, "observer");
  std::vector<Alone> alone;
  Training training(world, small(), settings);
  training->observe([&](const ObservedProduct& p) {
    if (p.projection.index > 0 || p.kind != Kind::forward) return;
    world.device.synchronize();
    alone.push_back(
        {computed(stream, *p.source, float(training.config.norm_eps)), downloaded(stream, "one rank's input", p.a)});
  });
  training.train(1);
  REQUIRE(alone.size() == size_t(settings.micro_batches), "%zu micro-batches were seen", alone.size());
  return alone;
}

void train(World& world, const std::string& recipe, const Way& way) {
  const Mesh mesh = world.mesh(way.tensor, way.context);
  const TrainerSettings settings = settings_of(recipe, way);
  const std::vector<Alone> alone = train_alone(settings, mesh.data_degree());
  Training training(world, small(), settings, mesh);
  Observer observer(world.device, *world.communicator, mesh, training.config, settings, alone);
  const int steps = settings.fp8.delayed() ? 3 : 2;  // the scales of the third have a whole history
  for (int k = 0; k < steps; ++k) {
    std::vector<float> scales;
    for (const NamedNumbers& state : training->other_state(false))
      if (state.name == "fp8_scales" && k > 0) scales = state.numbers;
    REQUIRE(scales.empty() != (settings.fp8.delayed() && k > 0), "%zu scales before step %d", scales.size(), k);
    observer.begin_step(k, weights_of(*training.trainer), std::move(scales));
    training->observe([&](const ObservedProduct& product) { observer.see(product); });
    training.train(1);
    training->observe({});
  }
  // Two operands of each of a product's three calls.
  const size_t expected = size_t(steps * kMicroSteps * LayerProjections(training.config).count()) * 6;
  REQUIRE(observer.operands() == expected && observer.seen_alone() == kMicroSteps,
          "%zu operands were compared of %zu, and %d inputs to one rank's", observer.operands(), expected,
          observer.seen_alone());
  if (world.first())
    printf("ok   %-10s %s%s%s: %zu operands, of them %zu gathered\n", recipe.c_str(), mesh.description().c_str(),
           way.name.empty() ? "" : ", ", way.name.c_str(), observer.operands(), observer.gathered());
}

std::vector<Way> ways(int ranks) {
  const Way chunks{"two chunks", ranks, 1, 0, 1, 256 * ranks, false, true, 2};
  if (ranks == 2)
    return {{""},
            chunks,
            {"all of a block again", 2, 1, 0, 2, 21, false, true, 1, Recompute::block},
            {"norms again", 2, 1, 0, 1, 22, false, true, 1, Recompute::norms},
            {"", 1, 2, 0, 2, 24}};
  return {{"stage 3", 2, 1, 3},
          {"stage 3, weights in FP8", 2, 1, 3, 1, 21, true},
          {"stage 3, weights in FP8, scales on demand", 2, 1, 3, 1, 21, true, false},
          {"stage 1, weights in FP8", 2, 1, 1, 1, 21, true},
          {"", 4},
          chunks,
          {"", 2, 2, 0, 2, 24},
          {"stage 3, weights in FP8", 2, 2, 3, 2, 24, true}};
}

void run(const Ranks& ranks, const Words&) {
  REQUIRE(ranks.size == 2 || ranks.size == 4, "fp8_gathered, on 2 or 4 ranks");
  World world(ranks);
  for (const char* recipe : {"tensorwise", "delayed"})
    for (const Way& way : ways(ranks.size)) train(world, recipe, way);
}

}  // namespace

int main(int argc, char** argv) { return ranks_main(argc, argv, {{"fp8_gathered", run}}); }

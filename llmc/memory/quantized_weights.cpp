#include "llmc/memory/quantized_weights.h"

#include <algorithm>

QuantizedWeights::QuantizedWeights(MemoryPlan& plan, const Fp8Settings& settings, const LlamaConfig& config,
                                   const TensorLayout& layout, ScaleStore& scales, int slots,
                                   const std::function<bool(int)>& gathered)
    : settings_(settings), config_(config), layout_(layout), scales_(scales), slots_(size_t(slots)) {
  size_t rows = 0, columns = 0;  // the most of a weight that is quantized here
  for (int slot = 0; slot < slots; ++slot)
    for (const Product product : kEachProduct) {
      const auto [OC, IC] = product_shape(config, product);
      bool wanted = false, made_here = false;  // by a block that takes turns here
      for (int layer = slot; layer < config.L; layer += slots) {
        if (!settings.quantizes(layer, product)) continue;
        wanted = true;
        made_here = made_here || !gathered(layer);
      }
      if (made_here) rows = std::max(rows, size_t(OC)), columns = std::max(columns, size_t(IC));
      for (const bool by_columns : {false, true}) {
        if (!wanted) continue;
        const QuantizedTensor t = settings.operand(Role::weight, by_columns, OC, IC);
        const bool as_gathered = !by_columns && !made_here && t.bytes() == size_t(OC) * size_t(IC);
        const std::string name =
            format("%s of slot %d%s", product_name(product), slot, by_columns ? ", transposed" : "");
        if (!as_gathered)
          slots_[size_t(slot)].planned_data[int(product)][by_columns] =
              plan.add<uint8_t>(Segment::device, "FP8 weights", name, t.bytes());
        slots_[size_t(slot)].planned_factors[int(product)][by_columns] =
            plan.add<float>(Segment::device, "FP8 weights", name + ", factors", t.factor_count());
      }
    }
  if (!rows) return;
  const QuantizedTensor w = settings.operand(Role::weight, false, 1, 1), t = settings.operand(Role::weight, true, 1, 1);
  const auto add = [&](Planned<float>& planned, const char* name, size_t count) {
    planned = plan.add<float>(Segment::device, "FP8 scales", name, count);
  };
  if (w.scaling == Scaling::tensor || t.one_scale) add(planned_amax_, "largest weight of a product", 1);
  if (w.scaling == Scaling::row) add(planned_row_amax_, "largest weights of rows", rows);
  if (t.scaling == Scaling::row && !t.one_scale) add(planned_column_amax_, "largest weights of columns", columns);
}

void QuantizedWeights::bind(const Arena& arena) {
  for (Slot& slot : slots_)
    for (int product = 0; product < kProducts; ++product)
      for (int by_columns = 0; by_columns < 2; ++by_columns)
        if (slot.planned_factors[product][by_columns].count) {
          const Planned<uint8_t>& data = slot.planned_data[product][by_columns];
          slot.memory[product][by_columns] = {data.count ? arena[data] : nullptr,
                                              arena[slot.planned_factors[product][by_columns]]};
        }
  const auto get = [&](const Planned<float>& planned) { return planned.count ? arena[planned] : nullptr; };
  amax_ = get(planned_amax_);
  row_amax_ = get(planned_row_amax_);
  column_amax_ = get(planned_column_amax_);
}

QuantizedWeight QuantizedWeights::get(int layer, Product product) const {
  if (!settings_.quantizes(layer, product)) return {};
  const auto& memory = slots_[size_t(layer) % slots_.size()].memory[int(product)];
  const auto [OC, IC] = product_shape(config_, product);
  QuantizedWeight weight;
  weight.by_rows = settings_.operand(Role::weight, false, OC, IC);
  weight.by_columns = settings_.operand(Role::weight, true, OC, IC);
  weight.by_rows.data = memory[0].data, weight.by_rows.factors = memory[0].factors;
  weight.by_columns.data = memory[1].data, weight.by_columns.factors = memory[1].factors;
  return weight;
}

Quantization QuantizedWeights::quantization(int layer, Product product) const {
  const QuantizedWeight weight = get(layer, product);
  const int number = fp8_number(layer, product, Role::weight);
  const ScaleWords words = scales_.weight_words();
  Quantization q;
  q.by_rows = weight.by_rows, q.by_columns = weight.by_columns;
  q.power_of_two = settings_.power_of_two;
  q.amax = amax_;
  q.row_amax = row_amax_, q.column_amax = column_amax_;
  if (words.scale) q.scale = words.scale + number;
  if (words.seen) q.seen = words.seen + number;
  if (words.statistics) q.statistics = words.statistics + number;
  q.not_finite = scales_.not_finite();
  q.number = not_finite_word(number);
  return q;
}

void QuantizedWeights::quantize(Stream& stream, int layer, const bf16* unit) {
  for (const Product product : kEachProduct) {
    if (!settings_.quantizes(layer, product)) continue;
    const auto [OC, IC] = product_shape(config_, product);
    const PlainSource source{unit + layout_.offset(layout_.block_unit(layer), product_name(product))};
    const Quantization q = quantization(layer, product);
    if (q.needs_amax()) {
      if (amax_) clear(stream, amax_, 1);
      quantize_amax(stream, source, OC, IC, q);
    }
    ::quantize(stream, source, OC, IC, q);
  }
}

void QuantizedWeights::take(Stream& stream, int layer, Product product, uint8_t* bytes, const SharedScale& shared) {
  Slot& slot = slots_[size_t(layer) % slots_.size()];
  const bool as_gathered = slot.planned_data[int(product)][0].count == 0;
  if (as_gathered) slot.memory[int(product)][0].data = bytes;
  const QuantizedWeight weight = get(layer, product);
  arrange_quantized(stream, weight.by_rows, weight.by_columns, bytes, shared);
}

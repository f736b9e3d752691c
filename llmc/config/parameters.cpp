#include "llmc/config/parameters.h"

#include <algorithm>
#include <cstring>

#include "llmc/base/error.h"

namespace {

size_t rounded_up(size_t offset, size_t multiple) { return (offset + multiple - 1) / multiple * multiple; }

std::string with_layer(std::string name, int layer) {
  const size_t mark = name.find("%d");
  return mark == std::string::npos ? name : name.replace(mark, 2, std::to_string(layer));
}

// Returns the part of the tensor that a rank holds. Its rows and columns are those that the table's formulas give for
// the rank's part of the config.
ParameterInfo part_of(const ParameterRow& row, const ModelConfig& config, const TensorSplit& split) {
  const ModelConfig here = config.tensor_part(split.degree, split.rank);
  ParameterInfo t{&row, "", 0, row.rows(here), row.columns ? row.columns(here) : 1, 0, row.rows(config), 1};
  if (row.columns) t.whole_columns = row.columns(config);
  if (row.cut == Cut::none) {
    t.copies = split.degree, t.copy = split.rank;
  } else if (row.cut == Cut::columns) {
    t.first_column = t.columns * split.rank;
  } else {
    const int64_t most = row.rows(config.tensor_part(split.degree, 0));  // the last rank may have fewer rows
    t.copies = int(std::max<int64_t>(1, most * split.degree / t.whole_rows)), t.copy = split.rank % t.copies;
    t.first_row = most * (split.rank / t.copies);
  }
  return t;
}

}  // namespace

int64_t ModelConfig::parameters() const {
  int64_t sum = 0;
  for (const ParameterRow& row : kParameterRows)
    for (int layer = 0; layer < (row.unit == UnitKind::block ? L : 1); ++layer)
      if (row.is_in(*this, layer)) sum += row.size(*this);
  return sum;
}

double ModelConfig::flops_per_token(int T, bool causal) const {
  const double products = double(V) * C + LayerProjections(*this).weights();
  double layers = 0;  // layers of full attention with the same number of query-key pairs
  for (int layer = 0; layer < L; ++layer) {
    const int W = window_of(layer);
    const double hidden = W > 0 && W < T ? 1 - double(W) / T : 0;  // fraction of each side of the causal triangle
    layers += 1 - hidden * hidden;
  }
  return 6 * products + (causal ? 6.0 : 12.0) * layers * q_width() * T;
}

ParameterLayout::ParameterLayout(const ModelConfig& config, int parts, TensorSplit split)
    : projections(config.tensor_part(split.degree, split.rank)), tied(config.tied) {
  const auto add_unit = [&](UnitKind kind, int layer) {
    Unit unit{kind, layer, size, 0, int(tensors.size()), 0, parts};
    size_t end = 0;
    int unquantized = 0;
    const char* fused = "";
    for (const ParameterRow& row : kParameterRows) {
      if (row.unit != kind || !row.is_in(config, layer)) continue;
      if (strcmp(fused, row.fused) != 0) end = rounded_up(end, kAlignment);
      fused = row.fused;
      ParameterInfo t = part_of(row, config, split);
      t.name = with_layer(row.name, layer), t.unit = int(units.size()), t.offset = end;
      if (const auto which = projection_of(row.fused)) t.projection = projections.find(layer, *which);
      else t.unquantized_index = unquantized++;
      end += part_of(row, config, {split.degree, 0}).size();
      tensors.push_back(t);
    }
    unit.size = rounded_up(end, kAlignment * size_t(parts));
    size += unit.size;
    unit.tensor_count = int(tensors.size()) - unit.first_tensor;
    units.push_back(unit);
  };
  add_unit(UnitKind::embedding, -1);
  for (int layer = 0; layer < config.L; ++layer) add_unit(UnitKind::block, layer);
  add_unit(UnitKind::head, -1);
}

const ParameterInfo& ParameterLayout::tensor(const std::string& name) const {
  for (const ParameterInfo& t : tensors)
    if (t.name == name) return t;
  fail("the model has no tensor named %s", name.c_str());
}

size_t ParameterLayout::offset(int unit, const char* fused) const {
  for (const ParameterInfo& t : tensors_of(unit))
    if (strcmp(t.row->fused, fused) == 0) return t.offset;
  fail("unit %d of the model has no weights named %s", unit, fused);
}

std::vector<Slice> ParameterLayout::slices(int unit, size_t first, size_t count) const {
  const Unit& u = units[size_t(unit)];
  std::vector<Slice> pieces;
  for (int i = u.first_tensor; i < u.first_tensor + u.tensor_count; ++i) {
    const ParameterInfo& t = tensors[size_t(i)];
    const size_t begin = std::max(first, t.offset), end = std::min(first + count, t.offset + t.size());
    if (begin < end) pieces.push_back({&t, begin - t.offset, end - begin, begin - first});
  }
  return pieces;
}

Tensor UnitTensors::of(const ParameterInfo& t) const {
  if (flat_) return flat_.elements(t.offset, t.size());
  return t.projection ? Tensor() : unquantized_.at(t.unquantized_index).elements(0, t.size());
}

Tensor UnitTensors::operator[](const char* fused) const {
  const ParameterInfo* first = nullptr;
  int64_t rows = 0;
  for (const ParameterInfo& t : layout_.tensors_of(unit_)) {
    if (strcmp(t.row->fused, fused) != 0) continue;
    if (!first) first = &t;
    rows += t.rows;
  }
  if (!first) {
    const bool known = std::any_of(std::begin(kParameterRows), std::end(kParameterRows),
                                   [&](const ParameterRow& row) { return strcmp(row.fused, fused) == 0; });
    REQUIRE(known, "unit %d of the model has no weights named %s", unit_, fused);
    return {};
  }
  const int64_t columns = first->columns;
  Tensor values;
  if (flat_) values = flat_.elements(first->offset, rows * columns);
  else if (!first->projection) values = unquantized_.at(first->unquantized_index).elements(0, rows * columns);
  return first->is_matrix() ? values.first({rows, columns}) : values;
}

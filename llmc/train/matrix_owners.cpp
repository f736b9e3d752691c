#include "llmc/train/matrix_owners.h"

#include <algorithm>
#include <numeric>

#include "llmc/base/error.h"
#include "llmc/kernels/newton_schulz.h"

bool OwnedMatrix::is_cut() const {
  return std::any_of(parts.begin(), parts.end(), [](const MatrixPart& p) { return p.window.is_cut(); });
}

namespace {

// Sets owner and round of the matrices.
void choose_owners(std::vector<OwnedMatrix>& matrices, int ranks) {
  const auto flops = [](const OwnedMatrix& m) { return newton_schulz_flops(m.rows(), m.columns()); };
  std::stable_sort(matrices.begin(), matrices.end(),
                   [&](const OwnedMatrix& a, const OwnedMatrix& b) { return flops(a) > flops(b); });
  std::vector<double> load(static_cast<size_t>(ranks));
  std::vector<int> owned(static_cast<size_t>(ranks));
  for (OwnedMatrix& m : matrices) {
    const auto least = std::min_element(load.begin(), load.end());
    m.owner = int(least - load.begin()), m.round = owned[size_t(m.owner)]++;
    *least += flops(m);
  }
  std::stable_sort(matrices.begin(), matrices.end(), [](const OwnedMatrix& a, const OwnedMatrix& b) {
    return std::pair(a.round, a.owner) < std::pair(b.round, b.owner);
  });
}

// Lists the parts of a matrix. `layouts` are those of the tensor-parallel ranks.
void list_parts(OwnedMatrix& m, size_t index, const std::vector<ParameterLayout>& layouts, const UnitPlacement& p,
                size_t part_size) {
  const int degree = p.group->degree(), tensor_ranks = int(layouts.size());
  size_t at = 0;
  for (int tensor_rank = 0; tensor_rank < tensor_ranks; ++tensor_rank) {
    const ParameterInfo& t = layouts[size_t(tensor_rank)].tensors[index];
    if (t.copy != 0 || t.size() == 0) continue;
    std::vector<int> same;  // tensor-parallel ranks with the same elements
    for (int other = 0; other < tensor_ranks; ++other)
      if (const ParameterInfo& o = layouts[size_t(other)].tensors[index];
          o.first_row == t.first_row && o.first_column == t.first_column && o.size() == t.size())
        same.push_back(other);
    const auto add = [&](size_t begin, size_t end, int source_shard, int first_shard, int shards) {
      if (begin >= end) return;
      MatrixPart part{t.unit, {begin, end - begin}, t.window(begin - t.offset), at, 0, {}};
      part.source = source_shard * tensor_ranks + tensor_rank;
      for (int s = first_shard; s < first_shard + shards; ++s)
        for (const int other : same) part.keepers.push_back(s * tensor_ranks + other);
      at += end - begin;
      m.parts.push_back(std::move(part));
    };
    const size_t begin = t.offset, end = t.offset + t.size();
    if (p.updates_part())
      for (int s = 0; s < degree; ++s)
        add(std::max(begin, size_t(s) * part_size), std::min(end, size_t(s + 1) * part_size), s, s, 1);
    else add(begin, end, m.owner / tensor_ranks, 0, degree);  // all shard ranks have the same momentum
  }
  REQUIRE(at == size_t(m.rows() * m.columns()), "%s of %lld x %lld elements: the ranks keep %zu",
          m.tensor->name.c_str(), (long long)m.rows(), (long long)m.columns(), at);
}

}  // namespace

std::vector<OwnedMatrix> share_matrices(const ModelConfig& config, const ParameterLayout& layout,
                                        const Placement& placement, TensorSplit split) {
  std::vector<OwnedMatrix> matrices;
  for (const ParameterInfo& t : layout.tensors)
    if (is_block_matrix(t)) matrices.push_back({&t, 0, 0, {}});
  if (matrices.empty()) return matrices;
  const int degree = placement.front().group->degree();
  choose_owners(matrices, degree * split.degree);
  std::vector<ParameterLayout> layouts;
  for (int rank = 0; rank < split.degree; ++rank) layouts.emplace_back(config, degree, TensorSplit{split.degree, rank});
  for (OwnedMatrix& m : matrices)
    list_parts(m, size_t(m.tensor - layout.tensors.data()), layouts, placement[size_t(m.tensor->unit)],
               layout.part_size(m.tensor->unit));
  return matrices;
}

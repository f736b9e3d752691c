#include "llmc/config/projections.h"

#include <cstring>

#include "llmc/base/error.h"
#include "llmc/config/parameters.h"

std::optional<Projection> projection_of(const char* name) {
  for (int i = 0; i < kProjectionCount; ++i)
    if (strcmp(kProjections[i].name, name) == 0) return Projection(i);
  return {};
}

const char* role_name(Role role) {
  constexpr const char* names[] = {"input", "weight", "output gradient"};
  return names[int(role)];
}

LayerProjections::LayerProjections(const ModelConfig& config) {
  for (int layer = 0; layer < config.L; ++layer) {
    first_.push_back(all_.size());
    int64_t OC[kProjectionCount] = {}, IC[kProjectionCount] = {};
    for (const ParameterRow& row : kParameterRows)
      if (const auto which = projection_of(row.fused); which && row.is_in(config, layer))
        OC[int(*which)] += row.rows(config), IC[int(*which)] = row.columns(config);
    for (int i = 0; i < kProjectionCount; ++i)
      if (OC[i]) all_.push_back({layer, Projection(i), count(), int(OC[i]), int(IC[i])});
  }
  first_.push_back(all_.size());
}

std::span<const LayerProjection> LayerProjections::of(int layer, int layers) const {
  if (layer < 0) return {};
  const size_t begin = first_[size_t(layer)], end = first_[size_t(layer + layers)];
  return {all_.data() + begin, end - begin};
}

const LayerProjection* LayerProjections::find(int layer, Projection which) const {
  for (const LayerProjection& p : of(layer))
    if (p.which == which) return &p;
  return nullptr;
}

double LayerProjections::weights() const {
  double sum = 0;
  for (const LayerProjection& p : all_) sum += double(p.OC) * p.IC;
  return sum;
}

std::string LayerProjections::name(int id) const {
  if (id >= ids()) return format("the %s of the head", role_name(role(id)));
  const LayerProjection& p = all_.at(size_t(id / kRoles));
  return format("the %s of %s in block %d", role_name(role(id)), p.name(), p.layer);
}

#include "llmc/run/fp8_report.h"

#include <algorithm>

#include "llmc/base/console.h"

Json fp8_json(int64_t step, const std::vector<QuantizeStatistics>& statistics, const LayerProjections& projections) {
  Json classes = Json::object();
  for (const ProjectionRow& row : kProjections)
    for (const Role role : kEachRole) {
      QuantizeStatistics sum{0, ~0u, 0, 0, 0, 0, 0};
      for (const LayerProjection& p : projections.all()) {
        if (&p.row() != &row) continue;
        const QuantizeStatistics& s = statistics[size_t(p.id(role))];
        sum.amax = std::max(sum.amax, s.amax);
        sum.smallest_scale = std::min(sum.smallest_scale, s.smallest_scale);
        sum.largest_scale = std::max(sum.largest_scale, s.largest_scale);
        sum.values += s.values, sum.saturated += s.saturated, sum.underflowed += s.underflowed;
      }
      if (!sum.values) continue;
      const auto number = [](uint32_t bits) { return json_number(double(bits_to_float(bits))); };
      classes.set(
          std::string(row.name) + " " + role_name(role),
          Json::object()
              .set("amax", number(sum.amax))
              .set("scale", Json::array().push_back(number(sum.smallest_scale)).push_back(number(sum.largest_scale)))
              .set("saturated", double(sum.saturated) / double(sum.values))
              .set("underflowed", double(sum.underflowed) / double(sum.values)));
    }
  return Json::object().set("step", step).set("fp8", classes);
}

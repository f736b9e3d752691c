#include "llmc/data/bad_samples.h"

#include "llmc/base/error.h"

Json to_json(const std::vector<BadStep>& steps) {
  Json list = Json::array();
  for (const BadStep& step : steps) {
    Json samples = Json::array();
    for (const SampleRange& range : step.samples)
      samples.push_back(Json::array().push_back(range.first).push_back(range.last));
    list.push_back(
        Json::object().set("stage", step.stage).set("step", step.step).set("why", step.why).set("samples", samples));
  }
  return list;
}

std::vector<BadStep> bad_steps_of(const Json& list) {
  constexpr int64_t kMost = int64_t(1) << 60;
  std::vector<BadStep> steps;
  int64_t step_before = 0, last_before = -1;
  for (const Json& entry : list.elements()) {
    BadStep step{entry.get_string("stage"), entry.get_int("step"), entry.get_string("why"), {}};
    REQUIRE(step.step > 0 && step.step >= step_before, "%s: bad step %lld stands after step %lld", list.where().c_str(),
            (long long)step.step, (long long)step_before);
    REQUIRE(entry.at("samples").size() > 0, "%s: step %lld has no samples", list.where().c_str(), (long long)step.step);
    for (const Json& pair : entry.at("samples").elements()) {
      REQUIRE(pair.size() == 2, "%s: samples of step %lld\n  expected pairs: the first and the last",
              list.where().c_str(), (long long)step.step);
      const SampleRange range{pair.at(0).as_int(), pair.at(1).as_int()};
      REQUIRE(range.first > last_before && range.last >= range.first && range.last < kMost,
              "%s: samples %lld to %lld after sample %lld", list.where().c_str(), (long long)range.first,
              (long long)range.last, (long long)last_before);
      step.samples.push_back(range);
      last_before = range.last;
    }
    step_before = step.step;
    steps.push_back(std::move(step));
  }
  return steps;
}

void add_bad_steps(std::vector<BadStep>& left_out, const std::string& text, const std::string& stage, int64_t step) {
  if (text.empty()) return;
  const int64_t last = left_out.empty() ? -1 : left_out.back().samples.back().last;
  for (BadStep& bad : bad_steps_of(Json::parse(text, "bad_samples.json").at("steps")))
    if (bad.stage == stage && bad.step > step && bad.samples[0].first > last) left_out.push_back(std::move(bad));
}

std::string describe_bad_steps(const std::vector<BadStep>& steps) {
  std::string text;
  for (const BadStep& step : steps)
    for (const SampleRange& range : step.samples)
      text += format("%s%lld to %lld (step %lld)", text.empty() ? "samples " : ", ", (long long)range.first,
                     (long long)range.last, (long long)step.step);
  return text;
}

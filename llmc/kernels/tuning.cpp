#include "llmc/kernels/tuning.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "llmc/base/checksum.h"
#include "llmc/base/clock.h"
#include "llmc/base/error.h"

namespace {

constexpr const char* kFormat = "train_llama tuning 1";

const char* name_of(MatmulShape::Type type) {
  constexpr const char* names[] = {"fp32", "tf32", "bf16", "e4m3", "e5m2"};
  return names[int(type)];
}

std::string operand(MatmulShape::Type type, Scaling scaling) {
  constexpr const char* scalings[] = {"", "/row", "/1x128", "/128x128"};
  return name_of(type) + std::string(scalings[int(scaling)]);
}

}  // namespace

std::string MatmulShape::text() const {
  return format("%c%c %lldx%lldx%lld ld %lld,%lld,%lld %s*%s %s %s%s", transpose_a ? 'T' : 'N', transpose_b ? 'T' : 'N',
                (long long)m, (long long)n, (long long)k, (long long)lda, (long long)ldb, (long long)ldd,
                operand(a, scaling_a).c_str(), operand(b, scaling_b).c_str(), accumulate ? "+=" : "=", name_of(d),
                fast ? " fast" : "");
}

std::string TunedFor::text() const {
  const std::string capability =
      compute_capability ? format(" (compute capability %d.%d)", compute_capability / 10, compute_capability % 10) : "";
  return device + capability + " with " + library;
}

// ---------------------------------------------------------------------------------------------- the file

Tuning Tuning::from_json(const Json& json) {
  REQUIRE(json.is_object() && json.contains("format") && json.at("format") == Json(kFormat),
          "%s: no tuning, or one of another version\n  expected \"format\": \"%s\", as --tune-products writes it",
          json.where().c_str(), kFormat);
  Tuning tuning({json.get_string("device"), int(json.get_int("compute_capability")), json.get_string("library")});
  for (const auto& [shape, product] : json.at("products").items())
    tuning.set(shape,
               {product.get_string("choice"), product.get_double("us") * 1e-6, product.get_double("default_us") * 1e-6,
                int(product.get_int("candidates")), product.get_int("calls")});
  REQUIRE(
      tuning.hash() == json.get_string("hash"),
      "%s: its choices have the hash %s, and it says %s: it was damaged or changed\n  --tune-products writes a new one",
      json.where().c_str(), tuning.hash().c_str(), json.get_string("hash").c_str());
  return tuning;
}

Json Tuning::to_json() const {
  const auto microseconds = [](double seconds) { return std::round(seconds * 1e9) * 1e-3; };
  Json products = Json::object();
  for (const auto& [shape, product] : products_)
    products.set(shape, Json::object()
                            .set("choice", product.choice)
                            .set("us", microseconds(product.seconds))
                            .set("default_us", microseconds(product.by_default))
                            .set("candidates", product.candidates)
                            .set("calls", product.calls));
  return Json::object()
      .set("format", kFormat)
      .set("device", found_on_.device)
      .set("compute_capability", found_on_.compute_capability)
      .set("library", found_on_.library)
      .set("hash", hash())
      .set("products", products);
}

const TunedProduct* Tuning::find(const std::string& shape) const {
  const auto found = products_.find(shape);
  return found == products_.end() ? nullptr : &found->second;
}

std::string Tuning::hash() const {
  if (empty()) return "";
  Checksum sum;
  for (const auto& [shape, product] : products_)
    for (const std::string& text : {shape, product.choice}) sum.add(text.c_str(), text.size() + 1);
  return sum.text();
}

std::string Tuning::description() const {
  double seconds = 0, by_default = 0;
  for (const auto& [_, product] : products_) {
    seconds += product.seconds * double(product.calls);
    by_default += product.by_default * double(product.calls);
  }
  return format("%zu shape%s, %.0f%% less time than the defaults", products_.size(), products_.size() == 1 ? "" : "s",
                by_default > 0 ? 100 * (1 - seconds / by_default) : 0.0);
}

void Tuning::require_fits(const TunedFor& here, const std::string& name) const {
  REQUIRE(found_on_ == here,
          "%s: the products' algorithms were chosen on %s\n  here is %s\n"
          "  choose anew with --tune-products, or compute with the defaults: --tuning none",
          name.c_str(), found_on_.text().c_str(), here.text().c_str());
}

// ---------------------------------------------------------------------------------------------- finding choices

void ProductTuner::use(Tuning tuning) {
  used = std::move(tuning);
  unused.clear();
  for (const auto& [shape, _] : used.products()) unused.insert(shape);
}

void ProductTuner::begin(std::function<void()> until_done) {
  use({});
  timing = true;
  wait = std::move(until_done);
}

Tuning ProductTuner::end(TunedFor here) {
  Tuning found(std::move(here));
  for (auto& [shape, product] : timed) found.set(shape.text(), std::move(product));
  timed.clear();
  timing = false;
  wait = nullptr;
  return found;
}

const std::string* ProductTuner::choice(const MatmulShape& shape) {
  if (used.empty()) return nullptr;
  const std::string key = shape.text();
  const TunedProduct* product = used.find(key);
  unused.erase(key);
  return product ? &product->choice : nullptr;
}

int ProductTuner::time(Stream& stream, const MatmulShape& shape, std::vector<std::string> choices,
                       const std::function<void(int)>& run) {
  const FastestCandidate fastest = time_candidates(stream, int(choices.size()), run, wait);
  const std::string& choice = choices[size_t(fastest.index)];
  timed[shape] = {choice, fastest.seconds, fastest.by_default, int(choices.size()), 0, choices};
  return fastest.index;
}

FastestCandidate time_candidates(Stream& stream, int count, const std::function<void(int)>& run,
                                 const std::function<void()>& wait) {
  constexpr double kSoak = 20e-3, kTurn = 2e-3, kLong = 0.1, kNear = 1.5, kNoise = 0.01;
  Event begin(stream.device(), true), end(stream.device(), true);
  const auto time = [&](int i, int calls) {
    begin.record(stream);
    for (int call = 0; call < calls; ++call) run(i);
    end.record(stream);
    wait();
    return end.milliseconds_since(begin) * 1e-3 / calls;
  };
  wait();  // other work on the device would be timed too
  std::vector<double> once(size_t(count), 0.0);
  for (int i = 0; i < count; ++i) time(i, 1);  // the first call of a kernel loads it
  for (const double until = seconds() + kSoak; seconds() < until;) time(0, 1);
  for (int turn = 0; turn < 2; ++turn)
    for (int i = 0; i < count; ++i) {
      const double now = time(i, 1);
      once[size_t(i)] = turn ? std::min(once[size_t(i)], now) : now;
    }
  const double least = *std::min_element(once.begin(), once.end());
  std::vector<int> near;
  for (int i = 0; i < count; ++i)
    if (i == 0 || once[size_t(i)] < kNear * least) near.push_back(i);
  const int turns = least > kLong ? 3 : 7;
  // Returns the median seconds per call of each of these candidates, which take turns.
  const auto compare = [&](std::vector<int> ways) {
    std::map<int, std::vector<double>> taken;
    for (int turn = 0; turn < turns; ++turn, std::reverse(ways.begin(), ways.end()))
      for (const int i : ways)
        taken[i].push_back(time(i, int(std::clamp(kTurn / std::max(once[size_t(i)], 1e-9), 1.0, 1000.0))));
    std::map<int, double> medians;
    for (auto& [i, t] : taken) {
      std::nth_element(t.begin(), t.begin() + turns / 2, t.end());
      medians[i] = t[size_t(turns / 2)];
    }
    return medians;
  };
  int best = 0;
  std::map<int, double> medians = compare(near);
  for (const auto& [i, median] : medians)
    if (median < medians[best]) best = i;
  if (best == 0) return {0, medians[0], medians[0]};
  medians = compare({0, best});  // the least of many is biased low: time these two once more, alone
  if (medians[best] > (1 - kNoise) * medians[0]) return {0, medians[0], medians[0]};
  return {best, medians[best], medians[0]};
}

#include "llmc/run/report.h"

#include "llmc/base/console.h"
#include "llmc/base/error.h"
#include "llmc/base/text.h"

std::string step_line(const StepReport& r) {
  const int width = int(std::to_string(r.steps).size());
  std::string loss = r.labels ? format("loss %.4f", r.loss) : "nothing to learn";
  for (size_t i = 0; i < r.sources.size(); ++i)
    loss += format("%s%s %.4f", i == 0 ? " (" : ", ", r.sources[i].first.c_str(), r.sources[i].second) +
            (i + 1 == r.sources.size() ? ")" : "");
  if (r.labels && r.z_loss) loss += format(" + z-loss %.2e", *r.z_loss);
  std::string line = format("step %*lld/%lld | %s | norm %.2f | lr %.1e | %.0f ms | %s tok/s", width, (long long)r.step,
                            (long long)r.steps, loss.c_str(), r.grad_norm, r.learning_rate, r.seconds * 1e3,
                            human_count(r.tokens / r.seconds).c_str());
  if (r.gpus > 1) line += format(", %s a GPU", human_count(r.tokens / r.seconds / r.gpus).c_str());
  if (r.mfu > 0) line += format(" | MFU %.1f%% (full %.1f%%)", r.mfu * 100, r.mfu_full * 100);
  if (r.fp8_overflows > 0) line += format(" | %lld FP8 overflows", (long long)r.fp8_overflows);
  if (r.fp8_underflows > 0) line += format(" | %lld FP8 underflows", (long long)r.fp8_underflows);
  if (!r.skipped.empty()) line += " | skipped: " + r.skipped;
  line += format(" | %s | eta %s", human_bytes(r.memory_bytes).c_str(), human_duration(r.eta_seconds).c_str());
  return line;
}

Json step_json(const StepReport& r) {
  Json json = Json::object();
  json.set("step", r.step)
      .set("loss", r.labels ? json_number(r.loss) : Json())
      .set("grad_norm", json_number(r.grad_norm))
      .set("lr", r.learning_rate)
      .set("step_ms", r.seconds * 1e3)
      .set("tokens_per_s", r.tokens / r.seconds)
      .set("tokens", r.all_tokens);
  for (const auto& [source, source_loss] : r.sources) json.set("loss/" + source, json_number(source_loss));
  if (r.z_loss) json.set("z_loss", r.labels ? json_number(*r.z_loss) : Json());
  if (r.mfu > 0) json.set("mfu", r.mfu);
  if (r.fp8_overflows >= 0) json.set("fp8_overflows", r.fp8_overflows).set("fp8_underflows", r.fp8_underflows);
  if (!r.skipped.empty()) json.set("skipped", r.skipped);
  return json;
}

#include "llmc/run/wrong_gpu.h"

#include <filesystem>

#include "llmc/base/error.h"
#include "llmc/base/new_file.h"
#include "llmc/base/printable.h"
#include "llmc/run/rank_place.h"

namespace fs = std::filesystem;

namespace {

constexpr const char* kMark = "/wrong_gpu.json";

// "rank 1 (…) holds", "rank 0 (…) or rank 1 (…) holds", "rank 2 (…) and rank 3 (…) hold"
std::string subject(const WrongGpu& found, const std::vector<RankPlace>& places) {
  constexpr size_t kNamed = 8;
  const std::vector<int>& ranks = found.suspects.ranks;
  const bool many = found.suspects.certain && ranks.size() > 1;
  std::string text;
  for (size_t i = 0; i < ranks.size() && i < kNamed; ++i)
    text += (i == 0 ? "" : found.suspects.certain ? " and " : " or ") + places[size_t(ranks[i])].text(ranks[i]);
  if (ranks.size() > kNamed)
    text += format(" %s %zu more", found.suspects.certain ? "and" : "or", ranks.size() - kNamed);
  if (ranks.empty()) text = "a rank that is not known";
  return text + (found.holds ? (many ? " hold" : " holds") : (many ? " compute" : " computes"));
}

Json mark(const WrongGpu& found, const std::vector<RankPlace>& places, const std::string& checkpoint,
          const std::string& error) {
  Json ranks = Json::array(), hosts = Json::array(), gpus = Json::array();
  for (const int rank : found.suspects.ranks) {
    ranks.push_back(rank);
    hosts.push_back(places[size_t(rank)].host), gpus.push_back(places[size_t(rank)].uuid);
  }
  return Json::object()
      .set("step", found.step)
      .set("ranks", ranks)
      .set("certain", found.suspects.certain)
      .set("hosts", hosts)
      .set("gpus", gpus)
      .set("checkpoint", fs::path(checkpoint).filename().string())
      .set("error", PrintableText().take(error));
}

}  // namespace

WrongGpu wrong_gpu(int64_t step, const WrongBits& wrong) {
  using Kind = WrongBits::Kind;
  const char* const than = wrong.kind == Kind::copies        ? "other bits than the other copies, first in "
                           : wrong.kind == Kind::computation ? "other bits than other ranks from the same weights and "
                                                               "tokens, first in "
                                                             : "other bits than before from the same weights and "
                                                               "tokens, first in ";
  return {step, wrong.suspects, than + wrong.what, wrong.kind == Kind::copies};
}

void end_wrong_gpu(Setup& setup, const WrongGpu& found, const RunFolder* folder, const std::string& checkpoint,
                   const std::string& remains) {
  const std::vector<RankPlace> all = gather_places(*setup.communicator, setup.device);
  Stream stream(setup.device, "mark");
  // The first rank marks checkpoints, so that the others may not see yet what it sees.
  const std::string newest = broadcast_text(*setup.communicator, stream, checkpoint),
                    there_are = broadcast_text(*setup.communicator, stream, remains);
  std::string text = format("after step %lld %s %s\n  %s", (long long)found.step, subject(found, all).c_str(),
                            found.what.c_str(), there_are.c_str());
  text += found.suspects.any() ? "\n  take its machine out of the run, and start again" : "\n  start again";
  text += " with --resume auto";
  if (!setup.options.verify_every)
    text += "\n  --verify-every N looks for wrong GPUs, and marks checkpoints that are sound";
  else if (newest.empty()) text += ": no checkpoint is verified, so the run goes on from where this start began";
  else text += ": the run goes on from " + newest;
  std::string lost;
  try {
    if (folder && setup.options.verify_every)
      write_file(folder->path() + kMark, mark(found, all, newest, text).dump(2) + "\n");
  } catch (const Error& error) {  // the ranks must not say different things
    lost = error.what();
  }
  if (!lost.empty()) setup.console.warning("the next start will not know of it: " + lost);
  fail_as(ExitCode::wrong_gpu, "%s", text.c_str());
}

bool ended_with_wrong_gpu(const std::string& run_folder) {
  std::error_code error;
  return fs::exists(run_folder + kMark, error);
}

std::string take_over_wrong_gpu(const std::string& run_folder) {
  if (!ended_with_wrong_gpu(run_folder)) return "";
  int64_t step = 0;
  std::string what = "the mark cannot be read";
  try {
    const Json mark = Json::read(run_folder + kMark);
    step = mark.get_int("step"), what = mark.get_string("error");
  } catch (const Error&) {  // the rule holds without the words
  }
  std::error_code error;
  fs::rename(run_folder + kMark, run_folder + format("/wrong_gpu.step-%08lld.json", (long long)step), error);
  REQUIRE(!error, "cannot rename %s%s: %s", run_folder.c_str(), kMark, error.message().c_str());
  return "the run had ended with a wrong GPU: " + what.substr(0, what.find('\n'));
}

#include "llmc/run/data_check.h"

#include <algorithm>
#include <chrono>
#include <set>
#include <string>
#include <vector>

#include "llmc/base/error.h"
#include "llmc/base/text.h"
#include "llmc/data/shard_manifest.h"

namespace {

// Tokens that a rank reads between two all-reduces: about a second on most disks. Few of the blocks that have checksums
// reach into the chunk of another rank.
constexpr int64_t kChunk = 1 << 26;
constexpr double kSecondsBetweenLines = 10;

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

void check_data(const RunData& run, Communicator& communicator, Device& device, Console& console) {
  std::vector<const TokenDataset*> datasets;
  for (const DataSources* sources : {&run.train, &run.held_out})
    for (const DataSource& source : *sources) datasets.push_back(&source.tokens);
  Stream stream(device, "check data");
  const auto start = std::chrono::steady_clock::now();
  double told = 0;
  int64_t all = 0, done = 0;
  std::set<std::string> paths;  // a text's held-out last tenth may be in the same file as the rest
  bool masks = false;
  for (const TokenDataset* data : datasets) {
    all += data->size(), masks |= data->has_masks();
    for (int shard = 0; shard < data->shards(); ++shard) paths.insert(data->shard_path(shard));
  }
  for (const TokenDataset* data : datasets) {
    for (int64_t round = 0; round < data->size(); round += kChunk * communicator.size()) {
      const int64_t first = std::min(data->size(), round + kChunk * communicator.rank());
      const int64_t mine = std::min(kChunk, data->size() - first);
      data->check(first, mine);
      done += sum_number(communicator, stream, mine);  // also a sign of life for the other ranks
      const double seconds = seconds_since(start);
      if (seconds - told < kSecondsBetweenLines) continue;
      told = seconds;
      const double fraction = double(done) / double(all);
      console.progress(
          format("checking the data: %s of %s tokens, eta %s", human_count(double(done)).c_str(),
                 human_count(double(all)).c_str(), human_duration(seconds * (1 - fraction) / fraction).c_str()),
          fraction);
    }
  }
  for (const TokenDataset* data : datasets) {
    const std::vector<ListedFile> files = files_without_blocks(*data);
    for (size_t round = 0; round < files.size(); round += size_t(communicator.size())) {
      if (const size_t mine = round + size_t(communicator.rank()); mine < files.size()) files[mine].verify();
      sum_number(communicator, stream, 1);  // a sign of life for the other ranks
    }
  }
  console.line(format("checked %s tokens%s in %zu file%s in %s: each is below the vocabulary",
                      human_count(double(done)).c_str(), masks ? " and their masks" : "", paths.size(),
                      paths.size() == 1 ? "" : "s", human_duration(seconds_since(start)).c_str()));
}

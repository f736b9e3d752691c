// Checkpoints. Each is a folder with everything that is needed to continue a training, on any mesh and in any ZeRO
// stage.
//
//   step-00000120/
//     rank-00000-of-00002.safetensors   one rank's share of weights and moments, in slices: "weights/NAME@FIRST" holds
//     rank-00001-of-00002.safetensors   the fp32 elements FIRST, FIRST+1, … of the tensor NAME (Hugging Face's name);
//                                       "weights/NAME@FIRST+STRIDE" holds columns of a matrix, as rows that begin
//                                       STRIDE apart; the first rank's file also has "other/NAME@0", which all ranks
//                                       know
//     tokenizer.json …                  the tokenizer's files and generation_config.json, as far as the run has them
//     state.json                        the step, the model, the options, the progress of the data and the schedule
//     manifest.json                     each file with its bytes and XXH64; a checkpoint with a manifest is complete
//     verified.json                     later, and not in the manifest: a verification of the run has passed since
//
// A checkpoint is written as step-00000120.partial and renamed when all of it is on the disk. So the name of a
// checkpoint never stands for half of one. A removal deletes the manifest first.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "llmc/base/disk.h"
#include "llmc/base/json.h"
#include "llmc/base/safetensors.h"
#include "llmc/config/parameters.h"
#include "llmc/memory/snapshot.h"

// ---- writing: each rank its share, then one of them publishes

// Numbers that are the same on all ranks.
struct NamedNumbers {
  std::string name;
  std::vector<float> numbers;
};

// The names and contents of the small files that a checkpoint has besides state.json.
using SmallFiles = std::vector<std::pair<std::string, std::string>>;

struct CheckpointShare {
  int rank, ranks;
  const ParameterLayout& layout;
  const PerKind<FlatShards>& shards;
  // Returns the numbers of a shard of at most kCheckpointChunk elements. The result is valid until the next call.
  std::function<const float*(StateKind kind, int unit, const Shard& shard)> read;
  std::vector<NamedNumbers> others = {};  // only on the first rank
};
inline constexpr size_t kCheckpointChunk = size_t(4) << 20;

// "ROOT/step-00000120"
std::string checkpoint_path(const std::string& root, int64_t step);
// Throws if the share cannot be written. The files written so far stay until remove_partial_checkpoint() is called.
void write_checkpoint_share(const std::string& path, const CheckpointShare& share, Disk& disk = Disk::real());
// Completes a checkpoint whose shares are all written: writes the small files, the state and the manifest, and gives it
// its name. Throws if that fails.
void publish_checkpoint(const std::string& path, int ranks, const Json& state, const SmallFiles& small_files = {},
                        Disk& disk = Disk::real());
// Removes a complete checkpoint, or what was written of one that was given up. Does nothing if there is none.
void remove_checkpoint(const std::string& path, Disk& disk = Disk::real());
void remove_partial_checkpoint(const std::string& path, Disk& disk = Disk::real());
// Removes every checkpoint below `root` that was begun and never completed, or that is half removed.
void remove_partial_checkpoints(const std::string& root, Disk& disk = Disk::real());

// Records in a complete checkpoint that the verification after step `step` has passed, of the same start that saved it.
void mark_verified(const std::string& path, int64_t step, Disk& disk = Disk::real());

// ---- reading

bool is_verified(const std::string& path);
// Returns the step of the newest complete checkpoint below `root` that is verified; -1: there is none.
int64_t newest_verified(const std::string& root);
// Returns the steps of the complete checkpoints below `root`, newest first; none if there is no such folder. Does not
// check whether their files match the manifest.
std::vector<int64_t> checkpoints_in(const std::string& root);

class Checkpoint {
 public:
  // Throws unless the state and the small files are as they were written. Throws LaterVersion if a later program wrote
  // it. The ranks' files are opened when they are needed.
  explicit Checkpoint(const std::string& path);

  const std::string& path() const { return path_; }
  const Json& state() const { return state_; }  // as known_state() completes it
  int64_t step() const { return step_; }

  // The number of the ranks' files. They are too large and too many for every reader to look at all of them.
  int files() const { return int(files_.size()); }
  void verify(int file) const;  // throws if its bytes are not those that were written
  // Returns which slices a file has, for set_contents(). Throws unless it has the size that the manifest names.
  std::string contents(int file) const;
  // Says what all files have, so that a reader opens only those that have what it reads. Without it the first read
  // looks into each of them.
  void set_contents(const std::vector<std::string>& of_files) const;
  int opened() const { return int(opened_.size()); }  // files that were needed so far

  // Closes the files. Nothing can be read afterwards.
  void close();
  // Reads elements first .. first+count-1 of a tensor. Throws if the checkpoint lacks one of them.
  void read(StateKind kind, const std::string& tensor, size_t first, size_t count, float* out) const;
  // Returns other numbers by their name; none if the checkpoint has none of that name.
  std::vector<float> other(const std::string& name) const;

 private:
  struct File {
    std::string path;
    Json entry;  // of the manifest
  };
  // What a file has of a tensor: elements first + row * stride + column.
  struct StoredSlice {
    size_t first, columns, rows, stride;
    int file = 0;
    size_t tensor = 0;  // its index in the file
  };
  const std::vector<StoredSlice>* slices_of(const std::string& name) const;
  const std::byte* data_of(const StoredSlice& slice) const;
  static StoredSlice slice_of(const StoredTensor& tensor, const std::string& place);  // "@FIRST" or "@FIRST+STRIDE"

  std::string path_;
  Json state_;
  int64_t step_ = 0;
  std::vector<File> files_;
  mutable std::unordered_map<int, std::unique_ptr<Safetensors>> opened_;      // by the number of the file
  mutable std::unordered_map<std::string, std::vector<StoredSlice>> slices_;  // by "weights/NAME", ordered by `first`
};

// Checkpoints: a folder for each, with all that a training needs to go on from there, on any mesh of any size.
//
//   step-00000120/
//     rank-00000-of-00002.safetensors   a rank's share of weights and moments, in pieces: "weights/NAME@FIRST" is fp32
//     rank-00001-of-00002.safetensors   elements FIRST, FIRST+1, … of the tensor NAME (Hugging Face's); the first
//                                       rank's has what all of them know besides, as "other/NAME@0"; columns of a
//                                       matrix are "weights/NAME@FIRST+STRIDE", rows that begin STRIDE apart
//     state.json                        the step, the model, the options, how far the data and the schedule are
//     manifest.json                     each file with its bytes and XXH64; a checkpoint is complete when it has this
//
// It is written as step-00000120.partial and renamed when all of it is on the disk, so that no name of a checkpoint
// ever stands for half of one. To remove one its manifest goes first.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "llmc/base/disk.h"
#include "llmc/base/json.h"
#include "llmc/base/safetensors.h"
#include "llmc/memory/snapshot.h"
#include "llmc/model/tensors.h"

// ---- writing: each rank its share, then one of them publishes

// Numbers that all ranks have alike.
struct NamedNumbers {
  std::string name;
  std::vector<float> numbers;
};

struct CheckpointShare {
  int rank, ranks;
  const TensorLayout& layout;
  std::vector<UnitShare> units;
  // `count` numbers from element `first` of a unit on, at most kCheckpointPiece; valid until the next call.
  std::function<const float*(StateKind kind, int unit, size_t first, size_t count)> read;
  std::vector<NamedNumbers> others = {};  // of the first rank
};
inline constexpr size_t kCheckpointPiece = size_t(4) << 20;

// "ROOT/step-00000120"
std::string checkpoint_path(const std::string& root, int64_t step);
// Throws if it cannot be written; what is there of it by then stays for remove_partial_checkpoint.
void write_checkpoint_share(const std::string& path, const CheckpointShare& share, Disk& disk = Disk::real());
// All shares are written: the checkpoint gets its state, its manifest and its name.
void publish_checkpoint(const std::string& path, int ranks, const Json& state, Disk& disk = Disk::real());
// A complete one, or what was written of one that is given up; nothing if there is none.
void remove_checkpoint(const std::string& path, Disk& disk = Disk::real());
void remove_partial_checkpoint(const std::string& path, Disk& disk = Disk::real());
// All below `root` that was begun and never completed, or half removed.
void remove_partial_checkpoints(const std::string& root, Disk& disk = Disk::real());

// ---- reading

// Steps of the complete checkpoints below `root`, newest first; whether their files are what the manifest says is not
// looked at. Empty if there is no such folder.
std::vector<int64_t> checkpoints_in(const std::string& root);

class Checkpoint {
 public:
  // Throws unless all files of the manifest are there in their sizes, and the state is as it was written.
  explicit Checkpoint(const std::string& path);

  const std::string& path() const { return path_; }
  const Json& state() const { return state_; }
  int64_t step() const { return step_; }

  // The ranks' files, which are too large for each reader to check all of them.
  int files() const { return int(files_.size()); }
  void verify(int file) const;  // throws if its bytes are not those that were written

  // Nothing is read any more: the files are closed.
  void close();
  // Elements first .. first+count-1 of a tensor. Throws if the checkpoint lacks one of them.
  void read(StateKind kind, const std::string& tensor, size_t first, size_t count, float* out) const;
  // Other numbers by their name; empty if there are none.
  std::vector<float> other(const std::string& name) const;

 private:
  struct File {
    std::string path, checksum;
  };
  struct Part {
    size_t first, columns, rows, stride;  // elements first + row * stride + column of the tensor
    const std::byte* data;
  };
  void open(const std::string& name, const Json& entry);

  std::string path_;
  Json state_;
  int64_t step_ = 0;
  std::vector<File> files_;
  std::vector<std::unique_ptr<Safetensors>> opened_;
  std::unordered_map<std::string, std::vector<Part>> parts_;  // of "weights/NAME", in their order
};

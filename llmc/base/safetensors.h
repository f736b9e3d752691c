// Tensors by name in Hugging Face's safetensors format: one file, or a directory of shards with an index.
//
//   8 bytes n | n bytes of JSON: {"name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, ...} | data
//
// The reader maps the files, so a tensor's bytes are read only when they are accessed. Every claim of the header is
// checked against the file before a pointer is returned.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "llmc/base/mapped_file.h"
#include "llmc/base/new_file.h"

// The format's number types, under the format's own names.
enum class StoredType {
  BOOL,
  U8,
  I8,
  F8_E4M3,
  F8_E5M2,
  F8_E8M0,
  U16,
  I16,
  F16,
  BF16,
  U32,
  I32,
  F32,
  U64,
  I64,
  F64,
  C64
};
const char* name_of(StoredType type);
size_t bytes_of(StoredType type);  // of one element

using Shape = std::vector<uint64_t>;
std::string text_of(const Shape& shape);  // "[4096, 1024]"

struct TensorSpec {
  std::string name;
  StoredType type;
  Shape shape;  // empty for a scalar

  uint64_t elements() const;  // throws if there are 2^64 or more
  uint64_t bytes() const;
};

struct StoredTensor : TensorSpec {
  const std::byte* data;  // not aligned: copy it, or check the alignment
  uint64_t data_bytes;    // = bytes()
  std::string file;       // for messages
};

class Safetensors {
 public:
  // Opens a file, or a directory that holds model.safetensors or model.safetensors.index.json with the shards it names.
  explicit Safetensors(const std::string& path);

  // All tensors, in the order of the headers, shard after shard.
  const std::vector<StoredTensor>& tensors() const { return tensors_; }
  const std::string& path() const { return path_; }

  const StoredTensor* find(const std::string& name) const;                    // nullptr if there is none
  const StoredTensor& at(const std::string& name) const;                      // throws if there is none
  const StoredTensor& at(const std::string& name, const Shape& shape) const;  // throws also if its shape differs

  // Returns a pointer to `length` bytes of the tensor's data, starting at `offset`. Throws if they are not all inside.
  static const std::byte* range(const StoredTensor& tensor, uint64_t offset, uint64_t length);

 private:
  void open_directory(const std::string& path);
  size_t open_file(const std::string& path);  // returns the number of tensors in it
  void read_header(const MappedFile& file);

  std::string path_;
  std::vector<MappedFile> files_;
  std::vector<StoredTensor> tensors_;
  std::unordered_map<std::string, size_t> index_;
};

// Writes one file. The tensors are declared first and then filled in that order, in chunks of any size. The file
// appears when finish() is done (see NewFile). The metadata is {"format": "pt"}, because transformers rejects files
// without it.
class SafetensorsWriter {
 public:
  // Throws if a name occurs twice, or if the order puts a tensor at an offset that is not a multiple of its element's
  // size, because PyTorch cannot create a view there. Declare the types with the largest elements first to avoid the
  // latter.
  SafetensorsWriter(const std::string& path, std::vector<TensorSpec> tensors, Disk& disk = Disk::real());

  // Writes the next bytes of `name`, which must be the first incomplete tensor.
  void write(const std::string& name, const void* data, uint64_t bytes);

  // Completes the file. If a tensor is not complete, throws and leaves no file behind.
  void finish();

  const NewFile& file() const { return file_; }

 private:
  friend class SafetensorsDirectoryWriter;
  void skip_complete();
  bool is_complete() const { return current_ == tensors_.size(); }
  void require_complete() const;

  std::vector<TensorSpec> tensors_;
  NewFile file_;
  size_t current_ = 0;   // the tensor being filled
  uint64_t filled_ = 0;  // its bytes written so far
};

// Writes a directory in the same way as SafetensorsWriter writes a file: model.safetensors, or, if the tensors exceed
// `shard_bytes`, as many model-0000i-of-0000n.safetensors as needed and their index. No shard appears before all are
// complete, and the index appears last. A single tensor larger than `shard_bytes` gets a shard of its own.
class SafetensorsDirectoryWriter {
 public:
  // Creates the directory. Throws if it already holds weights, because an old shard would be read together with the new
  // ones.
  SafetensorsDirectoryWriter(const std::string& directory, std::vector<TensorSpec> tensors,
                             uint64_t shard_bytes = 5'000'000'000);

  void write(const std::string& name, const void* data, uint64_t bytes);
  void finish();

 private:
  void start_next_shard();

  std::string directory_;
  std::vector<std::vector<TensorSpec>> shards_;
  std::vector<std::string> names_;
  std::vector<std::unique_ptr<SafetensorsWriter>> writers_;
};

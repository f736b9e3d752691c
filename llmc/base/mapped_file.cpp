#include "llmc/base/mapped_file.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "llmc/base/error.h"
#include "llmc/base/input_file.h"

MappedFile::MappedFile(const std::string& path) : path_(path) {
  const InputFile file(path);  // the mapping outlives the descriptor
  size_ = file.size();
  void* mapping = mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, file.descriptor(), 0);
  REQUIRE_FILE(mapping != MAP_FAILED, lost, "cannot map the %zu bytes of %s into memory: %s", size_, path.c_str(),
               strerror(errno));
  data_ = static_cast<const std::byte*>(mapping);
}

MappedFile::~MappedFile() {
  if (data_) munmap(const_cast<std::byte*>(data_), size_);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, size_t(0))) {}

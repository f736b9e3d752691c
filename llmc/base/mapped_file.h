// A whole file mapped into memory, read-only, by mmap. Pages are read when they are first touched, so opening a 16 GB
// file costs nothing.
#pragma once

#include <cstddef>
#include <string>

class MappedFile {
 public:
  // Throws if the file is missing, unreadable or empty, or if it is not a regular file.
  explicit MappedFile(const std::string& path);
  ~MappedFile();

  MappedFile(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const std::byte* data() const { return data_; }
  size_t size() const { return size_; }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
};

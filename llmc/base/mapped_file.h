// A whole file in memory, read-only, by mmap: pages are read when they are touched, so that opening a 16 GB file is
// free.
#pragma once

#include <cstddef>
#include <string>

class MappedFile {
 public:
  // Fails on a missing, unreadable or empty file and on anything that is not an ordinary file.
  explicit MappedFile(const std::string& path);
  ~MappedFile();

  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
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

// A file that is read on demand by pread. Opening it reads nothing. If the file has shrunk since, a read throws an
// error with its name and both sizes; a memory mapping would end the process with a bus error instead.
#pragma once

#include <cstddef>
#include <string>

class InputFile {
 public:
  // Throws if the file is missing, unreadable or empty, or if it is not a regular file.
  explicit InputFile(std::string path);
  ~InputFile();
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  // Reads bytes [offset, offset + bytes). Throws if the file is shorter.
  void read(size_t offset, size_t bytes, void* out) const;

  // Closes the descriptor. Every later read opens the file again.
  void close();

  size_t size() const { return size_; }  // bytes, when it was opened
  const std::string& path() const { return path_; }
  int descriptor() const { return fd_; }  // -1 after close

 private:
  std::string path_;
  int fd_ = -1;
  size_t size_ = 0;
};

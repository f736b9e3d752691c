// A file that is read where its bytes are needed, by pread: opening it reads nothing, and one that has shrunk since is
// an error with its name and sizes, where a mapping would end the process with a bus error.
#pragma once

#include <cstddef>
#include <string>

class InputFile {
 public:
  // Fails on a missing, unreadable or empty file and on anything that is not an ordinary file.
  explicit InputFile(std::string path);
  ~InputFile();
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  // Bytes [offset, offset+bytes). Fails where the file has fewer.
  void read(size_t offset, size_t bytes, void* out) const;

  // Gives the descriptor back. From then on every read opens the file anew.
  void close();

  size_t size() const { return size_; }  // when it was opened
  const std::string& path() const { return path_; }
  int descriptor() const { return fd_; }  // -1 after close

 private:
  std::string path_;
  int fd_ = -1;
  size_t size_ = 0;
};

// A file that appears whole or not at all: it is written beside its place as PATH.partial, forced to the disk, and
// renamed when it is complete. Every write is checked; one that is given up leaves nothing behind.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "llmc/base/checksum.h"
#include "llmc/base/disk.h"

class NewFile {
 public:
  // Fails if the folder is missing or not writable, or if `path` is a directory. An old PATH.partial is replaced.
  explicit NewFile(const std::string& path, Disk& disk = Disk::real());
  ~NewFile();  // removes PATH.partial unless publish() was reached
  NewFile(NewFile&& other) noexcept;
  NewFile& operator=(NewFile&&) = delete;

  // Appends. A full disk may show here or in seal().
  void write(const void* data, size_t bytes);
  void write(std::string_view text) { write(text.data(), text.size()); }

  // Everything written is on the disk and the file is closed; no write may follow.
  void seal();

  // seal(), then the file takes its place, replacing one that stood there.
  void publish();

  const std::string& path() const { return path_; }
  // Of what was written so far.
  size_t bytes() const { return bytes_; }
  const Checksum& checksum() const { return checksum_; }

 private:
  void flush(const char* data, size_t bytes);
  [[noreturn]] void refuse(const char* verb);

  std::string path_, partial_;
  Disk& disk_;
  std::vector<char> buffer_;
  Checksum checksum_;
  int fd_ = -1;
  size_t bytes_ = 0, written_ = 0;  // taken; handed to the disk
  bool open_ = true, removable_ = true;
};

// A whole small file at once.
void write_file(const std::string& path, std::string_view text, Disk& disk = Disk::real());

// A file that appears complete or not at all. It is written next to its destination as PATH.partial, synced to the
// disk, and renamed when it is complete. Every write is checked. A file that is abandoned leaves nothing behind. On a
// disk that reads back, the file is read again before it is renamed, and must have the bytes that were written.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "llmc/base/checksum.h"
#include "llmc/base/disk.h"

class NewFile {
 public:
  // Throws if the folder is missing or not writable, or if `path` is a directory. An old PATH.partial is replaced.
  explicit NewFile(const std::string& path, Disk& disk = Disk::real());
  ~NewFile();  // removes PATH.partial unless publish() has renamed it
  NewFile(NewFile&& other) noexcept;
  NewFile& operator=(NewFile&&) = delete;

  // Appends bytes. A full disk may be reported here or only in seal().
  void write(const void* data, size_t bytes);
  void write(std::string_view text) { write(text.data(), text.size()); }

  // Syncs all written bytes to the disk, closes the file, and reads it back if the disk does. No write may follow.
  void seal();

  // Calls seal(), then renames the file to its path, which replaces an existing file.
  void publish();

  const std::string& path() const { return path_; }
  // The bytes that were written so far, and their checksum.
  size_t bytes() const { return bytes_; }
  const Checksum& checksum() const { return checksum_; }

 private:
  void flush(const char* data, size_t bytes);
  void require_kept();
  [[noreturn]] void refuse(const char* verb);

  std::string path_, partial_;
  Disk& disk_;
  std::vector<char> buffer_;
  Checksum checksum_;
  int fd_ = -1;
  size_t bytes_ = 0, written_ = 0;  // accepted by write(); handed to the disk
  bool open_ = true, removable_ = true;
};

// Writes a whole small file in one call.
void write_file(const std::string& path, std::string_view text, Disk& disk = Disk::real());

// What those who write files ask of the file system, call by call as POSIX has it: files that must be whole or absent
// are written through it, so that a test can put a disk in its place that loses all that was not forced to it.
//
// A call that fails returns -1 and sets errno.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <string>

class Disk {
 public:
  virtual ~Disk() = default;
  static Disk& real();

  virtual int create(const std::string& path) = 0;  // a file to write, empty; its descriptor
  virtual ssize_t write(int file, const void* data, size_t bytes) = 0;
  virtual int sync(int file) = 0;  // what was written is on the disk
  virtual int close(int file) = 0;
  virtual int make_folder(const std::string& path) = 0;
  virtual int rename(const std::string& from, const std::string& to) = 0;
  virtual int remove(const std::string& path) = 0;  // a file, or an empty folder
  // Names that were made, changed or removed in the folder are so on the disk.
  virtual int sync_folder(const std::string& path) = 0;
};

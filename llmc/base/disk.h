// The calls to the file system that writing a file needs, one by one as POSIX defines them. Files that must be whole or
// absent are written through this interface, so that a test can replace the disk by one that loses all data not yet
// synced.
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

  virtual int create(const std::string& path) = 0;  // creates or empties a file for writing; returns its descriptor
  virtual ssize_t write(int file, const void* data, size_t bytes) = 0;
  // Returns when all written bytes of the file are on the disk.
  virtual int sync(int file) = 0;
  virtual int close(int file) = 0;
  virtual int make_folder(const std::string& path) = 0;
  virtual int rename(const std::string& from, const std::string& to) = 0;
  virtual int remove(const std::string& path) = 0;  // removes a file or an empty folder
  // Returns when all created, changed and removed names of the folder are on the disk.
  virtual int sync_folder(const std::string& path) = 0;
};

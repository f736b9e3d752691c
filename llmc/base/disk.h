// The calls to the file system that writing a file needs, one by one as POSIX defines them. Files that must be whole or
// absent are written through this interface, so that a test can replace the disk by one that loses all data not yet
// synced.
//
// A call that fails returns -1 and sets errno.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <functional>
#include <string>

class Disk {
 public:
  virtual ~Disk() = default;
  static Disk& real();
  static Disk& verified();  // the real one, whose files are read back

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

  // True if whoever writes a file must read it back before its name counts.
  virtual bool reads_back() const { return false; }
  // Calls `take` with the bytes of a file, one part after the other, as the disk has them: past the copies in the
  // system's memory, if the file system allows it.
  virtual int read_back(const std::string& path, const std::function<void(const void* data, size_t bytes)>& take);
};

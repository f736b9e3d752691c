#include "llmc/base/disk.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>

namespace {

class RealDisk : public Disk {
 public:
  int create(const std::string& path) override {
    const auto create_new = [&] { return ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666); };
    const int file = create_new();
    if (file >= 0 || errno != EEXIST || ::unlink(path.c_str()) != 0) return file;
    return create_new();
  }
  ssize_t write(int file, const void* data, size_t bytes) override { return ::write(file, data, bytes); }
  int sync(int file) override { return ::fsync(file); }
  int close(int file) override { return ::close(file); }
  int make_folder(const std::string& path) override { return ::mkdir(path.c_str(), 0777); }
  int rename(const std::string& from, const std::string& to) override { return ::rename(from.c_str(), to.c_str()); }
  int remove(const std::string& path) override { return ::remove(path.c_str()); }

  int sync_folder(const std::string& path) override {
    const int folder = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (folder < 0) return errno == EACCES ? 0 : -1;  // a folder may be writable but not readable
    const int result = ::fsync(folder), error = errno;
    ::close(folder);
    errno = error;
    return result == 0 || error == EINVAL || error == ENOTSUP ? 0 : -1;
  }
};

}  // namespace

Disk& Disk::real() {
  static RealDisk disk;
  return disk;
}

#include "llmc/base/disk.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <memory>

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

class VerifiedDisk : public RealDisk {
 public:
  bool reads_back() const override { return true; }
};

}  // namespace

Disk& Disk::real() {
  static RealDisk disk;
  return disk;
}

Disk& Disk::verified() {
  static VerifiedDisk disk;
  return disk;
}

// Without O_DIRECT, which some file systems lack (EINVAL), the system is asked to forget its copies.
int Disk::read_back(const std::string& path, const std::function<void(const void* data, size_t bytes)>& take) {
  constexpr size_t kBytes = size_t(4) << 20, kAlignment = 4096;  // what O_DIRECT asks for
  const std::unique_ptr<void, void (*)(void*)> buffer(aligned_alloc(kAlignment, kBytes), free);
  const auto read_all = [&](int flags) {
    const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | flags);
    if (file < 0) return -1;
    if (flags == 0) posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);
    ssize_t n = 0;
    for (bool first = true; (n = ::read(file, buffer.get(), kBytes)) != 0; first = false) {
      if (n < 0 && errno == EINTR) continue;
      if (n < 0 && !first) errno = EIO;  // EINVAL here is no lack of O_DIRECT: some bytes were taken
      if (n < 0) break;
      take(buffer.get(), size_t(n));
    }
    const int error = errno;
    ::close(file);
    errno = error;
    return n < 0 ? -1 : 0;
  };
  const int result = read_all(O_DIRECT);
  return result != 0 && errno == EINVAL ? read_all(0) : result;
}

#include "llmc/base/input_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "llmc/base/error.h"

namespace {

const char* advice(int error) {
  if (error == ENOENT || error == ENOTDIR) return "check the path";
  if (error == EACCES || error == EPERM) return "make it readable (chmod u+r) or run as its owner";
  if (error == EMFILE || error == ENFILE) return "too many files are open: raise the limit (ulimit -n)";
  return "check the file and the disk that it lies on";
}

// Opening a named pipe would wait for a writer without O_NONBLOCK. Regular files ignore the flag.
int open_to_read(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  REQUIRE(fd >= 0, "cannot open %s: %s\n  %s", path.c_str(), strerror(errno), advice(errno));
  return fd;
}

// Closes a descriptor that is open for one read only, also if that read fails.
struct ClosedAtEnd {
  int fd;
  ~ClosedAtEnd() {
    if (fd >= 0) close(fd);
  }
};

}  // namespace

InputFile::InputFile(std::string path) : path_(std::move(path)) {
  REQUIRE(!path_.empty(), "cannot open a file: its name is empty");
  ClosedAtEnd file{open_to_read(path_)};
  struct stat status;
  REQUIRE(fstat(file.fd, &status) == 0, "cannot examine %s: %s", path_.c_str(), strerror(errno));
  REQUIRE(!S_ISDIR(status.st_mode), "cannot read %s: it is a directory\n  expected a file", path_.c_str());
  REQUIRE(S_ISREG(status.st_mode), "cannot read %s: it is a device, a pipe or a socket\n  expected an ordinary file",
          path_.c_str());
  REQUIRE(status.st_size > 0, "cannot read %s: the file is empty (0 bytes)\n  write or fetch it again", path_.c_str());
  size_ = size_t(status.st_size);
  fd_ = std::exchange(file.fd, -1);
}

InputFile::~InputFile() { close(); }

void InputFile::close() {
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
}

void InputFile::read(size_t offset, size_t bytes, void* out) const {
  const ClosedAtEnd opened{fd_ < 0 ? open_to_read(path_) : -1};
  const int fd = fd_ < 0 ? opened.fd : fd_;
  for (size_t done = 0; done < bytes;) {
    const ssize_t got = pread(fd, static_cast<char*>(out) + done, bytes - done, off_t(offset + done));
    if (got > 0) done += size_t(got);
    if (got > 0 || (got < 0 && errno == EINTR)) continue;
    REQUIRE(got == 0, "cannot read bytes %zu to %zu of %s: %s\n  %s", offset, offset + bytes, path_.c_str(),
            strerror(errno), advice(errno));
    struct stat status = {};
    fstat(fd, &status);
    fail(
        "cannot read bytes %zu to %zu of %s: it had %zu bytes when it was opened and has %lld now\n  do not change a "
        "file while a run reads it: write or fetch it again, then resume",
        offset, offset + bytes, path_.c_str(), size_, (long long)status.st_size);
  }
}

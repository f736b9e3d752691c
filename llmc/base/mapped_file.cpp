#include "llmc/base/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "llmc/base/error.h"

namespace {

// The mapping outlives the descriptor, so this closes it on every way out of the constructor.
struct Descriptor {
  int fd;
  ~Descriptor() {
    if (fd >= 0) close(fd);
  }
};

const char* advice(int error) {
  if (error == ENOENT || error == ENOTDIR) return "check the path";
  if (error == EACCES || error == EPERM) return "make it readable (chmod u+r) or run as its owner";
  if (error == EMFILE || error == ENFILE) return "too many files are open: raise the limit (ulimit -n)";
  return "check the file and the disk that it lies on";
}

}  // namespace

MappedFile::MappedFile(const std::string& path) : path_(path) {
  REQUIRE(!path.empty(), "cannot open a file: its name is empty");
  // O_NONBLOCK: a named pipe would otherwise wait here for somebody to write; ordinary files ignore it.
  Descriptor file{open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
  REQUIRE(file.fd >= 0, "cannot open %s: %s\n  %s", path.c_str(), strerror(errno), advice(errno));

  struct stat status;
  REQUIRE(fstat(file.fd, &status) == 0, "cannot examine %s: %s", path.c_str(), strerror(errno));
  REQUIRE(!S_ISDIR(status.st_mode), "cannot read %s: it is a directory\n  expected a file", path.c_str());
  REQUIRE(S_ISREG(status.st_mode), "cannot read %s: it is a device, a pipe or a socket\n  expected an ordinary file",
          path.c_str());
  REQUIRE(status.st_size > 0, "cannot read %s: the file is empty (0 bytes)\n  write or fetch it again", path.c_str());

  size_ = size_t(status.st_size);
  void* mapping = mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, file.fd, 0);
  REQUIRE(mapping != MAP_FAILED, "cannot map the %zu bytes of %s into memory: %s", size_, path.c_str(),
          strerror(errno));
  data_ = static_cast<const std::byte*>(mapping);
}

MappedFile::~MappedFile() {
  if (data_) munmap(const_cast<std::byte*>(data_), size_);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, size_t(0))) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

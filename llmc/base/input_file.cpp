#include "llmc/base/input_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>
#include <filesystem>
#include <utility>

#include "llmc/base/error.h"

namespace fs = std::filesystem;

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
  REQUIRE_FILE(fd >= 0, lost, "cannot open %s: %s\n  %s", path.c_str(), strerror(errno), advice(errno));
  return fd;
}

// Closes a descriptor that is open for one read only, also if that read fails.
struct ClosedAtEnd {
  int fd;
  ~ClosedAtEnd() {
    if (fd >= 0) close(fd);
  }
};

bool lies_in(const fs::path& folder, const fs::path& file) {
  return std::mismatch(folder.begin(), folder.end(), file.begin(), file.end()).first == folder.end();
}

}  // namespace

std::string listed_file(const std::string& folder, const std::string& name, const std::string& where) {
  const bool plain = !name.empty() && name.size() <= NAME_MAX && name != "." && name != ".." &&
                     name.find('/') == name.npos && name.find('\0') == name.npos;
  REQUIRE(plain,
          "%s: \"%s\" is no name of a file in %s\n  expected a name without a folder: is the list of this folder?",
          where.c_str(), name.c_str(), folder.c_str());
  return (fs::path(folder) / name).string();
}

std::string own_file(const std::string& folder, const std::string& name) {
  const fs::path path = fs::path(folder.empty() ? "." : folder) / name;
  std::error_code error;
  const fs::path home = fs::canonical(path.parent_path(), error);
  const fs::path file = error ? path : fs::canonical(path, error);
  REQUIRE(!error, "cannot open %s: %s", path.c_str(), error.message().c_str());
  if (lies_in(home, file)) return file.string();
  for (fs::path in = home; in.has_relative_path(); in = in.parent_path()) {
    const fs::path repository = in.parent_path().parent_path();
    const bool snapshot =
        in.parent_path().filename() == "snapshots" && repository.filename().string().starts_with("models--");
    if (snapshot && lies_in(repository / "blobs", file)) return file.string();
  }
  fail(
      "%s is a link to %s, outside of this folder, and its content would be copied from there\n"
      "  if that is meant, put the file itself there instead of the link",
      path.c_str(), file.c_str());
}

void require_readable_whole(const std::string& path, size_t bytes) {
  constexpr size_t kMost = size_t(512) << 20;
  REQUIRE(bytes <= kMost, "%s has %zu bytes\n  expected at most %zu: known files of this kind have a tenth of that",
          path.c_str(), bytes, kMost);
}

std::string content_of(const std::string& path) {
  if (std::error_code error; fs::is_regular_file(path, error) && fs::file_size(path, error) == 0) return "";
  const InputFile file(path);
  require_readable_whole(path, file.size());
  std::string content(file.size(), 0);
  file.read(0, content.size(), content.data());
  return content;
}

InputFile::InputFile(std::string path) : path_(std::move(path)) {
  REQUIRE(!path_.empty(), "cannot open a file: its name is empty");
  ClosedAtEnd file{open_to_read(path_)};
  struct stat status;
  REQUIRE_FILE(fstat(file.fd, &status) == 0, lost, "cannot examine %s: %s", path_.c_str(), strerror(errno));
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
    REQUIRE_FILE(got == 0, lost, "cannot read bytes %zu to %zu of %s: %s\n  %s", offset, offset + bytes, path_.c_str(),
                 strerror(errno), advice(errno));
    struct stat status = {};
    fstat(fd, &status);
    fail(
        "cannot read bytes %zu to %zu of %s: it had %zu bytes when it was opened and has %lld now\n  do not change a "
        "file while a run reads it: write or fetch it again, then resume",
        offset, offset + bytes, path_.c_str(), size_, (long long)status.st_size);
  }
}

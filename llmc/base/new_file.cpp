#include "llmc/base/new_file.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "llmc/base/error.h"

namespace {

constexpr size_t kBufferBytes = size_t(1) << 20;

const char* advice(int error) {
  switch (error) {
    case ENOENT:
    case ENOTDIR:
      return "create the folder first";
    case EACCES:
    case EPERM:
    case EROFS:
      return "choose a folder that you may write to";
    case ENOSPC:
      return "the disk is full: free some space or choose another disk";
    case EDQUOT:
      return "your quota is used up: free some space or choose another disk";
    case EFBIG:
      return "the file is larger than this file system or the shell's limit (ulimit -f) allows";
    default:
      return "check the disk";
  }
}

bool is_directory(const std::string& path) {
  struct stat status;
  return stat(path.c_str(), &status) == 0 && S_ISDIR(status.st_mode);
}

// A rename is durable only after its folder has been synced.
void sync_folder_of(Disk& disk, const std::string& path) {
  const size_t slash = path.rfind('/');
  const std::string folder = slash == path.npos ? "." : slash == 0 ? "/" : path.substr(0, slash);
  if (disk.sync_folder(folder) != 0)
    fail_as(ExitCode::not_saved, "cannot force the folder %s to the disk: %s", folder.c_str(), strerror(errno));
}

}  // namespace

NewFile::NewFile(const std::string& path, Disk& disk) : path_(path), partial_(path + ".partial"), disk_(disk) {
  REQUIRE(!path.empty(), "cannot write a file: its name is empty");
  REQUIRE(!is_directory(path), "cannot write %s: it is a directory\n  expected the name of a file", path.c_str());
  fd_ = disk_.create(partial_);
  if (fd_ < 0)
    fail_as(ExitCode::not_saved, "cannot create %s: %s\n  %s", partial_.c_str(), strerror(errno), advice(errno));
  buffer_.reserve(kBufferBytes);
}

NewFile::NewFile(NewFile&& other) noexcept
    : path_(std::move(other.path_)),
      partial_(std::move(other.partial_)),
      disk_(other.disk_),
      buffer_(std::move(other.buffer_)),
      checksum_(other.checksum_),
      fd_(std::exchange(other.fd_, -1)),
      bytes_(other.bytes_),
      written_(other.written_),
      open_(std::exchange(other.open_, false)),
      removable_(std::exchange(other.removable_, false)) {}

NewFile::~NewFile() {
  if (fd_ >= 0) disk_.close(fd_);
  if (removable_) disk_.remove(partial_);
}

void NewFile::refuse(const char* verb) {
  const int error = errno;
  if (removable_) disk_.remove(partial_);
  removable_ = open_ = false;
  fail_as(ExitCode::not_saved, "cannot %s %s after %zu bytes: %s\n  %s", verb, partial_.c_str(), written_,
          strerror(error), advice(error));
}

void NewFile::flush(const char* data, size_t bytes) {
  while (bytes > 0) {
    // A single call writes at most 2 GiB. A partial write is not an error.
    const ssize_t done = disk_.write(fd_, data, bytes);
    if (done < 0 && errno == EINTR) continue;
    if (done < 0) refuse("write");
    data += done;
    bytes -= size_t(done);
    written_ += size_t(done);
  }
}

void NewFile::write(const void* data, size_t bytes) {
  REQUIRE(open_, "cannot write %zu bytes to %s: the file is already closed", bytes, partial_.c_str());
  const char* begin = static_cast<const char*>(data);
  checksum_.add(data, bytes);
  bytes_ += bytes;
  if (buffer_.size() + bytes > kBufferBytes) {
    flush(buffer_.data(), buffer_.size());
    buffer_.clear();
  }
  if (bytes >= kBufferBytes) return flush(begin, bytes);
  buffer_.insert(buffer_.end(), begin, begin + bytes);
}

// A disk may have other bytes than it was given, and have said that all is well.
void NewFile::require_kept() {
  if (!disk_.reads_back()) return;
  Checksum kept;
  if (disk_.read_back(partial_, [&](const void* data, size_t bytes) { kept.add(data, bytes); }) != 0)
    refuse("read back");
  if (kept.text() == checksum_.text()) return;
  if (removable_) disk_.remove(partial_);
  removable_ = false;
  fail_as(ExitCode::not_saved, "%s was written with the checksum %s, and the disk has %s\n  check the disk",
          partial_.c_str(), checksum_.text().c_str(), kept.text().c_str());
}

void NewFile::seal() {
  if (!open_) return;
  flush(buffer_.data(), buffer_.size());
  std::vector<char>().swap(buffer_);
  // Devices and pipes cannot be synced (EINVAL). A network file system may report a full disk only here or at close.
  if (disk_.sync(fd_) != 0 && errno != EINVAL) refuse("force to the disk");
  if (disk_.close(std::exchange(fd_, -1)) != 0) refuse("close");
  open_ = false;
  require_kept();
}

void NewFile::publish() {
  REQUIRE(removable_, "cannot publish %s: it was already published or given up", path_.c_str());
  seal();
  if (disk_.rename(partial_, path_) != 0) refuse("rename");
  removable_ = false;
  sync_folder_of(disk_, path_);
}

void write_file(const std::string& path, std::string_view text, Disk& disk) {
  NewFile file(path, disk);
  file.write(text);
  file.publish();
}

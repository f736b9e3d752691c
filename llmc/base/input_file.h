// A file that is read on demand by pread. Opening it reads nothing. If the file has shrunk since, a read throws an
// error with its name and both sizes; a memory mapping would end the process with a bus error instead.
//
// The functions below keep names and links of a folder from somebody else inside of that folder.
#pragma once

#include <cstddef>
#include <string>

// Returns "FOLDER/NAME" for a name that a file lists. Throws unless it can only be an entry of the folder: it is not
// empty, "." or "..", and has at most 255 bytes, neither a slash nor a zero byte among them. `where` begins the
// message: the place of the name.
std::string listed_file(const std::string& folder, const std::string& name, const std::string& where);

// Returns the path of the folder's file NAME, behind all symbolic links, so that its content can be copied into what a
// run writes. Throws if a link leads out of the folder: a model from somebody else must not choose which of the user's
// files are published. In a snapshot of Hugging Face's cache (models--ORG--NAME/snapshots/REVISION) links may lead to
// the blobs of the same repository (models--ORG--NAME/blobs).
std::string own_file(const std::string& folder, const std::string& name);

// Throws if a file of so many bytes is larger than any that is read whole: a tokenizer, a manifest, a template. Whoever
// made it may want the memory to end.
void require_readable_whole(const std::string& path, size_t bytes);

// Returns the content of such a file, which may be empty. Throws as InputFile and require_readable_whole() do.
std::string content_of(const std::string& path);

class InputFile {
 public:
  // Throws if the file is missing, unreadable or empty, or if it is not a regular file.
  explicit InputFile(std::string path);
  ~InputFile();
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  // Reads bytes [offset, offset + bytes). Throws if the file is shorter.
  void read(size_t offset, size_t bytes, void* out) const;

  // Closes the descriptor. Every later read opens the file again.
  void close();

  size_t size() const { return size_; }  // bytes, when it was opened
  const std::string& path() const { return path_; }
  int descriptor() const { return fd_; }  // -1 after close

 private:
  std::string path_;
  int fd_ = -1;
  size_t size_ = 0;
};

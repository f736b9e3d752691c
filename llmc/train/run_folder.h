// Where a run writes: runs/<date>-<model>/ or --out, never over another run's files. runs/latest points to the newest.
#pragma once

#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>

#include "llmc/base/json.h"

class RunFolder {
 public:
  // Makes the folder. Throws if it cannot be made or written, or if it already holds files. Of several runs that start
  // at once no two get the same.
  RunFolder(const std::string& out, const std::string& model);

  const std::string& path() const { return path_; }
  std::string file(const std::string& name) const { return path_ + "/" + name; }
  void write_config(const Json& config) const;
  // Throws if the disk has less than `bytes` left for `what`.
  void require_room(uint64_t bytes, const char* what) const;
  // Appends one line to train.jsonl, handed to the system when it returns. Throws on a full disk.
  void log(const Json& line);

 private:
  struct Close {
    void operator()(FILE* f) const { fclose(f); }
  };
  std::string path_;
  std::unique_ptr<FILE, Close> log_;
};

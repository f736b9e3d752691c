// Files of tokens for the tests of the data: in a folder of their own, removed at the end.
#pragma once

#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "llmc/base/error.h"
#include "llmc/base/json.h"

inline std::string write_file(const std::string& path, const std::string& bytes);

class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "llmc_test_XXXXXX").string();
    REQUIRE(mkdtemp(name.data()), "cannot create a folder like %s", name.c_str());
    path_ = name;
  }
  ~TemporaryFolder() { std::filesystem::remove_all(path_); }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  std::string operator/(const std::string& name) const { return path_ / name; }
  std::string path() const { return path_; }
  // Makes the folders between, too; returns the file's path.
  std::string write(const std::string& name, const std::string& bytes) const {
    std::filesystem::create_directories((path_ / name).parent_path());
    return write_file(path_ / name, bytes);
  }
  std::string read(const std::string& name) const {
    std::ifstream file(path_ / name, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  size_t count() const { return size_t(std::distance(std::filesystem::directory_iterator(path_), {})); }

 private:
  std::filesystem::path path_;
};

inline std::string write_file(const std::string& path, const std::string& bytes) {
  std::ofstream file(path, std::ios::binary);
  file.write(bytes.data(), std::streamsize(bytes.size()));
  file.close();
  REQUIRE(file, "cannot write %zu bytes to %s", bytes.size(), path.c_str());
  return path;
}

template <class T>
std::string bytes_of(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

// A shard's header, every field as given.
inline std::string header_bytes(int32_t magic, int32_t version, int32_t tokens) {
  std::vector<int32_t> header(256);
  header[0] = magic, header[1] = version, header[2] = tokens;
  return bytes_of(header);
}

inline std::string write_shard(const std::string& path, const std::vector<uint16_t>& tokens) {
  return write_file(path, header_bytes(20240520, 1, int32_t(tokens.size())) + bytes_of(tokens));
}

inline std::string write_shard(const std::string& path, const std::vector<uint32_t>& tokens) {
  return write_file(path, header_bytes(20240801, 7, int32_t(tokens.size())) + bytes_of(tokens));
}

// Writes the manifest that dev/data writes about such shards: names, tokens and whether they have masks.
inline void write_manifest(const std::string& folder, const std::vector<std::pair<std::string, int64_t>>& shards,
                           bool masks) {
  Json entries = Json::array();
  for (const auto& [name, tokens] : shards) {
    Json entry =
        Json::object().set("name", name + ".bin").set("split", name.find("val") == std::string::npos ? "train" : "val");
    entry.set("tokens", tokens).set("sha256", "sha256 of " + name);
    if (masks) entry.set("mask", Json::object().set("name", name + ".mask").set("sha256", "sha256 of its mask"));
    entries.push_back(entry);
  }
  write_file(folder + "/manifest.json",
             Json::object().set("format", "train_llama shards 1").set("shards", entries).dump());
}

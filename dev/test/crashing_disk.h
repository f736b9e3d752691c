// Disks that fail, for what writes through Disk.
#pragma once

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "llmc/base/disk.h"
#include "llmc/base/error.h"

// Call number `failing` (from 0) fails with `error`, and so do the `also` ones after it; the others reach the real
// disk.
class FailingDisk : public Disk {
 public:
  FailingDisk(int failing, int error, int also = 0) : failing_(failing), error_(error), also_(also) {}
  int calls() const { return calls_; }

  int create(const std::string& path) override { return fails() ? -1 : real().create(path); }
  ssize_t write(int file, const void* data, size_t bytes) override {
    return fails() ? -1 : real().write(file, data, bytes);
  }
  int sync(int) override { return fails() ? -1 : 0; }  // no power fails here: a real sync would only take time
  int close(int file) override {
    const int result = real().close(file);  // the descriptor is gone in any case
    return fails() ? -1 : result;
  }
  int make_folder(const std::string& path) override { return fails() ? -1 : real().make_folder(path); }
  int rename(const std::string& from, const std::string& to) override { return fails() ? -1 : real().rename(from, to); }
  int remove(const std::string& path) override { return fails() ? -1 : real().remove(path); }
  int sync_folder(const std::string&) override { return fails() ? -1 : 0; }

 private:
  bool fails() {
    const int call = calls_++;
    if (call < failing_ || call > failing_ + also_) return false;
    errno = error_;
    return true;
  }
  const int failing_, error_, also_;
  int calls_ = 0;
};

// Says that all is well, and is wrong at call number `lying` (from 0): a write changes a byte, a rename does nothing.
class LyingDisk : public Disk {
 public:
  LyingDisk(int lying, bool reads_back) : lying_(lying), reads_back_(reads_back) {}
  int calls() const { return calls_; }

  int create(const std::string& path) override { return real().create(path); }
  ssize_t write(int file, const void* data, size_t bytes) override {
    std::string written(static_cast<const char*>(data), bytes);
    if (lies()) written[bytes / 2] ^= 1;
    return real().write(file, written.data(), bytes);
  }
  int sync(int) override { return 0; }
  int close(int file) override { return real().close(file); }
  int make_folder(const std::string& path) override { return real().make_folder(path); }
  int rename(const std::string& from, const std::string& to) override { return lies() ? 0 : real().rename(from, to); }
  int remove(const std::string& path) override { return real().remove(path); }
  int sync_folder(const std::string&) override { return 0; }
  bool reads_back() const override { return reads_back_; }

 private:
  bool lies() { return calls_++ == lying_; }
  const int lying_;
  const bool reads_back_;
  int calls_ = 0;
};

// Writes on the real disk and remembers each call, so that what a machine finds after it lost its power at any of them
// can be made: what was not forced to the disk is there, or not, or in part; names in any order.
class CrashingDisk : public Disk {
 public:
  explicit CrashingDisk(const std::filesystem::path& root) : root_(root) {}
  size_t calls() const { return calls_.size(); }
  std::string call(size_t number) const { return calls_.at(number).text; }

  // The tree below root as it may be after the first `done` calls and a crash, made below `to`, which must not exist.
  enum class Fate { forced_only, everything, random };
  void crash(size_t done, Fate fate, uint32_t seed, const std::filesystem::path& to) const {
    State state(fate, seed);
    for (size_t i = 0; i < done; ++i) state.apply(calls_[i]);
    state.write(state.tree(), to);
  }

  int create(const std::string& path) override {
    const int file = real().create(path);
    if (file >= 0) remember({Kind::create, "create", file, local(path), "", ""});
    return file;
  }
  ssize_t write(int file, const void* data, size_t bytes) override {
    const ssize_t done = real().write(file, data, bytes);
    if (done > 0)
      remember({Kind::write, "write", file, "", "", std::string(static_cast<const char*>(data), size_t(done))});
    return done;
  }
  int sync(int file) override {
    remember({Kind::sync, "sync", file, "", "", ""});
    return 0;
  }
  int close(int file) override {
    remember({Kind::close, "close", file, "", "", ""});
    return real().close(file);
  }
  int make_folder(const std::string& path) override {
    const int result = real().make_folder(path);
    if (result == 0) remember({Kind::make_folder, "make folder", -1, local(path), "", ""});
    return result;
  }
  int rename(const std::string& from, const std::string& to) override {
    const int result = real().rename(from, to);
    if (result == 0) remember({Kind::rename, "rename", -1, local(from), local(to), ""});
    return result;
  }
  int remove(const std::string& path) override {
    const int result = real().remove(path);
    if (result == 0) remember({Kind::remove, "remove", -1, local(path), "", ""});
    return result;
  }
  int sync_folder(const std::string& path) override {
    remember({Kind::sync_folder, "sync folder", -1, local(path), "", ""});
    return 0;
  }

 private:
  enum class Kind { create, write, sync, close, make_folder, rename, remove, sync_folder };
  struct Call {
    Kind kind;
    std::string text;
    int file;
    std::string path, to, data;
  };
  void remember(Call call) {
    call.text += " " + call.path + (call.to.empty() ? "" : " to " + call.to);
    calls_.push_back(std::move(call));
  }
  std::string local(const std::string& path) const {
    const std::string inside = std::filesystem::path(path).lexically_normal().lexically_relative(root_).string();
    REQUIRE(inside == "." || (!inside.empty() && inside[0] != '.'), "%s is not below %s", path.c_str(), root_.c_str());
    return inside == "." ? "" : inside;
  }

  // A file or a folder: what is forced to the disk, and what is not yet.
  struct Node {
    bool folder = false;
    std::string forced, current;                                       // of a file
    std::map<std::string, std::shared_ptr<Node>> forced_names, names;  // of a folder
  };
  using NodePtr = std::shared_ptr<Node>;
  // A change of names that no folder was forced for yet. Some are on the disk, in any order.
  struct Change {
    NodePtr from_folder, to_folder;  // null: none
    std::string from, to;
    NodePtr node;
  };

  class State {
   public:
    State(Fate fate, uint32_t seed) : fate_(fate), random_(seed) { root_->folder = true; }

    void apply(const Call& call) {
      switch (call.kind) {
        case Kind::create: {
          const auto [folder, name] = place(call.path);
          const auto node = std::make_shared<Node>();
          change({nullptr, folder, "", name, node});
          open_[call.file] = node;
          return;
        }
        case Kind::write:
          open_.at(call.file)->current += call.data;
          return;
        case Kind::sync:
          open_.at(call.file)->forced = open_.at(call.file)->current;
          return;
        case Kind::close:
          open_.erase(call.file);
          return;
        case Kind::make_folder: {
          const auto [folder, name] = place(call.path);
          const auto node = std::make_shared<Node>();
          node->folder = true;
          change({nullptr, folder, "", name, node});
          return;
        }
        case Kind::rename: {
          const auto [from_folder, from] = place(call.path);
          const auto [to_folder, to] = place(call.to);
          change({from_folder, to_folder, from, to, from_folder->names.at(from)});
          return;
        }
        case Kind::remove: {
          const auto [folder, name] = place(call.path);
          change({folder, nullptr, name, "", folder->names.at(name)});
          return;
        }
        case Kind::sync_folder: {
          const NodePtr folder = call.path.empty() ? root_ : find(call.path);
          folder->forced_names = folder->names;
          std::erase_if(changes_, [&](const Change& c) { return c.from_folder == folder || c.to_folder == folder; });
          return;
        }
      }
    }

    // The names that are there after the crash.
    NodePtr tree() {
      if (fate_ == Fate::everything) return root_;
      if (fate_ == Fate::random) {
        std::shuffle(changes_.begin(), changes_.end(), random_);
        changes_.resize(random_() % (changes_.size() + 1));
        for (const Change& c : changes_) {
          if (c.from_folder) c.from_folder->forced_names.erase(c.from);
          if (c.to_folder) c.to_folder->forced_names[c.to] = c.node;
        }
      }
      return root_;
    }

    void write(const NodePtr& node, const std::filesystem::path& to) {
      if (node->folder) {
        std::filesystem::create_directories(to);
        for (const auto& [name, inner] : fate_ == Fate::everything ? node->names : node->forced_names)
          write(inner, to / name);
        return;
      }
      std::ofstream(to, std::ios::binary) << content(*node);
    }

   private:
    std::string content(const Node& file) {
      if (fate_ == Fate::everything) return file.current;
      if (fate_ == Fate::forced_only || file.current.size() == file.forced.size()) return file.forced;
      // A part of the rest is on the disk, or only its length is, without its bytes.
      const size_t rest = random_() % (file.current.size() - file.forced.size() + 1);
      return file.forced + (random_() % 2 ? std::string(rest, '\0') : file.current.substr(file.forced.size(), rest));
    }
    void change(const Change& c) {
      if (c.from_folder) c.from_folder->names.erase(c.from);
      if (c.to_folder) c.to_folder->names[c.to] = c.node;
      changes_.push_back(c);
    }
    NodePtr find(const std::string& path) const {
      NodePtr at = root_;
      for (const auto& part : std::filesystem::path(path)) at = at->names.at(part.string());
      return at;
    }
    std::pair<NodePtr, std::string> place(const std::string& path) const {
      const std::filesystem::path p(path);
      return {p.parent_path().empty() ? root_ : find(p.parent_path().string()), p.filename().string()};
    }

    const Fate fate_;
    std::mt19937 random_;
    NodePtr root_ = std::make_shared<Node>();
    std::map<int, NodePtr> open_;
    std::vector<Change> changes_;
  };

  const std::filesystem::path root_;
  std::vector<Call> calls_;
};

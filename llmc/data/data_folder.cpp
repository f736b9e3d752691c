#include "llmc/data/data_folder.h"

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <vector>

#include "llmc/base/error.h"
#include "llmc/base/text.h"
#include "llmc/data/data_sources.h"

namespace fs = std::filesystem;

namespace {

using Paths = std::vector<std::string>;

bool is_folder(const std::string& name) {
  std::error_code error;
  return !name.empty() && fs::is_directory(name, error);
}

// Returns whether the file's name, without the folder and the ending, has one of the words.
bool name_has(const std::string& path, std::initializer_list<const char*> words) {
  const std::string name = lower_case(fs::path(path).stem());
  const auto is_letter = [](char c) { return c >= 'a' && c <= 'z'; };
  for (auto begin = name.begin(); (begin = std::find_if(begin, name.end(), is_letter)) != name.end();) {
    const auto end = std::find_if_not(begin, name.end(), is_letter);
    if (std::count(words.begin(), words.end(), std::string(begin, end))) return true;
    begin = end;
  }
  return false;
}
bool is_for_training(const std::string& path) { return name_has(path, {"train"}); }
bool is_for_validation(const std::string& path) {
  return name_has(path, {"val", "valid", "validation", "test"}) && !is_for_training(path);
}

Paths only(const Paths& paths, bool (*wanted)(const std::string&)) {
  Paths some;
  std::ranges::copy_if(paths, std::back_inserter(some), wanted);
  return some;
}

// "data/val.bin", or "3 files, first data/val_0.bin"
std::string some_of(const Paths& files) {
  return files.size() == 1 ? files[0] : counted(int64_t(files.size()), "file") + ", first " + files[0];
}

const char* says_so(const Paths& files) {
  return files.size() == 1 ? "its name says that it is" : "their names say that they are";
}

// The data of a folder. Each kind is empty if there are no such files.
struct DataFolder {
  std::string path;
  Paths all, for_training, for_validation;
  Paths others() const {
    return only(all, [](const std::string& file) { return !is_for_validation(file); });
  }
};

DataFolder open_folder(const std::string& path, const char* option) {
  for (const char* kind : {"*.bin", "*.txt"})
    if (const Paths all = glob((fs::path(literally(path)) / kind).string()); !all.empty())
      return {path, all, only(all, is_for_training), only(all, is_for_validation)};
  std::error_code error;
  const auto is_subfolder = [](const fs::directory_entry& entry) { return entry.is_directory(); };
  const bool deeper = std::any_of(fs::directory_iterator(path, error), fs::directory_iterator(), is_subfolder);
  fail(
      "--%s %s: the folder has neither shards (*.bin) nor texts (*.txt)\n  name the files by a quoted pattern, as "
      "'%s'; JSON lines, parquet and arrow are prepared first: dev/data/prepare",
      option, path.c_str(), (fs::path(path) / (deeper ? "*/*.txt" : "*.md")).c_str());
}

// Returns a pattern that matches these files of the folder alone: a short one of those that people use, else their
// list.
std::string pattern_of(const DataFolder& folder, const Paths& files) {
  const std::string inside = (fs::path(literally(folder.path)) / "").string();
  for (const char* usual : {"*_train_*.bin", "*_val_*.bin", "*.bin", "*.txt"})
    if (glob(inside + usual) == files) return inside + usual;
  std::string list;
  for (const std::string& file : files) {
    list += list.empty() ? "" : ",";
    for (const char c : literally(fs::path(file).filename())) list += std::string(c == ',' ? "\\" : "") + c;
  }
  return inside + (files.size() == 1 ? list : "{" + list + "}");
}

}  // namespace

// Replaces the source's folder by a pattern of its files that are trained on. Returns a pattern of those that are for
// validation; "" if there are none.
static std::string take_training_files(NamedSource& source) {
  const DataFolder folder = open_folder(source.pattern, "train-data");
  const bool chosen = !folder.for_training.empty() && folder.all[0].ends_with(".bin");
  const Paths trained_on = chosen ? folder.for_training : folder.others();
  REQUIRE(!trained_on.empty(),
          "--train-data %s: by their names all its files are for validation, as %s\n  to train on them name them: "
          "--train-data '%s'",
          folder.path.c_str(), folder.all[0].c_str(), pattern_of(folder, folder.all).c_str());
  source.pattern = pattern_of(folder, trained_on);
  return folder.for_validation.empty() ? "" : pattern_of(folder, folder.for_validation);
}

Options with_files_of_folders(Options options) {
  std::vector<NamedSource> train = training_sources(options.train_data), held_out;
  for (NamedSource& source : train)
    if (is_folder(source.pattern))
      if (const std::string files = take_training_files(source); !files.empty())
        held_out.push_back({source.name, files, ""});
  options.train_data = text_of(train);
  if (options.val_data.empty()) options.val_data = text_of(held_out);
  held_out = held_out_sources(options.val_data);
  for (NamedSource& source : held_out)
    if (is_folder(source.pattern)) {
      const DataFolder folder = open_folder(source.pattern, "val-data");
      source.pattern = pattern_of(folder, folder.for_validation.empty() ? folder.all : folder.for_validation);
    }
  options.val_data = text_of(held_out);
  return options;
}

std::vector<std::string> describe_folders(const Options& named, const Options& used) {
  std::vector<std::string> sentences;
  for (const NamedSource& source : training_sources(named.train_data)) {
    if (!is_folder(source.pattern)) continue;
    const DataFolder folder = open_folder(source.pattern, "train-data");
    const Paths& files = folder.for_validation;
    if (files.empty()) continue;
    const std::vector<std::string> measured = patterns_of(used.val_data);
    const bool held_out = std::ranges::find(measured, pattern_of(folder, files)) != measured.end();
    sentences.push_back(format("%s %s not trained on%s: %s for validation", some_of(files).c_str(),
                               files.size() == 1 ? "is" : "are", held_out ? ", but held out" : "", says_so(files)));
  }
  return sentences;
}

std::string held_out_by_name(const std::string& pattern) {
  const Paths all = glob(pattern), files = only(all, is_for_validation);
  if (files.empty() || files.size() == all.size()) return "";
  return format(
      "--train-data also trains on %s, and %s for validation: name the others alone, or their folder, of which such "
      "files are held out",
      some_of(files).c_str(), says_so(files));
}

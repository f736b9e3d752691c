#include "llmc/train/checkpoint.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <sstream>

#include "llmc/base/error.h"
#include "llmc/base/input_file.h"
#include "llmc/train/run_state.h"

namespace fs = std::filesystem;

namespace {

constexpr const char* kFormat = "train_llama checkpoint 1";
constexpr const char* kPartial = ".partial";
constexpr const char* kVerified = "/verified.json";

std::string share_name(int rank, int ranks) { return format("rank-%05d-of-%05d", rank, ranks); }

// A slice that a rank saves. It becomes one tensor of the rank's file: elements that are contiguous in the whole
// tensor, or rows of it that begin `stride` apart.
struct SavedSlice {
  StateKind kind;
  const ParameterInfo* tensor;
  int unit;
  size_t at;  // of the first element, in the unit
  uint64_t first, rows, columns, stride;

  size_t count() const { return size_t(rows * columns); }
  TensorSpec spec() const {
    std::string name = format("%s/%s@%llu", checkpoint_name(kind), tensor->name.c_str(), (unsigned long long)first);
    if (rows == 1) return {name, StoredType::F32, {columns}};
    return {name + format("+%llu", (unsigned long long)stride), StoredType::F32, {rows, columns}};
  }
};

// If several ranks of the tensor-parallel group have copies of a tensor, the rank with copy 0 saves it.
std::vector<SavedSlice> slices_of(const CheckpointShare& share) {
  std::vector<SavedSlice> slices;
  for (const StateKind kind : kStateKinds)
    for (const auto& [unit, shard, _] : share.shards[kind].entries())
      for (const Slice& slice : share.layout.slices(unit, shard.first, shard.count)) {
        if (slice.tensor->copy > 0) continue;
        const ShardWindow window = slice.window();
        const size_t at = shard.first + slice.at;
        window.for_runs(slice.count, [&, unit = unit](size_t i, uint64_t first, size_t count) {
          if (SavedSlice* last = slices.empty() || i == 0 ? nullptr : &slices.back();
              last && last->columns == count && last->first + last->rows * window.stride == first)
            ++last->rows;
          else slices.push_back({kind, slice.tensor, unit, at + i, first, 1, count, window.stride});
        });
      }
  return slices;
}

Json manifest_entry(uint64_t bytes, const std::string& checksum) {
  return Json::object().set("bytes", bytes).set("xxh64", checksum);
}

Json write_checked(const std::string& path, const std::string& text, Disk& disk) {
  NewFile file(path, disk);
  file.write(text);
  file.publish();
  return manifest_entry(file.bytes(), file.checksum().text());
}

void require_done(int result, const char* verb, const std::string& path) {
  REQUIRE_FILE(result == 0, not_saved, "cannot %s %s: %s", verb, path.c_str(), strerror(errno));
}

void require_read(bool done, const std::string& file) {
  REQUIRE_FILE(done, lost, "cannot read %s: %s", file.c_str(), strerror(errno));
}

// Throws unless the file has the bytes that its entry in the manifest names.
void require_size(const std::string& file, const Json& entry) {
  std::error_code error;
  const uint64_t bytes = fs::file_size(file, error);
  REQUIRE(!error, "cannot read %s, which the manifest names: %s", file.c_str(), error.message().c_str());
  REQUIRE(int64_t(bytes) == entry.get_int("bytes"),
          "%s has %llu bytes\n  expected %lld, as the manifest says: it was cut off or written over", file.c_str(),
          (unsigned long long)bytes, (long long)entry.get_int("bytes"));
}

void require_checksum(const std::string& file, const Checksum& checksum, const std::string& expected) {
  REQUIRE(checksum.text() == expected,
          "%s has the checksum %s\n  expected %s, as the manifest says: the disk has changed it", file.c_str(),
          checksum.text().c_str(), expected.c_str());
}

// Returns the step of a name such as step-00000120, or -1.
int64_t step_of(const std::string& name) {
  long long step = -1;
  int end = 0;
  if (sscanf(name.c_str(), "step-%lld%n", &step, &end) != 1 || size_t(end) != name.size() || step < 0) return -1;
  return step;
}

// Throws if the file system cannot tell.
bool is_there(const fs::path& path) {
  std::error_code error;
  const bool there = fs::exists(path, error);
  if (error)
    fail_as(code_of_file_error(error.value(), ExitCode::lost), "cannot look for %s: %s", path.c_str(),
            error.message().c_str());
  return there;
}

// True for a folder that is no link. What a link leads to is never written or removed: a run's folder may be a
// stranger's.
bool is_own_folder(const fs::path& path) {
  std::error_code error;
  return fs::is_directory(fs::symlink_status(path, error));
}

template <class F>
void for_folders_in(const std::string& root, F&& f) {
  std::error_code error;
  if (!fs::exists(root, error) && !error) return;
  REQUIRE(
      !fs::is_symlink(root, error),
      "%s is a link: a run writes and removes only what is in its own folder\n  put the folder there instead of the "
      "link, or choose the disk by --out",
      root.c_str());
  fs::directory_iterator entries(root, error);
  if (error)
    fail_as(code_of_file_error(error.value(), ExitCode::lost), "cannot look for checkpoints in %s: %s", root.c_str(),
            error.message().c_str());
  for (; !error && entries != fs::directory_iterator(); entries.increment(error))
    if (is_own_folder(entries->path())) f(entries->path());
}

}  // namespace

std::string checkpoint_path(const std::string& root, int64_t step) {
  return format("%s/step-%08lld", root.c_str(), (long long)step);
}

// ---------------------------------------------------------------------------------------------- writing

void write_checkpoint_share(const std::string& path, const CheckpointShare& share, Disk& disk) {
  const std::string partial = path + kPartial, name = partial + "/" + share_name(share.rank, share.ranks);
  for (const std::string& folder : {fs::path(path).parent_path().string(), partial})
    if (disk.make_folder(folder) != 0 && (errno != EEXIST || !is_own_folder(folder)))
      require_done(-1, "make the folder", folder);

  const std::vector<SavedSlice> slices = slices_of(share);
  std::vector<TensorSpec> specs;
  for (const SavedSlice& s : slices) specs.push_back(s.spec());
  const auto other_name = [](const NamedNumbers& other) { return format("other/%s@0", other.name.c_str()); };
  for (const NamedNumbers& other : share.others)
    specs.push_back({other_name(other), StoredType::F32, {other.numbers.size()}});
  SafetensorsWriter writer(name + ".safetensors", std::move(specs), disk);
  for (const SavedSlice& s : slices)
    for (size_t done = 0, n; done < s.count(); done += n) {
      n = std::min(kCheckpointChunk, s.count() - done);
      writer.write(s.spec().name, share.read(s.kind, s.unit, {s.at + done, n}), n * sizeof(float));
    }
  for (const NamedNumbers& other : share.others)
    writer.write(other_name(other), other.numbers.data(), other.numbers.size() * sizeof(float));
  writer.finish();
  const Json entry = manifest_entry(writer.file().bytes(), writer.file().checksum().text());
  write_file(name + ".json", entry.dump() + "\n", disk);
}

namespace {

// Throws unless a checkpoint has all its files under its own name. Their bytes were read back before they had it.
void require_renamed(const std::string& path, const Json& files, Disk& disk) {
  for (const auto& [name, entry] : files.items()) require_size(path + "/" + name, entry);
  Checksum manifest;
  const std::string file = path + "/manifest.json";
  const auto add = [&](const void* data, size_t bytes) { manifest.add(data, bytes); };
  require_read(disk.read_back(file, add) == 0, file);
  require_checksum(file, manifest, files.at("manifest.json").get_string("xxh64"));
}

}  // namespace

void publish_checkpoint(const std::string& path, int ranks, const Json& state, const SmallFiles& small_files,
                        Disk& disk) {
  const std::string partial = path + kPartial;
  Json files = Json::object();
  for (int rank = 0; rank < ranks; ++rank) {
    const std::string name = share_name(rank, ranks);
    files.set(name + ".safetensors", Json::read(partial + "/" + name + ".json"));
  }
  for (const auto& [name, content] : small_files) files.set(name, write_checked(partial + "/" + name, content, disk));
  files.set("state.json", write_checked(partial + "/state.json", state.dump(2) + "\n", disk));
  for (int rank = 0; rank < ranks; ++rank) {
    const std::string note = partial + "/" + share_name(rank, ranks) + ".json";
    require_done(disk.remove(note), "remove", note);
  }
  const Json manifest = Json::object().set("format", kFormat).set("step", state.get_int("step")).set("files", files);
  files.set("manifest.json", write_checked(partial + "/manifest.json", manifest.dump(2) + "\n", disk));
  require_done(disk.rename(partial, path), "rename", partial);
  const fs::path root = fs::path(path).parent_path();
  const fs::path run = root.parent_path();
  for (const std::string& folder : {root.string(), run.empty() ? "." : run.string()})
    require_done(disk.sync_folder(folder), "force to the disk", folder);
  if (!disk.reads_back()) return;
  try {
    require_renamed(path, files, disk);
  } catch (const Error&) {
    remove_checkpoint(path, disk);  // what is not whole must not be found
    throw;
  }
}

namespace {

// Removes the manifest first: without it the folder is no longer a checkpoint, even if this fails halfway.
void remove_folder(const std::string& folder, Disk& disk) {
  if (!is_own_folder(folder)) return;
  std::error_code error;
  const std::string manifest = folder + "/manifest.json";
  if (is_there(manifest)) {
    require_done(disk.remove(manifest), "remove", manifest);
    require_done(disk.sync_folder(folder), "force to the disk", folder);
  }
  std::vector<std::string> files;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, error)) files.push_back(entry.path());
  for (const std::string& file : files) require_done(disk.remove(file), "remove", file);
  require_done(disk.remove(folder), "remove", folder);
}

}  // namespace

void mark_verified(const std::string& path, int64_t step, Disk& disk) {
  write_file(path + kVerified, Json::object().set("step", step).dump() + "\n", disk);
}

void remove_checkpoint(const std::string& path, Disk& disk) { remove_folder(path, disk); }
void remove_partial_checkpoint(const std::string& path, Disk& disk) { remove_folder(path + kPartial, disk); }

void remove_partial_checkpoints(const std::string& root, Disk& disk) {
  std::vector<std::string> partial;
  for_folders_in(root, [&](const fs::path& folder) {
    const bool is_partial = folder.extension() == kPartial && step_of(folder.stem()) >= 0;
    const bool half_removed = step_of(folder.filename()) >= 0 && !is_there(folder / "manifest.json");
    if (is_partial || half_removed) partial.push_back(folder);
  });
  for (const std::string& folder : partial) remove_folder(folder, disk);
}

// ---------------------------------------------------------------------------------------------- reading

std::vector<int64_t> checkpoints_in(const std::string& root) {
  std::vector<int64_t> steps;
  for_folders_in(root, [&](const fs::path& folder) {
    const int64_t step = step_of(folder.filename());
    if (step >= 0 && is_there(folder / "manifest.json")) steps.push_back(step);
  });
  std::sort(steps.rbegin(), steps.rend());
  return steps;
}

bool is_verified(const std::string& path) {
  std::error_code error;
  return fs::exists(path + kVerified, error);
}

int64_t newest_verified(const std::string& root) {
  for (const int64_t step : checkpoints_in(root))
    if (is_verified(checkpoint_path(root, step))) return step;
  return -1;
}

Checkpoint::Checkpoint(const std::string& path) : path_(path) {
  const Json manifest = Json::read(path + "/manifest.json");
  const std::string is = manifest.get_string("format");
  int version = 0;
  if (sscanf(is.c_str(), "train_llama checkpoint %d", &version) == 1 && version > 1)
    throw LaterVersion(
        format("%s is \"%s\", and this program reads \"%s\"\n  a later train_llama wrote this "
               "checkpoint: go on with that one",
               manifest.where().c_str(), is.c_str(), kFormat));
  REQUIRE(is == kFormat, "%s is \"%s\"\n  expected \"%s\"", manifest.where().c_str(), is.c_str(), kFormat);
  step_ = manifest.get_int("step");
  const Json& listed = manifest.at("files");
  const auto require_listed = [&](const std::string& name) {
    REQUIRE(listed.contains(name), "%s does not list %s, so that its content cannot be verified",
            manifest.where().c_str(), name.c_str());
  };
  require_listed("state.json");
  for (const auto& [name, entry] : listed.items()) {
    files_.push_back({listed_file(path_, name, entry.where()), entry});
    if (!name.ends_with(".safetensors")) {
      verify(files() - 1);
      files_.pop_back();
    }
    int rank = 0, ranks = 0;
    if (sscanf(name.c_str(), "rank-%d-of-%d.safetensors", &rank, &ranks) == 2 && files() == 1)
      for (rank = 0; rank < ranks; ++rank) require_listed(share_name(rank, ranks) + ".safetensors");
  }
  REQUIRE(files() > 0, "%s lists no share of a rank", manifest.where().c_str());
  state_ = known_state(Json::read(path + "/state.json"));
  REQUIRE(state_.get_int("step") == step_, "%s: the state is that of step %lld, the manifest of %lld", path.c_str(),
          (long long)state_.get_int("step"), (long long)step_);
}

namespace {

// One slice of a file, as a line of Checkpoint::contents(): FILE, the tensor's index in the file, FIRST, COLUMNS, ROWS,
// STRIDE, KIND/NAME.
constexpr const char* kContentLine = "%d %zu %zu %zu %zu %zu %s\n";

}  // namespace

std::string Checkpoint::contents(int file) const {
  const File& f = files_.at(size_t(file));
  require_size(f.path, f.entry);
  const Safetensors stored(f.path);
  std::string lines;
  for (size_t i = 0; i < stored.tensors().size(); ++i) {
    const StoredTensor& t = stored.tensors()[i];
    const size_t at = std::min(t.name.rfind('@'), t.name.size());
    const StoredSlice s = slice_of(t, t.name.substr(at));
    lines += format(kContentLine, file, i, s.first, s.columns, s.rows, s.stride, t.name.substr(0, at).c_str());
  }
  return lines;
}

void Checkpoint::set_contents(const std::vector<std::string>& of_files) const {
  slices_.clear();
  for (const std::string& contents : of_files) {
    std::istringstream lines(contents);
    for (std::string line, name; std::getline(lines, line);) {
      std::istringstream words(line);
      StoredSlice s{};
      words >> s.file >> s.tensor >> s.first >> s.columns >> s.rows >> s.stride >> std::ws;
      std::getline(words, name);
      slices_[name].push_back(s);
    }
  }
  for (auto& [name, slices] : slices_)
    std::sort(slices.begin(), slices.end(),
              [](const StoredSlice& a, const StoredSlice& b) { return a.first < b.first; });
}

const std::vector<Checkpoint::StoredSlice>* Checkpoint::slices_of(const std::string& name) const {
  if (slices_.empty()) {
    std::vector<std::string> of_files;
    for (int file = 0; file < files(); ++file) of_files.push_back(contents(file));
    set_contents(of_files);
  }
  const auto found = slices_.find(name);
  return found == slices_.end() ? nullptr : &found->second;
}

// Opens its file, if that is not open yet.
const std::byte* Checkpoint::data_of(const StoredSlice& slice) const {
  const File& f = files_.at(size_t(slice.file));
  std::unique_ptr<Safetensors>& stored = opened_[slice.file];
  if (!stored) stored = std::make_unique<Safetensors>(f.path);
  REQUIRE(slice.tensor < stored->tensors().size() &&
              stored->tensors()[slice.tensor].data_bytes == slice.rows * slice.columns * sizeof(float),
          "%s has changed since its content was listed", f.path.c_str());
  return stored->tensors()[slice.tensor].data;
}

Checkpoint::StoredSlice Checkpoint::slice_of(const StoredTensor& t, const std::string& place) {
  unsigned long long first = 0, stride = 0;
  int end = 0, end_of_stride = 0;
  sscanf(place.c_str(), "@%llu%n+%llu%n", &first, &end, &stride, &end_of_stride);
  const bool row = end > 0 && size_t(end) == place.size() && t.shape.size() == 1;
  const bool rows = size_t(end_of_stride) == place.size() && t.shape.size() == 2 && t.shape[1] <= stride;
  // The number after the last element is computed in 128 bits, which hold the product of any rows and stride.
  const auto in_range = [](unsigned __int128 number) { return number < (uint64_t(1) << 60); };
  REQUIRE(
      t.type == StoredType::F32 && t.elements() > 0 && t.name.find('\n') == t.name.npos && (row || rows) &&
          in_range(first) &&
          in_range(first + (unsigned __int128)(rows ? t.shape[0] : 1) * (rows ? stride : t.shape[0])),
      "%s: tensor %s is %s %s\n  expected F32 with KIND/NAME@FIRST and one axis, or KIND/NAME@FIRST+STRIDE and rows "
      "of at most STRIDE elements",
      t.file.c_str(), t.name.c_str(), name_of(t.type), text_of(t.shape).c_str());
  if (row) return {size_t(first), size_t(t.shape[0]), 1, 0};
  return {size_t(first), size_t(t.shape[1]), size_t(t.shape[0]), size_t(stride)};
}

void Checkpoint::verify(int file) const {
  const File& f = files_.at(size_t(file));
  require_size(f.path, f.entry);
  // Reads the file and not the mapping: there, a disk that cannot read would raise a signal (SIGBUS), not an error.
  const std::unique_ptr<FILE, int (*)(FILE*)> opened(fopen(f.path.c_str(), "rb"), fclose);
  require_read(bool(opened), f.path);
  Checksum checksum;
  std::vector<char> bytes(size_t(4) << 20);
  for (size_t n; (n = fread(bytes.data(), 1, bytes.size(), opened.get())) > 0;) checksum.add(bytes.data(), n);
  require_read(!ferror(opened.get()), f.path);
  require_checksum(f.path, checksum, f.entry.get_string("xxh64"));
}

void Checkpoint::close() {
  slices_.clear();
  opened_.clear();
}

void Checkpoint::read(StateKind kind, const std::string& tensor, size_t first, size_t count, float* out) const {
  const std::string name = format("%s/%s", checkpoint_name(kind), tensor.c_str());
  const std::vector<StoredSlice>* const found = slices_of(name);
  REQUIRE(found, "checkpoint %s has no %s", path_.c_str(), name.c_str());
  const std::vector<StoredSlice>& slices = *found;
  size_t hint = 0;  // the slice that had the previous element
  for (size_t next = first, n; next < first + count; next += n) {
    n = 0;
    for (size_t tried = 0; n == 0 && tried < slices.size(); ++tried) {
      const StoredSlice& slice = slices[(hint + tried) % slices.size()];
      if (next < slice.first) continue;
      const size_t row = slice.rows == 1 ? 0 : (next - slice.first) / slice.stride,
                   column = next - slice.first - row * slice.stride;
      if (row >= slice.rows || column >= slice.columns) continue;
      n = std::min(first + count - next, slice.columns - column);
      memcpy(out + (next - first), data_of(slice) + (row * slice.columns + column) * sizeof(float), n * sizeof(float));
      hint = (hint + tried) % slices.size();
    }
    REQUIRE(n > 0, "checkpoint %s lacks element %zu of %s", path_.c_str(), next, name.c_str());
  }
}

std::vector<float> Checkpoint::other(const std::string& name) const {
  const std::vector<StoredSlice>* const found = slices_of("other/" + name);
  if (!found) return {};
  const StoredSlice& slice = found->front();
  std::vector<float> numbers(slice.columns);
  memcpy(numbers.data(), data_of(slice), slice.columns * sizeof(float));
  return numbers;
}

// Covers: promise 4: a checkpoint holds every element once and loads on any mesh; a crash at any write, fsync or rename
// leaves one from which training goes on with the same bits; what is cut off, flipped or missing is refused
#include <cerrno>
#include <cstring>
#include <random>

#include "dev/test/crashing_disk.h"
#include "dev/test/test.h"
#include "dev/test/tiny_trainer.h"
#include "dev/test/token_files.h"
#include "llmc/base/checksum.h"
#include "llmc/comm/recording_communicator.h"
#include "llmc/train/checkpointer.h"

namespace fs = std::filesystem;

namespace {

ModelConfig odd(bool tied) { return tiny({.C = 24, .L = 2, .NH = 3, .NKV = 1, .FF = 20, .V = 37, .tied = tied}); }

// The number that stands at an element of a tensor.
float number_at(StateKind kind, const std::string& tensor, size_t i) {
  return float(int(kind) + 1) * (float(std::hash<std::string>()(tensor) % 1000) + float(i % 65521) / 65536);
}

Json state_of(int64_t step) { return saved_state(step, step); }

// A checkpoint of so many ranks, of which `shard` share one copy of the model.
void write_checkpoint(const std::string& path, const ModelConfig& config, int ranks, int shard) {
  const ParameterLayout layout(config, shard);
  for (int rank = 0; rank < ranks; ++rank) {
    RecordingCommunicator gather(rank % shard, Communicator::first_ranks(shard)),
        replicate(rank / shard, Communicator::first_ranks(ranks / shard));
    const ShardGroup group{gather, gather, replicate};
    const FlatShards saved(place_units(layout, 1, group, [](int) { return false; }), &UnitPlacement::saved);
    const PerKind<FlatShards> shards{saved, saved, saved};
    std::vector<float> numbers;
    const auto read = [&](StateKind kind, int unit, const Shard& shard) {
      const std::vector<Slice> slices = layout.slices(unit, shard.first, shard.count);
      CHECK(slices.size() == 1);
      CHECK(slices[0].count == shard.count);
      numbers.resize(shard.count);
      for (size_t i = 0; i < shard.count; ++i)
        numbers[i] = number_at(kind, slices[0].tensor->name, slices[0].first + i);
      return numbers.data();
    };
    write_checkpoint_share(path, {rank, ranks, layout, shards, read});
  }
  publish_checkpoint(path, ranks, state_of(7));
}

// Elements of tensors that are not what write_checkpoint wrote.
size_t wrong_elements(const Checkpoint& checkpoint, const ModelConfig& config) {
  size_t wrong = 0;
  std::vector<float> numbers;
  for (const ParameterInfo& t : ParameterLayout(config).tensors)
    for (const StateKind kind : kStateKinds) {
      numbers.assign(t.size(), -1);
      checkpoint.read(kind, t.name, 0, t.size(), numbers.data());
      for (size_t i = 0; i < t.size(); ++i) wrong += numbers[i] != number_at(kind, t.name, i);
    }
  return wrong;
}

std::string refusal(const std::string& path) {
  return error_of([&] {
    const Checkpoint checkpoint(path);
    for (int file = 0; file < checkpoint.files(); ++file) checkpoint.verify(file);
  });
}

std::string content(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// ---------------------------------------------------------------------------------------------- a small training

constexpr int kSteps = 6;

struct Saving : Training {
  explicit Saving(World& world) : Training(world, odd(false), settings_for_saving()) {}
  static TrainerSettings settings_for_saving() {
    TrainerSettings settings;
    settings.B = 2, settings.T = 8, settings.snapshot = true;
    return settings;
  }
  // From here to the end, with a checkpoint after each second step; the newest `kept` stay, 0: all. Returns the path of
  // the last that is said to be saved.
  std::string run(const std::string& root, Disk& disk, bool async, int kept = 1) {
    Checkpointer checkpointer(root, kept, *trainer, world.ranks, disk);
    while (step < kSteps) {
      const StepFlags flags = checkpointer.flags();
      enqueue(batch(step), 1e-2, flags);
      finish();
      checkpointer.take_flags(flags);
      if (step % 2) continue;
      checkpointer.finish();
      if (!async) {
        checkpointer.save(step, state_of(step));
      } else {
        checkpointer.begin(step);
        checkpointer.write(state_of(step));
      }
    }
    checkpointer.finish();
    const auto news = checkpointer.news();
    return news.empty() ? "" : news.back().path;
  }
};

// Gives the folder of the last step its name, and loses a part of its manifest.
class CuttingDisk : public LyingDisk {
 public:
  CuttingDisk() : LyingDisk(-1, true) {}
  int rename(const std::string& from, const std::string& to) override {
    const int result = LyingDisk::rename(from, to);
    if (fs::path(to).filename() == fs::path(checkpoint_path("", kSteps)).filename())
      fs::resize_file(to + "/manifest.json", 10);
    return result;
  }
};

// The losses of a training that goes on from a checkpoint; an empty path: from the start.
std::vector<double> losses_from(World& world, const std::string& path) {
  Saving training(world);
  if (!path.empty()) {
    const Checkpoint checkpoint(path);
    training->restore(checkpoint);
    training.step = checkpoint.step();
  }
  training.train(kSteps - int(training.step));
  return training.trained.losses;
}

// The newest checkpoint, whose files are whole; empty: there is none. An error is one that is there and broken.
std::string newest_in(const std::string& root, int64_t* step) {
  const std::vector<int64_t> steps = checkpoints_in(root);
  *step = steps.empty() ? 0 : steps[0];
  if (steps.empty()) return "";
  const std::string path = checkpoint_path(root, *step), reason = refusal(path);
  REQUIRE(reason.empty(), "%s", reason.c_str());
  return path;
}

bool is_tail(const std::vector<double>& tail, const std::vector<double>& all) {
  return tail.size() <= all.size() && std::equal(tail.rbegin(), tail.rend(), all.rbegin());
}

// The files of a folder, and what they hold.
std::map<std::string, std::string> files_in(const fs::path& folder) {
  std::map<std::string, std::string> files;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder))
    files[entry.path().filename()] = content(entry.path());
  return files;
}

}  // namespace

TEST_CASE("every element is written once, whatever the mesh, and read in any slices") {
  TemporaryFolder folder;
  int number = 0;
  for (bool tied : {false, true})
    for (const auto& [ranks, shard] :
         std::vector<std::pair<int, int>>{{1, 1}, {2, 2}, {3, 3}, {4, 2}, {8, 8}, {8, 2}, {24, 24}}) {
      CAPTURE(tied);
      CAPTURE(ranks);
      CAPTURE(shard);
      const ModelConfig config = odd(tied);
      const std::string path = folder / format("step-%08d", ++number);
      write_checkpoint(path, config, ranks, shard);
      CHECK(refusal(path) == "");
      const Checkpoint checkpoint(path);
      CHECK(checkpoint.files() == ranks);
      CHECK(wrong_elements(checkpoint, config) == 0);

      size_t stored = 0, expected = 0;
      for (int rank = 0; rank < ranks; ++rank) {
        const Safetensors file(path + format("/rank-%05d-of-%05d.safetensors", rank, ranks));
        for (const StoredTensor& t : file.tensors()) stored += t.elements();
      }
      for (const ParameterInfo& t : ParameterLayout(config).tensors) expected += 3 * t.size();
      CHECK(stored == expected);

      // A reader who knows what the files have opens only those that it needs.
      const Checkpoint part(path);
      std::vector<std::string> contents;
      for (int file = 0; file < ranks; ++file) contents.push_back(checkpoint.contents(file));
      part.set_contents(contents);
      const Safetensors first_file(path + format("/rank-%05d-of-%05d.safetensors", 0, ranks));
      for (const StoredTensor& t : first_file.tensors()) {
        const size_t slash = t.name.find('/'), at = t.name.rfind('@');
        const std::string kind = t.name.substr(0, slash);
        for (const StateKind k : kStateKinds)
          if (float number = -1; kind == checkpoint_name(k)) {
            part.read(k, t.name.substr(slash + 1, at - slash - 1), std::stoull(t.name.substr(at + 1)), 1, &number);
            CHECK(memcmp(&number, t.data, sizeof number) == 0);
          }
      }
      CHECK(part.opened() == 1);

      std::mt19937 random(7);
      for (int i = 0; i < 100; ++i) {
        const ParameterLayout layout(config);
        const ParameterInfo& t = layout.tensors[random() % layout.tensors.size()];
        const size_t first = random() % t.size(), count = random() % (t.size() - first + 1);
        std::vector<float> numbers(count + 1, -1.0f);
        checkpoint.read(StateKind::second_moment, t.name, first, count, numbers.data());
        for (size_t k = 0; k < count; ++k)
          if (numbers[k] != number_at(StateKind::second_moment, t.name, first + k)) CHECK(k == count);
        CHECK(numbers[count] == -1.0f);
      }
    }
}

TEST_CASE("what is cut off, changed or missing is refused, and the reason names the file") {
  TemporaryFolder folder;
  const std::string good = folder / "step-00000007", bad = folder / "bad";
  write_checkpoint(good, odd(true), 2, 2);
  std::mt19937 random(1);
  int refused = 0;
  for (const fs::directory_entry& entry : fs::directory_iterator(good)) {
    const std::string name = entry.path().filename(), bytes = content(entry.path());
    CAPTURE(name);
    const auto refuse = [&](const char* what, const std::function<void(const fs::path&)>& damage) {
      CAPTURE(what);
      fs::remove_all(bad);
      fs::copy(good, bad, fs::copy_options::recursive);
      damage(fs::path(bad) / name);
      const std::string reason = refusal(bad);
      CHECK(reason.find(bad) != reason.npos);
      refused += !reason.empty();
    };
    refuse("missing", [](const fs::path& file) { fs::remove(file); });
    refuse("empty", [](const fs::path& file) { write_file(file, std::string()); });
    refuse("a folder", [](const fs::path& file) { fs::remove(file), fs::create_directory(file); });
    for (int i = 0; i < 8; ++i)
      refuse("cut off",
             [&](const fs::path& file) { write_file(file, bytes.substr(0, random() % (bytes.size() - 1))); });
    refuse("longer", [&](const fs::path& file) { write_file(file, bytes + "x"); });
    for (int i = 0; i < 40; ++i) {
      const size_t at = random() % bytes.size();
      // Spaces between the manifest's words say nothing; all else does.
      if (name == "manifest.json" && isspace(bytes[at])) continue;
      refuse("flipped", [&](const fs::path& file) {
        std::string flipped = bytes;
        flipped[at] = char(flipped[at] ^ (1 << random() % 8));
        write_file(file, flipped);
      });
    }
  }
  printf("%d damaged checkpoints refused\n", refused);

  const Json manifest = Json::read(good + "/manifest.json");
  for (const char* left_out : {"rank-00000-of-00002.safetensors", "rank-00001-of-00002.safetensors", "state.json"}) {
    Json files = Json::object(), changed = manifest;
    for (const auto& [name, file] : manifest.at("files").items())
      if (name != left_out) files.set(name, file);
    write_file(fs::path(good) / "manifest.json", changed.set("files", files).dump());
    says(error_of([&] { Checkpoint checkpoint(good); }), format("manifest.json does not list %s", left_out));
  }
}

TEST_CASE("a checkpoint made by hand is refused by what it says, whatever it is") {
  const TemporaryFolder folder;
  const std::string path = folder.path();
  const auto opened = [&](const std::string& file, std::vector<TensorSpec> tensors) {
    Json files = Json::object();
    fs::remove(folder / "shares.safetensors");
    SafetensorsWriter writer(folder / "shares.safetensors", tensors);
    for (const TensorSpec& t : tensors) writer.write(t.name, std::vector<float>(16, 1.0f).data(), t.bytes());
    writer.finish();
    files.set(file, Json::object().set("bytes", writer.file().bytes()).set("xxh64", writer.file().checksum().text()));
    const std::string state = state_of(7).dump();
    write_file(fs::path(path) / "state.json", state);
    Checksum checksum;
    checksum.add(state.data(), state.size());
    files.set("state.json", Json::object().set("bytes", state.size()).set("xxh64", checksum.text()));
    write_file(fs::path(path) / "manifest.json",
               Json::object().set("format", "train_llama checkpoint 1").set("step", 7).set("files", files).dump());
    return error_of([&] {
      std::vector<float> numbers(16);
      Checkpoint(path).read(StateKind::master, "w", 0, 1, numbers.data());
      Checkpoint(path).other("w");
    });
  };
  const auto share = [&](const std::string& name, Shape shape) {
    return opened("shares.safetensors", {{name, StoredType::F32, shape}});
  };
  CHECK(share("weights/w@0", {4}).empty());
  CHECK(share("weights/w@0+2", {2, 2}).empty());
  for (const char* name : {"weights/w", "weights/w@", "weights/w@x", "weights/w@0x", "weights/w@0+", "weights/w@0+4",
                           "weights/w@-1", "weights/w@18446744073709551615", "weights/w@99999999999999999999"})
    says(share(name, {4}), "expected F32 with KIND/NAME@FIRST");
  for (const Shape& shape : {Shape{}, Shape{0}, Shape{0, 4}, Shape{4, 0}, Shape{2, 2}, Shape{1, 2, 2}})
    says(share("weights/w@0", shape), "expected F32 with KIND/NAME@FIRST");
  for (const char* name : {"weights/w@0+0", "weights/w@0+1", "weights/w@0+18446744073709551615",
                           "weights/w@1152921504606846975+2", "weights/w@0+9223372036854775807"})
    says(share(name, {2, 2}), "expected F32 with KIND/NAME@FIRST");
  for (const char* name : {"../shares.safetensors", "/etc/passwd", "..", "."})
    says(opened(name, {{"weights/w@0", StoredType::F32, {1}}}), "is no name of a file in " + path);
}

// A training goes on from each checkpoint with the same bits, and each crash leaves one of them, byte by byte.
TEST_CASE("a crash at any call leaves a checkpoint from which training goes on with the same bits") {
  TemporaryFolder folder;
  World world;
  const std::string whole = folder / "whole";
  Saving straight(world);
  straight.run(whole, Disk::real(), false, 0);
  const std::vector<double>& losses = straight.trained.losses;
  for (const int64_t step : {0, 2, 4, 6})
    CHECK(is_tail(losses_from(world, step ? checkpoint_path(whole, step) : ""), losses));

  std::vector<std::string> calls;  // of a save between steps; a save during steps makes the same
  for (const bool async : {false, true}) {
    CAPTURE(async);
    const fs::path root = folder / (async ? "async" : "run"), crashed = folder / "crashed";
    fs::create_directories(root);
    CrashingDisk disk(root);
    Saving training(world);
    training.run(root / "checkpoints", disk, async);
    CHECK(training.trained.losses == losses);
    for (size_t i = 0; async && i < disk.calls(); ++i) CHECK(disk.call(i) == calls.at(i));
    for (size_t i = 0; !async && i < disk.calls(); ++i) calls.push_back(disk.call(i));
    CHECK(disk.calls() == calls.size());
    int from_step[kSteps + 1] = {}, crashes = 0;
    int64_t newest = 0;
    using Fate = CrashingDisk::Fate;
    const std::vector<Fate> fates =
        async ? std::vector{Fate::everything} : std::vector{Fate::forced_only, Fate::everything, Fate::random,
                                                            Fate::random,      Fate::random,     Fate::random};
    for (size_t done = 0; done <= disk.calls(); ++done)
      for (size_t i = 0; i < fates.size(); ++i) {
        CAPTURE(done ? disk.call(done - 1) : "the start");
        CAPTURE(i);
        fs::remove_all(crashed);
        disk.crash(done, fates[i], uint32_t(i + done * 100), crashed);
        const std::string checkpoints = crashed / "checkpoints";
        int64_t step = -1;
        std::string path;
        CHECK(error_of([&] { path = newest_in(checkpoints, &step); }) == "");
        if (step > 0) CHECK(files_in(path) == files_in(checkpoint_path(whole, step)));
        CHECK(step >= newest);  // what was complete stays
        if (fates[i] == Fate::forced_only) newest = step;
        ++from_step[step], ++crashes;
        remove_partial_checkpoints(checkpoints);
        for (const auto& entry : fs::directory_iterator(fs::exists(checkpoints) ? fs::path(checkpoints) : crashed))
          CHECK(entry.path().extension() != ".partial");
      }
    if (!async) CHECK(newest == kSteps);
    printf("%zu calls of the disk, %d crashes: gone on from", disk.calls(), crashes);
    for (int step = 0; step <= kSteps; ++step)
      if (from_step[step]) printf(" step %d %d times", step, from_step[step]);
    printf("\n");
  }
}

TEST_CASE("a write that fails costs one checkpoint, not the run and not the checkpoint before") {
  World world;
  const std::vector<double> straight = losses_from(world, "");
  int calls = 1, saved = 0;
  for (int failing = 0; failing < calls; ++failing) {
    CAPTURE(failing);
    TemporaryFolder folder;
    fs::create_directories(folder / "run");
    const int error = failing % 3 == 0 ? ENOSPC : failing % 3 == 1 ? EIO : EDQUOT;
    FailingDisk disk(failing, error, failing % 2);
    Saving training(world);
    training.run(folder / "run/checkpoints", disk, failing % 2);
    calls = disk.calls();
    CHECK(training.trained.losses == straight);
    int64_t step = 0;
    std::string path;
    CHECK(error_of([&] { path = newest_in(folder / "run/checkpoints", &step); }) == "");
    CHECK(is_tail(losses_from(world, path), straight));
    CHECK(step >= (failing % 2 ? kSteps - 4 : kSteps - 2));
    saved += step == kSteps;
  }
  printf("%d calls of the disk failed in turn; in %d of the runs the last checkpoint was saved\n", calls, saved);
  CHECK(saved > calls / 2);
}

TEST_CASE("a disk that lies costs one checkpoint and not the one before, if files are read back") {
  World world;
  const std::vector<double> straight = losses_from(world, "");
  int without = 0;  // runs that end without a whole checkpoint
  for (bool reads_back : {true, false})
    for (int lying = 0, calls = 1; lying < calls; ++lying) {
      CAPTURE(lying);
      TemporaryFolder folder;
      fs::create_directories(folder / "run");
      LyingDisk disk(lying, reads_back);
      Saving training(world);
      const std::string saved = training.run(folder / "run/checkpoints", disk, lying % 2);
      calls = disk.calls();
      int64_t step = 0;
      std::string path;
      const std::string error = error_of([&] { path = newest_in(folder / "run/checkpoints", &step); });
      if (!reads_back) {
        without += !error.empty() || path.empty();
        continue;
      }
      CHECK(error == "");
      CHECK(path == saved);
      CHECK(step >= kSteps - 2);
      CHECK(is_tail(losses_from(world, path), straight));
    }
  printf("files that are not read back: %d runs ended without a checkpoint\n", without);
  CHECK(without > 0);
}

TEST_CASE("a checkpoint that is damaged as it gets its name is removed again, if files are read back") {
  World world;
  const std::vector<double> straight = losses_from(world, "");
  TemporaryFolder folder;
  fs::create_directories(folder / "run");
  CuttingDisk disk;
  Saving training(world);
  const std::string saved = training.run(folder / "run/checkpoints", disk, true);
  int64_t step = 0;
  std::string path;
  const std::string error = error_of([&] { path = newest_in(folder / "run/checkpoints", &step); });
  CHECK(error == "");
  CHECK(path == saved);
  CHECK(step == kSteps - 2);
  CHECK(is_tail(losses_from(world, path), straight));
}

// A step's result comes when the next one is under way: its flags were given before what the first one's brought about.
TEST_CASE("flags that were given before a part of a save began say nothing of it") {
  TemporaryFolder folder;
  World world;
  Saving training(world);
  training.train(1);
  Checkpointer checkpointer(folder / "checkpoints", 0, *training.trainer, world.ranks);
  checkpointer.begin(1);
  checkpointer.write(state_of(1));
  StepFlags flags;
  while ((flags = checkpointer.flags()).saved == 0) checkpointer.take_flags(flags);
  const StepFlags next = checkpointer.flags();
  CHECK(next.saved == 1);
  checkpointer.take_flags(flags);  // all have written: the first rank publishes
  checkpointer.take_flags(next);
  CHECK(checkpointer.under_way());
  CHECK(checkpointer.news().empty());
  checkpointer.finish();
  CHECK(checkpointer.news().size() == 1);
}

TEST_CASE("a snapshot is of one step, whatever later steps do to the weights") {
  World world, other_world;
  Saving training(world), other(other_world);
  training.enqueue();
  training->take_snapshot();
  training.enqueue();
  training.finish(), training.finish();
  const Snapshot& snapshot = training->wait_for_snapshot();
  other.train(1);
  size_t compared = 0, moved = 0;
  for (const StateKind kind : kStateKinds)
    for (const auto& [unit, shard, _] : training->saved()[kind].entries()) {
      std::vector<float> then(shard.count), now(shard.count), buffer;
      other->read_state(kind, unit, shard, then.data());
      training->read_state(kind, unit, shard, now.data());
      CHECK(memcmp(snapshot.read(kind, unit, shard, buffer), then.data(), shard.count * sizeof(float)) == 0);
      compared += shard.count;
      for (size_t i = 0; i < shard.count; ++i) moved += now[i] != then[i];
    }
  CHECK(compared == 3 * training->layout().size);
  CHECK(moved > compared / 2);
}

// ---------------------------------------------------------------------------------------------- moments of some
// tensors

namespace {

bool has_second_moment(const ParameterInfo& tensor) {
  return tensor.row->unit != UnitKind::block || !tensor.is_matrix();
}
constexpr auto without_some = [](const ParameterInfo& tensor, StateKind moment) {
  return moment != StateKind::second_moment || has_second_moment(tensor);
};

// The bytes that a plan has under a category and a name.
size_t planned(const Trainer& trainer, const std::string& category, const std::string& name) {
  size_t bytes = 0;
  for (const MemoryPlan::Buffer& b : trainer.plan().buffers())
    if (b.category == category && b.name == name) bytes += b.bytes;
  return bytes;
}

// The elements of a shard that belong to tensors without a second moment, or to the padding after them.
size_t elements_without(const ParameterLayout& layout, int unit, const Shard& shard) {
  size_t count = 0;
  for (size_t i = shard.first; i < shard.end(); ++i) {
    const ParameterInfo* owner = nullptr;
    for (const ParameterInfo& t : layout.tensors_of(unit))
      if (t.offset <= i) owner = &t;
    count += !has_second_moment(*owner);
  }
  return count;
}

}  // namespace

TEST_CASE("without second moments of matrices, state and snapshot are smaller by exactly their bytes, on any mesh") {
  struct Case {
    int ranks, tensor, hybrid, stage;
  };
  for (const Case& c : {Case{1, 1, 0, 0}, {2, 1, 0, 0}, {3, 1, 0, 1}, {3, 1, 0, 2}, {4, 1, 2, 3}, {4, 2, 0, 3}}) {
    size_t less_on_all = 0;
    for (int rank = 0; rank < c.ranks; ++rank) {
      Device device(0, CpuBackend{.threads = 1});
      RecordingCommunicator communicator(rank, Communicator::first_ranks(c.ranks));
      const Mesh mesh = Mesh::create(c.ranks, rank, c.tensor, 1, c.hybrid);
      TrainerSettings settings = Saving::settings_for_saving();
      settings.dtype = DType::bf16, settings.zero_stage = c.stage;
      const auto with = Trainer::create(device, communicator, tiny(), settings, mesh);
      settings.state.has_moment = without_some;
      const auto without = Trainer::create(device, communicator, tiny(), settings, mesh);
      size_t kept = 0, saved = 0;
      for (const auto& [unit, shard, _] : with->saved()[StateKind::master].entries()) {
        saved += elements_without(with->layout(), unit, shard);
        // A rank updates the whole unit, or one of the parts into which the ranks that shard cut it.
        const size_t part = with->layout().part_size(unit);
        const Shard state = c.stage ? Shard{shard.first / part * part, part} : Shard{0, part * mesh.state_shards()};
        kept += elements_without(with->layout(), unit, state);
      }
      for (const char* same : {"master weights", "first moments"})
        CHECK(planned(*with, "optimizer", same) == planned(*without, "optimizer", same));
      CHECK(planned(*with, "optimizer", "second moments") - planned(*without, "optimizer", "second moments") ==
            kept * sizeof(float));
      for (const char* same : {"weights", "first_moments"})
        CHECK(planned(*with, "snapshot", same) == planned(*without, "snapshot", same));
      CHECK(planned(*with, "snapshot", "second_moments") - planned(*without, "snapshot", "second_moments") ==
            saved * sizeof(float));
      less_on_all += saved;
    }
    CHECK(less_on_all > 0);
  }
}

TEST_CASE("without second moments of matrices, the rest of the state is updated, saved and restored as with them") {
  World worlds[3];
  struct Partial : Training {
    explicit Partial(World& world) : Training(world, odd(false), settings_of()) {}
    static TrainerSettings settings_of() {
      TrainerSettings settings = Saving::settings_for_saving();
      settings.state.has_moment = without_some;
      return settings;
    }
  };
  Saving all(worlds[0]);
  Partial some(worlds[1]), restored(worlds[2]);
  all.train(1), some.train(1);
  const TemporaryFolder folder;
  Checkpointer checkpointer(folder / "checkpoints", 0, *some.trainer, worlds[1].ranks);
  CHECK(checkpointer.save(1, state_of(1)));
  const Checkpoint checkpoint(checkpoint_path(folder / "checkpoints", 1));
  restored->restore(checkpoint);
  restored.step = 1;

  some->take_snapshot();
  const Snapshot& snapshot = some->wait_for_snapshot();
  all->take_snapshot();
  const Snapshot& whole = all->wait_for_snapshot();
  size_t compared = 0;
  for (const StateKind kind : kStateKinds)
    for (const auto& [unit, shard, _] : some->saved()[kind].entries()) {
      std::vector<float> now(shard.count), again(shard.count), buffer;
      some->read_state(kind, unit, shard, now.data());
      restored->read_state(kind, unit, shard, again.data());
      CHECK(memcmp(snapshot.read(kind, unit, shard, buffer), now.data(), shard.count * sizeof(float)) == 0);
      CHECK(memcmp(again.data(), now.data(), shard.count * sizeof(float)) == 0);
      for (const Slice& slice : some->layout().slices(unit, shard.first, shard.count)) {
        if (!has_second_moment(*slice.tensor)) continue;
        const Shard at{shard.first + slice.at, slice.count};
        CHECK(memcmp(whole.read(kind, unit, at, buffer), &now[slice.at], slice.count * sizeof(float)) == 0);
        compared += slice.count;
      }
    }
  CHECK(compared > 0);
  std::vector<float> number(1);
  for (const ParameterInfo& t : some->layout().tensors)
    if (has_second_moment(t)) checkpoint.read(StateKind::second_moment, t.name, 0, 1, number.data());
    else
      CHECK(error_of([&] { checkpoint.read(StateKind::second_moment, t.name, 0, 1, number.data()); }).find("has no") !=
            std::string::npos);
  some.train(1), restored.train(1);
  CHECK(some.trained.losses.back() == restored.trained.losses.back());
}

// Covers: promise 4: a checkpoint holds every element once and loads on any mesh; a crash at any write, fsync or rename
// leaves one from which training goes on with the same bits; what is cut off, flipped or missing is refused
// Timeout: 600
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>

#include "dev/test/crashing_disk.h"
#include "dev/test/test.h"
#include "llmc/comm/communicator.h"
#include "llmc/train/checkpointer.h"
#include "llmc/train/trainer.h"

namespace fs = std::filesystem;

namespace {

struct Folder {
  fs::path path = fs::temp_directory_path() / format("llmc_checkpoint_%d", int(getpid()));
  Folder() {
    fs::remove_all(path);
    fs::create_directories(path);
  }
  ~Folder() { fs::remove_all(path); }
  std::string operator/(const std::string& name) const { return (path / name).string(); }
};

LlamaConfig odd(bool tied) {
  LlamaConfig c = LlamaConfig::preset("tiny");
  c.C = 24, c.L = 2, c.NH = 3, c.NKV = 1, c.HD = 16, c.FF = 20, c.V = 37, c.tied = tied;
  return c;
}

// A place in a group, without the group.
class Place : public Communicator {
 public:
  Place(int rank, int size) : Communicator(rank, first_ranks(size)) {}
  std::string description() const override { return "a place"; }

 private:
  std::unique_ptr<Communicator> make_group(const std::vector<int>&, int) override { fail("a place has no others"); }
  void enqueue(const Work&, const Collective&) override { fail("a place has no others"); }
};

// The number that stands at an element of a tensor.
float number_at(StateKind kind, const std::string& tensor, size_t i) {
  return float(int(kind) + 1) * (float(std::hash<std::string>()(tensor) % 1000) + float(i % 65521) / 65536);
}

Json state_of(int64_t step) { return Json::object().set("step", step); }

// A checkpoint of so many ranks, of which `shard` share one copy of the model.
void write_checkpoint(const std::string& path, const LlamaConfig& config, int ranks, int shard) {
  const TensorLayout layout(config, shard);
  for (int rank = 0; rank < ranks; ++rank) {
    Place gather(rank % shard, shard), replicate(rank / shard, ranks / shard);
    const Sharding sharding{1, gather, gather, replicate};
    CheckpointShare share{rank, ranks, layout, {}, {}};
    for (int unit = 0; unit < int(layout.units.size()); ++unit) share.units.push_back(sharding.saved(layout, unit));
    std::vector<float> numbers;
    share.read = [&](StateKind kind, int unit, size_t first, size_t count) {
      const std::vector<Piece> pieces = layout.pieces(unit, first, count);
      CHECK(pieces.size() == 1);
      CHECK(pieces[0].count == count);
      numbers.resize(count);
      for (size_t i = 0; i < count; ++i) numbers[i] = number_at(kind, pieces[0].tensor->name, pieces[0].first + i);
      return numbers.data();
    };
    write_checkpoint_share(path, share);
  }
  publish_checkpoint(path, ranks, state_of(7));
}

// Elements of tensors that are not what write_checkpoint wrote.
size_t wrong_elements(const Checkpoint& checkpoint, const LlamaConfig& config) {
  size_t wrong = 0;
  std::vector<float> numbers;
  for (const Tensor& t : TensorLayout(config).tensors)
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
void write(const fs::path& path, const std::string& bytes) { std::ofstream(path, std::ios::binary) << bytes; }

// ---------------------------------------------------------------------------------------------- a small training

constexpr int kSteps = 6, kB = 2, kT = 8;

struct Training {
  Device device;
  SingleCommunicator communicator;
  Ranks ranks;
  std::unique_ptr<Trainer> trainer;
  int64_t step = 0;
  std::vector<double> losses;

  Training() {
    TrainerSettings settings;
    settings.B = kB, settings.T = kT, settings.snapshot = true;
    trainer = Trainer::create(device, communicator, odd(false), settings);
    trainer->allocate();
    trainer->initialize(Init::normal, 3);
  }
  void enqueue_step(Votes votes = {}) {
    std::vector<int32_t> inputs, labels;
    for (int i = 0; i < kB * kT; ++i)
      inputs.push_back(int32_t((i * 5 + step * 11) % 37)), labels.push_back(int32_t((i * 7 + step * 3) % 37));
    trainer->enqueue_step({step++, 1e-2, inputs, labels, votes});
  }
  void finish_step() { losses.push_back(trainer->wait_for_step().loss); }
  // From here to the end, with a checkpoint after each second step; one stays.
  void run(const std::string& root, Disk& disk, bool async) {
    Checkpointer checkpointer(root, 1, *trainer, ranks, disk);
    while (step < kSteps) {
      const Votes votes = checkpointer.votes();
      enqueue_step(votes);
      finish_step();
      checkpointer.count(votes);
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
  }
};

std::vector<double> straight_losses() {
  Training training;
  while (training.step < kSteps) training.enqueue_step(), training.finish_step();
  return training.losses;
}

// The losses of a training that goes on from the newest checkpoint, and the step of that; from the start without one.
// An error is a checkpoint that is there and cannot be gone on from.
std::vector<double> losses_from(const std::string& root, int64_t& step) {
  Training training;
  const std::vector<int64_t> steps = checkpoints_in(root);
  if (!steps.empty()) {
    const Checkpoint checkpoint(checkpoint_path(root, steps[0]));
    for (int file = 0; file < checkpoint.files(); ++file) checkpoint.verify(file);
    training.trainer->restore(checkpoint);
    training.step = checkpoint.step();
  }
  step = training.step;
  while (training.step < kSteps) training.enqueue_step(), training.finish_step();
  return training.losses;
}

bool is_tail(const std::vector<double>& tail, const std::vector<double>& all) {
  return tail.size() <= all.size() && std::equal(tail.rbegin(), tail.rend(), all.rbegin());
}

}  // namespace

TEST_CASE("every element is written once, whatever the mesh, and read in any pieces") {
  Folder folder;
  int number = 0;
  for (bool tied : {false, true})
    for (const auto& [ranks, shard] :
         std::vector<std::pair<int, int>>{{1, 1}, {2, 2}, {3, 3}, {4, 2}, {8, 8}, {8, 2}, {24, 24}}) {
      CAPTURE(tied);
      CAPTURE(ranks);
      CAPTURE(shard);
      const LlamaConfig config = odd(tied);
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
      for (const Tensor& t : TensorLayout(config).tensors) expected += 3 * t.size();
      CHECK(stored == expected);

      std::mt19937 random(7);
      for (int i = 0; i < 100; ++i) {
        const TensorLayout layout(config);
        const Tensor& t = layout.tensors[random() % layout.tensors.size()];
        const size_t first = random() % t.size(), count = random() % (t.size() - first + 1);
        std::vector<float> numbers(count + 1, -1.0f);
        checkpoint.read(StateKind::second_moments, t.name, first, count, numbers.data());
        for (size_t k = 0; k < count; ++k)
          if (numbers[k] != number_at(StateKind::second_moments, t.name, first + k)) CHECK(k == count);
        CHECK(numbers[count] == -1.0f);
      }
    }
}

TEST_CASE("what is cut off, changed or missing is refused, and the reason names the file") {
  Folder folder;
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
    refuse("empty", [](const fs::path& file) { write(file, ""); });
    refuse("a folder", [](const fs::path& file) { fs::remove(file), fs::create_directory(file); });
    for (int i = 0; i < 8; ++i)
      refuse("cut off", [&](const fs::path& file) { write(file, bytes.substr(0, random() % (bytes.size() - 1))); });
    refuse("longer", [&](const fs::path& file) { write(file, bytes + "x"); });
    for (int i = 0; i < 40; ++i) {
      const size_t at = random() % bytes.size();
      // Spaces between the manifest's words say nothing; all else does.
      if (name == "manifest.json" && isspace(bytes[at])) continue;
      refuse("flipped", [&](const fs::path& file) {
        std::string flipped = bytes;
        flipped[at] = char(flipped[at] ^ (1 << random() % 8));
        write(file, flipped);
      });
    }
  }
  printf("%d damaged checkpoints refused\n", refused);

  // A manifest that leaves a rank's file out is whole in itself: what is not there is missed when it is read.
  Json manifest = Json::read(good + "/manifest.json"), files = Json::object();
  for (const auto& [name, file] : manifest.at("files").items())
    if (name != "rank-00001-of-00002.safetensors") files.set(name, file);
  write(fs::path(good) / "manifest.json", manifest.set("files", files).dump());
  const std::string reason = error_of([&] { wrong_elements(Checkpoint(good), odd(true)); });
  CHECK(reason.find("lacks element") != reason.npos);
}

TEST_CASE("a crash at any call leaves a checkpoint from which training goes on with the same bits") {
  const std::vector<double> straight = straight_losses();
  for (bool async : {false, true}) {
    CAPTURE(async);
    Folder folder;
    fs::create_directories(folder / "run");
    CrashingDisk disk(folder.path / "run");
    {
      Training training;
      training.run(folder / "run/checkpoints", disk, async);
      CHECK(training.losses == straight);
    }
    int from_step[kSteps + 1] = {}, crashes = 0;
    int64_t newest = 0;
    for (size_t calls = 0; calls <= disk.calls(); ++calls) {
      const std::string after = calls ? disk.call(calls - 1) : "the start";
      CAPTURE(after);
      for (uint32_t seed = 0; seed < 6; ++seed) {
        CAPTURE(seed);
        const fs::path crashed = folder.path / "crashed";
        fs::remove_all(crashed);
        const auto fate = seed == 0   ? CrashingDisk::Fate::forced_only
                          : seed == 1 ? CrashingDisk::Fate::everything
                                      : CrashingDisk::Fate::random;
        disk.crash(calls, fate, seed + uint32_t(calls) * 100, crashed);
        int64_t step = -1;
        std::vector<double> losses;
        const std::string error = error_of([&] { losses = losses_from((crashed / "checkpoints").string(), step); });
        CHECK(error == "");
        CHECK(is_tail(losses, straight));
        CHECK(step >= newest);  // what was complete stays
        if (seed == 0) newest = std::max(newest, step);
        ++from_step[step], ++crashes;
        remove_partial_checkpoints((crashed / "checkpoints").string());
        for (const auto& entry :
             fs::directory_iterator(fs::exists(crashed / "checkpoints") ? crashed / "checkpoints" : crashed))
          CHECK(entry.path().extension() != ".partial");
      }
    }
    CHECK(newest == kSteps);
    printf("%zu calls of the disk, %d crashes: gone on from", disk.calls(), crashes);
    for (int step = 0; step <= kSteps; ++step)
      if (from_step[step]) printf(" step %d %d times", step, from_step[step]);
    printf("\n");
  }
}

TEST_CASE("a write that fails costs one checkpoint, not the run and not the checkpoint before") {
  const std::vector<double> straight = straight_losses();
  int calls = 1, saved = 0;
  for (int failing = 0; failing < calls; ++failing) {
    CAPTURE(failing);
    Folder folder;
    fs::create_directories(folder / "run");
    const int error = failing % 3 == 0 ? ENOSPC : failing % 3 == 1 ? EIO : EDQUOT;
    FailingDisk disk(failing, error, failing % 2);
    Training training;
    training.run(folder / "run/checkpoints", disk, failing % 2);
    calls = disk.calls();
    CHECK(training.losses == straight);
    int64_t step = 0;
    std::vector<double> losses;
    CHECK(error_of([&] { losses = losses_from(folder / "run/checkpoints", step); }) == "");
    CHECK(is_tail(losses, straight));
    CHECK(step >= (failing % 2 ? kSteps - 4 : kSteps - 2));
    saved += step == kSteps;
  }
  printf("%d calls of the disk failed in turn; in %d of the runs the last checkpoint was saved\n", calls, saved);
  CHECK(saved > calls / 2);
}

// A step's result comes when the next one is under way: its votes were given before what the first one's brought about.
TEST_CASE("votes that were given before a part of a save began say nothing of it") {
  Folder folder;
  Training training;
  training.enqueue_step(), training.finish_step();
  Checkpointer checkpointer(folder / "checkpoints", 0, *training.trainer, training.ranks);
  checkpointer.begin(1);
  checkpointer.write(state_of(1));
  Votes votes;
  while ((votes = checkpointer.votes()).saved == 0) checkpointer.count(votes);
  const Votes next = checkpointer.votes();
  CHECK(next.saved == 1);
  checkpointer.count(votes);  // all have written: the first rank publishes
  checkpointer.count(next);
  CHECK(checkpointer.under_way());
  CHECK(checkpointer.news().empty());
  checkpointer.finish();
  CHECK(checkpointer.news().size() == 1);
}

TEST_CASE("a snapshot is of one step, whatever the steps behind it do to the weights") {
  Training training, beside;
  training.enqueue_step();
  training.trainer->take_snapshot();
  training.enqueue_step();
  training.finish_step(), training.finish_step();
  const Snapshot& snapshot = training.trainer->wait_for_snapshot();
  beside.enqueue_step(), beside.finish_step();
  const std::vector<UnitShare> shares = training.trainer->shares();
  size_t compared = 0, moved = 0;
  for (const StateKind kind : kStateKinds)
    for (size_t unit = 0; unit < shares.size(); ++unit) {
      const auto [first, count] = shares[unit];
      std::vector<float> then(count), now(count);
      beside.trainer->read_state(kind, int(unit), first, count, then.data());
      training.trainer->read_state(kind, int(unit), first, count, now.data());
      std::vector<float> buffer;
      CHECK(memcmp(snapshot.read(kind, int(unit), 0, count, buffer), then.data(), count * sizeof(float)) == 0);
      compared += count;
      for (size_t i = 0; i < count; ++i) moved += now[i] != then[i];
    }
  CHECK(compared == 3 * training.trainer->layout().size);
  CHECK(moved > compared / 2);
}

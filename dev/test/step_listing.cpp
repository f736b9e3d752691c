// Lists what trainings of every kind ask of a device, a line for each operation:  step_listing [--names] [WORD…]
//
// A line has the stream, the name, the kernel with its template arguments, grid, block and shared bytes, FLOPs, and the
// bytes that are read (r), written (w) or updated (u), as buffer + offset. Events are lines, too: `point 3` is
// recorded, and `waits for 3` names the point. The device is modelled, so this takes seconds, and the listing of two
// versions of the program shows each launch, order and byte that differs (dev/test/same_program).
// --names: the configurations alone. WORD: those whose name has all the words.
#include <cstdio>
#include <map>

#include "dev/test/tiny_trainer.h"
#include "llmc/comm/recording_communicator.h"
#include "llmc/device/known_devices.h"

namespace {

struct Configuration {
  std::string name;
  ModelConfig model;
  TrainerSettings settings;
  int ranks = 1, tensor = 1, context = 1, hybrid = 0;
  bool on_cpu = false;  // launch shapes of the CPU backend
};

// "weights, block 0 + 128" instead of an address: buffers of the plan by name, and communicators, of which each
// collective updates a byte, by a number in the order in which they appear. Slots have one name: a number tells the
// second from the first. Other memory is the host's. It has no number, because an allocation may have the address of an
// earlier one, or not.
class Names {
 public:
  Names(const MemoryPlan& plan, const Arena& arena) : plan_(plan), arena_(arena) {
    std::map<std::string, int> buffers_of;
    for (const MemoryPlan::Buffer& b : plan.buffers()) {
      std::string& name = names_.emplace_back(b.category + ", " + b.name);
      if (const int number = ++buffers_of[name]; number > 1) name += format(" (%d)", number);
    }
  }

  std::string of(const Access& access) {
    const auto* begin = static_cast<const std::byte*>(access.data);
    for (size_t i = 0; i < names_.size(); ++i) {
      const MemoryPlan::Buffer& b = plan_.buffers()[i];
      const std::byte* buffer = arena_.base(b.segment) + b.offset;
      if (begin >= buffer && begin < buffer + b.bytes)
        return format("%s + %zu", names_[i].c_str(), size_t(begin - buffer));
    }
    if (access.bytes > 1) return "host memory";
    return format("communicator %zu", communicators_.try_emplace(begin, communicators_.size()).first->second);
  }

 private:
  const MemoryPlan& plan_;
  const Arena& arena_;
  std::vector<std::string> names_;  // one for each buffer of the plan
  std::map<const std::byte*, size_t> communicators_;
};

// "rope_kernel<float, 8>" of "… [with auto kernel = {anonymous}::rope_kernel<float, 8>]".
std::string kernel_of(const LaunchShape& shape) {
  std::string text = shape.kernel;
  const size_t begin = text.find("kernel = ");
  if (begin != text.npos) text = text.substr(begin + 9, text.rfind(']') - begin - 9);
  for (const std::string& word : {std::string("{anonymous}::"), std::string("(anonymous namespace)::")})
    for (size_t at; (at = text.find(word)) != text.npos;) text.erase(at, word.size());
  return text;
}

void print(const Record& record, Names& names) {
  std::map<int, size_t> points;  // as they are recorded here: their own numbers count from the start of the run
  for (const Record::Entry& e : record.entries) {
    const char* stream = record.streams[size_t(e.stream)].c_str();
    const size_t point = e.point < 0 ? 0 : points.try_emplace(e.point, points.size()).first->second;
    if (e.kind == Record::Entry::Kind::record) printf("%s: point %zu\n", stream, point);
    else if (e.kind == Record::Entry::Kind::wait) printf("%s: waits for %zu\n", stream, point);
    if (e.kind != Record::Entry::Kind::work) continue;
    printf("%s: %s", stream, e.name.c_str());
    if (const LaunchShape& s = e.shape; s.kernel)
      printf(" %s <<<%u %u %u, %u %u %u, %zu>>>", kernel_of(s).c_str(), s.grid[0], s.grid[1], s.grid[2], s.block[0],
             s.block[1], s.block[2], s.shared_bytes);
    if (e.flops > 0) printf(" %.17g FLOPs at rate %d, head %d", e.flops, int(e.rate), e.head_size);
    if (e.sent) printf(" sends %zu%s among", e.sent, e.tree ? " along a tree" : "");
    for (const int rank : e.sent ? e.ranks : std::vector<int>()) printf(" %d", rank);
    if (e.crossed) printf(" crosses %zu", e.crossed);
    for (const Access& a : e.accesses)
      if (a.bytes) printf("; %s %zu of %s", a.updated ? "u" : a.write ? "w" : "r", a.bytes, names.of(a).c_str());
    printf("\n");
  }
}

// Asks a rank for all that it does, and lists it: two steps, a snapshot and a step that waits for it, an evaluation, a
// pass of few tokens, two tokens of a sample.
void list(const Configuration& c) {
  DeviceInfo info = modelled_device("H100");
  if (c.on_cpu) info.gpu = info.wide_rows = false, info.compute_capability = 0, info.multiprocessors = 1;
  Device device(info);
  for (const int rank : c.ranks > 1 ? std::vector{0, c.ranks - 1} : std::vector{0}) {
    const Mesh mesh = Mesh::create(c.ranks, rank, c.tensor, c.context, c.hybrid);
    RecordingCommunicator communicator(rank, Communicator::first_ranks(c.ranks));
    const auto trainer = Trainer::create(device, communicator, c.model, c.settings, mesh);
    printf("\n== %s, rank %d\n", c.name.c_str(), rank);
    for (const MemoryPlan::Buffer& b : trainer->plan().buffers())
      printf("plan: %d %s, %s: %zu bytes of %zu at %zu\n", int(b.segment), b.category.c_str(), b.name.c_str(), b.bytes,
             b.element_bytes, b.offset);
    std::optional<Names> names;
    const auto record = [&](const char* what, const auto& ask) {
      Record record;
      device.record_to(&record);
      ask();
      device.record_to(nullptr);
      printf("-- %s\n", what);
      if (!names) names.emplace(trainer->plan(), trainer->arena());
      print(record, *names);
    };
    record("allocate", [&] { trainer->allocate(); });
    const size_t tokens = size_t(c.settings.B) * size_t(c.settings.T);
    const Batch batch = tokens_of(c.model.V, 0, tokens * size_t(c.settings.micro_batches));
    const Batch micro = tokens_of(c.model.V, 0, tokens);
    record("initialize", [&] { trainer->initialize(Init::normal, 7); });
    const auto record_step = [&](int64_t step) {
      record("step", [&] {
        trainer->enqueue_step({step, 1e-3, batch.inputs, batch.labels, {}, batch.positions});
        trainer->wait_for_step();
      });
    };
    for (int64_t step = 0; step < (c.settings.training ? 2 : 0); ++step) record_step(step);
    if (c.settings.snapshot) {
      record("snapshot", [&] { trainer->take_snapshot(); });
      record_step(2);
    }
    record("evaluation", [&] { trainer->evaluate(micro.inputs, micro.labels); });
    if (c.context > 1) continue;
    record("logits", [&] { trainer->logits({micro.inputs.begin(), micro.inputs.begin() + 10}, 1, 10); });
    if (c.tensor > 1) continue;
    record("sample", [&] {
      trainer->next_logits({micro.inputs.data(), 7}, 0);
      trainer->next_logits({micro.inputs.data() + 7, 1}, 7);
    });
  }
}

class Configurations {
 public:
  Configurations() {
    for (const std::string precision :
         {"fp32", "bf16", "tensorwise", "delayed", "rowwise", "rowwise-hp-wgrad", "blockwise"})
      add_precision(precision);
    add_options();
    add_models();
  }
  std::vector<Configuration> all;

 private:
  Configuration& add(const std::string& name, const std::string& precision, const TinyModel& model = {}) {
    const ModelConfig config = tiny(model);
    return all.emplace_back(Configuration{name + " " + precision, config, settings_in(precision, config)});
  }

  // Every way to share work among ranks, and to keep activations, in this precision.
  void add_precision(const std::string& precision) {
    add("one", precision);
    add("on-cpu", precision).on_cpu = true;
    for (const int stage : {1, 2, 3}) {
      Configuration& c = add(format("stage-%d", stage), precision);
      c.ranks = 4, c.settings.zero_stage = stage, c.hybrid = stage == 3 ? 2 : 0;
    }
    Configuration& tensor = add("tensor", precision);
    tensor.ranks = tensor.tensor = 2;
    Configuration& context = add("context", precision);
    context.ranks = context.context = 2;
    Configuration& all_three = add("tensor-context-stage-3", precision);
    all_three.ranks = 8, all_three.tensor = all_three.context = 2, all_three.settings.zero_stage = 3;
    all_three.settings.tensor_chunks = 2;
    Configuration& recompute = add("recompute-block-offload", precision);
    recompute.settings.activations = {Recompute::block, 2, Offload::all, 2};
    if (settings_in(precision, tiny()).fp8.recipe == Fp8Recipe::off) return;
    for (const int stage : {1, 2, 3}) {
      Configuration& gathered = add(format("gathered-stage-%d", stage), precision);
      gathered.ranks = 2, gathered.settings.zero_stage = stage;
      gathered.settings.fp8.all_gather = true;
    }
    Configuration& skipped = add("skip-down", precision);
    skipped.settings = settings_in(precision, skipped.model, "down");
  }

  void add_options() {
    for (const std::string precision : {"bf16", "tensorwise"}) {
      for (const Recompute level : {Recompute::norms, Recompute::mlp, Recompute::block})
        add(format("recompute-%d", int(level)), precision).settings.activations.recompute = level;
      StateSettings& state = add("state-on-host", precision).settings.state;
      state.on_host = state.gradients_on_host = true, state.chunk = 1024;
      StateSettings& narrow = add("bf16-state", precision).settings.state;
      narrow.master = narrow.moments = DType::bf16;
      add("snapshot", precision).settings.snapshot = true;
      add("forward-only", precision).settings.training = false;
      Configuration& reduced = add("reduce-bf16", precision);
      reduced.ranks = 2, reduced.settings.zero_stage = 2, reduced.settings.reduce_dtype = DType::bf16;
      Configuration& sums = add("tensor-sums-bf16", precision);
      sums.ranks = sums.tensor = 2, sums.settings.tensor_sums = DType::bf16;
    }
    add("fp8-stats", "delayed").settings.fp8_stats = 1;
    for (const int stage : {0, 1, 2, 3}) add_stores(stage);
    add_offloads();
    for (const std::string precision : {"tensorwise", "delayed"}) add_gathers(precision);
  }

  // Adds the configurations in which the stores of weights, gradients and state differ from stage to stage.
  void add_stores(int stage) {
    const auto stored = [&](const std::string& name, const std::string& precision,
                            const TinyModel& model = {}) -> auto& {
      Configuration& c = add(format("%s-stage-%d", name.c_str(), stage), precision, model);
      c.ranks = stage ? 4 : 1, c.settings.zero_stage = stage;
      return c;
    };
    stored("three-micro-batches", "bf16").settings.micro_batches = 3;
    stored("snapshot", "bf16").settings.snapshot = true;
    for (const bool tied : {false, true}) {
      const std::string of = tied ? "-tied" : "";
      stored("state-on-host" + of, "bf16", {.tied = tied}).settings.state.on_host = true;
      stored("weights-on-host" + of, "tensorwise", {.tied = tied}).settings.state.weights_on_host = true;
      Configuration& host = stored("gradients-on-host" + of, "tensorwise", {.tied = tied});
      host.settings.state.on_host = host.settings.state.gradients_on_host = true, host.settings.state.chunk = 1024;
    }
    // These configurations have several replicas in stage 3, and several ranks in stage 0.
    Configuration& reduced = stored("reduce-bf16-replicas", "bf16");
    reduced.settings.reduce_dtype = DType::bf16;
    Configuration& narrow = stored("narrow-state-on-host-replicas", "delayed");
    narrow.settings.state = {DType::bf16, DType::bf16, true, true, 1024}, narrow.settings.snapshot = true;
    for (Configuration* c : {&reduced, &narrow}) c->ranks = 4, c->hybrid = stage == 3 ? 2 : 0;
  }

  // Adds configurations in which several blocks use one slot, and which offload a part of what a block saves.
  void add_offloads() {
    for (const Offload offload : {Offload::input, Offload::attention, Offload::all})
      for (const int horizon : {1, 2})
        add(format("offload-%d-horizon-%d", int(offload), horizon), "tensorwise", {.L = 6}).settings.activations = {
            Recompute::norms, 2, offload, horizon};
    Configuration& deep = add("six-blocks-stage-3", "bf16", {.L = 6});
    deep.ranks = 2, deep.settings.zero_stage = 3, deep.settings.prefetch = 2;
  }

  // Adds FP8 gathers of other kinds: of blocks that differ, on demand, under tensor parallelism, with replicas.
  void add_gathers(const std::string& precision) {
    for (const int stage : {2, 3}) {
      const auto gathered = [&](const std::string& name, const std::string& skip = "",
                                const TinyModel& model = {}) -> auto& {
        Configuration& c = add(format("gathered-%s-stage-%d", name.c_str(), stage), precision, model);
        c.settings = settings_in(precision, c.model, skip);
        c.ranks = 4, c.settings.zero_stage = stage, c.settings.fp8.all_gather = true;
        return c;
      };
      gathered("skip-down-of-first", "layers.0.mlp.down_proj");
      gathered("skip-last", "last=1");
      gathered("on-demand").settings.fp8.precompute_scales = false;
      gathered("tensor").tensor = 2;
      gathered("unpadded", "", {.C = 64, .NH = 4, .FF = 128});  // the gathered bytes are the operand
      Configuration& counted = gathered("hybrid-stats");
      counted.hybrid = stage == 3 ? 2 : 0, counted.settings.fp8_stats = 2;
    }
  }

  void add_models() {
    add("tied", "bf16", {.tied = true});
    add("tied", "tensorwise", {.tied = true});
    for (const AttentionKernel kernel : {AttentionKernel::plain, AttentionKernel::mma, AttentionKernel::hopper}) {
      Configuration& c =
          add(format("attention-%d-head-64", int(kernel)), "bf16", {.C = 128, .NH = 2, .NKV = 1, .HD = 64});
      c.settings.attention = kernel;
    }
    add("head-128", "bf16", {.C = 256, .NH = 2, .NKV = 2, .HD = 128});
    Configuration& tied = add("tied-tensor-stage-3", "bf16", {.tied = true});
    tied.ranks = 4, tied.tensor = 2, tied.settings.zero_stage = 3;
    for (const std::string precision : {"bf16", "delayed"}) {
      for (const int stage : {0, 1, 2, 3}) {
        Configuration& c = add(format("copies-of-key-heads-stage-%d", stage), precision, {.NH = 8});
        c.ranks = stage ? 8 : 4, c.tensor = 4, c.settings.zero_stage = stage;
      }
      for (const TinyModel& family : kFamilyModels) {
        Configuration& c = add(std::string(family.family) + "-stage-3", precision, family);
        c.ranks = 2, c.settings.zero_stage = 3;
      }
    }
  }
};

}  // namespace

int main(int argc, char** argv) {
  bool names = false;
  std::vector<std::string> words;
  for (int i = 1; i < argc; ++i)
    if (argv[i] == std::string("--names")) names = true;
    else words.push_back(argv[i]);
  try {
    for (const Configuration& c : Configurations().all) {
      if (!std::all_of(words.begin(), words.end(), [&](const auto& word) { return c.name.find(word) != c.name.npos; }))
        continue;
      if (names) printf("%s\n", c.name.c_str());
      else list(c);
    }
  } catch (const std::exception& error) {
    fprintf(stderr, "error: %s\n", error.what());
    return 1;
  }
  return 0;
}

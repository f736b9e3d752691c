#include "llmc/run/description.h"

#include <algorithm>
#include <cmath>

#include "llmc/base/error.h"
#include "llmc/base/text.h"
#include "llmc/kernels/spike_window.h"

std::string describe_data(const DataSource& source, const DataSources& all) {
  const TokenDataset& data = source.tokens;
  const std::optional<DocumentRule>& documents = source.documents;
  std::string text;
  if (!source.name.empty()) {
    int64_t sum = 0;
    for (const DataSource& other : all) sum += other.weight;
    text = format("%s, %.3g%%: ", source.name.c_str(), 100 * double(source.weight) / double(sum));
  }
  text += format("%s tokens of %s", human_count(double(data.size())).c_str(),
                 source.pattern.empty() ? "the bundled text (TinyShakespeare)" : source.pattern.c_str());
  if (data.shards() > 1) text += format(" (%d files)", data.shards());
  if (data.is_text()) text += ", byte by byte";
  if (data.has_masks()) text += ", whose masks say what is learnt";
  if (documents)
    text += format("; packed documents, each %s token %lld", documents->begins ? "begins with" : "ends with",
                   (long long)documents->token);
  return text;
}

std::string describe_held_out(const DataSource& held_out, const std::string& measured, const Options& options) {
  return format("held out%s: %s tokens, %s: %s", held_out.name.empty() ? "" : (" of " + held_out.name).c_str(),
                human_count(double(held_out.tokens.size())).c_str(), measured.c_str(),
                options.val_data.empty() ? "the last tenth" : held_out.pattern.c_str());
}

// Returns the names of the sources in `of` that no source in `in` has: "law, code".
static std::string names_missing(const DataSources& of, const DataSources& in) {
  std::string names;
  for (const DataSource& source : of)
    if (std::ranges::none_of(in, [&](const DataSource& other) { return other.name == source.name; }))
      names += (names.empty() ? "" : ", ") + source.name;
  return names;
}

std::vector<std::string> describe_unpaired(const DataSources& train, const DataSources& held_out) {
  std::vector<std::string> lines;
  if (train.empty() || held_out.empty() || train[0].name.empty() || held_out[0].name.empty()) return lines;
  if (const std::string names = names_missing(train, held_out); !names.empty())
    lines.push_back(format("nothing is held out of %s: --val-data names files for each source", names.c_str()));
  if (const std::string names = names_missing(held_out, train); !names.empty())
    lines.push_back(format("no source of the training is named %s", names.c_str()));
  return lines;
}

std::string describe_shares(const std::string& train_data) {
  double sum = 0;
  for (const NamedSource& source : training_sources(train_data))
    sum += source.share.empty() ? 1 : std::stod(source.share);
  if (std::abs(sum - 1) < 1e-9) return "";
  return format("the shares add up to %.6g, and are taken in proportion to that", sum);
}

// "<|endoftext|> (1505), (1506)"
static std::string describe_tokens(const std::vector<int>& tokens, const TextCodec& codec) {
  std::string text;
  for (const int token : tokens) {
    const std::optional<std::string> spelled = codec.has_tokenizer() ? codec.tokenizer().token_of(token) : std::nullopt;
    text += (text.empty() ? "" : ", ") + (spelled ? *spelled + " " : "") + format("(%d)", token);
  }
  return text;
}

std::string describe_chat(const DataChat& chat, const TextCodec& codec, bool replaces) {
  std::string text = format("conversations in the form of %s/chat_template.jinja, which the export gets%s",
                            chat.folder.c_str(), replaces ? " in place of the model's other template" : "");
  const std::string ends = describe_tokens(chat.end_of_turn, codec);
  return ends.empty() ? text : text + "; samples end with a turn: " + ends;
}

std::string describe_samples(const std::vector<int32_t>& prompt, const std::string& prompt_from,
                             const std::vector<int>& ends, const Options& options, const TextCodec& codec) {
  TextCodec::Writer writer(codec);
  std::string start;
  for (const int32_t token : prompt) start += writer.take(token);
  start += writer.finish();
  std::string text = "continue --prompt";
  if (!prompt_from.empty())
    text =
        format("begin as the first conversation of the %s data does, up to what is learnt of it", prompt_from.c_str());
  else if (options.prompt.empty())
    text = "begin after " + (start == "\n" ? "a newline" : describe_tokens(prompt, codec));
  const std::string most = counted(options.sample_tokens, "token");
  return text + (ends.empty()
                     ? format(", and have %s", most.c_str())
                     : format(", and end with %s or after %s", describe_tokens(ends, codec).c_str(), most.c_str()));
}

std::string describe_epochs(const Windows& windows, int64_t sequences) {
  const double epochs = double(sequences) / double(windows.count());
  return format("an epoch: %lld sequences, each token once; the run: %.3g epoch%s", (long long)windows.count(), epochs,
                epochs == 1 ? "" : "s");
}

std::string describe_masks(const LabelCounts& counts) {
  const std::string part = format("%.0f%%", 100 * double(counts.labels) / double(counts.tokens));
  if (!counts.all) return format("learns about %s of the tokens", part.c_str());
  return format("learns %s of %s tokens (%s)", human_count(double(counts.labels)).c_str(),
                human_count(double(counts.tokens)).c_str(), part.c_str());
}

std::string describe_bytes(const ModelSource& model) {
  return format("the bytes of the text are the tokens, and the model has %d: name its tokenizer with --tokenizer DIR",
                model.config.V);
}

std::string describe_model(const ModelSource& model) {
  const ModelConfig& c = model.config;
  std::string text = format(
      "%s: %s parameters\n%s, %s, hidden %d, %d query and %d key/value heads of %d, FFN %d, "
      "vocabulary %d%s",
      model.description.c_str(), human_count(double(c.parameters())).c_str(), c.family->model_type,
      counted(c.L, "layer").c_str(), c.C, c.NH, c.NKV, c.HD, c.FF, c.V, c.tied ? " (tied)" : "");
  if (const auto layers = c.windowed_layers(); c.window > 0)
    text += format(", a window of %d keys in %s", c.window,
                   layers == c.L ? "all layers" : counted(layers, "layer").c_str());
  return text;
}

static bool shards(const Mesh& mesh, const Options& options) { return mesh.effective_stage(options.zero_stage) > 0; }

std::string describe_sharing(const Mesh& mesh, const Options& options, const ModelConfig& config) {
  const bool computes_alone = mesh.tensor_degree * mesh.context_degree == 1;
  if (computes_alone && !shards(mesh, options))
    return mesh.state_shards() > 1 ? "every rank keeps the whole state (--zero-stage 1, 2, 3 shard it)"
                                   : "every rank keeps the whole state (--hybrid-shard-degree 1)";
  return describe_mesh(mesh, options, config);
}

std::string describe_mesh(const Mesh& mesh, const Options& options, const ModelConfig& config) {
  const bool sharded = shards(mesh, options);
  std::string text = mesh.description() + (sharded ? format(", ZeRO stage %lld", (long long)options.zero_stage)
                                                   : ", ZeRO stage 0: nothing is sharded over data ranks");
  if (mesh.context_degree > 1 && config.NKV <= mesh.tensor_degree)
    text += "\nwith one key and value head a rank nothing hides its gather for context parallelism";
  return text;
}

std::string describe_data_ranks(const Mesh& mesh) {
  const int groups = mesh.data_degree(), each = mesh.tensor_degree * mesh.context_degree;
  return each == 1 ? counted(groups, "rank") : counted(groups, "group") + format(" of %d ranks", each);
}

std::string describe_step(const RunSettings& settings, const Mesh& mesh) {
  return format("%s of %d tokens: %s x %s of %d", counted(settings.G, "sequence").c_str(), settings.T,
                describe_data_ranks(mesh).c_str(), counted(settings.micro_batches, "micro-batch", "es").c_str(),
                settings.B);
}

std::string describe_skipped(const std::vector<int64_t>& steps) {
  constexpr size_t kNamed = 8;
  std::string list = steps.size() > kNamed ? "…, " : "";
  for (size_t i = steps.size() - std::min(kNamed, steps.size()); i < steps.size(); ++i)
    list += std::to_string(steps[i]) + (i + 1 < steps.size() ? ", " : "");
  return format("skipped %s: %s", counted(int64_t(steps.size()), "step").c_str(), list.c_str());
}

std::string describe_stages(const std::vector<TrainingStage>& stages) {
  std::string text;
  for (const TrainingStage& stage : stages) {
    text += text.empty() ? "" : "\n";
    text += format("%s, from step %lld on", stage.name.empty() ? "the first" : stage.name.c_str(),
                   (long long)stage.first_step + 1);
    if (stage.tokens) text += format(", after %s tokens", human_count(double(stage.tokens)).c_str());
    for (size_t i = 0; i < stage.changed.size(); ++i) text += (i == 0 ? ": " : ", ") + stage.changed[i];
  }
  return text;
}

std::string describe_spikes(const Options& o) {
  return format(
      "a step is skipped if its loss or gradient norm is more than %g standard deviations above those of the last %u "
      "steps, once there are %u; %s in a row end%s the run",
      o.skip_spikes, SpikeWindow::kSteps, SpikeWindow::kFewest, counted(o.bad_steps_limit, "skipped step").c_str(),
      o.bad_steps_limit == 1 ? "s" : "");
}

std::string describe_checkpoints(const Options& o, const RunSettings& s) {
  if (!s.saves(o))
    return format("none%s%s: --checkpoint-every N or --checkpoint-minutes N saves them, and one at the end",
                  o.checkpoint_on_signal ? " but at Ctrl-C" : "",
                  o.checkpoint_on_signal && o.stop_after > 0 ? " and at the end of --stop-after" : "");
  std::string when;
  if (o.checkpoint_every) when = format("every %s", counted(o.checkpoint_every, "step").c_str());
  if (s.checkpoint_minutes > 0)
    when += format(when.empty() ? "every %g minutes" : ", or %g minutes after the last one", s.checkpoint_minutes);
  const char* how = s.snapshot           ? "from a copy in the host's memory, while training goes on"
                    : o.checkpoint_async ? "while training waits: there is no room for a copy in the host's memory"
                                         : "while training waits";
  return format("%s, and at the end; %s", when.c_str(), how);
}

Json run_facts(int64_t first_step, int64_t nodes, int ranks, const DeviceInfo& device, const RunSettings& settings,
               const std::string& fp8, const ModelConfig& model, const TextCodec& codec, int64_t data_tokens,
               const std::vector<TrainingStage>& stages) {
  return Json::object()
      .set("first_step", first_step)
      .set("stages", to_json(stages))
      .set("nodes", nodes)
      .set("ranks", ranks)
      .set("device", device.name)
      .set("gpu", device.gpu)
      .set("dtype", dtype_name(settings.dtype))
      .set("fp8", fp8)
      .set("seq_len", settings.T)
      .set("micro_batch", settings.B)
      .set("global_batch", settings.G)
      .set("model_name", model.name)
      .set("parameters", model.parameters())
      .set("model", model.to_json())
      .set("tokenizer", codec.identity())
      .set("data_tokens", data_tokens);
}

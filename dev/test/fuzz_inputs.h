// The readers of files from strangers, and inputs for each: for fuzz_readers.cpp. `make` writes files into a folder,
// sound ones with changes of their structure; `read` reads them as the program does.
#pragma once

#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "dev/test/fuzz_document.h"
#include "dev/test/fuzz_tokenizers.h"
#include "dev/test/token_files.h"
#include "llmc/base/checksum.h"
#include "llmc/base/json.h"
#include "llmc/base/options.h"
#include "llmc/base/safetensors.h"
#include "llmc/config/parameters.h"
#include "llmc/data/choices.h"
#include "llmc/data/documents.h"
#include "llmc/data/shard_manifest.h"
#include "llmc/data/text_codec.h"
#include "llmc/data/token_dataset.h"
#include "llmc/data/unigram.h"
#include "llmc/kernels/tuning.h"
#include "llmc/run/export_folder.h"
#include "llmc/train/checkpoint.h"
#include "llmc/train/settings.h"

namespace fuzz {

struct Reader {
  const char* name;
  void (*make)(Chance& chance, const std::string& folder);
  void (*read)(const std::string& folder);
};

// Cuts bytes off, adds some or changes one, but for a few inputs.
inline std::string changed_bytes(std::string bytes, Chance& chance) {
  const size_t kind = chance.below(6);
  if (kind == 0) bytes.resize(chance.below(bytes.size() + 1));
  if (kind == 1) bytes.append(chance.below(2000), char(chance.bits()));
  if (kind == 2 && !bytes.empty()) bytes[chance.below(bytes.size())] = char(chance.bits());
  return bytes;
}

// ---------------------------------------------------------------------------------------------- models

inline void make_config(Chance& chance, const std::string& folder) {
  static const Json public_models = [] {
    Json all = Json::array();
    std::ifstream file("dev/test/configs/families.jsonl");
    for (std::string line; std::getline(file, line);) all.push_back(parsed(line).at("config"));
    return all;
  }();
  static const std::vector<std::string> words = {
      R"("llama")",
      R"("qwen2")",
      R"("qwen3")",
      R"("mistral")",
      R"("ministral")",
      R"("olmo2")",
      R"("full_attention")",
      R"("sliding_attention")",
      R"(["sliding_attention"])",
      R"({"rope_type":"llama3","factor":8.0})",
      R"({"rope_type":"yarn","factor":1e300,"beta_fast":1e308,"original_max_position_embeddings":1})",
      R"({"type":"dynamic","factor":1})",
      R"(["LlamaForCausalLM"])",
      "16",
      "64",
      "128",
      "10000",
      "10001",
      "1048576",
      "1048577",
      "16777216",
      "16777217"};
  Document document(public_models.at(chance.below(public_models.size())));
  write_file(folder + "/config.json", changed_text(document, words, chance));
  static const Document generation(parsed(R"({"eos_token_id":[1,2],"temperature":0.6,"top_p":0.9})"));
  write_file(folder + "/generation_config.json",
             chance.one_in(4) ? changed_text(generation, {}, chance) : generation.written());
}

inline void read_config(const std::string& folder) {
  ModelConfig config = ModelConfig::from_json(Json::read(folder + "/config.json"), "model");
  config.generation = Json::read(folder + "/generation_config.json");
  config.end_tokens();
  (void)(config.generation.dump(2) + ModelConfig::from_json(parsed(config.to_json().dump()), "again").to_json().dump());
  config.flops_per_token(1024, true);
  const ParameterLayout layout(config, 8);
  if (int64_t(layout.size) < config.parameters()) throw std::logic_error("a layout is smaller than its parameters");
  rope_table(config.rope, config.HD, 64);
  config.tensor_part(2, 1).parameters();
}

inline Json header_of(const std::vector<std::pair<std::string, std::vector<int64_t>>>& tensors, std::string* data) {
  Json header = Json::object().set("__metadata__", Json::object().set("format", "pt"));
  for (const auto& [name, extents] : tensors) {
    Json shape = Json::array();
    size_t bytes = 4;
    for (const int64_t extent : extents) shape.push_back(extent), bytes *= size_t(extent);
    const Json offsets = Json::array().push_back(data->size()).push_back(data->size() + bytes);
    header.set(name, Json::object().set("dtype", "F32").set("shape", shape).set("data_offsets", offsets));
    data->resize(data->size() + bytes, 'x');
  }
  return header;
}

inline const std::vector<std::string>& words_of_headers() {
  static const std::vector<std::string> words = {R"("F32")",
                                                 R"("BF16")",
                                                 R"("F8_E4M3")",
                                                 R"("F64")",
                                                 R"("X")",
                                                 "[0,24]",
                                                 "[24,0]",
                                                 "[0,0]",
                                                 "[4,4,4]",
                                                 "[4294967296,4294967296]",
                                                 "[9223372036854775807,2]",
                                                 "[0,9223372036854775807]",
                                                 "[65536,65536,65536,65536]",
                                                 "[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1]",
                                                 "[0,18446744073709551615]",
                                                 "[-1]"};
  return words;
}

// A file of tensors whose header has changes.
inline std::string changed_safetensors(const Json& header, const std::string& data, Chance& chance) {
  std::string text = chance.one_in(10) ? header.dump() : changed_text(Document(header), words_of_headers(), chance);
  uint64_t length = text.size();
  if (chance.one_in(12)) {
    static const std::vector<uint64_t> lengths = {0,           1,           8,          length - 1, length + 1,
                                                  100'000'000, 100'000'001, 1ull << 63, UINT64_MAX};
    length = chance.of(lengths);
  }
  return changed_bytes(std::string(reinterpret_cast<const char*>(&length), 8) + text + data, chance);
}

inline void make_weights(Chance& chance, const std::string& folder) {
  std::string first, second;
  const Json headers[] = {header_of({{"a", {2, 3}}, {"b", {}}, {"c", {0, 5}}}, &first),
                          header_of({{"d", {7}}, {"e", {1, 2, 2}}}, &second)};
  const bool one_file = chance.one_in(2);
  write_file(folder + (one_file ? "/model.safetensors" : "/1.safetensors"),
             one_file || chance.one_in(3) ? changed_safetensors(headers[0], first, chance)
                                          : std::string("\x76\0\0\0\0\0\0\0", 8));
  if (one_file) return;
  const auto whole = [&](const Json& header, const std::string& data) {
    const std::string text = header.dump();
    const uint64_t length = text.size();
    return std::string(reinterpret_cast<const char*>(&length), 8) + text + data;
  };
  if (!chance.one_in(3)) write_file(folder + "/1.safetensors", whole(headers[0], first));
  write_file(folder + "/2.safetensors", whole(headers[1], second));
  static const Document index(parsed(R"({"metadata":{"total_size":64},"weight_map":{"a":"1.safetensors",
    "b":"1.safetensors","c":"1.safetensors","d":"2.safetensors","e":"2.safetensors"}})"));
  static const std::vector<std::string> words = {R"("1.safetensors")",
                                                 R"("2.safetensors")",
                                                 R"("../1.safetensors")",
                                                 R"("1.safetensors\u0000")",
                                                 R"("/dev/zero")",
                                                 R"("..")",
                                                 R"("model.safetensors.index.json")"};
  write_file(folder + "/model.safetensors.index.json", changed_text(index, words, chance));
}

inline void read_weights(const std::string& folder) {
  const Safetensors weights(folder);
  for (const StoredTensor& tensor : weights.tensors()) {
    const std::byte* data = Safetensors::range(tensor, 0, tensor.data_bytes);
    const std::string copy(reinterpret_cast<const char*>(data), tensor.data_bytes);  // reads to the last byte
    weights.at(tensor.name, tensor.shape);
  }
  weights.at("a");
}

// ---------------------------------------------------------------------------------------------- tokenizers

// This reads the files next to a tokenizer: its words for documents, and what an export copies.
inline void make_codec(Chance& chance, const std::string& folder) {
  static const Document config(
      parsed(R"({"bos_token":{"content":"<s>","special":true},"eos_token":"</s>","chat_template":
    [{"name":"default","template":"{{ x }}"}],"added_tokens_decoder":{"0":{"content":"<s>"}}})"));
  static const Document map(parsed(R"({"bos_token":"<s>","eos_token":{"content":"a"},"pad_token":null})"));
  write_file(folder + "/tokenizer.json",
             chance.one_in(4) ? changed_text(sound_tokenizer(), {}, chance) : sound_tokenizer().written());
  write_file(folder + "/tokenizer_config.json", chance.one_in(2) ? changed_text(config, {}, chance) : config.written());
  write_file(folder + "/special_tokens_map.json", chance.one_in(2) ? changed_text(map, {}, chance) : map.written());
  write_file(folder + "/secret", std::string("secret"));
  static const std::vector<std::string> targets = {"../secret", "secret",  "/dev/zero",           "/etc/passwd",
                                                   ".",         "nothing", "chat_template.jinja", "tokenizer.json"};
  if (chance.one_in(3)) std::filesystem::create_symlink(chance.of(targets), folder + "/chat_template.jinja");
}

inline void read_codec(const std::string& folder) {
  ModelConfig config = ModelConfig::preset("tiny");
  const TextCodec codec = TextCodec::open(folder, "", "", config);
  const TokenizerFiles files(codec, config);
  codec.document_token();
  codec.tokenizes_text();
  codec.prompt("a b");
  (void)codec.description();
  std::filesystem::create_directories(folder + "/export");
  files.write(folder + "/export");
}

// ---------------------------------------------------------------------------------------------- checkpoints

inline void make_checkpoint(Chance& chance, const std::string& folder) {
  std::string data;
  const Json header = header_of({{"weights/w@0", {4}}, {"weights/v@0+6", {2, 3}}, {"other/fp8_scales@0", {2}}}, &data);
  Document document(header);
  static const std::vector<std::string> names = {"weights/w@0+0",
                                                 "weights/w@18446744073709551615",
                                                 "weights/w@0+18446744073709551615",
                                                 "weights/w",
                                                 "@",
                                                 "@0",
                                                 "weights/w@-1",
                                                 "weights/v@0+1",
                                                 "weights/w@4",
                                                 "weights/w@0+4",
                                                 "other/fp8_scales@7",
                                                 "weights/@0",
                                                 "a@0@1"};
  if (chance.one_in(2)) document.children[1 + chance.below(3)].first = json_string(chance.of(names));
  const std::string text = chance.one_in(2) ? document.written() : changed_text(document, words_of_headers(), chance);
  const uint64_t length = text.size();
  const std::string share = std::string(reinterpret_cast<const char*>(&length), 8) + text + data;
  static const Document sound_state(parsed(R"({"version":1,"step":7,"ranks":1,"sequences":56,"data_tokens":1000,
    "windows":"concatenation","optimizer_steps":5,"skipped_steps":[2,6],"last_step":{},"last_score":null,
    "model":{"model_type":"llama","vocab_size":256},"options":{"micro_batch":2,"global_batch":8,"seq_len":16,"lr":0.001,
    "layers":1,"tensor_parallel_degree":1,"steps":20,"fp8":"off","zero_stage":0}})"));
  const std::string state = chance.one_in(3) ? sound_state.written() : changed_text(sound_state, {}, chance);
  Json files = Json::object();
  for (const auto& [name, bytes] :
       {std::pair<std::string, const std::string&>{"rank-00000-of-00001.safetensors", share}, {"state.json", state}}) {
    Checksum sum;
    sum.add(bytes.data(), bytes.size());
    files.set(name, Json::object().set("bytes", bytes.size()).set("xxh64", sum.text()));
    write_file(folder + "/" + name, bytes);
  }
  const Document manifest(Json::object().set("format", "train_llama checkpoint 1").set("step", 7).set("files", files));
  static const std::vector<std::string> words = {R"({"bytes":6,"xxh64":"0"})", "7"};
  write_file(folder + "/manifest.json", chance.one_in(3) ? changed_text(manifest, words, chance) : manifest.written());
}

inline void read_checkpoint(const std::string& folder) {
  const Checkpoint checkpoint(folder);
  for (int file = 0; file < checkpoint.files(); ++file) checkpoint.verify(file);
  std::vector<float> numbers(16);
  checkpoint.other("fp8_scales");
  checkpoint.read(StateKind::master, "w", 0, 4, numbers.data());
  checkpoint.read(StateKind::master, "v", 0, 3, numbers.data());
  checkpoint.read(StateKind::master, "v", 6, 3, numbers.data());
  const Options options = parse_options({}, &checkpoint.state().at("options"));
  resolve_settings(options, ModelConfig::preset("tiny"), DeviceInfo(), 2, checkpoint.state().get_int("data_tokens"));
}

// ---------------------------------------------------------------------------------------------- data and settings

inline void make_shards(Chance& chance, const std::string& folder) {
  static const std::vector<int32_t> odd = {0, 1, -1, 7, 20240520, 20240801, 20241121, INT32_MAX, INT32_MIN, 100, 101};
  const auto header = [&](int32_t magic, int32_t version, int32_t tokens) {
    int32_t words[3] = {magic, version, tokens};
    if (chance.one_in(6)) words[chance.below(3)] = chance.of(odd);
    return header_bytes(words[0], words[1], words[2]);
  };
  const auto damaged = [&](const std::string& bytes) {
    return chance.one_in(4) ? changed_bytes(bytes, chance) : bytes;
  };
  const bool four_bytes = chance.one_in(2);
  std::string tokens(size_t(four_bytes ? 4 : 2) * 100, 0);
  if (chance.one_in(4)) tokens[chance.below(tokens.size())] = char(chance.bits());
  write_file(folder + "/a.bin", damaged((four_bytes ? header(20240801, 7, 100) : header(20240520, 1, 100)) + tokens));
  write_file(folder + "/a.mask",
             damaged(header(20241121, 1, 100) + std::string(100, chance.one_in(9) ? char(chance.bits()) : '\1')));
  static const Document manifest(parsed(R"({"format":"train_llama shards 1","tokenizer":{"file":null,"vocabulary":256},
    "delimiter":{"place":"before","token":"<s>","id":0},
    "xxh64_block_bytes":1024,"shards":[{"name":"a.bin","split":"train","tokens":100,"sha256":"00",
               "xxh64":["0123456789abcdef","0123456789abcdef"],"mask":{"name":"a.mask","sha256":"11"}},
              {"name":"b.bin","split":"train","tokens":5,"sha256":"22"}]})"));
  static const std::vector<std::string> words = {R"("../a.bin")", R"("a.bin\u0000")", R"("/etc/passwd")",
                                                 R"("train_llama shards 1")", R"("after")"};
  write_file(folder + "/manifest.json", chance.one_in(3) ? manifest.written() : changed_text(manifest, words, chance));
}

inline void read_shards(const std::string& folder) {
  const std::string pattern = folder + "/*.bin";
  TokenDataset data = TokenDataset::open(pattern, 256);
  data.check(0, data.size());
  std::vector<int32_t> tokens(size_t(std::min<int64_t>(data.size(), 100)));
  data.read(0, int64_t(tokens.size()), tokens.data());
  const DocumentRule rule = document_rule(pattern, -1, ModelConfig::preset("tiny"));
  const LabelCounts counts = count_labels(data, rule);
  unigram_cross_entropy(counts, counts);
  missing_documents(rule, data);
  compare_with_manifests(data);
  listed_checksum(data);
  delimiters_of(data);
  data.check(0, data.size());  // against the checksums of the manifest
}

inline void make_options(Chance& chance, const std::string& folder) {
  static const Document all(options_json(Options()));
  static const std::vector<std::string> words = {"\"auto\"",
                                                 "1000000000",
                                                 "999999999",
                                                 "\"bf16\"",
                                                 "\"fp32\"",
                                                 "\"tensorwise\"",
                                                 "\"delayed\"",
                                                 "\"first=1,last=1\"",
                                                 "\"first=99999999999999999999\"",
                                                 "\"*\"",
                                                 "\"down_proj\"",
                                                 "1000000",
                                                 "16",
                                                 "8",
                                                 "4"};
  // Some of them, so that not each input is refused for the first one.
  Document document = all;
  std::shuffle(document.children.begin(), document.children.end(), std::mt19937_64(chance.bits()));
  document.children.resize(1 + chance.below(12));
  write_file(folder + "/options.json", changed_text(document, words, chance));
}

inline void read_options(const std::string& folder) {
  const Options options = parse_options({"--config", folder + "/options.json"});
  const ModelConfig config = ModelConfig::preset("tiny");
  for (const int ranks : {1, 6})
    for (const int64_t tokens : {int64_t(0), int64_t(1) << 40}) {
      const RunSettings settings = resolve_settings(options, config, DeviceInfo(), ranks, tokens);
      trainer_settings(options, settings);
    }
}

inline void make_tuning(Chance& chance, const std::string& folder) {
  Tuning tuning({"CPU", 0, "OpenBLAS"});
  tuning.set("TN 1x2x3", {"7", 1e-6, 2e-6, 3, 4, {}});
  tuning.set("NN 4x5x6", {"8", 1e-6, 2e-6, 3, 4, {}});
  write_file(folder + "/tuning.json", changed_text(Document(tuning.to_json()), {R"("tuning 1")"}, chance));
}

inline void read_tuning(const std::string& folder) {
  const Tuning tuning = Tuning::from_json(Json::read(folder + "/tuning.json"));
  (void)(tuning.description() + tuning.to_json().dump());
}

inline std::string many_of(const std::string& part) {
  std::string text;
  while (text.size() < 300000) text += part;
  return json_string(text);
}

inline std::string many_endings() {
  std::string text = "\"a\"";
  for (int i = 0; i < 50000; ++i) text += ",\"b\"";
  return "[" + text + "]";
}

inline void make_choices(Chance& chance, const std::string& folder) {
  static const std::vector<Document> sound = {
      parsed(R"({"ctx":"A man sits down. He","endings":["stands up.","runs","a"],"label":2})"),
      parsed(
          R"({"activity_label":"Sit","ctx_a":"A [title] man [x] sits.","ctx_b":"he","ctx":"A man","endings":["stands  up.","b"],"label":"1"})")};
  static const std::vector<std::string> words = {"\"1\"",
                                                 "\"9\"",
                                                 "\"-\"",
                                                 "\"[[[[[[[[\"",
                                                 "\" [title] [title]\"",
                                                 json_string(std::string(20000, '[')),
                                                 json_string(std::string(20000, ' ')),
                                                 many_of("[x]"),
                                                 many_of(" [title]"),
                                                 many_of("  "),
                                                 "[" + many_of("a") + ",\"b\",\"c\"]",
                                                 many_endings()};
  std::string lines;
  for (size_t i = 1 + chance.below(3); i > 0; --i)
    lines += (chance.one_in(3) ? chance.of(sound).written() : changed_text(chance.of(sound), words, chance)) + "\n";
  write_file(folder + "/choices.jsonl", lines.substr(0, 1'000'000));
}

inline void read_choices(const std::string& folder) {
  const TextCodec codec = TextCodec::open("", "", "", ModelConfig::preset("tiny"));  // bytes
  for (const ChoiceFormat format : {ChoiceFormat::lm_eval, ChoiceFormat::llmc}) {
    std::vector<ChoiceItem> items = ::read_choices(folder + "/choices.jsonl", format, {}, codec);
    cut_choices(items, folder, 64);
  }
}

inline const Reader kReaders[] = {{"config", make_config, read_config},
                                  {"weights", make_weights, read_weights},
                                  {"tokenizer", make_tokenizer, read_tokenizer},
                                  {"codec", make_codec, read_codec},
                                  {"checkpoint", make_checkpoint, read_checkpoint},
                                  {"shards", make_shards, read_shards},
                                  {"options", make_options, read_options},
                                  {"tuning", make_tuning, read_tuning},
                                  {"choices", make_choices, read_choices}};

}  // namespace fuzz

#include "llmc/base/foreign_file.h"

#include <cstdint>
#include <cstring>

#include "llmc/base/error.h"

namespace {

struct Foreign {
  int32_t magic;
  const char *what, *instead;
};
constexpr Foreign kForeign[] = {
    {20240326, "llm.c's weights of GPT-2, which is no model of this program", "--help lists what --model takes"},
    {20240327, "what llm.c's test compares with", "test_llama reads the folders of dev/reference/dumps"},
    {20240328, "llm.c's tokenizer of GPT-2, which only decodes",
     "hf download openai-community/gpt2 --local-dir gpt2 --include '*.json', then --tokenizer gpt2"},
    {20240520, "a shard of tokens", "--train-data and --val-data take it"},
    {20240522, "llm.c's questions, cut into GPT-2's tokens",
     "--eval-choices takes the JSON lines that they were made of, as hellaswag_val.jsonl"},
    {20240527, "the state of a training with llm.c", "only llm.c goes on with it"},
    {20240801, "a shard of tokens", "--train-data and --val-data take it"},
    {20240803, "llm.c's weights of Llama 3", "--model takes the folder of Hugging Face's files of this model"},
    {20241121, "the mask of a shard", "name the shard, NAME.bin, and leave the mask next to it"},
};

}  // namespace

std::string foreign_file(std::string_view first_bytes) {
  int32_t magic = 0;
  if (first_bytes.size() >= sizeof magic) std::memcpy(&magic, first_bytes.data(), sizeof magic);
  for (const Foreign& known : kForeign)
    if (magic == known.magic) return format("this is %s: %s", known.what, known.instead);
  return "";
}

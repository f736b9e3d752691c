#include "llmc/data/vocabulary.h"

#include "llmc/base/error.h"
#include "llmc/base/text.h"
#include "llmc/data/shard_manifest.h"
#include "llmc/data/text_codec.h"

DataVocabulary manifest_vocabulary(const std::string& pattern) {
  DataVocabulary largest;
  for (const ShardFolder& folder : shard_folders(pattern)) {
    const Json* tokenizer = folder.manifest.is_null() ? nullptr : folder.manifest.find("tokenizer");
    const int64_t tokens = tokenizer ? tokenizer->get_int("vocabulary", 0) : 0;
    if (tokens > largest.tokens) largest = {tokens, folder.path + "/manifest.json"};
  }
  return largest;
}

DataVocabulary named_vocabulary(const Options& options) {
  if (!options.tokenizer.empty())
    return {open_tokenizer(options.tokenizer).vocabulary_size(), tokenizer_file(options.tokenizer)};
  const DataVocabulary train = manifest_vocabulary(options.train_data),
                       held_out = manifest_vocabulary(options.val_data);
  return train.tokens < held_out.tokens ? held_out : train;
}

DataVocabulary vocabulary_of_shard(const std::string& path, int token_bytes, int64_t token) {
  if (const DataVocabulary listed = manifest_vocabulary(literally(path)); listed.tokens > token) return listed;
  struct Usual {
    int token_bytes;
    DataVocabulary vocabulary;
  };
  const Usual usual[] = {
      {1, {256, "a text of bytes"}}, {2, {50304, "a model of GPT-2's tokens"}}, {4, {128256, "Llama 3's tokenizer"}}};
  for (const auto& [bytes, vocabulary] : usual)
    if (bytes == token_bytes && vocabulary.tokens > token) return vocabulary;
  return {token + 1, "the data, so far as it was read,"};
}

void fail_beyond_vocabulary(const std::string& where, int64_t token, int V, const DataVocabulary& data) {
  fail(
      "%s is %lld\n  expected tokens below the model's vocabulary of %d: with random weights --vocab-size %lld, as "
      "many "
      "as %s has; with loaded weights data of their own tokenizer, for a text --tokenizer DIR, for shards "
      "dev/data/prepare --tokenizer DIR",
      where.c_str(), (long long)token, V, (long long)data.tokens, data.whose.c_str());
}

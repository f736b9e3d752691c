// Covers: promise 2: the sources of a mixture have their shares in each prefix and window of the order, on any ranks
#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "dev/test/test.h"
#include "dev/test/token_files.h"
#include "llmc/data/data_folder.h"
#include "llmc/data/data_sources.h"
#include "llmc/data/mixture.h"
#include "llmc/data/sampler.h"
#include "llmc/data/unigram.h"

namespace {

// The largest and the smallest deviation of a source's number of samples from its share, over all prefixes of `samples`
// samples. The difference of the two is the largest deviation of a window.
struct Deviation {
  double most = 0, least = 0;
};
std::vector<Deviation> deviations(const Mixture& mixture, int64_t samples) {
  std::vector<int64_t> counts(size_t(mixture.sources()));
  std::vector<Deviation> all(counts.size());
  bool in_order = true;
  for (int64_t g = 0; g < samples; ++g) {
    const auto [source, index] = mixture.sequence(g);
    in_order = in_order && index == counts[size_t(source)]++;
    for (size_t i = 0; i < counts.size(); ++i) {
      const double off = double(counts[i]) - double(g + 1) * mixture.share(int(i));
      all[i].most = std::max(all[i].most, off), all[i].least = std::min(all[i].least, off);
    }
  }
  CHECK(in_order);  // the index is the number of the source's samples before
  for (size_t i = 0; i < counts.size(); ++i) CHECK(mixture.sequences(int(i), samples) == counts[i]);
  return all;
}

// Sources "a", "b", … whose tokens count from 1000000, 2000000, …: so many each.
DataSources counting_sources(const TemporaryFolder& folder, const std::vector<size_t>& sizes,
                             const std::vector<int64_t>& weights) {
  DataSources sources;
  for (size_t i = 0; i < sizes.size(); ++i) {
    const std::string name(1, char('a' + i)), path = folder / (name + ".bin");
    std::vector<uint32_t> tokens(sizes[i]);
    std::iota(tokens.begin(), tokens.end(), uint32_t(i + 1) * 1000000);
    write_shard(path, tokens);
    sources.push_back({name, path, weights[i], TokenDataset::open(path, 1 << 30)});
  }
  return sources;
}

std::string refused(const std::string& train_data) {
  return error_of([&] { training_sources(train_data); });
}

}  // namespace

TEST_CASE("each prefix is within one sample of the shares, and each window within two, for 400 random mixtures") {
  std::mt19937_64 random(11);
  double worst_prefix = 0, worst_window = 0;
  for (int trial = 0; trial < 400; ++trial) {
    const int sources = 1 + trial % 12, largest = trial % 3 == 0 ? 4 : trial % 3 == 1 ? 100 : 1000;
    std::vector<int64_t> weights;
    for (int i = 0; i < sources; ++i) weights.push_back(1 + int64_t(random() % uint64_t(largest)));
    if (trial % 5 == 0) weights[0] = 20000;  // one source has nearly all
    const Mixture mixture(weights);
    const double limit = sources == 1 ? 0 : 1 - 1.0 / (2 * sources - 2);
    for (const auto& [most, least] : deviations(mixture, 2 * mixture.period() + 7)) {
      CHECK(most <= limit + 1e-9);  // Tijdeman's bound; 1e-9 for the rounding of the shares
      CHECK(least >= -limit - 1e-9);
      worst_prefix = std::max({worst_prefix, most, -least}), worst_window = std::max(worst_window, most - least);
    }
  }
  CAPTURE(worst_prefix);
  CAPTURE(worst_window);
  CHECK(worst_prefix < 1);
  CHECK(worst_prefix > 0.8);  // the mixtures were hard ones
  CHECK(worst_window < 2);
}

TEST_CASE("the order of a mixture is fixed: a saved run resumes in the same order") {
  const auto order = [](const std::vector<int64_t>& weights, int64_t first, int64_t count) {
    const Mixture mixture(weights);
    std::string text;
    for (int64_t g = first; g < first + count; ++g) text += char('a' + mixture.sequence(g).source);
    return text;
  };
  // Worked out by a separate program, in fractions.
  CHECK(order({14, 5, 1}, 0, 20) == "aabaabaaabaabacaaaba");
  CHECK(order({14, 5, 1}, 20'000'000'000, 20) == order({14, 5, 1}, 0, 20));
  CHECK(order({1, 1}, 0, 6) == "ababab");
  CHECK(order({700, 300}, 3, 10) == order({7, 3}, 3, 10));
  CHECK(order({5}, 0, 3) == "aaa");
  const Mixture::Sequence late = Mixture({14, 5, 1}).sequence(20'000'000'000 + 14);
  CHECK(late.source == 2);
  CHECK(late.index == 1'000'000'000);
}

TEST_CASE("impossible mixtures are refused") {
  says(error_of([] { Mixture({}); }), "a mixture of 0 sources");
  says(error_of([] { Mixture({1, 0}); }), "a weight of at least 1");
  says(error_of([] { Mixture({999'999, 2}); }), "would repeat after 1000001 sequences", "give the shares fewer digits");
  CHECK(error_of([] { Mixture({999'999, 1}); }) == "");
  CHECK(error_of([] { Mixture({2'000'000, 1'000'000}); }) == "");
  says(error_of([] { Mixture({1, 2}).sequence(-1); }), "sample -1");
}

TEST_CASE("the options name sources and shares") {
  const std::vector<NamedSource> sources =
      training_sources("web=web/*.bin@0.7,code={a,b}/*.bin@.25, books=b@ks/x=1.bin@5e@0.05");
  REQUIRE(sources.size() == 3, "%zu sources", sources.size());
  CHECK(sources[0].name == "web");
  CHECK(sources[0].pattern == "web/*.bin");
  CHECK(sources[1].pattern == "{a,b}/*.bin");
  CHECK(sources[2].name == "books");
  CHECK(sources[2].pattern == "b@ks/x=1.bin@5e");
  CHECK(sources[0].weight == 14);
  CHECK(sources[1].weight == 5);
  CHECK(sources[2].weight == 1);
  CHECK(text_of(sources) == "web=web/*.bin@0.7,code={a,b}/*.bin@.25,books=b@ks/x=1.bin@5e@0.05");
  const auto weights = [](const std::string& text) {
    std::vector<int64_t> all;
    for (const NamedSource& source : training_sources(text)) all.push_back(source.weight);
    return all;
  };
  CHECK(weights("a=x@14,b=y@5,c=z@1.000") == std::vector<int64_t>{14, 5, 1});
  CHECK(weights("a=x@0.3333,b=y@0.3333,c=z@00.3333") == std::vector<int64_t>{1, 1, 1});
  CHECK(weights("a=x@999999999,b=y@999999999") == std::vector<int64_t>{1, 1});
  SUBCASE("the comma and the @ of a file name") {
    TemporaryFolder folder;
    for (const char* name : {"a,b.txt", "c@2", "d,e"}) write_file(folder / name, "some text");
    const std::string text =
        "a=" + (folder / "a\\,b.txt") + "@1,c=" + (folder / "c\\@2") + "@1,d=" + (folder / "?,*") + "@3";
    says(refused(text), "is no source of a mixture");  // the last comma ends a source
    const std::vector<std::string> patterns = patterns_of("a=" + (folder / "a\\,b.txt") + ",c=" + (folder / "c\\@2"));
    CHECK(patterns == std::vector<std::string>{folder / "a,b.txt", folder / "c@2"});
    const std::vector<NamedSource> held_out =
        held_out_sources("a=" + (folder / "?\\,b.*") + ",c=" + (folder / "c\\@2"));
    CHECK(TokenDataset::open(held_out[0].pattern, 256).shard_path(0) == folder / "a,b.txt");
    CHECK(TokenDataset::open(held_out[1].pattern, 256).shard_path(0) == folder / "c@2");
    CHECK(held_out_sources(text_of(held_out))[0].pattern == held_out[0].pattern);
    CHECK(held_out_sources(text_of(held_out))[1].pattern == held_out[1].pattern);
  }
  SUBCASE("data that is no mixture is as it was") {
    for (const std::string text :
         {"", "my.txt", "data/*.bin", "data/lr=0.1@2,x.bin", "./a=b.txt@0.5", "{a,b}=x", "=x"}) {
      CAPTURE(text);
      CHECK(training_sources(text).size() == 1);
      CHECK(training_sources(text)[0].name == "");
      CHECK(training_sources(text)[0].pattern == text);
      CHECK(text_of(held_out_sources(text)) == text);
    }
  }
}

TEST_CASE("a list that is no mixture is refused with what to do") {
  says(refused("web=x@0.7,web=y@0.3"), "the source web is named twice");
  says(refused("web=x@0.7,code=y"), "the source code has no share", "code=y@0.25");
  for (const char* share : {"-0.3", "nan", "30%", "3e-1", "0.3 ", ""})
    says(refused(std::string("web=x@0.7,code=y@") + share), "the source code has no share", "in digits", "code=y@0.25");
  says(refused("web=x@50%,code=y@50%"), "the source web has no share: '@50%' is none", "as web=x@0.25");
  says(refused("web=x@0.7,code=y:0.3"), "the source code has no share: ':0.3' is none", "as code=y@0.25");
  says(refused("web=x@-1,code=y@0.3"), "the source web has no share: '@-1' is none");
  says(refused("web=x@2x.txt,code=y@0.3"), "the source web has no share\n", "as web=x@2x.txt@0.25");
  says(refused("web=x@0.7,code=y@0.0"), "the source code has the share 0.0", "more than 0: leave the source out");
  says(refused("web=x@0.7,y@0.3"), "'y@0.3' is no source of a mixture", "expected NAME=FILES@SHARE");
  says(refused("web=x@0.7,code=@0.3"), "'code=@0.3' is no source");
  says(refused("web=x@0.7,"), "'' is no source");
  says(refused("web=x@0.7,code=y@0.1234567891"), "at most 9 digits");
  says(refused("web=x@0.7000001,code=y@0.3"), "would repeat after 10000001 sequences");
  says(error_of([] { held_out_sources("web=x@0.7"); }), "the source web has the share 0.7", "remove @0.7");
}

TEST_CASE("folders of sources: files for validation are the held-out data of their source") {
  TemporaryFolder folder;
  for (const char* name :
       {"web,1/a_train_0.bin", "web,1/a_val_0.bin", "books/x.txt", "books/y.txt", "code/val.bin", "code/z.bin"}) {
    std::filesystem::create_directories(std::filesystem::path(folder / name).parent_path());
    write_file(folder / name, "x");
  }
  Options named;
  named.train_data =
      "web=" + (folder / "web\\,1") + "@1,books=" + (folder / "books") + "@2,code=" + (folder / "code") + "@1";
  const Options used = with_files_of_folders(named);
  const std::vector<NamedSource> train = training_sources(used.train_data), held_out = held_out_sources(used.val_data);
  CHECK(train[0].pattern == folder / "web,1/*_train_*.bin");
  CHECK(train[1].pattern == folder / "books/*.txt");
  CHECK(train[2].pattern == folder / "code/z.bin");
  CHECK(train[1].weight == 2);
  REQUIRE(held_out.size() == 2, "%zu held-out sources", held_out.size());
  CHECK(held_out[0].name == "web");
  CHECK(held_out[0].pattern == folder / "web,1/*_val_*.bin");
  CHECK(held_out[1].name == "code");
  const std::vector<std::string> about = describe_folders(named, used);
  CHECK(about.size() == 2);
  says(about.at(1), "code/val.bin is not trained on, but held out");
  CHECK(with_files_of_folders(used).train_data == used.train_data);
}

TEST_CASE("each source has epochs of its own, in orders of their own") {
  TemporaryFolder folder;
  const int T = 4;
  const DataSources sources = counting_sources(folder, {39, 39, 9}, {14, 5, 1});
  const Sampler sampler(sources, T, 7), alone(sources[0].tokens, T, 7), other(sources[1].tokens, T, 7);
  std::vector<std::vector<int64_t>> starts(3);
  for (int64_t g = 0; g < 2000; ++g) {
    const Sampler::Place place = sampler.place(g);
    starts[size_t(place.source)].push_back(place.start);
    std::vector<int32_t> inputs(T), labels(T);
    sampler.read(place, inputs.data(), labels.data());
    CHECK(inputs[0] == (place.source + 1) * 1000000 + place.start);
  }
  CHECK(starts[0].size() == 1400);
  CHECK(starts[1].size() == 500);
  CHECK(starts[2].size() == 100);
  bool as_alone = true, as_other = true, as_first = true;
  for (size_t i = 0; i < 500; ++i) {
    as_alone = as_alone && alone.place(int64_t(i)).start == starts[0][i];
    as_other = as_other && other.place(int64_t(i)).start == starts[1][i];
    as_first = as_first && starts[0][i] == starts[1][i];
  }
  CHECK(as_alone);  // the first source has the order of its data without a mixture
  CHECK(!as_other);
  CHECK(!as_first);
  for (int source = 0; source < 3; ++source) {  // each window once an epoch
    const auto W = size_t(sampler.sequences_per_epoch(source));
    for (size_t epoch = 0; (epoch + 1) * W <= starts[size_t(source)].size(); ++epoch) {
      const auto begin = starts[size_t(source)].begin() + ptrdiff_t(epoch * W);
      std::vector<int64_t> of_epoch(begin, begin + ptrdiff_t(W));
      std::ranges::sort(of_epoch);
      CHECK(std::ranges::adjacent_find(of_epoch) == of_epoch.end());
    }
  }
  says(error_of([&] { Sampler(sources, 9, 7); }), "source c: no sequence of 9 tokens and a label fits",
       "the data has 9 tokens");
}

TEST_CASE("the same samples of a mixture on 1, 2 and 4 ranks, and over a resume") {
  TemporaryFolder folder;
  const int T = 4;
  DataSources sources = counting_sources(folder, {399, 101, 33}, {14, 5, 1});
  sources[1].documents = DocumentRule{2000003, true};
  sources[2].documents = DocumentRule{3000006, false};
  const int64_t G = 8, steps = 40;
  std::vector<int32_t> first;  // inputs, labels, positions and sources of all steps on one rank
  for (const int R : {1, 2, 4})
    for (const int B : {1, 2}) {
      const BatchLayout layout{G, R, B};
      std::vector<int32_t> all;
      std::optional<Sampler> sampler;
      for (int64_t step = 0; step < steps; ++step) {
        if (step == 0 || step == 17) sampler.emplace(sources, T, 3);  // a resume has no more than the step's number
        for (int64_t k = 0; k < layout.micro_batches(); ++k)
          for (int rank = 0; rank < R; ++rank) {
            std::vector<int32_t> inputs(size_t(B * T)), labels(inputs), positions(inputs), from(static_cast<size_t>(B));
            sampler->fill(layout, step, k, rank, inputs.data(), labels.data(), positions.data(), from.data());
            for (size_t b = 0; b < size_t(B); ++b) {
              all.push_back(from[b]);
              for (const auto* array : {&inputs, &labels, &positions})
                all.insert(all.end(), array->begin() + ptrdiff_t(b) * T, array->begin() + ptrdiff_t(b + 1) * T);
            }
          }
      }
      if (first.empty()) first = all;
      CAPTURE(R);
      CAPTURE(B);
      CHECK(all == first);
    }
  // Each row is split by the rule of its own source.
  int begins = 0, ends = 0, wrong = 0;
  for (size_t row = 0; row < first.size(); row += 1 + 3 * T) {
    const int32_t source = first[row], *inputs = &first[row + 1], *labels = inputs + T, *positions = labels + T;
    for (int t = 0; t < T; ++t) {
      if (source == 1 && inputs[t] == 2000003) ++begins, wrong += positions[t] != 0;
      if (source == 1) wrong += labels[t] == 2000003;
      if (source == 2 && inputs[t] == 3000006) ++ends, wrong += labels[t] != -100;
      if (source == 0) wrong += positions[t] != t;
    }
  }
  CHECK(wrong == 0);
  CHECK(begins > 0);
  CHECK(ends > 0);
}

TEST_CASE("the labels of a mixture are counted in the proportions of its shares") {
  TemporaryFolder folder;
  write_file(folder / "a.txt", std::string(1001, 'a'));
  write_file(folder / "b.txt", std::string(101, 'b'));
  const auto open = [&](const char* name) { return TokenDataset::open(folder / name, 256); };
  const LabelCounts counts = count_labels(DataSources{{"a", "", 1, open("a.txt")}, {"b", "", 4, open("b.txt")}});
  CHECK(counts.of_token['b'] == 100);  // each label once
  CHECK(counts.of_token['a'] == 25);
  CHECK(counts.labels == 125);
  const LabelCounts alone = count_labels(DataSources{{"", "", 1, open("a.txt")}});
  CHECK(alone.of_token['a'] == 1000);
  CHECK(alone.tokens == 1001);
  write_shard(folder / "c.bin", std::vector<uint16_t>{1, 2, 3});
  write_file(folder / "c.mask", header_bytes(20241121, 1, 3) + std::string(3, '\0'));
  const LabelCounts none = count_labels(DataSources{{"", "", 1, open("c.bin")}});
  CHECK(none.labels == 0);
  CHECK(none.tokens == 3);
}

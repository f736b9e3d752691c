// Covers: promise 2: the order of the data is a function of seed and sample number, whatever the number of ranks
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <numeric>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "dev/test/test.h"
#include "dev/test/token_files.h"
#include "llmc/data/sampler.h"
#include "llmc/data/token_order.h"

namespace {

// A shard whose tokens tell their position: first, first+1, ...
std::vector<uint32_t> counting(uint32_t first, size_t count) {
  std::vector<uint32_t> tokens(count);
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

TokenDataset counting_dataset(const TemporaryFolder& folder, const std::vector<size_t>& sizes) {
  for (size_t i = 0; i < sizes.size(); i++)
    write_shard(folder / (std::to_string(100 + i) + ".bin"), counting(uint32_t(i) * 1000000, sizes[i]));
  return TokenDataset::open(folder / "*.bin", 1 << 30);
}

std::vector<int64_t> order_of(int64_t size, uint64_t seed, uint64_t stream) {
  const Permutation permutation(size, seed, stream);
  std::vector<int64_t> images;
  for (int64_t i = 0; i < size; i++) images.push_back(permutation(i));
  return images;
}

bool is_permutation_of_indices(std::vector<int64_t> images) {
  std::sort(images.begin(), images.end());
  for (size_t i = 0; i < images.size(); i++)
    if (images[i] != int64_t(i)) return false;
  return true;
}

using RanksAndRows = std::pair<int, int>;  // R, B

// Sum of (seen - expected)^2 / expected: about cells-1 for a fair draw, with a standard deviation of sqrt(2 cells).
double chi_square(const std::vector<int>& seen, double expected) {
  double sum = 0;
  for (int count : seen) sum += (count - expected) * (count - expected) / expected;
  return sum;
}

}  // namespace

TEST_CASE("a permutation reaches every number once, for every size") {
  for (int64_t size = 1; size <= 300; size++)
    for (uint64_t stream = 0; stream < 5; stream++) {
      CAPTURE(size);
      CHECK(is_permutation_of_indices(order_of(size, 42, stream)));
    }
  for (int64_t size : {1023, 1024, 1025, 65537, 1000003}) {
    CAPTURE(size);
    CHECK(is_permutation_of_indices(order_of(size, 7, 3)));
  }
}

TEST_CASE("permutations depend on the seed and on the stream, and on nothing else") {
  CHECK(order_of(1000, 1, 0) == order_of(1000, 1, 0));
  CHECK(order_of(1000, 1, 0) != order_of(1000, 2, 0));
  CHECK(order_of(1000, 1, 0) != order_of(1000, 1, 1));
  CHECK(order_of(1000, 1, 0) != order_of(1000, 0, 1));
}

TEST_CASE("the values of a permutation are fixed: a saved run resumes in the same order") {
  // Worked out by a separate program from the definition in sampler.h and sampler.cpp.
  CHECK(order_of(10, 1337, 4) == std::vector<int64_t>{1, 7, 2, 3, 0, 6, 5, 4, 8, 9});
  const Permutation large((int64_t(1) << 40) + 12345, 99, 6);
  CHECK(large(0) == 359543500953);
  CHECK(large((int64_t(1) << 40)) == 427170342395);
}

TEST_CASE("permutations are fair") {
  SUBCASE("all six orders of three numbers, all two of two") {
    std::map<std::vector<int64_t>, int> three, two;
    for (uint64_t stream = 0; stream < 6000; stream++) three[order_of(3, 5, stream)]++, two[order_of(2, 5, stream)]++;
    std::vector<int> seen;
    for (const auto& [order, count] : three) seen.push_back(count);
    CHECK(seen.size() == 6);
    CHECK(chi_square(seen, 1000) < 5 + 6 * std::sqrt(10.0));
    seen.clear();
    for (const auto& [order, count] : two) seen.push_back(count);
    CHECK(seen.size() == 2);
    CHECK(chi_square(seen, 3000) < 1 + 6 * std::sqrt(2.0));
  }
  SUBCASE("every number is followed by every other, at a size that is no power of two") {
    const int size = 23;
    std::vector<int> pairs(size * size), places(size * size);
    for (uint64_t stream = 0; stream < 20000; stream++) {
      const std::vector<int64_t> order = order_of(size, 11, stream);
      for (int i = 0; i < size; i++) places[size_t(i * size + order[size_t(i)])]++;
      pairs[size_t(order[3] * size + order[4])]++;
    }
    CHECK(chi_square(places, 20000.0 / size) < (size - 1) * (size - 1) + 6 * std::sqrt(2.0 * size * size));
    std::vector<int> different;  // a number never follows itself
    for (int i = 0; i < size * size; i++) {
      if (i % size == i / size) CHECK(pairs[size_t(i)] == 0);
      if (i % size != i / size) different.push_back(pairs[size_t(i)]);
    }
    CHECK(chi_square(different, 20000.0 / (size * (size - 1))) < size * (size - 1) + 6 * std::sqrt(2.0 * size * size));
  }
}

TEST_CASE("a permutation refuses what it does not permute") {
  says(error_of([] { Permutation(0, 1, 1); }), "a permutation of 0 numbers");
  const Permutation permutation(10, 1, 1);
  CHECK(error_of([&] { permutation(10); }) == "number 10 of a permutation of 10");
  CHECK(error_of([&] { permutation(-1); }) == "number -1 of a permutation of 10");
}

TEST_CASE("an epoch's windows hold each token once, with the next one as its label, for every shift") {
  for (const std::vector<size_t>& sizes :
       std::vector<std::vector<size_t>>{{16}, {17}, {23}, {24}, {9}, {1, 2, 3, 4, 5, 6}, {30, 1, 50, 8}})
    for (const int T : {1, 2, 8}) {
      TemporaryFolder folder;
      const Windows windows(counting_dataset(folder, sizes), T);
      const TokenDataset& data = windows.data();
      std::vector<int32_t> all(size_t(data.size()));
      data.read(0, data.size(), all.data());
      CAPTURE(all.size());
      CAPTURE(T);
      CHECK(windows.count() == (data.size() + T - 1) / T);
      std::set<int64_t> first_starts;
      for (int step = 0; step <= 100; step++) {
        const uint64_t shift = step == 100 ? UINT64_MAX : uint64_t(step) * (UINT64_MAX / 100);
        first_starts.insert(windows.place(0, shift).start);
        std::map<int32_t, int32_t> label_of;  // by input
        int64_t padding = 0;
        for (int64_t i = 0; i < windows.count(); i++) {
          const Windows::Place place = windows.place(i, shift);
          std::vector<int32_t> inputs(size_t(T) + 1, -7), labels(size_t(T) + 1, -7);
          windows.read(place, inputs.data(), labels.data());
          CHECK(inputs.back() == -7);
          CHECK(labels.back() == -7);
          for (int t = 0; t < place.tokens; t++) CHECK(label_of.emplace(inputs[size_t(t)], labels[size_t(t)]).second);
          for (int t = place.tokens; t < T; t++, padding++) CHECK(inputs[size_t(t)] == 0);
          for (int t = place.tokens; t < T; t++) CHECK(labels[size_t(t)] == -100);
        }
        CHECK(padding == windows.count() * T - data.size());
        CHECK(label_of.size() == all.size());
        for (size_t i = 0; i < all.size(); i++) CHECK(label_of.at(all[i]) == (i + 1 < all.size() ? all[i + 1] : -100));
      }
      CHECK(first_starts.size() == size_t(T));  // each of 0 .. T-1
      CHECK(*first_starts.rbegin() == T - 1);
      says(error_of([&] { windows.place(windows.count(), 0); }), "of " + std::to_string(windows.count()));
      CHECK(error_of([&] { windows.place(-1, 0); }) != "");
    }
}

TEST_CASE("each token of 890 short files once an epoch, on 1, 2 and 4 ranks and over a resume") {
  TemporaryFolder folder;
  const int T = 128;
  std::mt19937 random(3);
  uint32_t next = 0;
  for (int file = 0; file < 890; file++) {
    const uint32_t size = 100 + random() % 281;  // most hold no window of their own
    write_shard(folder / (std::to_string(1000 + file) + ".bin"), counting(next, size));
    next += size;
  }
  const TokenDataset data = TokenDataset::open(folder / "*.bin", 1 << 30);
  CHECK(data.size() == next);
  const int64_t W = Sampler(data, T, 1).sequences_per_epoch(), G = 8;
  constexpr int64_t epochs = 2;
  CHECK(W == (int64_t(next) + T - 1) / T);
  for (const int R : {1, 2, 4}) {
    CAPTURE(R);
    const BatchLayout layout{G, R, 2};
    std::vector<std::vector<int>> inputs_seen(epochs, std::vector<int>(next)), labels_seen = inputs_seen;
    std::vector<std::optional<Sampler>> ranks(static_cast<size_t>(R));
    const int64_t steps = (epochs * W + G - 1) / G;
    for (int64_t step = 0; step < steps; step++)
      for (int rank = 0; rank < R; rank++) {
        auto& sampler = ranks[size_t(rank)];
        if (step == 0 || step == steps / 3) sampler.emplace(TokenDataset::open(folder / "*.bin", 1 << 30), T, 1);
        for (int64_t k = 0; k < layout.micro_batches(); k++) {
          std::vector<int32_t> inputs(2 * T), labels(2 * T);
          sampler->fill(layout, step, k, rank, inputs.data(), labels.data());
          for (int row = 0; row < 2; row++) {
            const int64_t epoch = layout.sequence(step, k, rank, row) / W;
            if (epoch >= epochs) continue;
            const int tokens = sampler->place(layout.sequence(step, k, rank, row)).tokens;
            for (int t = 0; t < T; t++) {
              const int32_t input = inputs[size_t(row * T + t)], label = labels[size_t(row * T + t)];
              if (t < tokens) inputs_seen[size_t(epoch)][size_t(input)]++;
              if (label != -100) labels_seen[size_t(epoch)][size_t(label)]++;
            }
          }
        }
      }
    for (int64_t epoch = 0; epoch < epochs; epoch++) {
      CHECK(inputs_seen[size_t(epoch)] == std::vector<int>(next, 1));
      std::vector<int> all_but_the_first(next, 1);
      all_but_the_first[0] = 0;
      CHECK(labels_seen[size_t(epoch)] == all_but_the_first);
    }
  }
}

TEST_CASE("data that is too short for a window is refused") {
  TemporaryFolder folder;
  const TokenDataset data = counting_dataset(folder, {10, 64, 20});
  CHECK(error_of([&] { Windows(data, 93); }) == "");
  says(error_of([&] { Windows(data, 94); }),
       "no sequence of 94 tokens and a label fits: the data has 94 tokens in 3 files, the first is " +
           data.shard_path(0),
       "expected 95: lower --seq-len");
  says(error_of([&] { Windows(data, 0); }), "windows of 0 tokens");
}

TEST_CASE("every window comes once an epoch, in another order and at other borders each time") {
  TemporaryFolder folder;
  const int T = 4;
  const Sampler sampler(counting_dataset(folder, {103, 57, 4, 5}), T, 1234);
  const int64_t W = sampler.sequences_per_epoch();
  CHECK(W == 43);  // 169 tokens
  std::vector<std::vector<int64_t>> orders;
  std::set<int64_t> borders;
  for (int64_t epoch = 0; epoch < 40; epoch++) {
    std::vector<int64_t> order;
    std::set<int64_t> residues;
    for (int64_t i = 0; i < W; i++) {
      const int64_t start = sampler.place(epoch * W + i).start;
      order.push_back(start);
      if (start >= T) residues.insert(start % T);  // those before may have gone past the end
    }
    CHECK(residues.size() == 1);  // one shift an epoch
    borders.insert(*residues.begin());
    for (int64_t& start : order) start = (start - *residues.begin() + 169) % 169 / T;  // the number of its window
    CHECK(std::set(order.begin(), order.end()).size() == size_t(W));
    CHECK(std::find(orders.begin(), orders.end(), order) == orders.end());
    orders.push_back(order);
  }
  CHECK(borders.size() == size_t(T));
  says(error_of([&] { sampler.place(-1); }), "sample -1");
}

TEST_CASE("ranks and micro-steps together compute exactly the step's samples, whatever the layout") {
  TemporaryFolder folder;
  const int T = 4;
  const Sampler sampler(counting_dataset(folder, {203, 157}), T, 77);
  const int64_t G = 24;
  std::vector<std::vector<int32_t>> first_inputs;  // of the first layout, by step and sample
  for (const auto& [R, B] : std::vector<RanksAndRows>{{1, 24}, {1, 1}, {2, 3}, {4, 6}, {3, 2}, {24, 1}, {8, 1}}) {
    const BatchLayout layout{G, R, B};
    CAPTURE(R);
    CAPTURE(B);
    CHECK(layout.micro_batches() == G / (R * B));
    for (int64_t step = 0; step < 8; step++) {
      std::map<int64_t, std::vector<int32_t>> rows;  // by sample
      for (int rank = 0; rank < R; rank++)
        for (int64_t k = 0; k < layout.micro_batches(); k++) {
          std::vector<int32_t> inputs(size_t(B) * T, -1), labels(size_t(B) * T, -1);
          sampler.fill(layout, step, k, rank, inputs.data(), labels.data());
          for (int b = 0; b < B; b++) {
            const int64_t g = layout.sequence(step, k, rank, b);
            CHECK(g == step * G + k * (R * B) + rank * B + b);
            const auto row = inputs.begin() + b * T;
            CHECK(rows.emplace(g, std::vector<int32_t>(row, row + T)).second);
            for (int t = 0; t < T; t++)
              if (const int32_t label = labels[size_t(b * T + t)]; label != row[t] + 1)
                CHECK((row[t] == 202 ? label == 1000000 : row[t] == 1000156 && label == -100));
          }
        }
      CHECK(rows.size() == size_t(G));
      CHECK(rows.begin()->first == step * G);
      CHECK(rows.rbegin()->first == step * G + G - 1);
      for (const auto& [g, inputs] : rows) {
        if (first_inputs.size() == size_t(g)) first_inputs.push_back(inputs);
        CHECK(first_inputs[size_t(g)] == inputs);
      }
    }
  }
  // 192 samples of an epoch of 90: the third began.
  CHECK(sampler.sequences_per_epoch() == 360 / T);
}

TEST_CASE("a layout that does not divide the batch is refused with what to do") {
  const auto micro_batches = [](int64_t G) { return error_of([&] { BatchLayout{G, 4, 3}.micro_batches(); }); };
  says(micro_batches(100), "a global batch of 100 sequences is not a multiple of 4 data ranks x micro-batch 3 = 12",
       "--global-batch (to 108, say)");
  says(micro_batches(0), "a global batch of 0 sequences, 4 data ranks, a micro-batch of 3");
  const BatchLayout layout{24, 4, 3};
  CHECK(error_of([&] { layout.sequence(0, 1, 3, 2); }) == "");
  says(error_of([&] { layout.sequence(0, 2, 0, 0); }), "row 0 of micro-step 2 of rank 0 in step 0");
  CHECK(error_of([&] { layout.sequence(0, 0, 4, 0); }) != "");
  CHECK(error_of([&] { layout.sequence(0, 0, 0, 3); }) != "");
  CHECK(error_of([&] { layout.sequence(-1, 0, 0, 0); }) != "");
}

TEST_CASE("the seed decides") {
  TemporaryFolder folder;
  const TokenDataset data = counting_dataset(folder, {4000});
  const auto starts = [&](uint64_t seed) {
    std::vector<int64_t> places;
    for (int64_t g = 48; g < 64; ++g) places.push_back(Sampler(data, 8, seed).place(g).start);
    return places;
  };
  CHECK(starts(1) == starts(1));
  CHECK(starts(1) != starts(2));
  CHECK(starts(0) != starts(uint64_t(1) << 63));
}

TEST_CASE("validation windows are evenly spread and belong to no layout") {
  TemporaryFolder folder;
  const int T = 4;
  const TokenDataset data = counting_dataset(folder, {T * 100, T * 50});
  SUBCASE("evenly") {
    const ValidationWindows windows(data, T, 15);
    CHECK(windows.count() == 15);
    for (int64_t i = 0; i < 15; i++) {
      CHECK(windows.place(i).start == i * 10 * T);
      CHECK(windows.place(i).tokens == T);
    }
    says(error_of([&] { windows.place(15); }), "validation window 15 of 15");
  }
  SUBCASE("at most what there is, each once") {
    const ValidationWindows windows(data, T, 1000);
    CHECK(windows.count() == 150);
    std::set<int64_t> places;
    for (int64_t i = 0; i < 150; i++) places.insert(windows.place(i).start);
    CHECK(places.size() == 150);
    CHECK(*places.rbegin() == 149 * T);  // the last whole window, too
    says(error_of([&] { ValidationWindows(data, T, 0); }), "0 validation windows");
  }
  SUBCASE("whatever their number, all windows together measure each token but the first once") {
    for (const size_t size : {2, 4, 5, 9, 10, 11, 12, 13, 14, 16, 17}) {
      TemporaryFolder own;
      const ValidationWindows windows(counting_dataset(own, {size}), T, 1000);
      CAPTURE(size);
      std::vector<int32_t> predicted;
      for (int64_t k = 0; k < windows.micro_batches(1, 1); k++) {
        std::vector<int32_t> inputs(T), labels(T);
        CHECK(windows.fill(1, 1, k, 0, inputs.data(), labels.data()) == 1);
        for (int32_t label : labels)
          if (label != -100) predicted.push_back(label);
        CHECK(labels[0] != -100);  // no row without any
      }
      std::vector<int32_t> expected(size - 1);
      std::iota(expected.begin(), expected.end(), 1);
      CHECK(predicted == expected);
    }
  }
  SUBCASE("each once over ranks and micro-steps; rows beyond the last are ignored") {
    const ValidationWindows windows(data, T, 15);
    for (const auto& [R, B] : std::vector<RanksAndRows>{{1, 1}, {1, 15}, {1, 4}, {2, 3}, {4, 4}, {3, 2}}) {
      std::multiset<int32_t> first_tokens;
      int64_t filled = 0;
      for (int rank = 0; rank < R; rank++)
        for (int64_t k = 0; k < windows.micro_batches(R, B); k++) {
          std::vector<int32_t> inputs(size_t(B) * T, -1), labels(size_t(B) * T, -1);
          const int rows = windows.fill(R, B, k, rank, inputs.data(), labels.data());
          filled += rows;
          for (int b = 0; b < B; b++)
            for (int t = 0; t < T; t++) {
              const int32_t input = inputs[size_t(b * T + t)], label = labels[size_t(b * T + t)];
              if (b < rows) CHECK((label == input + 1 || (input == 399 && label == 1000000)));
              if (b >= rows) CHECK(label == -100);
              if (b >= rows) CHECK(input == 0);
              if (b < rows && t == 0) first_tokens.insert(input);
            }
        }
      CAPTURE(R);
      CAPTURE(B);
      CHECK(filled == 15);
      std::multiset<int32_t> expected;
      for (int i = 0; i < 15; i++) expected.insert(i < 10 ? i * 10 * T : 1000000 + (i - 10) * 10 * T);
      CHECK(first_tokens == expected);
    }
    int32_t row[T];
    says(error_of([&] { windows.fill(2, 3, 3, 0, row, row); }), "validation micro-step 3 of rank 0");
    says(error_of([&] { windows.fill(2, 3, 0, 2, row, row); }), "rank 2");
  }
}

TEST_CASE("files beyond 2 GiB and positions beyond 2^31: sparse files that take no room") {
  TemporaryFolder folder;
  const auto write_at = [](const std::string& path, int64_t byte, const std::string& bytes) {
    std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
    file.seekp(byte);
    file.write(bytes.data(), std::streamsize(bytes.size()));
    file.close();
    CHECK(bool(file));
  };
  SUBCASE("a shard whose bytes pass 2 GiB is scanned and read to its end") {
    const int32_t tokens = 1100000000;
    const std::string path = write_file(folder / "big.bin", header_bytes(20240520, 1, tokens));
    std::filesystem::resize_file(path, 1024 + 2 * uintmax_t(tokens));
    write_at(path, 1024 + 2 * (int64_t(tokens) - 3), bytes_of(std::vector<uint16_t>{7, 8, 9}));
    int32_t out[3];
    const TokenDataset narrow = TokenDataset::open(path, 9);
    says(error_of([&] { narrow.read(0, tokens - 3, 3, out); }), "token 1099999999 is 9");
    says(error_of([&] { narrow.check(tokens - 100000000, 100000000); }), "token 1099999999 is 9");
    const TokenDataset data = TokenDataset::open(path, 10);
    data.read(0, tokens - 3, 3, out);
    CHECK(out[0] == 7);
    CHECK(out[2] == 9);
  }
  SUBCASE("a text of more than 2^31 tokens, and two of them") {
    const int64_t size = (int64_t(1) << 31) + 5000;
    for (const char* name : {"a.txt", "b.txt"}) {
      write_file(folder / name, "start");
      std::filesystem::resize_file(folder / name, uintmax_t(size));
      write_at(folder / name, (int64_t(1) << 31) + 100, "beyond");
    }
    const TokenDataset data = TokenDataset::open(folder / "*.txt", 256);
    CHECK(data.size() == 2 * size);
    const int T = 1;
    const Windows windows(data, T);
    CHECK(windows.count() == 2 * size);
    const Windows::Place place = windows.place(size + (int64_t(1) << 31) + 100, 0);
    CHECK(place.start == size + (int64_t(1) << 31) + 100);
    int32_t input = 0, label = 0;
    windows.read(place, &input, &label);
    CHECK(input == 'b');
    CHECK(label == 'e');

    const auto [head, tail] = data.split(size + (int64_t(1) << 31) + 102);
    int32_t out[4];
    tail.read(0, 0, 4, out);
    CHECK(std::string(out, out + 4) == "yond");

    const Sampler sampler(data, 1024, 3);
    std::set<int64_t> places;
    for (int64_t g = 0; g < 20000; g++) {
      const int64_t start = sampler.place((int64_t(1) << 45) + g).start;
      CHECK(start >= 0);
      CHECK(start < 2 * size);
      places.insert(start);
    }
    CHECK(*places.rbegin() > size + (int64_t(1) << 30));
    CHECK(places.size() == 20000);
    const ValidationWindows spread(data, 1024, 1000);
    CHECK(spread.place(999).start > 2 * size - 5000000);
  }
}

TEST_CASE("samples that are left out are the only ones that change, for any number of ranks") {
  const TemporaryFolder folder;
  const TokenDataset data = counting_dataset(folder, {2000, 1500});
  const Sampler all(data, 10, 7);
  Sampler fewer(data, 10, 7);
  const std::vector<BadStep> bad{
      {"", 3, "nan", {{8, 11}}}, {"", 3, "nan", {{12, 15}}}, {"", 90, "nan", {{364, 365}, {400, 401}}}};
  fewer.leave_out(bad);
  std::vector<int64_t> left;  // the numbers that the training has, in their order
  for (int64_t number = 0; number < 1200; ++number)
    if (!((number >= 8 && number <= 15) || number == 364 || number == 365 || number == 400 || number == 401))
      left.push_back(number);
  for (size_t g = 0; g < left.size(); ++g) {
    CAPTURE(g);
    CHECK(fewer.number_of(int64_t(g)) == left[g]);
    CHECK(fewer.place(int64_t(g)).start == all.place(left[g]).start);
  }
  for (const auto& [ranks, rows] : {RanksAndRows(1, 4), RanksAndRows(2, 2), RanksAndRows(4, 1)})
    for (int rank = 0; rank < ranks; ++rank) {
      std::vector<int32_t> inputs(size_t(rows) * 10), labels(inputs.size());
      fewer.fill({4, ranks, rows}, 2, 0, rank, inputs.data(), labels.data());  // step 2 would have had samples 8 to 11
      for (int row = 0; row < rows; ++row) {
        int32_t input[10], label[10];
        all.read(all.place(16 + rank * rows + row), input, label);
        CHECK(std::equal(input, input + 10, &inputs[size_t(row) * 10]));
      }
    }
  const auto ranges = fewer.numbers_of(354, 6);  // 354 + 8 left out before it = 362, 363 | 366 …
  CHECK(ranges.size() == 2);
  CHECK((ranges[0].first == 362 && ranges[0].last == 363 && ranges[1].first == 366 && ranges[1].last == 369));
}

TEST_CASE("a list of bad steps says what it was made of, and is refused if it does not rise") {
  const std::vector<BadStep> bad{{"", 22, "loss nan", {{168, 175}}}, {"", 23, "loss inf", {{176, 183}, {190, 191}}}};
  const Json list = to_json(bad);
  CHECK(to_json(bad_steps_of(list)) == list);
  CHECK(describe_bad_steps(bad) == "samples 168 to 175 (step 22), 176 to 183 (step 23), 190 to 191 (step 23)");
  says(error_of([&] { bad_steps_of(to_json({bad[1], bad[0]})); }), "bad step 22 stands after step 23");
  says(error_of([&] { bad_steps_of(to_json({bad[0], bad[0]})); }), "samples 168 to 175 after sample 175");
  says(error_of([&] { bad_steps_of(to_json({{"", 1, "", {{5, 4}}}})); }), "samples 5 to 4");

  const std::string text = Json::object().set("steps", list).dump();
  const auto added = [&](std::vector<BadStep> before, const std::string& of_stage, int64_t step) {
    add_bad_steps(before, text, of_stage, step);
    return before.size();
  };
  CHECK(added({}, "", 21) == 2);  // both come after the checkpoint
  CHECK(added({}, "", 22) == 1);  // the first was trained on before it
  CHECK(added({}, "", 23) == 0);
  CHECK(added({}, "cooldown", 0) == 0);  // of another stage
  CHECK(added({bad[0]}, "", 21) == 2);   // the checkpoint has one of them
  std::vector<BadStep> none;
  add_bad_steps(none, "", "", 0);
  CHECK(none.empty());
}

TEST_CASE("positions sorted by token are stable, for all widths of tokens") {
  std::mt19937 random(5);
  std::vector<int32_t> scratch;
  for (int32_t vocab_size : {1, 2, 256, 2047, 2048, 2049, 128256, 1 << 22, (1 << 22) + 1, INT32_MAX})
    for (int n : {0, 1, 2, 7, 1000, 4096}) {
      std::vector<int32_t> tokens(static_cast<size_t>(n)), order(size_t(n) + 1, -7), expected(static_cast<size_t>(n));
      // Few different tokens, so that many are equal; the largest one among them.
      std::vector<int32_t> some = {vocab_size - 1, 0};
      for (int i = 0; i < 30; i++) some.push_back(int32_t(random() % uint32_t(vocab_size)));
      for (int32_t& token : tokens) token = some[random() % some.size()];
      std::iota(expected.begin(), expected.end(), 0);
      std::stable_sort(expected.begin(), expected.end(),
                       [&](int32_t a, int32_t b) { return tokens[size_t(a)] < tokens[size_t(b)]; });
      sort_indices_by_token(tokens.data(), n, order.data(), scratch);
      CAPTURE(vocab_size);
      CAPTURE(n);
      CHECK(order.back() == -7);
      order.pop_back();
      CHECK(order == expected);
    }
  const int32_t negative[] = {3, 1, -100};
  int32_t order[3];
  says(error_of([&] { sort_indices_by_token(negative, 3, order, scratch); }), "token -100 at position 2 of 3");
}

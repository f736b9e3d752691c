#include "llmc/train/full_tensors.h"

#include <algorithm>
#include <cstring>

#include "llmc/base/error.h"
#include "llmc/device/number.h"

std::vector<std::vector<float>> FullTensors::of(int unit, const float* own) const {
  constexpr size_t kAtOnce = size_t(4) << 20;
  const ParameterLayout& here = layouts_[size_t(ranks_.rank())];
  const Unit& u = here.units[size_t(unit)];
  std::vector<std::vector<float>> whole;
  for (int i = 0; i < u.tensor_count; ++i) {
    const ParameterInfo& t = here.tensors[size_t(u.first_tensor + i)];
    whole.emplace_back(size_t(t.whole_rows) * size_t(t.whole_columns));
  }
  const DeviceMemory memory(compute_.device(), std::min(u.size, kAtOnce) * sizeof(float));
  float* sent = reinterpret_cast<float*>(memory.data());
  std::vector<float> numbers;
  for (int rank = 0; rank < ranks_.size(); ++rank) {
    const ParameterLayout& theirs = layouts_[size_t(rank)];
    for (size_t first = 0; first < u.size; first += numbers.size()) {
      numbers.resize(std::min(kAtOnce, u.size - first));
      if (rank == ranks_.rank()) copy(compute_, sent, own + first, numbers.size());
      ranks_.broadcast(compute_, sent, numbers.size() * sizeof(float), rank);
      ranks_.wait_for(compute_);
      copy(compute_, numbers.data(), sent, numbers.size());
      compute_.synchronize();
      for (const Slice& slice : theirs.slices(unit, first, numbers.size())) {
        float* to = whole[size_t(slice.tensor - &theirs.tensors[size_t(u.first_tensor)])].data();
        const int copy = slice.tensor->copy;
        slice.window().for_runs(slice.count, [&](size_t i, uint64_t at, size_t count) {
          REQUIRE(copy == 0 || memcmp(to + at, &numbers[slice.at + i], count * sizeof(float)) == 0,
                  "%s: copy %d of it, on tensor-parallel rank %d, differs from the first", slice.tensor->name.c_str(),
                  copy, rank);
          memcpy(to + at, &numbers[slice.at + i], count * sizeof(float));
        });
      }
    }
  }
  return whole;
}

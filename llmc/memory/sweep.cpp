#include "llmc/memory/sweep.h"

#include <algorithm>

Sweep::Sweep(Device& device, Stream& compute, HostStreams* host, size_t chunk)
    : compute_(compute), host_(host), chunk_(chunk) {
  for (int slot = 0; host && slot < 2; ++slot)
    loaded_.emplace_back(device), computed_.emplace_back(device), stored_.emplace_back(device);
}

void Sweep::begin() {
  for (const Event& stored : stored_) host_->in.wait(stored);
}

void Sweep::finish() {
  for (const Event& stored : stored_) compute_.wait(stored);
}

void Sweep::run(std::span<const SweepArray> arrays, const F& f) {
  std::vector<Tensor> here;
  if (std::none_of(arrays.begin(), arrays.end(), [](const SweepArray& a) { return bool(a.slots); })) {
    for (const SweepArray& a : arrays) here.push_back(a.kept);
    return f(here, 0);
  }
  const int64_t size = arrays.back().kept.size();
  for (int64_t done = 0, n; done < size; done += n, slot_ ^= 1) {
    n = std::min(int64_t(chunk_), size - done);
    const size_t slot = size_t(slot_);
    const auto there = [&](const SweepArray& a) { return a.kept ? a.kept.elements(done, n) : Tensor(); };
    host_->in.wait(stored_[slot]);
    here.clear();
    for (const SweepArray& a : arrays) {
      here.push_back(a.slots ? a.slots->at(slot_).elements(0, n) : there(a));
      if (a.slots) copy(host_->in, here.back(), there(a));
    }
    loaded_[slot].record(host_->in);
    compute_.wait(loaded_[slot]);
    f(here, size_t(done));
    computed_[slot].record(compute_);
    host_->out.wait(computed_[slot]);
    for (size_t i = 0; i < arrays.size(); ++i)
      if (arrays[i].slots && arrays[i].stores) copy(host_->out, there(arrays[i]), here[i]);
    stored_[slot].record(host_->out);
  }
}

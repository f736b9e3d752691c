#include "llmc/memory/slots.h"

#include <algorithm>

Sweep::Sweep(Device& device, Stream& compute, HostStreams* host, size_t chunk)
    : compute_(compute), host_(host), chunk_(chunk) {
  for (int slot = 0; host && slot < 2; ++slot)
    loaded_.emplace_back(device), computed_.emplace_back(device), stored_.emplace_back(device);
}

void Sweep::begin() {
  for (const Event& stored : stored_) host_->in.wait(stored);
}

void Sweep::run(std::span<const SweepOperand> operands, const F& f) {
  std::vector<Tensor> here;
  if (std::none_of(operands.begin(), operands.end(), [](const SweepOperand& o) { return bool(o.slots); })) {
    for (const SweepOperand& o : operands) here.push_back(o.kept);
    return f(here, 0);
  }
  const int64_t size = operands.back().kept.size();
  for (int64_t done = 0, n; done < size; done += n, slot_ ^= 1) {
    n = std::min(int64_t(chunk_), size - done);
    const size_t slot = size_t(slot_);
    const auto there = [&](const SweepOperand& o) { return o.kept ? o.kept.elements(done, n) : Tensor(); };
    host_->in.wait(stored_[slot]);
    here.clear();
    for (const SweepOperand& o : operands) {
      here.push_back(o.slots ? o.slots->at(slot_).elements(0, n) : there(o));
      if (o.slots) copy(host_->in, here.back(), there(o));
    }
    loaded_[slot].record(host_->in);
    compute_.wait(loaded_[slot]);
    f(here, size_t(done));
    computed_[slot].record(compute_);
    host_->out.wait(computed_[slot]);
    for (size_t i = 0; i < operands.size(); ++i)
      if (operands[i].slots && operands[i].stores) copy(host_->out, there(operands[i]), here[i]);
    stored_[slot].record(host_->out);
  }
}

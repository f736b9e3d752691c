#include "llmc/memory/activation_store.h"

#include <map>
#include <tuple>

#include "llmc/base/text.h"

namespace {

constexpr unsigned char kPoison = 0xff;

}  // namespace

ActivationStore::ActivationStore(MemoryPlan& plan, const SavedSizes& sizes,
                                 const std::optional<ActivationPolicy>& policy, Device& device, Stream& compute,
                                 HostStreams* host)
    : sizes_(sizes), policy_(policy), blocks_(size_t(sizes.config.L)), compute_(compute), host_(host) {
  plan_tensors(plan);
  if (offloads()) slots_ = Slots(device, policy_->horizon);
}

void ActivationStore::plan_tensors(MemoryPlan& plan) {
  constexpr const char* categories[] = {"activations", "recompute", "offload slots"};
  constexpr const char* owners[] = {"block %d %s", "workspace %d %s", "slot %d %s"};
  const std::span<const SavedRow> rows = saved_rows();
  // Some are what tensor-parallel ranks gather or scatter (Transformer::rows_segment).
  const Segment segment = sizes_.tensor_parallel ? Segment::symmetric : Segment::device;
  std::map<std::tuple<Storage, int, const char*>, PlannedTensor> planned;
  for (int layer = 0; layer < layers(); ++layer) {
    Saved& block = blocks_[size_t(layer)];
    block.device.resize(rows.size()), block.host.resize(rows.size());
    for (size_t i = 0; i < rows.size(); ++i) {
      const Tensor t = rows[i].tensor(sizes_, layer);
      if (!t) continue;
      const Storage storage = this->storage(rows[i], layer);
      const int index = index_of(rows[i], layer);
      PlannedTensor& there = planned[{storage, index, rows[i].name}];
      if (!there)
        there = plan.add(segment, categories[int(storage)], format(owners[int(storage)], index, rows[i].name), t.type,
                         {t.rows(), t.columns()});
      block.device[i] = there;
      if (storage == Storage::offloaded && leaves(layer))
        block.host[i] = plan.add(Segment::pinned, "activations", format("block %d %s", layer, rows[i].name), t.type,
                                 {t.rows(), t.columns()});
    }
  }
}

Storage ActivationStore::storage(const SavedRow& row, int layer) const {
  return policy_ ? storage_of(row, layer, *policy_, sizes_.config) : Storage::kept;
}

int ActivationStore::index_of(const SavedRow& row, int layer) const {
  if (!policy_) return row.trait == SavedTrait::key_cache ? layer : layer % 2;
  switch (storage(row, layer)) {
    case Storage::kept:
      return layer;
    case Storage::recomputed:
      return 0;
    case Storage::offloaded:
      return slot_of(layer);
  }
  return layer;
}

SavedTensors ActivationStore::get(int layer) const {
  const std::vector<PlannedTensor>& device = blocks_[size_t(layer)].device;
  return SavedTensors({device.begin(), device.end()});
}

bool ActivationStore::recomputes_input(const LayerProjection& p) const {
  const char* const name = p.row().saved_input;
  return name && storage(saved_row(name), p.layer) == Storage::recomputed && recompute(p.layer) != Recompute::none;
}

Recompute ActivationStore::recompute(int layer) const {
  return policy_ && policy_->recomputes(layer) && layer + 1 < layers() ? policy_->recompute : Recompute::none;
}

bool ActivationStore::keeps_keys() const {
  for (const SavedRow& row : saved_rows())
    for (int layer = 0; row.trait == SavedTrait::key_cache && layer < layers(); ++layer)
      if (storage(row, layer) != Storage::kept) return false;
  return true;
}

void ActivationStore::begin_forward(int layer, bool training) {
  if (training && offloads() && layer >= policy_->horizon) slots_.begin_write(slot_of(layer), compute_);
}

void ActivationStore::end_forward(int layer, bool training) {
  if (training && leaves(layer)) send(layer);
}

void ActivationStore::send(int layer) {
  const Saved& block = blocks_[size_t(layer)];
  const std::span<const SavedRow> rows = saved_rows();
  slots_.end_write(slot_of(layer), compute_);
  slots_.begin_read(slot_of(layer), host_->out);
  for (size_t i = 0; i < rows.size(); ++i)
    if (block.host[i]) copy(host_->out, block.host[i], block.device[i]);
  // All is overwritten but what the next block still reads. A later block writes its own over that.
  for (size_t i = 0; policy_->poison && i < rows.size(); ++i)
    if (block.host[i] && rows[i].trait != SavedTrait::next_block)
      fill_bytes(host_->out, block.device[i]->data, kPoison, block.device[i]->span_bytes());
  slots_.end_read(slot_of(layer), host_->out);
}

void ActivationStore::begin_backward(int layer) {
  if (leaves(layer)) slots_.begin_read(slot_of(layer), compute_);
}

void ActivationStore::end_backward(int layer) {
  if (offloads() && layer >= policy_->horizon) fetch(layer - policy_->horizon);
}

// Copies a block's tensors back into the slot that compute no longer uses.
void ActivationStore::fetch(int layer) {
  const Saved& block = blocks_[size_t(layer)];
  slots_.end_read(slot_of(layer), compute_);
  slots_.begin_write(slot_of(layer), host_->in);
  for (size_t i = 0; i < block.host.size(); ++i)
    if (block.host[i]) copy(host_->in, block.device[i], block.host[i]);
  slots_.end_write(slot_of(layer), host_->in);
}

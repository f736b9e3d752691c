#include "llmc/memory/gradient_store.h"

#include <cstring>

GradientStore::GradientStore(MemoryPlan& plan, const TensorLayout& layout, Device& device, Stream& compute,
                             Stream& communication, Communicator& communicator)
    : layout_(layout),
      compute_(compute),
      communication_(communication),
      communicator_(communicator),
      planned_(plan.add<float>(Segment::symmetric, "gradients", "gradients", layout.size)),
      reduced_(device) {
  for (size_t i = 0; i < layout.units.size(); ++i) computed_.emplace_back(device);
}

void GradientStore::bind(const Arena& arena) { gradients_ = arena[planned_]; }

void GradientStore::begin_step() {
  // Everything but the blocks' and head's matrices, as few pieces as there are gaps between those.
  size_t begin = 0;
  for (const Tensor& tensor : layout_.tensors) {
    if (!tensor.is_matrix() || tensor.row->unit == UnitKind::embedding) continue;
    if (tensor.offset > begin) clear(compute_, gradients_ + begin, tensor.offset - begin);
    begin = tensor.offset + tensor.size();
  }
  if (layout_.size > begin) clear(compute_, gradients_ + begin, layout_.size - begin);
}

void GradientStore::reduce(int unit) {
  if (communicator_.size() == 1) return;
  const Unit& u = layout_.units[size_t(unit)];
  computed_[size_t(unit)].record(compute_);
  communication_.wait(computed_[size_t(unit)]);
  communicator_.all_reduce_sum(communication_, gradients_ + u.offset, u.size);
}

void GradientStore::finish_step() {
  if (communicator_.size() == 1) return;
  reduced_.record(communication_);
  compute_.wait(reduced_);
}

#include "llmc/memory/parameter_store.h"

#include <type_traits>

#include "llmc/base/error.h"
#include "llmc/device/number.h"

template <class T>
ParameterStore<T>::ParameterStore(MemoryPlan& plan, const TensorLayout& layout)
    : layout_(layout), separate_(!std::is_same_v<T, float>) {
  planned_master_ =
      plan.add<float>(Segment::device, separate_ ? "optimizer" : "weights", "master weights", layout.size);
  if (separate_) planned_weights_ = plan.add<T>(Segment::device, "weights", "weights", layout.size);
}

template <class T>
void ParameterStore<T>::bind(const Arena& arena) {
  master_ = arena[planned_master_];
  if constexpr (std::is_same_v<T, float>) weights_ = master_;
  else weights_ = arena[planned_weights_];
}

template <class T>
void ParameterStore<T>::gather(int unit) {
  REQUIRE(unit >= 0 && unit < int(layout_.units.size()), "gather of unit %d, the model has %zu", unit,
          layout_.units.size());
}

template <class T>
const T* ParameterStore<T>::get(int unit) {
  REQUIRE(unit >= 0 && unit < int(layout_.units.size()), "get of unit %d, the model has %zu", unit,
          layout_.units.size());
  return weights_;
}

template <class T>
void ParameterStore<T>::release(int unit) {
  REQUIRE(unit >= 0 && unit < int(layout_.units.size()), "release of unit %d, the model has %zu", unit,
          layout_.units.size());
}

template class ParameterStore<float>;
template class ParameterStore<bf16>;

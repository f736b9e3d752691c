#include "llmc/memory/parameter_store.h"

#include <type_traits>

#include "llmc/base/error.h"
#include "llmc/device/faults.h"
#include "llmc/device/number.h"

template <class T>
ParameterStore<T>::ParameterStore(MemoryPlan& plan, const TensorLayout& layout)
    : separate_(!std::is_same_v<T, float>), gathered_(layout.units.size(), false) {
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
void ParameterStore<T>::gather(int unit, const char* file, int line) {
  if (fault_skips(file, line)) return;
  REQUIRE(!gathered_.at(size_t(unit)), "%s:%d: unit %d of the model is gathered again before it was released", file,
          line, unit);
  gathered_[size_t(unit)] = true;
}

template <class T>
const T* ParameterStore<T>::get(int unit) {
  REQUIRE(gathered_.at(size_t(unit)), "the weights of unit %d are asked for, and nobody gathered them", unit);
  return weights_;
}

template <class T>
void ParameterStore<T>::release(int unit, const char* file, int line) {
  if (fault_skips(file, line)) return;
  REQUIRE(gathered_.at(size_t(unit)), "%s:%d: unit %d of the model is released, and nobody gathered it", file, line,
          unit);
  gathered_[size_t(unit)] = false;
}

template class ParameterStore<float>;
template class ParameterStore<bf16>;

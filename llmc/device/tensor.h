// A tensor: a view of memory that somebody else owns, with a type and a shape. Launchers take tensors; kernels take
// pointers.
//
//   Tensor qkv(data, DType::bf16, {N, QKV});
//   qkv.rows(first, count)    (count, QKV)   some of its rows
//   qkv.columns(0, NH * HD)   (N, NH HD)     some of its columns; the rows stay QKV elements apart
//     .heads(B, HD)           (B, T, NH, HD) the rows cut into B sequences and the columns into heads
//   qkv.as<bf16>()            the pointer; throws if the tensor has another type
//
// The last axis is contiguous, and every other axis has a stride. A tensor without axes is absent: an optional argument
// that is not given, or a buffer that the plan leaves out.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <type_traits>

#include "llmc/base/error.h"
#include "llmc/device/number.h"
#include "llmc/device/work.h"

// An index or a number of elements, from any integer type.
struct TensorIndex {
  int64_t value;
  TensorIndex(std::integral auto value) : value(int64_t(value)) {}
  operator int64_t() const { return value; }
};
using TensorShape = std::initializer_list<TensorIndex>;  // the outermost axis first; 1 to 4 axes

struct Tensor {
  void* data = nullptr;  // null until the plan's memory is allocated
  DType type = DType::fp32;
  int axes = 0;                     // 0: absent
  int64_t shape[4] = {1, 1, 1, 1};  // right-aligned: a matrix (N, C) is {1, 1, N, C}
  int64_t stride[4] = {};           // elements from one index of an axis to the next; stride[3] is 1

  Tensor() = default;
  // Both are contiguous. They throw unless 1 to 4 axes have 0 or more elements each.
  Tensor(void* data, DType type, TensorShape shape);
  template <class T>
  Tensor(T* data, TensorShape shape)
      : Tensor(const_cast<std::remove_const_t<T>*>(data), kDType<std::remove_const_t<T>>, shape) {}

  explicit operator bool() const { return axes > 0; }

  // The tensor as a matrix: the last axis is the columns, and all others together are the rows, which lie row_stride()
  // elements apart. rows() and row_stride() throw if the rows do not lie evenly.
  int64_t rows() const;
  int64_t columns() const { return shape[3]; }
  int64_t row_stride() const;
  int64_t size() const { return axes ? shape[0] * shape[1] * shape[2] * shape[3] : 0; }
  bool contiguous() const;
  size_t span_bytes() const;  // from the first element to the last, with the gaps between rows; 0 if absent or empty

  // The pointer to elements of T, null if the tensor is absent. Throws if it has another type.
  template <class T>
  T* as() const {
    if (!axes) return nullptr;
    REQUIRE(type == kDType<T>, "a tensor %s of %s is used as %s", text().c_str(), dtype_name(type),
            dtype_name(kDType<T>));
    return static_cast<T*>(data);
  }

  // Views. Those of an absent tensor are absent. They throw if the part lies outside of the tensor.
  Tensor rows(TensorIndex first, TensorIndex count) const;     // of a matrix
  Tensor columns(TensorIndex first, TensorIndex count) const;  // of a matrix
  Tensor at(TensorIndex index) const;                          // without the first axis, at this index of it
  Tensor first(TensorShape shape) const;  // the first elements of a contiguous tensor, in this shape
  Tensor elements(TensorIndex first,
                  TensorIndex count) const;           // (count) elements of a contiguous tensor, in memory order
  Tensor heads(TensorIndex B, TensorIndex HD) const;  // a matrix (B T, n HD) as (B, T, n, HD)
  Tensor slice(int axis, TensorIndex first, TensorIndex count) const;  // some indices of an axis; axis 0 is the first

  std::string text() const;  // "(64, 128)"; "absent"
};

// These checks throw an Error that names the launcher (`who`), the argument, what it is and what was expected.
// The tensor must be contiguous and have this type and shape; -1 in `shape` allows any extent. `optional`: it may be
// absent.
void require_tensor(const char* who, const char* name, const Tensor& tensor, DType type, TensorShape shape,
                    bool optional = false);
// The same for a view: its rows may lie apart.
void require_view(const char* who, const char* name, const Tensor& tensor, DType type, TensorShape shape);
// The tensor must be contiguous and have this type and this many elements, in any shape; -1 allows any number.
void require_elements(const char* who, const char* name, const Tensor& tensor, DType type, int64_t size);
// The two must not share a byte. Column views of the same rows count as sharing.
void require_apart(const char* who, const char* a_name, const Tensor& a, const char* b_name, const Tensor& b);
bool overlap(const Tensor& a, const Tensor& b);

// A launch declares all bytes of a tensor's span, also the gaps between its rows.
inline Access reads(const Tensor& t) { return {t.data, t.span_bytes(), false}; }
inline Access writes(const Tensor& t) { return {t.data, t.span_bytes(), true}; }
inline Access updates(const Tensor& t) { return {t.data, t.span_bytes(), true, true}; }

// As the forms for pointers in device.h. They throw unless the tensors are contiguous and equal in type and size.
void copy(Stream& stream, const Tensor& to, const Tensor& from, CallSite site = CallSite::here());
void clear(Stream& stream, const Tensor& tensor, CallSite site = CallSite::here());

// Calls body(T{}) with the C++ type of an fp32 or bf16 tensor; throws on any other type.
template <class Body>
void with_type(const char* who, DType type, const Body& body) {
  switch (type) {
    case DType::fp32:
      return body(float{});
    case DType::bf16:
      return body(bf16{});
    default:
      fail("%s: there is no kernel for %s\n  expected fp32 or bf16", who, dtype_name(type));
  }
}

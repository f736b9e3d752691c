#include "llmc/device/tensor.h"

#include <algorithm>

#include "llmc/device/device.h"

Tensor::Tensor(void* data, DType type, TensorShape extents) : data(data), type(type), axes(int(extents.size())) {
  REQUIRE(axes >= 1 && axes <= 4, "a tensor of %d axes\n  expected 1 to 4", axes);
  std::copy(extents.begin(), extents.end(), shape + 4 - axes);
  int64_t elements = 1;
  for (int axis = 3; axis >= 0; --axis) {
    REQUIRE(shape[axis] >= 0, "a tensor %s\n  expected axes of 0 or more elements", text().c_str());
    stride[axis] = elements;
    elements *= shape[axis];
  }
}

std::string Tensor::text() const {
  if (!axes) return "absent";
  std::string text;
  for (int axis = 4 - axes; axis < 4; ++axis) text += (text.empty() ? "(" : ", ") + std::to_string(shape[axis]);
  return text + ")";
}

// Rows lie evenly if each axis above them steps over all rows of the axis below.
int64_t Tensor::rows() const {
  for (int axis = 0; axis < 2; ++axis)
    REQUIRE(shape[axis] == 1 || stride[axis] == shape[axis + 1] * stride[axis + 1],
            "the rows of a tensor %s do not lie evenly: axis %d has a stride of %lld, not %lld", text().c_str(), axis,
            (long long)stride[axis], (long long)(shape[axis + 1] * stride[axis + 1]));
  return axes ? shape[0] * shape[1] * shape[2] : 0;
}

int64_t Tensor::row_stride() const {
  rows();
  return stride[2];
}

bool Tensor::contiguous() const {
  int64_t elements = 1;
  for (int axis = 3; axis >= 0; --axis) {
    if (shape[axis] != 1 && stride[axis] != elements) return false;
    elements *= shape[axis];
  }
  return true;
}

size_t Tensor::span_bytes() const {
  if (!size()) return 0;
  int64_t last = 0;  // the last element
  for (int axis = 0; axis < 4; ++axis) last += (shape[axis] - 1) * stride[axis];
  return size_t(last + 1) * bytes_of(type);
}

namespace {

// A tensor without elements has no address to count from.
void* advanced(const Tensor& t, int64_t elements) {
  return t.data ? static_cast<std::byte*>(t.data) + size_t(elements) * bytes_of(t.type) : nullptr;
}

void require_contiguous(const char* who, const char* name, const Tensor& tensor) {
  REQUIRE(tensor.contiguous(), "%s: %s %s is not contiguous: its rows are %lld elements apart", who, name,
          tensor.text().c_str(), (long long)tensor.stride[2]);
}

void require_memory(const char* who, const char* name, const Tensor& tensor) {
  REQUIRE(tensor.data || !tensor.size(), "%s: %s %s has no memory\n  allocate the plan before the first launch", who,
          name, tensor.text().c_str());
}

// "(64, 128) of fp32"; "absent"
std::string described(const Tensor& tensor) {
  return tensor.text() + (tensor ? std::string(" of ") + dtype_name(tensor.type) : "");
}

}  // namespace

Tensor Tensor::rows(TensorIndex first, TensorIndex count) const {
  if (!axes) return {};
  const int64_t all = rows();
  REQUIRE(first >= 0 && count >= 0 && first <= all - count, "rows %lld to %lld of a tensor %s", (long long)first.value,
          (long long)(first.value + count.value), text().c_str());
  Tensor part(advanced(*this, first * stride[2]), type, {count, shape[3]});
  part.stride[2] = stride[2];
  return part;
}

Tensor Tensor::slice(int axis, TensorIndex first, TensorIndex count) const {
  if (!axes) return {};
  REQUIRE(axis >= 0 && axis < axes, "axis %d of a tensor %s", axis, text().c_str());
  const int index = 4 - axes + axis;
  REQUIRE(first >= 0 && count >= 0 && first <= shape[index] - count, "%lld to %lld of axis %d of a tensor %s",
          (long long)first.value, (long long)(first.value + count.value), axis, text().c_str());
  Tensor part = *this;
  part.data = advanced(*this, first * stride[index]);
  part.shape[index] = count;
  return part;
}

Tensor Tensor::columns(TensorIndex first, TensorIndex count) const {
  if (!axes) return {};
  REQUIRE(first >= 0 && count >= 0 && first <= shape[3] - count, "columns %lld to %lld of a tensor %s",
          (long long)first.value, (long long)(first.value + count.value), text().c_str());
  Tensor part = *this;
  part.data = advanced(*this, first);
  part.shape[3] = count;
  return part;
}

Tensor Tensor::at(TensorIndex index) const {
  if (!axes) return {};
  const int axis = 4 - axes;
  REQUIRE(axes >= 2 && index >= 0 && index < shape[axis], "index %lld of the first of several axes of a tensor %s",
          (long long)index.value, text().c_str());
  Tensor part = *this;
  part.data = advanced(*this, index * stride[axis]);
  part.axes = axes - 1;
  part.shape[axis] = 1;
  return part;
}

Tensor Tensor::first(TensorShape extents) const {
  if (!axes) return {};
  const Tensor part(data, type, extents);
  REQUIRE(contiguous() && part.size() <= size(), "the first %s elements of a tensor %s%s", part.text().c_str(),
          text().c_str(), contiguous() ? "" : ", which is not contiguous");
  return part;
}

Tensor Tensor::elements(TensorIndex first, TensorIndex count) const {
  if (!axes) return {};
  REQUIRE(contiguous() && first >= 0 && count >= 0 && first <= size() - count, "elements %lld to %lld of a tensor %s%s",
          (long long)first.value, (long long)(first.value + count.value), text().c_str(),
          contiguous() ? "" : ", which is not contiguous");
  return Tensor(advanced(*this, first), type, {count});
}

Tensor Tensor::heads(TensorIndex B, TensorIndex HD) const {
  if (!axes) return {};
  const int64_t all = rows();
  REQUIRE(B >= 1 && HD >= 1 && all % B.value == 0 && shape[3] % HD.value == 0,
          "a tensor %s as %lld sequences of heads of %lld: neither its rows nor its columns may be left over",
          text().c_str(), (long long)B.value, (long long)HD.value);
  Tensor part(data, type, {B, all / B.value, shape[3] / HD.value, HD});
  part.stride[1] = stride[2];
  part.stride[0] = part.shape[1] * stride[2];
  return part;
}

namespace {

// "(64, any)": the text of a shape in which -1 stands for any extent.
std::string expected_text(TensorShape shape) {
  std::string text;
  for (const int64_t extent : shape)
    text += (text.empty() ? "(" : ", ") + (extent < 0 ? std::string("any") : std::to_string(extent));
  return text + ")";
}

}  // namespace

// Launchers call this for each tensor, so it makes texts only for an error.
void require_view(const char* who, const char* name, const Tensor& tensor, DType type, TensorShape shape) {
  bool fits = tensor.type == type && tensor.axes == int(shape.size());
  int axis = 4 - int(shape.size());
  for (const int64_t extent : shape) {
    fits &= extent < 0 || tensor.shape[axis] == extent;
    ++axis;
  }
  REQUIRE(fits, "%s: %s is %s\n  expected %s of %s", who, name, described(tensor).c_str(), expected_text(shape).c_str(),
          dtype_name(type));
  require_memory(who, name, tensor);
}

void require_tensor(const char* who, const char* name, const Tensor& tensor, DType type, TensorShape shape,
                    bool optional) {
  if (!tensor && optional) return;
  require_view(who, name, tensor, type, shape);
  require_contiguous(who, name, tensor);
}

void require_elements(const char* who, const char* name, const Tensor& tensor, DType type, int64_t size) {
  REQUIRE(tensor && tensor.type == type && (size < 0 || tensor.size() == size), "%s: %s is %s\n  expected %s of %s",
          who, name, described(tensor).c_str(),
          size < 0 ? "a tensor" : format("%lld elements", (long long)size).c_str(), dtype_name(type));
  require_contiguous(who, name, tensor);
  require_memory(who, name, tensor);
}

bool overlap(const Tensor& a, const Tensor& b) {
  const size_t a_bytes = a.span_bytes(), b_bytes = b.span_bytes();
  return a_bytes && b_bytes && overlap(a.data, a_bytes, b.data, b_bytes);
}

void require_apart(const char* who, const char* a_name, const Tensor& a, const char* b_name, const Tensor& b) {
  REQUIRE(!overlap(a, b), "%s: %s overlaps %s: %zu bytes at %p, %zu bytes at %p", who, a_name, b_name, a.span_bytes(),
          a.data, b.span_bytes(), b.data);
}

void copy(Stream& stream, const Tensor& to, const Tensor& from, CallSite site) {
  require_elements("copy", "the source", from, from.type, -1);
  require_elements("copy", "the destination", to, from.type, from.size());
  copy_bytes(stream, to.data, from.data, to.span_bytes(), site);
}

void clear(Stream& stream, const Tensor& tensor, CallSite site) {
  require_elements("clear", "the tensor", tensor, tensor.type, -1);
  fill_bytes(stream, tensor.data, 0, tensor.span_bytes(), site);
}

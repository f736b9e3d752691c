// The rules of TMA, which are the same in both backends: those of cuTensorMapEncodeTiled for bf16, four dimensions and
// no interleaving.
#include "llmc/device/tensor_map.h"

#include "llmc/base/error.h"

std::string tensor_map_error(const TmaTensor& view) {
  if (reinterpret_cast<uintptr_t>(view.data) % 16 != 0)
    return format("the tensor begins at %p, not at a multiple of 16 bytes: move it to one", view.data);
  for (int d = 0; d < 4; ++d) {
    const int64_t size = view.sizes[d];
    if (size < 1 || size > int64_t(1) << 32)
      return format("dimension %d has %lld elements; 1 to 2^32 are possible: %s", d, static_cast<long long>(size),
                    size < 1 ? "do not copy an empty tensor" : "describe a part of the tensor");
  }
  for (int d = 1; d < 4; ++d) {
    const int64_t stride = view.strides[d - 1];
    if (view.sizes[d] == 1) continue;  // its stride is never used
    if (stride < 0 || stride >= int64_t(1) << 40)
      return format("the stride of dimension %d is %lld bytes; 0 to 2^40 - 16 are possible: %s", d,
                    static_cast<long long>(stride),
                    stride < 0 ? "begin with the last of it and count backwards" : "describe a part of the tensor");
    if (stride % 16 != 0)
      return format(
          "the stride of dimension %d is %lld bytes, not a multiple of 16: pad rows to a multiple of 8 elements", d,
          static_cast<long long>(stride));
  }
  for (int d = 0; d < 4; ++d) {
    if (view.box[d] < 1 || view.box[d] > 256)
      return format("the box has %d elements of dimension %d; 1 to 256 are possible: copy several boxes", view.box[d],
                    d);
  }
  const int row = view.box[0] * 2, line = int(line_bytes(view.swizzle));
  if (row % 16 != 0)
    return format("a row of the box has %d elements, %d bytes, not a multiple of 16: take a multiple of 8 elements",
                  view.box[0], row);
  if (view.swizzle != Swizzle::none && row > line)
    return format(
        "a row of the box has %d elements, %d bytes, and a line of the swizzle %d bytes: copy boxes of %d elements one "
        "after the other",
        view.box[0], row, line, line / 2);
  return "";
}

TensorMap tensor_map(Device& device, const TmaTensor& view, const char* who) {
  const std::string reason = tensor_map_error(view);
  REQUIRE(reason.empty(), "%s: the copy engine refuses this tensor: %s", who, reason.c_str());
  return device.executes() ? encode_tensor_map(view, who) : TensorMap{};
}

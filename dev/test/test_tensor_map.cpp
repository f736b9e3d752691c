// Covers: tensor maps: every rule of the copy engine, at its edge and one beyond, with the values in the error
// Timeout: 60
#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

#include "dev/test/test.h"
#include "llmc/device/tensor_map.h"

namespace {

alignas(1024) std::byte memory[4096];

// Heads of 128 in (batch, sequence, heads): boxes of 64 columns by 128 rows.
TmaTensor heads() {
  TmaTensor view;
  view.data = memory;
  const int64_t sizes[4] = {128, 2048, 8, 2}, strides[3] = {8 * 256, 256, 2048 * 8 * 256};
  const int box[4] = {64, 128, 1, 1};
  std::copy_n(sizes, 4, view.sizes), std::copy_n(strides, 3, view.strides), std::copy_n(box, 4, view.box);
  return view;
}

// Returns why `heads` is refused after the change; "" if it is not.
template <class F>
std::string refused(F&& change) {
  TmaTensor view = heads();
  change(view);
  return tensor_map_error(view);
}

}  // namespace

TEST_CASE("what the kernels copy is taken") {
  CHECK(tensor_map_error(heads()) == "");
  CHECK(tensor_map_error({.data = memory, .sizes = {8, 1, 1, 1}, .box = {8, 1, 1, 1}}) == "");
}

TEST_CASE("addresses are multiples of 16 bytes") {
  CHECK(refused([](TmaTensor& v) { v.data = memory + 16; }) == "");
  for (const int bytes : {1, 2, 8, 15}) {
    const void* data = memory + bytes;
    const std::string reason = refused([&](TmaTensor& v) { v.data = data; });
    says(reason, format("begins at %p, not at a multiple of 16 bytes: move it", data));
  }
}

TEST_CASE("sizes are 1 to 2^32") {
  for (int d = 0; d < 4; ++d) {
    CAPTURE(d);
    for (const int64_t size : {int64_t(1), int64_t(3), int64_t(1) << 32})
      CHECK(refused([&](TmaTensor& v) { v.sizes[d] = size; }) == "");
    for (const int64_t size : {int64_t(0), int64_t(-1), (int64_t(1) << 32) + 1, INT64_MAX, INT64_MIN}) {
      const std::string reason = refused([&](TmaTensor& v) { v.sizes[d] = size; });
      says(reason, format("dimension %d has %lld elements; 1 to 2^32", d, static_cast<long long>(size)),
           size < 1 ? "an empty tensor" : "a part of the tensor");
    }
  }
}

TEST_CASE("strides are multiples of 16 bytes below 2^40") {
  for (int d = 1; d < 4; ++d) {
    CAPTURE(d);
    for (const int64_t stride : {int64_t(0), int64_t(16), (int64_t(1) << 40) - 16})
      CHECK(refused([&](TmaTensor& v) { v.strides[d - 1] = stride; }) == "");
    for (const int64_t stride : {2, 8, 24, 2050}) {
      const std::string reason = refused([&](TmaTensor& v) { v.strides[d - 1] = stride; });
      says(reason, format("the stride of dimension %d is %lld bytes, not a multiple of 16: pad rows", d,
                          static_cast<long long>(stride)));
    }
    for (const int64_t stride : {int64_t(-16), int64_t(1) << 40, INT64_MAX, INT64_MIN}) {
      const std::string reason = refused([&](TmaTensor& v) { v.strides[d - 1] = stride; });
      says(reason,
           format("the stride of dimension %d is %lld bytes; 0 to 2^40 - 16", d, static_cast<long long>(stride)));
    }
    // Nobody takes a step in a dimension of one.
    for (const int64_t stride : {int64_t(-16), int64_t(7), int64_t(1) << 40})
      CHECK(refused([&](TmaTensor& v) { v.sizes[d] = 1, v.strides[d - 1] = stride; }) == "");
  }
}

TEST_CASE("boxes are 1 to 256 in each dimension") {
  for (int d = 0; d < 4; ++d) {
    CAPTURE(d);
    const auto with = [&](int elements) {
      return refused([&](TmaTensor& v) { v.box[d] = elements, v.swizzle = Swizzle::none; });
    };
    CHECK(with(8) == "");
    CHECK(with(256) == "");
    for (const int elements : {0, -8, 257, 264, INT32_MAX, INT32_MIN})
      says(with(elements), format("has %d elements of dimension %d; 1 to 256", elements, d));
  }
  // A box may be larger than the tensor: zeros.
  CHECK(refused([](TmaTensor& v) { v.sizes[1] = 3; }) == "");
}

TEST_CASE("rows of a box are whole 16 bytes, no longer than the swizzle's line") {
  for (const int elements : {1, 4, 12, 63})
    says(refused([&](TmaTensor& v) { v.box[0] = elements; }),
         format("has %d elements, %d bytes, not a multiple of 16: take a multiple of 8", elements, 2 * elements));
  const std::vector<std::pair<Swizzle, int>> lines = {
      {Swizzle::bytes32, 16}, {Swizzle::bytes64, 32}, {Swizzle::bytes128, 64}};
  for (const auto& [swizzle, elements] : lines) {
    const auto with = [s = swizzle](int row) { return refused([&](TmaTensor& v) { v.swizzle = s, v.box[0] = row; }); };
    CAPTURE(elements);
    CHECK(with(8) == "");
    CHECK(with(elements) == "");
    says(with(elements + 8), format("has %d elements, %d bytes, and a line of the swizzle %d bytes: copy boxes of "
                                    "%d elements",
                                    elements + 8, 2 * elements + 16, 2 * elements, elements));
  }
}

TEST_CASE("a map is refused with the name of who asked, also on a device that executes nothing") {
  Device here;
  DeviceInfo info;
  info.gpu = true, info.compute_capability = 90;
  Device modelled(info);
  for (Device* device : {&here, &modelled}) {
    TmaTensor view = heads();
    view.strides[0] = 2050;
    const std::string error = error_of([&] { tensor_map(*device, view, "attention_forward"); });
    says(error, "attention_forward: the copy engine refuses this tensor: the stride of dimension 1 is 2050 bytes");
  }
  const TensorMap map = tensor_map(modelled, heads(), "attention_forward");
  CHECK(std::all_of(std::begin(map.words), std::end(map.words), [](uint64_t word) { return word == 0; }));
}

static_assert(sizeof(TensorMap) == 128 && alignof(TensorMap) == 128);

// Covers: tensors: strides, views and spans of every shape; what launchers say of a tensor of another type or shape,
// one that is absent, and two that share a byte; copies and zeros of whole tensors
#include "llmc/device/tensor.h"

#include <vector>

#include "dev/test/test.h"
#include "llmc/device/device.h"

TEST_CASE("a contiguous tensor") {
  std::vector<float> memory(2 * 3 * 4);
  const Tensor t(memory.data(), {2, 3, 4});
  CHECK(t.type == DType::fp32);
  CHECK(t.axes == 3);
  CHECK(t.text() == "(2, 3, 4)");
  CHECK(t.size() == 24);
  CHECK(t.rows() == 6);
  CHECK(t.columns() == 4);
  CHECK(t.row_stride() == 4);
  CHECK(t.contiguous());
  CHECK(t.span_bytes() == 24 * sizeof(float));
  CHECK(t.as<float>() == memory.data());
  says(error_of([&] { t.as<bf16>(); }), "a tensor (2, 3, 4) of fp32 is used as bf16");
  says(error_of([&] { Tensor(memory.data(), {1, 1, 1, 1, 1}); }), "a tensor of 5 axes\n  expected 1 to 4");
  says(error_of([&] { Tensor(memory.data(), {2, -1}); }), "a tensor (2, -1)");
}

TEST_CASE("an absent tensor") {
  const Tensor t;
  CHECK(!t);
  CHECK(t.text() == "absent");
  CHECK(t.size() == 0);
  CHECK(t.rows() == 0);
  CHECK(t.span_bytes() == 0);
  CHECK(t.as<bf16>() == nullptr);  // of any type
  CHECK(!t.rows(0, 5));
  CHECK(!t.columns(1, 2));
  CHECK(!t.at(3));
  CHECK(!t.first({7}));
}

TEST_CASE("views") {
  std::vector<bf16> memory(5 * 12);
  bf16* const data = memory.data();
  const Tensor t(data, {5, 12});

  const Tensor rows = t.rows(2, 3);
  CHECK(rows.as<bf16>() == data + 24);
  CHECK(rows.text() == "(3, 12)");
  CHECK(rows.contiguous());

  const Tensor columns = t.columns(4, 6);
  CHECK(columns.as<bf16>() == data + 4);
  CHECK(columns.text() == "(5, 6)");
  CHECK(columns.row_stride() == 12);
  CHECK(!columns.contiguous());
  CHECK(columns.span_bytes() == (4 * 12 + 6) * sizeof(bf16));

  const Tensor both = columns.rows(1, 2);  // of a view
  CHECK(both.as<bf16>() == data + 16);
  CHECK(both.row_stride() == 12);
  CHECK(both.span_bytes() == (12 + 6) * sizeof(bf16));
  CHECK(t.at(3).as<bf16>() == data + 36);
  CHECK(t.at(3).text() == "(12)");
  CHECK(t.first({7, 8}).text() == "(7, 8)");
  CHECK(t.rows(5, 0).span_bytes() == 0);

  says(error_of([&] { t.rows(3, 3); }), "rows 3 to 6 of a tensor (5, 12)");
  says(error_of([&] { t.rows(-1, 2); }), "rows -1 to 1");
  says(error_of([&] { t.columns(8, 5); }), "columns 8 to 13 of a tensor (5, 12)");
  says(error_of([&] { t.at(5); }), "index 5 of the first of several axes of a tensor (5, 12)");
  says(error_of([&] { t.at(0).at(0); }), "of a tensor (12)");
  says(error_of([&] { t.first({61}); }), "the first (61) elements of a tensor (5, 12)");
  says(error_of([&] { columns.first({5}); }), "which is not contiguous");
}

TEST_CASE("rows of several axes") {
  std::vector<float> memory(2 * 3 * 8);
  const Tensor t(memory.data(), {2, 3, 8});
  const Tensor head = t.columns(2, 4);  // (2, 3, 4): all 6 rows are 8 elements apart
  CHECK(head.rows() == 6);
  CHECK(head.row_stride() == 8);
  CHECK(head.at(1).as<float>() == memory.data() + 26);
  Tensor torn = t;  // the second index of the first axis lies further away
  torn.stride[1] = 32;
  says(error_of([&] { torn.rows(); }),
       "the rows of a tensor (2, 3, 8) do not lie evenly: axis 1 has a stride of 32, not 24");
  CHECK(torn.at(1).rows() == 3);
}

TEST_CASE("slices of an axis") {
  std::vector<float> memory(2 * 3 * 8);
  const Tensor t(memory.data(), {2, 3, 8});
  const Tensor part = t.slice(1, 1, 2);
  CHECK(part.text() == "(2, 2, 8)");
  CHECK(part.as<float>() == memory.data() + 8);
  CHECK(part.at(1).as<float>() == memory.data() + 32);
  CHECK(part.span_bytes() == 40 * sizeof(float));
  CHECK(t.slice(0, 1, 1).as<float>() == memory.data() + 24);
  CHECK(t.slice(2, 5, 3).as<float>() == memory.data() + 5);
  CHECK(!Tensor().slice(0, 0, 1));
  says(error_of([&] { t.slice(1, 2, 2); }), "2 to 4 of axis 1 of a tensor (2, 3, 8)");
  says(error_of([&] { t.slice(3, 0, 1); }), "axis 3 of a tensor (2, 3, 8)");
}

TEST_CASE("heads") {
  std::vector<float> memory(6 * 20);
  const Tensor columns = Tensor(memory.data(), {6, 20}).columns(4, 12);
  const Tensor heads = columns.heads(2, 4);
  CHECK(heads.text() == "(2, 3, 3, 4)");
  CHECK(heads.as<float>() == memory.data() + 4);
  CHECK(heads.at(1).at(2).at(1).as<float>() == memory.data() + (1 * 3 + 2) * 20 + 4 + 1 * 4);
  CHECK(heads.span_bytes() == columns.span_bytes());
  CHECK(!Tensor().heads(2, 4));
  says(error_of([&] { columns.heads(4, 4); }), "a tensor (6, 12) as 4 sequences of heads of 4");
  says(error_of([&] { columns.heads(2, 5); }), "as 2 sequences of heads of 5");
  says(error_of([&] { columns.heads(0, 4); }), "as 0 sequences");
}

TEST_CASE("what launchers check") {
  std::vector<float> memory(64);
  const Tensor t(memory.data(), {4, 8});
  const auto error = [](const Tensor& tensor, DType type, TensorShape shape, bool optional = false) {
    return error_of([&] { require_tensor("swiglu_forward", "out", tensor, type, shape, optional); });
  };
  CHECK(error(t, DType::fp32, {4, 8}) == "");
  CHECK(error(t, DType::fp32, {-1, 8}) == "");
  CHECK(error({}, DType::fp32, {4, 8}, true) == "");
  says(error({}, DType::fp32, {4, 8}), "swiglu_forward: out is absent\n  expected (4, 8) of fp32");
  says(error(t, DType::bf16, {4, 8}), "swiglu_forward: out is (4, 8) of fp32\n  expected (4, 8) of bf16");
  says(error(t, DType::fp32, {-1, 9}), "expected (any, 9) of fp32");
  says(error(t, DType::fp32, {32}), "expected (32) of fp32");
  says(error(t.columns(0, 4), DType::fp32, {4, 4}),
       "swiglu_forward: out (4, 4) is not contiguous: its rows are 8 elements");
  says(error(Tensor(nullptr, DType::fp32, {4, 8}), DType::fp32, {4, 8}), "out (4, 8) has no memory");

  const auto view = [](const Tensor& tensor, TensorShape shape) {
    return error_of([&] { require_view("keys_values_by_row", "rows", tensor, DType::fp32, shape); });
  };
  CHECK(view(t.columns(0, 4), {4, 4}) == "");
  says(view(t.columns(0, 4), {4, 8}), "keys_values_by_row: rows is (4, 4) of fp32\n  expected (4, 8) of fp32");
  says(view(Tensor(nullptr, DType::fp32, {4, 8}).columns(0, 4), {4, 4}), "rows (4, 4) has no memory");

  const auto elements = [&](const Tensor& tensor, int64_t size) {
    return error_of([&] { require_elements("cast", "in", tensor, DType::fp32, size); });
  };
  CHECK(elements(t, 32) == "");
  CHECK(elements(t, -1) == "");
  says(elements(t, 31), "cast: in is (4, 8) of fp32\n  expected 31 elements of fp32");
  says(elements({}, -1), "cast: in is absent\n  expected a tensor of fp32");
  says(elements(t.columns(0, 4), 16), "in (4, 4) is not contiguous");

  const auto apart = [](const Tensor& a, const Tensor& b) {
    return error_of([&] { require_apart("who", "a", a, "b", b); });
  };
  CHECK(apart(t.rows(0, 2), t.rows(2, 2)) == "");
  CHECK(apart(t, {}) == "");
  CHECK(apart(t, t.rows(2, 0)) == "");  // no byte
  says(apart(t.rows(0, 3), t.rows(2, 2)), "who: a overlaps b: 96 bytes at ");
  says(apart(t.columns(0, 4), t.columns(4, 4)), "a overlaps b");  // their rows interleave
}

TEST_CASE("types") {
  size_t bytes = 0;
  const auto count = [&](auto number) { bytes = sizeof number; };
  with_type("rope", DType::bf16, count);
  CHECK(bytes == 2);
  with_type("rope", DType::fp32, count);
  CHECK(bytes == 4);
  says(error_of([&] { with_type("rope", DType::int32, count); }), "rope: there is no kernel for int32");
  for (const DType type : {DType::fp32, DType::bf16, DType::fp64, DType::int32, DType::uint8})
    CHECK(Tensor(nullptr, type, {3}).span_bytes() == 3 * bytes_of(type));
}

TEST_CASE("what a launch declares") {
  std::vector<float> memory(40);
  const Tensor view = Tensor(memory.data(), {5, 8}).columns(2, 3);
  const Access access = updates(view);
  CHECK(access.data == memory.data() + 2);
  CHECK(access.bytes == (4 * 8 + 3) * sizeof(float));
  CHECK(access.write);
  CHECK(access.updated);
  CHECK(reads(Tensor()).bytes == 0);
  CHECK(!reads(view).write);
}

TEST_CASE("copies and zeros") {
  Device device;
  Stream stream(device, "test");
  std::vector<float> a = {1, 2, 3, 4}, b(6, 5);
  const Tensor from(a.data(), {2, 2}), to(b.data(), {6});
  copy(stream, to.first({4}), from);
  clear(stream, to.rows(0, 0));  // nothing
  clear(stream, Tensor(b.data() + 4, {1}));
  stream.synchronize();
  CHECK(b == std::vector<float>{1, 2, 3, 4, 0, 5});
  says(error_of([&] { copy(stream, to, from); }), "copy: the destination is (6) of fp32\n  expected 4 elements");
  says(error_of([&] { copy(stream, Tensor(b.data(), DType::int32, {4}), from); }), "of fp32");
  says(error_of([&] { copy(stream, from, {}); }), "the source is absent");
  says(error_of([&] { clear(stream, from.columns(0, 1)); }), "clear: the tensor (2, 1) is not contiguous");
}

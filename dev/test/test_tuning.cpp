// Covers: tuning: the file of chosen algorithms and what it refuses, a hash of choices alone, the fastest of candidates
#include "dev/test/test.h"
#include "llmc/device/device.h"
#include "llmc/kernels/matmul.h"
#include "llmc/kernels/tuning.h"

namespace {

const TunedFor kHere{"NVIDIA H100", 90, "cuBLASLt 13.0.2"};

Tuning two_products() {
  Tuning tuning(kHere);
  tuning.set("TN 8x16x24 …", {"algorithm 66: 0123", 12.3456e-6, 20e-6, 24, 3});
  tuning.set("NN 8x16x24 …", {"algorithm 67: 89ab", 2, 2, 16, 1});
  return tuning;
}

Json changed(Json json, const std::string& key, Json value) { return json.set(key, std::move(value)); }

std::string refusal(const Json& json) {
  return error_of([&] { Tuning::from_json(Json::parse(json.dump(), "tuning.json")); });
}

}  // namespace

TEST_CASE("written and read") {
  const Tuning tuning = two_products();
  const Json json = tuning.to_json();
  const Tuning read = Tuning::from_json(Json::parse(json.dump(2), "tuning.json"));
  CHECK(read.to_json() == json);
  CHECK(read.found_on() == kHere);
  CHECK(read.hash() == tuning.hash());
  CHECK(read.products().size() == 2);
  const TunedProduct product = *read.find("TN 8x16x24 …");
  CHECK(product.choice == "algorithm 66: 0123");
  CHECK(product.seconds == 12.346e-6);
  CHECK(product.candidates == 24);
  CHECK(product.calls == 3);
  CHECK(!read.find("TN 8x16x25 …"));
  // 3 * 12.346 us and 2 s, instead of 3 * 20 us and 2 s; then without the second.
  CHECK(tuning.description() == "2 shapes, 0% less time than the defaults");
  Tuning one(kHere);
  one.set("x", product);
  CHECK(one.description() == "1 shape, 38% less time than the defaults");
  const Tuning nothing = Tuning::from_json(Json::parse(Tuning().to_json().dump(), "nothing"));
  CHECK(nothing.empty());
  CHECK(nothing.hash() == "");
}

TEST_CASE("the hash is of shapes and choices") {
  const Tuning tuning = two_products();
  Tuning other = tuning;
  other.set("NN 8x16x24 …", {"algorithm 67: 89ab", 1, 3, 17, 9});
  CHECK(other.hash() == tuning.hash());
  other.set("NN 8x16x24 …", {"algorithm 67: 89ac", 2, 2, 16, 1});
  CHECK(other.hash() != tuning.hash());
  Tuning moved(kHere);
  moved.set("TN 8x16x32 …", {"algorithm 66: 0123"});
  moved.set("NN 8x16x24 …", {"algorithm 67: 89ab"});
  CHECK(moved.hash() != tuning.hash());
  CHECK(tuning.hash().size() == 16);
}

TEST_CASE("what is no tuning") {
  const Json json = two_products().to_json();
  says(refusal(Json::array()), "tuning.json", "no tuning, or one of another version");
  says(refusal(changed(json, "format", "train_llama tuning 2")), "expected \"format\": \"train_llama tuning 1\"");
  says(refusal(changed(json, "products", 3)), "\"products\"");
  says(refusal(changed(json, "products", Json::object().set("TN", 3))), "products.TN");
  says(refusal(changed(json, "products", Json::object().set("TN", Json::object()))), "choice");
  says(refusal(changed(json, "device", Json())), "\"device\"");
  says(refusal(changed(json, "hash", "0123456789abcdef")),
       "it was damaged or changed\n  --tune-products writes a new one");
  const std::string text = json.dump();
  const size_t digit = text.find("89ab");
  const std::string damaged = text.substr(0, digit) + "89ac" + text.substr(digit + 4);
  says(error_of([&] { Tuning::from_json(Json::parse(damaged, "tuning.json")); }), "it was damaged or changed");
}

TEST_CASE("where it means nothing") {
  const Tuning tuning = two_products();
  CHECK(error_of([&] { tuning.require_fits(kHere, "x"); }) == "");
  const auto refused = [&](const TunedFor& here) {
    return error_of([&] { tuning.require_fits(here, "--tuning runs/a/tuning.json"); });
  };
  const std::string message = refused({"NVIDIA A100", 80, "cuBLASLt 13.0.2"});
  CHECK(
      message ==
      "--tuning runs/a/tuning.json: the products' algorithms were chosen on NVIDIA H100 (compute capability 9.0) with "
      "cuBLASLt 13.0.2\n  here is NVIDIA A100 (compute capability 8.0) with cuBLASLt 13.0.2\n"
      "  choose anew with --tune-products, or compute with the defaults: --tuning none");
  says(refused({"NVIDIA H100", 90, "cuBLASLt 13.1.0"}),
       "here is NVIDIA H100 (compute capability 9.0) with cuBLASLt 13.1.0");
  says(refused({"CPU", 0, "OpenBLAS"}), "here is CPU with OpenBLAS\n");
}

TEST_CASE("the name of a shape has all that it is made of") {
  const MatmulShape shape{
      true, false, 1, 2, 3, 4, 5, 6, MatmulShape::Type::bf16, MatmulShape::Type::bf16, MatmulShape::Type::fp32};
  CHECK(shape.text() == "TN 1x2x3 ld 4,5,6 bf16*bf16 = fp32");
  std::vector<MatmulShape> others(14, shape);
  others[0].transpose_a = false, others[1].transpose_b = true, others[2].m = 7, others[3].n = 7, others[4].k = 7;
  others[5].lda = 7, others[6].ldb = 7, others[7].ldd = 7, others[8].a = MatmulShape::Type::e4m3;
  others[9].b = MatmulShape::Type::e5m2, others[10].d = MatmulShape::Type::tf32, others[11].accumulate = true;
  others[12].scaling_a = Scaling::row, others[13].fast = true;
  std::set<std::string> names = {shape.text()};
  for (const MatmulShape& other : others) names.insert(other.text());
  MatmulShape scaled = shape;
  scaled.scaling_b = Scaling::block_128x128;
  names.insert(scaled.text());
  CHECK(names.size() == 16);
  CHECK(names.contains("TN 1x2x3 ld 4,5,6 bf16*bf16/128x128 = fp32"));
  CHECK(names.contains("TN 1x2x3 ld 4,5,6 bf16*bf16 = fp32 fast"));
}

// Byte for byte there is no doubt which copy is the fastest.
TEST_CASE("the fastest of candidates") {
  Device device;
  Stream stream(device, "compute");
  constexpr size_t kLarge = size_t(16) << 20;
  const DeviceMemory from(device, kLarge), to(device, kLarge);
  clear(stream, from.data(), kLarge);
  const auto fastest = [&](int count, const std::function<size_t(int)>& bytes, std::vector<int>& calls) {
    calls.assign(size_t(count), 0);
    return time_candidates(
        stream, count,
        [&](int i) {
          ++calls[size_t(i)];
          copy(stream, to.data(), from.data(), bytes(i));
        },
        [&] { stream.synchronize(); });
  };
  std::vector<int> calls;
  for (const int small : {5, 0, 16}) {
    const FastestCandidate found = fastest(
        17, [&](int i) { return i == small ? 1 : kLarge; }, calls);
    CHECK(found.index == small);
    CHECK(found.seconds <= found.by_default);
    for (const int n : calls) CHECK(n >= 3);
  }
  const FastestCandidate alone = fastest(
      1, [](int) { return 1; }, calls);
  CHECK(alone.index == 0);
  CHECK(alone.seconds == alone.by_default);
}

TEST_CASE("nothing is timed where nothing is executed") {
  DeviceInfo info;
  info.name = "modelled";
  Device device(info);
  Stream stream(device, "compute");
  const DeviceMemory workspace(device, Matmul::workspace_bytes(info));
  Matmul matmul(stream, workspace.data(), {});
  says(error_of([&] { matmul.begin_timing([] {}); }), "a device that is modelled");
}

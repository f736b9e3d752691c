// Checks and times transpose_quantized (llmc/kernels/quantize.h): what is gathered in FP8 by rows, turned for weight
// gradients.
//
// Covers: promise 7: FP8 bytes turned, of ugly shapes and in both formats, are those of quantization by columns
#include "dev/kernels/quantize_cases.h"

namespace {

// RotatedPair bytes are those that quantization by columns has.
void check_transposed(Checker& checker) {
  Stream& stream = checker.stream;
  for (const auto& [rows, columns] : std::vector<std::pair<int, int>>{
           {1, 1}, {16, 16}, {17, 15}, {128, 128}, {129, 260}, {31, 1000}, {600, 3}, {255, 257}})
    for (const Fp8Format format : {Fp8Format::e4m3, Fp8Format::e5m2}) {
      Generator generator(uint64_t(rows) * 10007 + uint64_t(columns));
      const Array<bf16> x(stream, uneven_numbers(generator, rows, columns));
      QuantizedTensor rowwise{nullptr, nullptr, rows, columns, format},
          columnwise{nullptr, nullptr, columns, rows, format};
      Array<uint8_t> bytes(stream, rowwise.bytes()), want(stream, columnwise.bytes()), got(stream, columnwise.bytes());
      Array<float> scale_inv(stream, 3), amax(stream, std::vector<float>{0});
      rowwise.data = bytes.data(), rowwise.scale_inv = scale_inv.data();
      columnwise.data = want.data(), columnwise.scale_inv = scale_inv.data() + 1;
      Quantization q;
      q.rowwise = rowwise, q.columnwise = columnwise, q.amax = amax.data();
      quantize_amax(stream, x.tensor({rows, columns}), q);
      quantize(stream, x.tensor({rows, columns}), q);
      columnwise.data = got.data(), columnwise.scale_inv = scale_inv.data() + 2;
      transpose_quantized(stream, columnwise, rowwise);
      const std::string name =
          ::format("%d x %d %s turned", rows, columns, format == Fp8Format::e4m3 ? "e4m3" : "e5m2");
      checker.same_bits(name, got.download(), want.download());
      const std::vector<float> all = scale_inv.download();
      checker.that(name + " factor", all[2] == all[0] && all[0] > 0, "");
    }
  QuantizedTensor tensor{nullptr, nullptr, 16, 16}, other{nullptr, nullptr, 16, 32};
  Array<uint8_t> bytes(stream, 1024);
  Array<float> factor(stream, 2);
  tensor.data = bytes.data(), tensor.scale_inv = factor.data(), other.data = bytes.data() + 512,
  other.scale_inv = factor.data() + 1;
  checker.refused("no transpose", "16 x 16", [&] { transpose_quantized(stream, other, tensor); });
}

}  // namespace

void check(Checker& checker) { check_transposed(checker); }

void bench(Bencher& bencher) {
  const int rows = bencher.gpu_sizes() ? 16384 : 512, columns = bencher.gpu_sizes() ? 4096 : 1024;
  QuantizedTensor from{nullptr, nullptr, rows, columns, Fp8Format::e4m3},
      to{nullptr, nullptr, columns, rows, Fp8Format::e4m3};
  Array<uint8_t> bytes(bencher.stream, std::vector<uint8_t>(from.bytes(), 56)), turned(bencher.stream, to.bytes());
  Array<float> scale_inv(bencher.stream, std::vector<float>{1, 1});
  from.data = bytes.data(), from.scale_inv = scale_inv.data();
  to.data = turned.data(), to.scale_inv = scale_inv.data() + 1;
  bencher.time(format("transpose_quantized %d x %d", rows, columns), 2.0 * double(rows) * columns, 0,
               [&] { transpose_quantized(bencher.stream, to, from); });
}

// Which algorithm computes which product, where that was found by timing: the choices of a run, and their file.
//
//   {"format": "train_llama tuning 1", "device": …, "compute_capability": …, "library": …, "hash": …,
//    "products": {"TN 384x2048x128 ld 128,128,384 bf16*bf16 = bf16": {"choice": …, "us": …, "default_us": …, …}, …}}
#pragma once

#include <compare>
#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "llmc/base/json.h"
#include "llmc/device/device.h"
#include "llmc/kernels/quantized_tensor.h"

// What a choice is for: D (m x n) = or += op(A) op(B), sums over k, in the terms of the library that computes it: rows
// contiguous in the CPU world, columns in cuBLASLt. Nothing of it depends on where operands lie.
struct MatmulShape {
  enum class Type : uint8_t { fp32, tf32, bf16, e4m3, e5m2 };  // tf32: fp32 that may be rounded to it
  bool transpose_a, transpose_b;
  int64_t m, n, k, lda, ldb, ldd;
  Type a, b, d;
  bool accumulate = false;
  Scaling scaling_a = Scaling::tensor, scaling_b = Scaling::tensor;  // of FP8 operands
  bool fast = false;                                                 // their sums may stay in tensor cores

  auto operator<=>(const MatmulShape&) const = default;
  bool quantized() const { return a == Type::e4m3 || a == Type::e5m2; }
  std::string text() const;  // its key in the file

  static Type type(DType type) { return type == DType::bf16 ? Type::bf16 : Type::fp32; }
  static Type type(Fp8Format format) { return format == Fp8Format::e4m3 ? Type::e4m3 : Type::e5m2; }
};

// Where choices were found: elsewhere they mean nothing.
struct TunedFor {
  std::string device;
  int compute_capability = 0;
  std::string library;  // and its version
  bool operator==(const TunedFor&) const = default;
  std::string text() const;
};

struct TunedProduct {
  std::string choice;                   // what Matmul understands
  double seconds = 0, by_default = 0;   // of a call, with the choice and without
  int candidates = 0;                   // that were timed
  int64_t calls = 0;                    // in the passes that were timed
  std::vector<std::string> tried = {};  // the candidates' choices, the default first; not in the file
};

class Tuning {
 public:
  Tuning() = default;  // of nothing: all products are computed as by default
  explicit Tuning(TunedFor found_on) : found_on_(std::move(found_on)) {}
  // Throws, with where the value was read, on what is no tuning, is of another format, or does not have its hash.
  static Tuning from_json(const Json& json);
  Json to_json() const;

  bool empty() const { return products_.empty(); }
  const TunedFor& found_on() const { return found_on_; }
  const std::map<std::string, TunedProduct>& products() const { return products_; }
  const TunedProduct* find(const std::string& shape) const;
  void set(const std::string& shape, TunedProduct product) { products_[shape] = std::move(product); }
  // 16 digits, of shapes and choices alone: timings differ from run to run. "" of nothing.
  std::string hash() const;
  std::string description() const;  // "14 shapes, 8% less time than the defaults"
  // Throws if it was not found on such a device with such a library. `name`: of a file or checkpoint.
  void require_fits(const TunedFor& here, const std::string& name) const;

 private:
  TunedFor found_on_;
  std::map<std::string, TunedProduct> products_;
};

// What a Matmul knows of choices: those that it uses, and those that it finds.
struct ProductTuner {
  Tuning used;
  std::set<std::string> unused;  // shapes of it that no product had yet
  bool timing = false;
  std::function<void()> wait;                 // until all that was enqueued is done
  std::map<MatmulShape, TunedProduct> timed;  // of this timing

  void use(Tuning tuning);
  void begin(std::function<void()> wait);
  Tuning end(TunedFor here);
  // The choice for the shape; null: the default.
  const std::string* choice(const MatmulShape& shape);
  // While it times: the fastest of the shape's candidates, of which run(i) enqueues number i; see time_candidates().
  int time(Stream& stream, const MatmulShape& shape, std::vector<std::string> choices,
           const std::function<void(int)>& run);
};

// The fastest of `count` ways to compute the same, of which the first is the default.
struct FastestCandidate {
  int index;
  double seconds, by_default;  // of a call
};
// `run(i)` enqueues way i in the stream; `wait` returns when all of it is done. The device is kept busy before anything
// counts; then all that come near the fastest take turns, and the one whose median is least and the default take turns
// once more. Less than 1% between those two is noise: the default stays.
FastestCandidate time_candidates(Stream& stream, int count, const std::function<void(int)>& run,
                                 const std::function<void()>& wait);

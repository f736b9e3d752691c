// The algorithms that timing found for matrix products: the choices of a run, and their file.
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

// The product that a choice is for: D (m x n) = or += op(A) op(B), summed over k. Sizes are in the terms of the library
// that computes it: rows are contiguous in the CPU backend, columns in cuBLASLt. The shape does not depend on the
// addresses of the operands.
struct MatmulShape {
  enum class Type : uint8_t { fp32, tf32, bf16, e4m3, e5m2 };  // tf32: fp32 that may be rounded to TF32
  bool transpose_a, transpose_b;
  int64_t m, n, k, lda, ldb, ldd;
  Type a, b, d;
  bool accumulate = false;
  Scaling scaling_a = Scaling::tensor, scaling_b = Scaling::tensor;  // for FP8 operands
  bool fast = false;                                                 // FP8 sums may stay in tensor cores

  auto operator<=>(const MatmulShape&) const = default;
  bool quantized() const { return a == Type::e4m3 || a == Type::e5m2; }
  std::string text() const;  // the key in the file

  static Type type(DType type) { return type == DType::bf16 ? Type::bf16 : Type::fp32; }
  static Type type(Fp8Format format) { return format == Fp8Format::e4m3 ? Type::e4m3 : Type::e5m2; }
};

// The device and library on which choices were found. Choices are not valid on any other.
struct TunedFor {
  std::string device;
  int compute_capability = 0;
  std::string library;  // with its version
  bool operator==(const TunedFor&) const = default;
  std::string text() const;
};

struct TunedProduct {
  std::string choice;                   // in a form that Matmul reads
  double seconds = 0, by_default = 0;   // per call, with the choice and with the default
  int candidates = 0;                   // number of candidates that were timed
  int64_t calls = 0;                    // calls during the timed passes
  std::vector<std::string> tried = {};  // the candidates' choices, the default first; not in the file
};

class Tuning {
 public:
  Tuning() = default;  // empty: all products use the default
  explicit Tuning(TunedFor found_on) : found_on_(std::move(found_on)) {}
  // Throws if `json` is not a tuning, has another format, or does not match its hash. The message says where the value
  // was read.
  static Tuning from_json(const Json& json);
  Json to_json() const;

  bool empty() const { return products_.empty(); }
  const TunedFor& found_on() const { return found_on_; }
  const std::map<std::string, TunedProduct>& products() const { return products_; }
  const TunedProduct* find(const std::string& shape) const;
  void set(const std::string& shape, TunedProduct product) { products_[shape] = std::move(product); }
  // Returns 16 digits, which depend on shapes and choices alone, since timings differ from run to run. "" if empty.
  std::string hash() const;
  std::string description() const;  // "14 shapes, 8% less time than the defaults"
  // Throws unless the tuning was found on this device with this library. `name`: of the file or checkpoint, for the
  // message.
  void require_fits(const TunedFor& here, const std::string& name) const;

 private:
  TunedFor found_on_;
  std::map<std::string, TunedProduct> products_;
};

// The choices that a Matmul uses, and those that it finds.
struct ProductTuner {
  Tuning used;
  std::set<std::string> unused;  // shapes of `used` that no product has had yet
  bool timing = false;
  std::function<void()> wait;                 // returns when all enqueued work is done
  std::map<MatmulShape, TunedProduct> timed;  // results of the timing in progress

  void use(Tuning tuning);
  void begin(std::function<void()> wait);
  Tuning end(TunedFor here);
  // Returns the choice for the shape; null means the default.
  const std::string* choice(const MatmulShape& shape);
  // While timing: times the shape's candidates and returns the index of the fastest. run(i) enqueues candidate i; see
  // time_candidates().
  int time(Stream& stream, const MatmulShape& shape, std::vector<std::string> choices,
           const std::function<void(int)>& run);
};

// The fastest of `count` ways to compute the same; way 0 is the default.
struct FastestCandidate {
  int index;
  double seconds, by_default;  // per call
};
// `run(i)` enqueues way i in the stream; `wait` returns when all of it is done. The device is first kept busy for a
// while, untimed. Then all ways that come near the fastest take turns. The one with the least median and the default
// take turns once more. If it is less than 1% faster, the difference is noise and the default stays.
FastestCandidate time_candidates(Stream& stream, int count, const std::function<void(int)>& run,
                                 const std::function<void()>& wait);

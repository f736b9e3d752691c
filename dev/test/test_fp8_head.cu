// Covers: the head's products in FP8: each against the product of the decoded operands in double, in chunks, for a
// vocabulary and a width that need padding; gradients of logits take the scale that the number of labels gives
#include <cmath>
#include <optional>
#include <vector>

#include "dev/kernels/array.h"
#include "dev/test/test.h"
#include "dev/test/tiny_trainer.h"
#include "llmc/kernels/matmul.h"
#include "llmc/model/fp8_head.h"

namespace {

struct Sizes {
  int V, C, N, chunk;
};
// The last two have a width that products need padded, and a vocabulary of one column.
constexpr Sizes kSizes[] = {
    {256, 64, 256, 128}, {131, 48, 300, 128}, {1000, 128, 129, 256}, {77, 40, 200, 128}, {1, 24, 17, 128}};

// Returns the numbers for which the bytes of a matrix stand in e4m3 or e5m2 with this scale.
std::vector<double> decoded(const std::vector<bf16>& x, float scale, int exponent_bits) {
  std::vector<double> values;
  const float inverse = 1 / scale;
  for (const bf16 element : x) {
    const uint8_t bits = fp8_bits(to_float(element) * scale, exponent_bits, Overflow::saturate);
    values.push_back(double(fp8_value(bits, exponent_bits)) * double(inverse));
  }
  return values;
}

std::vector<double> decoded_e4m3(const std::vector<bf16>& x, bool power_of_two) {
  float amax = 0;
  for (const bf16 element : x) amax = std::max(amax, std::fabs(to_float(element)));
  return decoded(x, fp8_scale(amax, Fp8Format::e4m3, power_of_two), 4);
}

std::vector<bf16> random_bf16(Generator& generator, size_t count, double size) {
  std::vector<bf16> values(count);
  for (bf16& value : values) value = from_float<bf16>(float(generator.normal() * size));
  return values;
}

// |got - want| / |want|. Tensor cores keep about 13 bits of the sums that stay in them (dev/kernels/fp8_matmul.cu);
// bf16 rounds to 2^-9. A scale or an element that is wrong is seen: e4m3 rounds to 2^-4.
template <class T>
void check_close(const char* what, const std::vector<T>& got, const std::vector<double>& want) {
  CAPTURE(what);
  CHECK(got.size() == want.size());
  double square = 0, error = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    const double difference = to_double(got[i]) - want[i];
    square += want[i] * want[i], error += difference * difference;
  }
  CHECK(std::sqrt(error / square) <= 3e-4 + (sizeof(T) == 2 ? 0x1p-9 : 0));
}

class Bench {
 public:
  Bench(const Sizes& s, Fp8HeadProducts products, bool power_of_two)
      : s_(s), power_of_two_(power_of_two), generator_(uint64_t(s.V * 1009 + s.C)) {
    settings_.recipe = Fp8Recipe::delayed;  // which says nothing about the head
    settings_.head = products, settings_.power_of_two = power_of_two;
    const Fp8HeadSizes sizes{s.V, ld(), s.C, s.chunk, sizeof(bf16), true};
    room_ = plan_.add(Segment::device, "scratch", "room", DType::uint8, {kBefore + Fp8Head::chunk_bytes(sizes)});
    head_.emplace(plan_, settings_, sizes, 60, room_, kBefore);
    logits_ = plan_.add(Segment::device, "scratch", "logits", DType::bf16, {s.chunk, ld()});
    dx_ = plan_.add(Segment::device, "scratch", "dx", DType::bf16, {s.N, s.C});
    dweight_ = plan_.add(Segment::device, "scratch", "dweight", DType::fp32, {s.V, s.C});
    x_ = plan_.add(Segment::device, "scratch", "x", DType::bf16, {s.N, s.C});
    weight_ = plan_.add(Segment::device, "scratch", "weight", DType::bf16, {s.V, s.C});
    state_ = plan_.add_array<StepState>(Segment::device, "scratch", "state", 1);
    workspace_ =
        plan_.add(Segment::device, "workspace", "products", DType::uint8, {Matmul::workspace_bytes(device_.info())});
    arena_ = Arena(device_, plan_);
    matmul_.emplace(stream_, static_cast<std::byte*>(workspace_->data), Matmul::Options{});
    head_->prepare(&state_->fp8_not_finite);
    StepState state{};
    state.label_count = kLabels, state.fp8_not_finite = ~0u;
    copy(stream_, state_.get(), &state, 1);
    pass_.emplace(Pass{stream_, *matmul_, config_, 1, s.N, s.N, s.N, {}});
    pass_->training = true;
    x_host_ = random_bf16(generator_, size_t(s.N) * size_t(s.C), 1.7);
    weight_host_ = random_bf16(generator_, size_t(s.V) * size_t(s.C), 0.02);
    copy(stream_, x_->as<bf16>(), x_host_.data(), x_host_.size());
    copy(stream_, weight_->as<bf16>(), weight_host_.data(), weight_host_.size());
    stream_.synchronize();
  }

  // Sets an element of x, the weight or the logits.
  void set(const Tensor& tensor, float value) {
    const bf16 element = from_float<bf16>(value);
    copy(stream_, tensor.as<bf16>() + 7, &element, 1);
    stream_.synchronize();
  }

  void check() {
    head_->quantize_weight(*pass_, weight_);
    head_->find_input_amax(*pass_, x_);
    const std::vector<double> x = decoded_e4m3(x_host_, power_of_two_), w = decoded_e4m3(weight_host_, power_of_two_);
    std::vector<double> dweight(size_t(s_.V) * size_t(s_.C)), dx(x.size());
    for (int first = 0; first < s_.N; first += s_.chunk) {
      const int count = std::min(s_.chunk, s_.N - first);
      if (head_->computes_forward()) check_logits(x, w, first, count);
      add_backward(x, w, first, count, dweight, dx);
    }
    const std::vector<bf16> got = download<bf16>(dx_, dx.size());
    check_close("dx", got, dx);
    std::vector<bf16> got_small;
    std::vector<double> small;
    for (size_t i = 0; i < dx.size(); ++i)
      if (is_learnt(i / size_t(s_.C))) got_small.push_back(got[i]), small.push_back(dx[i]);
    check_close("dx of tokens that are learnt", got_small, small);
    check_close("dweight", download<float>(dweight_, dweight.size()), dweight);
    CHECK(!reported());
  }

  // The code of a tensor with an infinity, 0 if none has been reported.
  uint32_t reported() {
    uint32_t word = 0;
    copy(stream_, &word, &state_->fp8_not_finite, 1);
    stream_.synchronize();
    return is_finite_word(word) ? 0 : word;
  }
  Fp8Head& head() { return *head_; }
  const Pass& pass() { return *pass_; }
  const Tensor& x() { return x_; }
  const Tensor& weight() { return weight_; }
  Tensor logits(int count) { return logits_->rows(0, count); }
  const StepState* state() { return state_.get(); }
  int ld() const { return (s_.V + 63) / 64 * 64; }

 private:
  static constexpr size_t kBefore = 512;  // bytes of the room that are somebody else's
  static constexpr int64_t kLabels = 1237;
  // The gradients of such a token are all small, because its label has nearly all of the probability.
  static bool is_learnt(size_t token) { return token % 4 == 1; }

  template <class T>
  std::vector<T> download(const Tensor& tensor, size_t count) {
    std::vector<T> values(count);
    copy(stream_, values.data(), tensor.as<T>(), count);
    stream_.synchronize();
    return values;
  }

  void check_logits(const std::vector<double>& x, const std::vector<double>& w, int first, int count) {
    head_->forward(*pass_, logits_->rows(0, count), x_->rows(first, count));
    const size_t C = size_t(s_.C), V = size_t(s_.V), width = size_t(ld());
    std::vector<double> want(size_t(count) * width);
    for (size_t i = 0; i < size_t(count); ++i)
      for (size_t v = 0; v < V; ++v)
        for (size_t c = 0; c < C; ++c) want[i * width + v] += x[(size_t(first) + i) * C + c] * w[v * C + c];
    const std::vector<bf16> got = download<bf16>(logits_, want.size());
    check_close("logits", got, want);
    for (size_t i = 0; i < got.size(); ++i)
      if (i % width >= V)
        REQUIRE(to_float(got[i]) == 0, "a logit beyond the vocabulary is %g", double(to_float(got[i])));
  }

  // Computes the gradients of a chunk's random dlogits, and adds what they should be.
  void add_backward(const std::vector<double>& x, const std::vector<double>& w, int first, int count,
                    std::vector<double>& dweight, std::vector<double>& dx) {
    const size_t C = size_t(s_.C), V = size_t(s_.V), width = size_t(ld());
    std::vector<bf16> padded(size_t(count) * width), dlogits;
    for (size_t i = 0; i < size_t(count); ++i)
      for (size_t v = 0; v < V; ++v) {
        // Softmaxes are small but for a few; the label's element is close to -1 / labels, and a z-loss goes beyond it.
        const double of_token = is_learnt(size_t(first) + i) ? 0x1p-18 : 1;
        const double p = of_token * (v == i % V ? -1.02 + generator_.uniform() : std::exp(-18 * generator_.uniform()));
        padded[i * width + v] = from_float<bf16>(float(p / double(kLabels)));
        dlogits.push_back(padded[i * width + v]);
      }
    copy(stream_, logits_->as<bf16>(), padded.data(), padded.size());
    stream_.synchronize();
    const Tensor rows = x_->rows(first, count);
    head_->begin_backward(*pass_, logits_->rows(0, count), state_.get());
    head_->dgrad(*pass_, dx_->rows(first, count));
    head_->wgrad(*pass_, dweight_, rows, first > 0);
    const std::vector<double> dl = decoded(dlogits, float(57344.0 / 2 * double(kLabels)), 5);
    for (size_t i = 0; i < size_t(count); ++i)
      for (size_t v = 0; v < V; ++v)
        for (size_t c = 0; c < C; ++c) {
          dx[(size_t(first) + i) * C + c] += dl[i * V + v] * w[v * C + c];
          dweight[v * C + c] += dl[i * V + v] * x[(size_t(first) + i) * C + c];
        }
  }

  const Sizes s_;
  const bool power_of_two_;
  Generator generator_;
  World world_;
  Device& device_ = world_.device;
  Stream stream_{device_, "compute"};
  const ModelConfig config_ = tiny();
  Fp8Settings settings_;
  MemoryPlan plan_;
  PlannedTensor room_, logits_, dx_, dweight_, x_, weight_, workspace_;
  PlannedArray<StepState> state_;
  std::optional<Fp8Head> head_;
  Arena arena_;
  std::optional<Matmul> matmul_;
  std::optional<Pass> pass_;
  std::vector<bf16> x_host_, weight_host_;
};

}  // namespace

TEST_CASE("the products are those of the decoded operands") {
  for (const Sizes& sizes : kSizes)
    for (const Fp8HeadProducts products : {Fp8HeadProducts::backward, Fp8HeadProducts::on})
      for (const bool power_of_two : {false, true}) {
        CAPTURE(sizes.V);
        CAPTURE(sizes.C);
        CAPTURE(int(products));
        CAPTURE(power_of_two);
        Bench(sizes, products, power_of_two).check();
      }
}

TEST_CASE("an infinity or NaN is reported with its tensor") {
  const Sizes sizes{131, 48, 100, 128};
  for (const float bad : {INFINITY, -INFINITY, float(NAN)})
    for (const Role role : kEachRole) {
      CAPTURE(bad);
      CAPTURE(role_name(role));
      Bench bench(sizes, Fp8HeadProducts::on, false);
      const Tensor logits = bench.logits(sizes.N);
      clear(bench.pass().stream, logits);
      bench.set(role == Role::input ? bench.x() : role == Role::weight ? bench.weight() : logits, bad);
      bench.head().quantize_weight(bench.pass(), bench.weight());
      bench.head().find_input_amax(bench.pass(), bench.x());
      CHECK(bench.reported() == (role == Role::weight ? 62 : 0));
      if (role == Role::output_gradient) bench.head().begin_backward(bench.pass(), logits, bench.state());
      else bench.head().forward(bench.pass(), logits, bench.x());
      const uint32_t code = role == Role::output_gradient ? kLargestCode - 62 : role == Role::weight ? 62 : 61;
      CHECK(bench.reported() == code);
      const LayerProjections projections(tiny({.L = 5}));
      CHECK(projections.head_id(Role::input) == 60);
      CHECK(projections.name(not_finite_id(code)) == format("the %s of the head", role_name(role)));
    }
}

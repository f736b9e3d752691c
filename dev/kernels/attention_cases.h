// Cases of attention, their inputs, a plain reference in double precision with the errors that a kernel may make, and
// how a kernel is compared with it.
#pragma once

#include <functional>
#include <memory>
#include <tuple>

#include "dev/kernels/check.h"
#include "dev/kernels/other_schedules.h"
#include "llmc/kernels/attention.h"

enum class Layout { packed, separate, gaps, sequences_inside };
enum class Documents { none, packed, arbitrary };  // arbitrary: also of queries that see nothing

struct Case {
  int B, Tq, Tk, NH, NKV, HD;
  int query_offset = 0, key_offset = 0;
  Documents documents = Documents::none;
  Layout layout = Layout::separate;
  double magnitude = 1;  // of q and k
  int window = 0;        // a query sees at most so many keys; 0: any number
};

// ---------------------------------------------------------------------------------------------- inputs

// The elements of a buffer that a tensor (B,T,heads,HD) has.
struct View {
  int64_t row, batch;  // elements from one position of a sequence to the next, and from one sequence to the next
  size_t first;
  int B, T, heads, HD;
  template <class Number>
  Tensor of(const Array<Number>& buffer) const {
    Tensor tensor(buffer.data() + first, {B, T, heads, HD});
    tensor.stride[0] = batch, tensor.stride[1] = row;
    return tensor;
  }
  size_t at(int b, int t, int h, int d) const { return first + size_t(b * batch + t * row + h * HD + d); }
  size_t dense(int b, int t, int h, int d) const { return ((size_t(b) * T + t) * heads + h) * HD + d; }
  size_t count() const { return size_t(B) * T * heads * HD; }
  size_t end() const { return at(B - 1, T - 1, heads - 1, HD - 1) + 1; }
  void each(const std::function<void(size_t, size_t)>& body) const {
    for (int b = 0; b < B; ++b)
      for (int t = 0; t < T; ++t)
        for (int h = 0; h < heads; ++h)
          for (int d = 0; d < HD; ++d) body(at(b, t, h, d), dense(b, t, h, d));
  }
  template <class T>
  std::vector<double> gather(const std::vector<T>& buffer) const {
    std::vector<double> values(count());
    each([&](size_t from, size_t to) { values[to] = to_double(buffer[from]); });
    return values;
  }
};

inline View view_for(Layout layout, size_t first, int B, int T, int heads, int HD) {
  const int64_t width = int64_t(heads) * HD;
  if (layout == Layout::gaps) return {width + 24, T * (width + 24) + 8, first, B, T, heads, HD};
  if (layout == Layout::sequences_inside) return {B * width, width, first, B, T, heads, HD};
  return {width, T * width, first, B, T, heads, HD};
}

// q, k and v are in one buffer, in columns if they are packed, else one after the other.
struct Placement {
  Case c;
  View q, k, v, out;
  size_t size, out_size;

  explicit Placement(const Case& of) : c(of) {
    out = view_for(c.layout, 0, c.B, c.Tq, c.NH, c.HD);
    if (c.layout == Layout::packed) {
      const int64_t row = int64_t(c.NH + 2 * c.NKV) * c.HD, batch = row * c.Tq;
      q = {row, batch, 0, c.B, c.Tq, c.NH, c.HD};
      k = {row, batch, size_t(c.NH * c.HD), c.B, c.Tk, c.NKV, c.HD};
      v = {row, batch, k.first + size_t(c.NKV * c.HD), c.B, c.Tk, c.NKV, c.HD};
    } else {
      q = out;
      k = view_for(c.layout, (q.end() + 7) / 8 * 8, c.B, c.Tk, c.NKV, c.HD);
      v = view_for(c.layout, (k.end() + 7) / 8 * 8, c.B, c.Tk, c.NKV, c.HD);
    }
    size = v.end();
    out_size = out.end();
  }
  AttentionOptions options(AttentionKernel kernel) const {
    return {c.query_offset, c.key_offset, {}, c.window, kernel};
  }
  template <class Number>
  Tensor lse(const Array<Number>& buffer) const {
    return buffer.tensor({c.B, c.NH, c.Tq});
  }
};

template <class T>
struct Inputs {
  Placement place;
  std::vector<T> qkv, dout, dqkv;  // dqkv: what is there before backward adds to it
  std::vector<int> document_start;

  explicit Inputs(const Case& c, uint64_t seed) : place(c) {
    Generator generator(seed);
    qkv = random_normal<T>(generator, place.size);
    const auto enlarge = [&](size_t i, size_t) { qkv[i] = from_float<T>(float(to_double(qkv[i]) * c.magnitude)); };
    if (c.magnitude != 1) place.q.each(enlarge), place.k.each(enlarge);
    dout = random_normal<T>(generator, place.out_size);
    dqkv = random_normal<T>(generator, place.size);
    if (c.documents == Documents::none && c.window == 0) return;
    for (int b = 0; b < c.B; ++b)
      for (int t = 0, start = 0; t < c.Tq; ++t) {
        const int position = c.query_offset + t;
        const bool arbitrary = c.documents == Documents::arbitrary;
        if (c.documents == Documents::none) start = 0;
        else if (t == 0) start = arbitrary ? generator.integer(-3, position + 2) : generator.integer(0, position);
        else if (!arbitrary && generator.uniform() < 0.06) start = position;
        else if (arbitrary && generator.uniform() < 0.2)
          start = generator.integer(start, std::max(start, position + 2));
        document_start.push_back(c.window ? std::max(start, position - c.window + 1) : start);
      }
  }
};

// ---------------------------------------------------------------------------------------------- the reference

template <class T>
constexpr double kRounding = sizeof(T) == 2 ? 0x1p-8 : 0x1p-24;  // of a result to T
constexpr double kUnit = 0x1p-24;                                // the largest relative error of one fp32 rounding

// Results, and how far fp32 arithmetic may be from them: the largest over the elements of each.
struct Reference {
  std::vector<double> out, lse, dq, dk, dv;
  struct {
    double out = 0, lse = 0, dq = 0, dk = 0, dv = 0;
  } limit;
};

struct Doubles {
  std::vector<double> q, k, v, dout, out;
};

// By the definition. Gradients only if `in.dout` is not empty; rowsum_dO_O from in.out, or the exact output if that is
// empty.
//
// The limits: a sum of n terms is off by some sqrt(n) roundings of the sum of their magnitudes (`roundings(n)`). So
// much a score is off; that moves p by 2 p (1-p) times as much, since what all scores have in common moves nothing.
// Besides, backward's p is off by the rounding of lse, relatively (but for one key alone, whose score is lse).
//
// Tensor cores take p and ds rounded to bf16, off by up to `weight_rounding` of themselves (0 where they stay fp32): in
// a sum, as independent errors of that size would be (see Spread).
class ReferenceAttention {
 public:
  ReferenceAttention(const Placement& place, const std::vector<int>& document_start, const Doubles& in,
                     double weight_rounding = 0)
      : place_(place),
        s_(place.c),
        start_(document_start),
        in_(in),
        weight_rounding_(weight_rounding),
        p_(size_t(s_.Tk)),
        p_limit_(size_t(s_.Tk)) {}

  Reference result() {
    r_.out.resize(place_.out.count());
    r_.lse.resize(size_t(s_.B) * s_.NH * s_.Tq);
    r_.dq.resize(place_.q.count());
    for (auto* values : {&r_.dk, &r_.dv, &dk_limit_, &dv_limit_}) values->resize(place_.k.count());
    for (auto* spreads : {&dk_spread_, &dv_spread_}) spreads->resize(place_.k.count());
    for (int b = 0; b < s_.B; ++b)
      for (int h = 0; h < s_.NH; ++h)
        for (int t = 0; t < s_.Tq; ++t)
          if (forward(b, h, t) && !in_.dout.empty()) backward(b, h, t);
    for (size_t i = 0; i < dk_limit_.size(); ++i) {
      r_.limit.dk = std::max(r_.limit.dk, dk_limit_[i] + dk_spread_[i].limit(weight_rounding_));
      r_.limit.dv = std::max(r_.limit.dv, dv_limit_[i] + dv_spread_[i].limit(weight_rounding_));
    }
    return r_;
  }

 private:
  // Terms of a sum, each off by up to `rounding` of itself: at worst all in one direction; as independent numbers,
  // evenly spread, 6 standard deviations.
  struct Spread {
    double magnitudes = 0, squares = 0;
    void add(double term) { magnitudes += std::fabs(term), squares += term * term; }
    double limit(double rounding) const {
      return rounding * std::min(magnitudes, 6 / std::sqrt(3) * std::sqrt(squares));
    }
  };

  static double roundings(int n) { return (4 + std::sqrt(n)) * kUnit; }
  size_t key(int b, int h, int j) const { return place_.k.dense(b, j, h / (s_.NH / s_.NKV), 0); }

  // p_, and out and lse of one query; false if it sees no key.
  bool forward(int b, int h, int t) {
    const double* q = &in_.q[place_.q.dense(b, t, h, 0)];
    const int start = start_.empty() ? 0 : start_[size_t(b) * s_.Tq + t];
    double top = -INFINITY, total = 0, terms = 0;
    for (int j = 0; j < s_.Tk; ++j) {
      const int position = s_.key_offset + j;
      p_[j] = -INFINITY;
      if (position < start || position > s_.query_offset + t) continue;
      double sum = 0, magnitude = 0;
      for (int d = 0; d < s_.HD; ++d) {
        const double term = q[d] * in_.k[key(b, h, j) + d];
        sum += term;
        magnitude += std::fabs(term);
      }
      top = std::max(top, p_[j] = sum * scale_);
      terms = std::max(terms, magnitude * scale_);
    }
    for (int j = 0; j < s_.Tk; ++j) total += p_[j] = p_[j] == -INFINITY ? 0 : std::exp(p_[j] - top);
    const double lse = r_.lse[(size_t(b) * s_.NH + h) * s_.Tq + t] = top + std::log(total);
    if (total == 0) return false;
    const double score = roundings(s_.HD) * terms, lse_rounding = std::log(total) > kUnit ? kUnit * std::fabs(lse) : 0;
    r_.limit.lse = std::max(r_.limit.lse, 2 * score + roundings(s_.Tk));
    for (int j = 0; j < s_.Tk; ++j) {
      p_[j] /= total;
      p_limit_[j] = p_[j] * (lse_rounding + 2 * (1 - p_[j]) * score + 2 * roundings(s_.Tk));
    }
    for (int d = 0; d < s_.HD; ++d) {
      double limit = 0, &out = r_.out[place_.out.dense(b, t, h, d)];
      Spread spread;
      for (int j = 0; j < s_.Tk; ++j)
        if (p_[j] != 0) {
          const double v = in_.v[key(b, h, j) + d];
          out += p_[j] * v;
          limit += p_limit_[j] * std::fabs(v);
          spread.add(p_[j] * v);
        }
      r_.limit.out = std::max(r_.limit.out, limit + spread.limit(weight_rounding_));
    }
    return true;
  }

  // Adds the contribution of one query to the gradients.
  void backward(int b, int h, int t) {
    const double* q = &in_.q[place_.q.dense(b, t, h, 0)];
    const double* dout = &in_.dout[place_.out.dense(b, t, h, 0)];
    const double* out = &(in_.out.empty() ? r_.out : in_.out)[place_.out.dense(b, t, h, 0)];
    double* dq = &r_.dq[place_.q.dense(b, t, h, 0)];
    const double many = roundings(std::max(s_.Tk, s_.Tq * s_.NH / s_.NKV));
    double rowsum_dO_O = 0, rowsum_terms = 0;
    for (int d = 0; d < s_.HD; ++d) rowsum_dO_O += dout[d] * out[d], rowsum_terms += std::fabs(dout[d] * out[d]);
    std::vector<double> dq_limit(size_t(s_.HD));
    std::vector<Spread> dq_spread(size_t(s_.HD));
    for (int j = 0; j < s_.Tk; ++j) {
      if (p_[j] == 0) continue;
      const size_t at = key(b, h, j);
      double dp = 0, terms = rowsum_terms;
      for (int d = 0; d < s_.HD; ++d) dp += dout[d] * in_.v[at + d], terms += std::fabs(dout[d] * in_.v[at + d]);
      const double ds = p_[j] * (dp - rowsum_dO_O) * scale_;
      const double ds_limit = (p_limit_[j] * std::fabs(dp - rowsum_dO_O) + p_[j] * roundings(s_.HD) * terms) * scale_ +
                              many * std::fabs(ds);
      for (int d = 0; d < s_.HD; ++d) {
        const double k = in_.k[at + d];
        dq[d] += ds * k;
        dq_limit[d] += ds_limit * std::fabs(k);
        dq_spread[d].add(ds * k);
        r_.dk[at + d] += ds * q[d];
        dk_limit_[at + d] += ds_limit * std::fabs(q[d]);
        r_.dv[at + d] += p_[j] * dout[d];
        dv_limit_[at + d] += (p_limit_[j] + many * p_[j]) * std::fabs(dout[d]);
        dk_spread_[at + d].add(ds * q[d]);
        dv_spread_[at + d].add(p_[j] * dout[d]);
      }
    }
    for (int d = 0; d < s_.HD; ++d)
      r_.limit.dq = std::max(r_.limit.dq, dq_limit[d] + dq_spread[d].limit(weight_rounding_));
  }

  const Placement& place_;
  const Case& s_;
  const std::vector<int>& start_;
  const Doubles& in_;
  const double scale_ = double(1 / std::sqrt(float(s_.HD)));
  const double weight_rounding_;
  Reference r_;
  std::vector<double> p_, p_limit_, dk_limit_, dv_limit_;  // of the query at hand; of all
  std::vector<Spread> dk_spread_, dv_spread_;
};

// ---------------------------------------------------------------------------------------------- checks

// out, lse, and dq, dk, dv as they lie in their buffer.
template <class T>
using Outputs = std::tuple<std::vector<T>, std::vector<float>, std::vector<T>>;

template <class T>
Outputs<T> run(Stream& stream, const Inputs<T>& in, AttentionKernel kernel, bool accumulate = false) {
  const Placement& place = in.place;
  AttentionOptions options = place.options(kernel);
  const size_t rows = size_t(place.c.B) * place.c.NH * place.c.Tq;
  Array<T> qkv(stream, in.qkv), dout(stream, in.dout), out(stream, place.out_size), dqkv(stream, place.size);
  Array<float> lse(stream, rows), rowsum_dO_O(stream, rows);
  std::unique_ptr<Array<int>> start;
  if (!in.document_start.empty()) {
    start = std::make_unique<Array<int>>(stream, in.document_start);
    options.document_start = start->tensor({place.c.B, place.c.Tq});
  }
  if (accumulate) dqkv.upload(in.dqkv);
  const Tensor q = place.q.of(qkv), k = place.k.of(qkv), v = place.v.of(qkv);
  float largest = accumulate ? 1000.0f : 0.0f;  // beyond all that is computed: it stays
  const Array<float> amax(stream, std::vector{largest});
  std::vector<T> without_amax;
  if (accumulate) {
    attention_forward(stream, place.out.of(out), place.lse(lse), q, k, v, options);
    without_amax = out.download();
  }
  attention_forward(stream, place.out.of(out), place.lse(lse), q, k, v, options, amax.data());
  attention_backward(stream, place.q.of(dqkv), place.k.of(dqkv), place.v.of(dqkv), place.lse(rowsum_dO_O),
                     place.out.of(dout), place.out.of(out), place.lse(lse), q, k, v, options, {accumulate, accumulate});
  rowsum_dO_O.download();  // its guards are whole
  const std::vector<T> outputs = out.download();
  REQUIRE(!accumulate || memcmp(outputs.data(), without_amax.data(), outputs.size() * sizeof(T)) == 0,
          "out with its largest number has other bits than without");
  place.out.each([&](size_t i, size_t) { largest = std::max(largest, std::fabs(to_float(outputs[i]))); });
  REQUIRE(amax.download()[0] == largest, "the largest number of out: %.9g, expected %.9g", double(amax.download()[0]),
          double(largest));
  return {outputs, lse.download(), dqkv.download()};
}

// Every element that belongs to no tensor still has its poison.
template <class T>
bool gaps_untouched(const std::vector<T>& buffer, std::initializer_list<const View*> views) {
  std::vector<bool> belongs(buffer.size());
  for (const View* view : views) view->each([&](size_t i, size_t) { belongs[i] = true; });
  const std::vector<unsigned char> poison(sizeof(T), 0xff);
  for (size_t i = 0; i < buffer.size(); ++i)
    if (!belongs[i] && memcmp(&buffer[i], poison.data(), sizeof(T))) return false;
  return true;
}

template <class T>
std::vector<T> picked(const View& view, const std::vector<T>& buffer) {
  std::vector<T> values(view.count());
  view.each([&](size_t from, size_t to) { values[to] = buffer[from]; });
  return values;
}

template <class T>
void check_gradients(Checker& checker, const std::string& name, const Inputs<T>& in, const std::vector<T>& dqkv,
                     const Reference& want, bool accumulate) {
  const Placement& place = in.place;
  const auto compare = [&](const char* what, const View& view, std::vector<double> expected, double limit) {
    if (accumulate) {
      const std::vector<double> before = view.gather(in.dqkv);
      for (size_t i = 0; i < expected.size(); ++i) expected[i] += before[i];
    }
    checker.close(name + what, picked(view, dqkv), expected, {view.B, view.T, view.heads, view.HD}, kRounding<T>,
                  limit);
  };
  compare(accumulate ? " dq +=" : " dq", place.q, want.dq, want.limit.dq);
  compare(accumulate ? " dk +=" : " dk", place.k, want.dk, want.limit.dk);
  compare(accumulate ? " dv +=" : " dv", place.v, want.dv, want.limit.dv);
}

inline std::string name_of(const Case& c, DType dtype) {
  std::string name =
      format("%s B=%d Tq=%d Tk=%d NH=%d NKV=%d HD=%d", dtype_name(dtype), c.B, c.Tq, c.Tk, c.NH, c.NKV, c.HD);
  if (c.query_offset || c.key_offset) name += format(" offsets %d %d", c.query_offset, c.key_offset);
  if (c.window) name += format(" window %d", c.window);
  if (c.documents != Documents::none) name += c.documents == Documents::packed ? " documents" : " arbitrary starts";
  if (c.layout != Layout::separate)
    name += c.layout == Layout::packed ? " packed" : c.layout == Layout::gaps ? " gaps" : " (T,B)";
  if (c.magnitude != 1) name += format(" magnitude %g", c.magnitude);
  return name;
}

// A kernel's results, set and added, against the reference and against themselves in other orders.
template <class T>
void check_case(Checker& checker, OtherSchedules& orders, const Case& c, AttentionKernel kernel) {
  const std::string name = name_of(c, kDType<T>);
  checker.trying(name);
  const Inputs<T> in(c, uint64_t(c.Tq) * 1000003 + uint64_t(c.Tk) * 1009 + c.HD);
  const Placement& place = in.place;
  const Outputs<T> outputs = run(checker.stream, in, kernel);
  const auto& [out, lse, dqkv] = outputs;
  // Backward's rowsum_dO_O comes from the output that forward rounded: that is its input, not its error.
  const Doubles exact{place.q.gather(in.qkv), place.k.gather(in.qkv), place.v.gather(in.qkv), place.out.gather(in.dout),
                      place.out.gather(out)};
  const double weight_rounding = kernel == AttentionKernel::plain ? 0 : kRounding<bf16>;
  Reference want = ReferenceAttention(place, in.document_start, exact, weight_rounding).result();
  checker.close(name + " out", picked(place.out, out), want.out, {c.B, c.Tq, c.NH, c.HD}, kRounding<T>, want.limit.out);
  std::vector<float> finite = lse;
  for (size_t i = 0; i < lse.size(); ++i)  // a query that sees nothing: -infinity, which has no distance
    if (want.lse[i] == -INFINITY) finite[i] = lse[i] == -INFINITY ? 0 : NAN, want.lse[i] = 0;
  checker.close(name + " lse", finite, want.lse, {c.B, c.NH, c.Tq}, kUnit, want.limit.lse);
  check_gradients(checker, name, in, dqkv, want, false);
  checker.that(name + " gaps",
               gaps_untouched(out, {&place.out}) && gaps_untouched(dqkv, {&place.q, &place.k, &place.v}),
               "nothing written between the tensors' rows");
  const auto accumulated = run(checker.stream, in, kernel, true);
  check_gradients(checker, name, in, std::get<2>(accumulated), want, true);
  orders.same_bits(checker, name, outputs, [&](Stream& stream) { return run(stream, in, kernel); });
}

// Queries that come one by one, as in sampling from a cache of keys and values, have the bits that they have together;
// all keys are there, also those before a window.
template <class T>
void check_one_by_one(Checker& checker, AttentionKernel kernel, int HD, int window = 0) {
  const Case c{1, 131, 131, 6, 2, HD, 0, 0, Documents::none, Layout::packed, 1, window};
  Stream& stream = checker.stream;
  const Inputs<T> in(c, 17);
  const std::vector<T> whole = std::get<0>(run(stream, in, kernel));
  const Array<T> qkv(stream, in.qkv);
  const size_t width = size_t(c.NH) * HD;
  for (const int t : {0, 1, 31, 32, 63, 64, 65, 127, 128, 130}) {
    Array<T> out(stream, width);
    Array<float> lse(stream, size_t(c.NH));
    AttentionOptions options = in.place.options(kernel);
    options.query_offset = t;
    const Array<int> start(stream, std::vector<int>{window ? in.document_start[size_t(t)] : 0});
    if (window) options.document_start = start.tensor({1, 1});
    attention_forward(stream, out.tensor({1, 1, c.NH, HD}), lse.tensor({1, c.NH, 1}), in.place.q.of(qkv).slice(1, t, 1),
                      in.place.k.of(qkv).slice(1, 0, t + 1), in.place.v.of(qkv).slice(1, 0, t + 1), options);
    checker.same_bits(format("%s HD=%d window %d: query %d alone", dtype_name(kDType<T>), HD, window, t),
                      out.download(),
                      std::vector<T>(whole.begin() + ptrdiff_t(t * width), whole.begin() + ptrdiff_t((t + 1) * width)));
  }
}

// ---------------------------------------------------------------------------------------------- bench

template <class T>
void bench_shape(Bencher& bencher, AttentionKernel kernel, int B, int T_, int NH, int NKV, int HD) {
  Stream& stream = bencher.stream;
  Case c{B, T_, T_, NH, NKV, HD};
  c.layout = Layout::packed;
  const Inputs<T> in(c, 1);
  const Placement& place = in.place;
  const size_t rows = size_t(B) * NH * T_;
  Array<T> qkv(stream, in.qkv), dout(stream, in.dout), out(stream, place.out_size), dqkv(stream, place.size);
  Array<float> lse(stream, rows), rowsum_dO_O(stream, rows);
  const Tensor q = place.q.of(qkv), k = place.k.of(qkv), v = place.v.of(qkv);
  const AttentionOptions options = place.options(kernel);
  const std::string shape = format("%s B=%d T=%d NH=%d NKV=%d HD=%d", dtype_name(kDType<T>), B, T_, NH, NKV, HD);
  const double flops = 4.0 * HD * B * NH * attention_pairs(T_, T_, 0);  // that forward needs
  const double bytes = double(place.size + place.out_size) * sizeof(T) + double(rows) * 4;
  bencher.time<T>("forward  " + shape, bytes, flops,
                  [&] { attention_forward(stream, place.out.of(out), place.lse(lse), q, k, v, options); });
  bencher.time<T>("backward " + shape, 2 * bytes, 2.5 * flops, [&] {
    attention_backward(stream, place.q.of(dqkv), place.k.of(dqkv), place.v.of(dqkv), place.lse(rowsum_dO_O),
                       place.out.of(dout), place.out.of(out), place.lse(lse), q, k, v, options);
  });
}

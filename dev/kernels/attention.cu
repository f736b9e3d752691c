// Checks and times llmc/kernels/attention against a plain reference in double.
// Covers: promise 7: attention, forward and backward, agrees with a plain reference on ugly shapes, offsets, documents
#include "llmc/kernels/attention.h"

#include <functional>
#include <memory>
#include <tuple>

#include "dev/kernels/check.h"
#include "dev/kernels/other_orders.h"

namespace {

enum class Layout { packed, separate, gaps, sequences_inside };
enum class Documents { none, packed, arbitrary };

struct Case {
  int B, Tq, Tk, NH, NKV, HD;
  int query_offset = 0, key_offset = 0;
  Documents documents = Documents::none;
  Layout layout = Layout::separate;
  double magnitude = 1;  // of q and k
};

// ---------------------------------------------------------------------------------------------- inputs

// The elements of a buffer, and which of them a tensor (B,T,heads,HD) has.
struct View {
  AttentionStrides strides;
  size_t first;
  int B, T, heads, HD;
  size_t at(int b, int t, int h, int d) const {
    return first + size_t(b * strides.batch + t * strides.row + h * HD + d);
  }
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

AttentionStrides strides_for(Layout layout, int B, int T, int width) {
  if (layout == Layout::gaps) return {width + 24, int64_t(T) * (width + 24) + 8};
  if (layout == Layout::sequences_inside) return {int64_t(B) * width, width};
  return {width, int64_t(T) * width};
}

// q, k, v lie in one buffer, in columns if they are packed, else one behind the other.
struct Placement {
  AttentionShape shape;
  View q, k, v, out;
  size_t size, out_size;

  explicit Placement(const Case& c) {
    if (c.layout == Layout::packed) {
      shape = packed_attention_shape(c.B, c.Tq, c.NH, c.NKV, c.HD);
    } else {
      shape = separate_attention_shape(c.B, c.Tq, c.Tk, c.NH, c.NKV, c.HD);
      if (c.layout != Layout::separate) {
        shape.q = shape.out = strides_for(c.layout, c.B, c.Tq, c.NH * c.HD);
        shape.k = shape.v = strides_for(c.layout, c.B, c.Tk, c.NKV * c.HD);
      }
    }
    shape.query_offset = c.query_offset;
    shape.key_offset = c.key_offset;
    const bool packed = c.layout == Layout::packed;
    q = {shape.q, 0, c.B, c.Tq, c.NH, c.HD};
    k = {shape.k, packed ? size_t(c.NH * c.HD) : (q.end() + 7) / 8 * 8, c.B, c.Tk, c.NKV, c.HD};
    v = {shape.v, packed ? k.first + size_t(c.NKV * c.HD) : (k.end() + 7) / 8 * 8, c.B, c.Tk, c.NKV, c.HD};
    out = {shape.out, 0, c.B, c.Tq, c.NH, c.HD};
    size = v.end();
    out_size = out.end();
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
    if (c.documents == Documents::none) return;
    for (int b = 0; b < c.B; ++b)
      for (int t = 0, start = 0; t < c.Tq; ++t) {
        const int position = c.query_offset + t;
        if (t == 0) start = generator.integer(0, position);
        else if (generator.uniform() < 0.06) start = position;
        document_start.push_back(c.documents == Documents::packed ? start : generator.integer(-3, position + 2));
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

// By the definition. Gradients only if `in.dout` is not empty; delta from in.out, or the exact output if that is empty.
//
// The limits: a sum of n terms is off by some sqrt(n) roundings of the sum of their magnitudes (`roundings(n)`). So
// much a score is off; that moves p by 2 p (1-p) times as much, since what all scores have in common moves nothing.
// Besides, backward's p is off by the rounding of lse, relatively (but for one key alone, whose score is lse).
class ReferenceAttention {
 public:
  ReferenceAttention(const Placement& place, const std::vector<int>& document_start, const Doubles& in)
      : place_(place), s_(place.shape), start_(document_start), in_(in), p_(size_t(s_.Tk)), p_limit_(size_t(s_.Tk)) {}

  Reference result() {
    r_.out.resize(place_.out.count());
    r_.lse.resize(size_t(s_.B) * s_.NH * s_.Tq);
    r_.dq.resize(place_.q.count());
    for (auto* values : {&r_.dk, &r_.dv, &dk_limit_, &dv_limit_}) values->resize(place_.k.count());
    for (int b = 0; b < s_.B; ++b)
      for (int h = 0; h < s_.NH; ++h)
        for (int t = 0; t < s_.Tq; ++t)
          if (forward(b, h, t) && !in_.dout.empty()) backward(b, h, t);
    r_.limit.dk = *std::max_element(dk_limit_.begin(), dk_limit_.end());
    r_.limit.dv = *std::max_element(dv_limit_.begin(), dv_limit_.end());
    return r_;
  }

 private:
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
      for (int j = 0; j < s_.Tk; ++j)
        if (p_[j] != 0) {
          const double v = in_.v[key(b, h, j) + d];
          out += p_[j] * v;
          limit += p_limit_[j] * std::fabs(v);
        }
      r_.limit.out = std::max(r_.limit.out, limit);
    }
    return true;
  }

  // What one query adds to the gradients.
  void backward(int b, int h, int t) {
    const double* q = &in_.q[place_.q.dense(b, t, h, 0)];
    const double* dout = &in_.dout[place_.out.dense(b, t, h, 0)];
    const double* out = &(in_.out.empty() ? r_.out : in_.out)[place_.out.dense(b, t, h, 0)];
    double* dq = &r_.dq[place_.q.dense(b, t, h, 0)];
    const double many = roundings(std::max(s_.Tk, s_.Tq * s_.NH / s_.NKV));
    double delta = 0, delta_terms = 0;
    for (int d = 0; d < s_.HD; ++d) delta += dout[d] * out[d], delta_terms += std::fabs(dout[d] * out[d]);
    std::vector<double> dq_limit(size_t(s_.HD));
    for (int j = 0; j < s_.Tk; ++j) {
      if (p_[j] == 0) continue;
      const size_t at = key(b, h, j);
      double dp = 0, terms = delta_terms;
      for (int d = 0; d < s_.HD; ++d) dp += dout[d] * in_.v[at + d], terms += std::fabs(dout[d] * in_.v[at + d]);
      const double ds = p_[j] * (dp - delta) * scale_;
      const double ds_limit =
          (p_limit_[j] * std::fabs(dp - delta) + p_[j] * roundings(s_.HD) * terms) * scale_ + many * std::fabs(ds);
      for (int d = 0; d < s_.HD; ++d) {
        const double k = in_.k[at + d];
        dq[d] += ds * k;
        dq_limit[d] += ds_limit * std::fabs(k);
        r_.dk[at + d] += ds * q[d];
        dk_limit_[at + d] += ds_limit * std::fabs(q[d]);
        r_.dv[at + d] += p_[j] * dout[d];
        dv_limit_[at + d] += (p_limit_[j] + many * p_[j]) * std::fabs(dout[d]);
      }
    }
    r_.limit.dq = std::max(r_.limit.dq, *std::max_element(dq_limit.begin(), dq_limit.end()));
  }

  const Placement& place_;
  const AttentionShape& s_;
  const std::vector<int>& start_;
  const Doubles& in_;
  const double scale_ = double(1 / std::sqrt(float(s_.HD)));
  Reference r_;
  std::vector<double> p_, p_limit_, dk_limit_, dv_limit_;  // of the query at hand; of all
};

// ---------------------------------------------------------------------------------------------- checks

// out, lse, and dq, dk, dv as they lie in their buffer.
template <class T>
using Outputs = std::tuple<std::vector<T>, std::vector<float>, std::vector<T>>;

template <class T>
Outputs<T> run(Stream& stream, const Inputs<T>& in, bool accumulate = false) {
  const Placement& place = in.place;
  AttentionShape s = place.shape;
  const size_t rows = size_t(s.B) * s.NH * s.Tq;
  Array<T> qkv(stream, in.qkv), dout(stream, in.dout), out(stream, place.out_size), dqkv(stream, place.size);
  Array<float> lse(stream, rows), delta(stream, rows);
  std::unique_ptr<Array<int>> start;
  if (!in.document_start.empty()) {
    start = std::make_unique<Array<int>>(stream, in.document_start);
    s.document_start = start->data();
  }
  if (accumulate) dqkv.upload(in.dqkv);
  const T *q = qkv.data(), *k = q + place.k.first, *v = q + place.v.first;
  T *dq = dqkv.data(), *dk = dq + place.k.first, *dv = dq + place.v.first;
  attention_forward(stream, out.data(), lse.data(), q, k, v, s);
  attention_backward(stream, dq, dk, dv, delta.data(), dout.data(), out.data(), lse.data(), q, k, v, s,
                     AttentionKernel::automatic, {accumulate, accumulate});
  delta.download();  // its guards are whole
  return {out.download(), lse.download(), dqkv.download()};
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

template <class T>
void check_case(Checker& checker, OtherOrders& orders, const Case& c) {
  std::string name =
      format("%s B=%d Tq=%d Tk=%d NH=%d NKV=%d HD=%d", dtype_name(kDType<T>), c.B, c.Tq, c.Tk, c.NH, c.NKV, c.HD);
  if (c.query_offset || c.key_offset) name += format(" offsets %d %d", c.query_offset, c.key_offset);
  if (c.documents != Documents::none) name += c.documents == Documents::packed ? " documents" : " arbitrary starts";
  if (c.layout != Layout::separate)
    name += c.layout == Layout::packed ? " packed" : c.layout == Layout::gaps ? " gaps" : " (T,B)";
  if (c.magnitude != 1) name += format(" magnitude %g", c.magnitude);

  const Inputs<T> in(c, uint64_t(c.Tq) * 1000003 + uint64_t(c.Tk) * 1009 + c.HD);
  const Placement& place = in.place;
  const Outputs<T> outputs = run(checker.stream, in);
  const auto& [out, lse, dqkv] = outputs;
  // Backward's delta comes from the output that forward rounded: that is its input, not its error.
  const Doubles exact{place.q.gather(in.qkv), place.k.gather(in.qkv), place.v.gather(in.qkv), place.out.gather(in.dout),
                      place.out.gather(out)};
  Reference want = ReferenceAttention(place, in.document_start, exact).result();
  checker.close(name + " out", picked(place.out, out), want.out, {c.B, c.Tq, c.NH, c.HD}, kRounding<T>, want.limit.out);
  std::vector<float> finite = lse;
  for (size_t i = 0; i < lse.size(); ++i)  // a query that sees nothing: -infinity, which has no distance
    if (want.lse[i] == -INFINITY) finite[i] = lse[i] == -INFINITY ? 0 : NAN, want.lse[i] = 0;
  checker.close(name + " lse", finite, want.lse, {c.B, c.NH, c.Tq}, kUnit, want.limit.lse);
  check_gradients(checker, name, in, dqkv, want, false);
  checker.that(name + " gaps",
               gaps_untouched(out, {&place.out}) && gaps_untouched(dqkv, {&place.q, &place.k, &place.v}),
               "nothing written between the tensors' rows");
  const auto accumulated = run(checker.stream, in, true);
  check_gradients(checker, name, in, std::get<2>(accumulated), want, true);
  orders.same_bits(checker, name, outputs, [&](Stream& stream) { return run(stream, in); });
}

// The reference's own gradients against central differences of sum(out * dout).
void check_reference(Checker& checker) {
  const Case c{2, 5, 7, 4, 2, 16, 3, 1, Documents::packed};
  const Inputs<float> in(c, 5);
  const Placement& place = in.place;
  Doubles x{place.q.gather(in.qkv), place.k.gather(in.qkv), place.v.gather(in.qkv), place.out.gather(in.dout), {}};
  const Reference exact = ReferenceAttention(place, in.document_start, x).result();
  const auto differences = [&](std::vector<double>& parameter) {
    const auto loss = [&](double& value, double shifted) {
      const double before = value;
      value = shifted;
      const Doubles shifted_x{x.q, x.k, x.v, {}, {}};
      const Reference r = ReferenceAttention(place, in.document_start, shifted_x).result();
      value = before;
      double sum = 0;
      for (size_t i = 0; i < r.out.size(); ++i) sum += r.out[i] * x.dout[i];
      return sum;
    };
    std::vector<double> result;
    const double step = 1e-4;  // error about step^2 = 1e-8 and 1e-16 / step
    for (double& value : parameter)
      result.push_back((loss(value, value + step) - loss(value, value - step)) / (2 * step));
    return result;
  };
  const std::vector<int> q_shape{c.B, c.Tq, c.NH, c.HD}, k_shape{c.B, c.Tk, c.NKV, c.HD};
  checker.close("reference dq against differences", exact.dq, differences(x.q), q_shape, 0, 1e-7);
  checker.close("reference dk against differences", exact.dk, differences(x.k), k_shape, 0, 1e-7);
  checker.close("reference dv against differences", exact.dv, differences(x.v), k_shape, 0, 1e-7);
}

// One call cut into pieces gives what the whole gives: keys in two pieces (each adds to dq), then queries in two (each
// adds to dk and dv), as context parallelism cuts them.
template <class T>
void check_pieces(Checker& checker) {
  const Case c{1, 70, 70, 4, 2, 64, 0, 0, Documents::packed};
  const int cut = 41;
  Stream& stream = checker.stream;
  const Inputs<T> in(c, 9);
  const auto [out, lse, whole] = run(stream, in);
  const Placement& place = in.place;
  Array<T> qkv(stream, in.qkv), dout(stream, in.dout), full_out(stream, out), piece_out(stream, place.out_size);
  Array<float> full_lse(stream, lse), piece_lse(stream, lse.size()), delta(stream, lse.size());
  Array<int> start(stream, in.document_start);
  const T *q = qkv.data(), *k = q + place.k.first, *v = q + place.v.first;

  Array<T> by_keys(stream, place.size), by_queries(stream, place.size);
  for (int piece = 0; piece < 2; ++piece) {
    AttentionShape s = place.shape;
    s.document_start = start.data();
    s.key_offset = piece ? cut : 0;
    s.Tk = piece ? c.Tk - cut : cut;
    const size_t from = size_t(s.key_offset * s.k.row);
    T* dq = by_keys.data();
    attention_backward<T>(stream, dq, dq + place.k.first + from, dq + place.v.first + from, delta.data(), dout.data(),
                          full_out.data(), full_lse.data(), q, k + from, v + from, s, AttentionKernel::plain,
                          {.dq = piece == 1});
  }
  for (int piece = 0; piece < 2; ++piece) {
    AttentionShape s = place.shape;
    s.query_offset = piece ? cut : 0;
    s.Tq = piece ? c.Tq - cut : cut;
    s.document_start = start.data() + s.query_offset;
    const size_t from = size_t(s.query_offset * s.q.row);
    T* dq = by_queries.data();
    attention_forward<T>(stream, piece_out.data() + from, piece_lse.data(), q + from, k, v, s);
    attention_backward<T>(stream, dq + from, dq + place.k.first, dq + place.v.first, delta.data(), dout.data() + from,
                          piece_out.data() + from, piece_lse.data(), q + from, k, v, s, AttentionKernel::plain,
                          {.dkv = piece == 1});
  }
  // Each part and their sum are rounded to T, parts of up to `largest`; and fp32 sums of some 100 terms differ by their
  // order.
  const auto close = [&](const char* what, const std::vector<T>& got, const std::vector<T>& want, double largest) {
    checker.close(format("%s %s", dtype_name(kDType<T>), what), got, to_doubles(want), {int(want.size())},
                  3 * kRounding<T>, 2 * (kRounding<T> + 8 * kUnit) * largest);
  };
  close("keys in two pieces: dq, dk, dv", by_keys.download(), whole, 4);
  close("queries in two pieces: out", piece_out.download(), out, 1);
  close("queries in two pieces: dq, dk, dv", by_queries.download(), whole, 4);
}

void check_choice(Checker& checker) {
  const DeviceInfo& device = checker.stream.device().info();
  for (AttentionKernel asked : {AttentionKernel::automatic, AttentionKernel::plain}) {
    const AttentionChoice choice = choose_attention_kernel(asked, device, DType::bf16, 96);
    checker.that(format("choice of %s", attention_kernel_name(asked)),
                 choice.kernel == AttentionKernel::plain && choice.why.find("head size 96") != std::string::npos,
                 choice.why);
    checker.that(format("the name %s", attention_kernel_name(asked)),
                 attention_kernel_named(attention_kernel_name(asked)) == asked, "is understood");
  }
  checker.refused("an unknown kernel", "expected auto or plain", [] { attention_kernel_named("flash"); });
  double worst = 0;
  for (int Tq : {1, 5, 9})
    for (int Tk : {1, 4, 12})
      for (int offset = -14; offset <= 14; ++offset) {
        AttentionShape s = separate_attention_shape(1, Tq, Tk, 1, 1, 16);
        (offset < 0 ? s.key_offset : s.query_offset) = std::abs(offset);
        double pairs = 0;
        for (int t = 0; t < Tq; ++t)
          for (int j = 0; j < Tk; ++j) pairs += s.key_offset + j <= s.query_offset + t;
        worst = std::max(worst, std::fabs(pairs - attention_pairs(s)));
      }
  checker.that("attention_pairs", worst == 0, format("differs from counting by %g at most", worst));
}

void check_refusals(Checker& checker) {
  Stream& stream = checker.stream;
  Array<float> q(stream, 4096), k(stream, 4096), v(stream, 4096), out(stream, 4096), lse(stream, 64);
  const auto forward = [&](const AttentionShape& s, float* o, const float* queries) {
    attention_forward<float>(stream, o, lse.data(), queries, k.data(), v.data(), s);
  };
  const auto bad = [&](const char* name, const char* expected, const std::function<void(AttentionShape&)>& spoil) {
    AttentionShape s = separate_attention_shape(2, 4, 4, 4, 2, 16);
    spoil(s);
    checker.refused(name, expected, [&] { forward(s, out.data(), q.data()); });
  };
  bad("HD = 12", "head size 12", [](AttentionShape& s) { s.HD = 12; });
  bad("HD = 8", "head size 8", [](AttentionShape& s) { s.HD = 8; });
  bad("HD = 264", "head size 264", [](AttentionShape& s) { s.HD = 264; });
  bad("no sequences", "B = 0", [](AttentionShape& s) { s.B = 0; });
  bad("no queries", "Tq = 0", [](AttentionShape& s) { s.Tq = 0; });
  bad("no keys", "Tk = 0", [](AttentionShape& s) { s.Tk = 0; });
  bad("no heads", "NH = 0", [](AttentionShape& s) { s.NH = 0; });
  bad("3 key heads for 4", "NKV = 3", [](AttentionShape& s) { s.NKV = 3; });
  bad("a negative offset", "query_offset = -1", [](AttentionShape& s) { s.query_offset = -1; });
  bad("positions beyond int", "positions 0 to 2^31-1", [](AttentionShape& s) { s.key_offset = 2147483647; });
  bad("more rows than int", "too large", [](AttentionShape& s) { s.Tq = 2147483647 / 2 + 1; });
  bad("rows that overlap", "k (B = 2, T = 4, 2 heads of 16) has strides 24", [](AttentionShape& s) { s.k.row = 24; });
  bad("sequences that overlap", "positions overlap", [](AttentionShape& s) { s.v.batch = 120; });
  bad("an uneven stride", "multiples of 8", [](AttentionShape& s) { s.q.row = 68; });
  const AttentionShape good = separate_attention_shape(2, 4, 4, 4, 2, 16);
  checker.refused("no output", "out is at", [&] { forward(good, nullptr, q.data()); });
  checker.refused("no queries at all", "q is at", [&] { forward(good, out.data(), nullptr); });
  checker.refused("unaligned queries", "multiple of 16", [&] { forward(good, out.data(), q.data() + 1); });
  checker.refused("out over q", "out overlaps q", [&] { forward(good, out.data(), out.data() + 256); });
  checker.refused("no lse", "lse is null",
                  [&] { attention_forward<float>(stream, out.data(), nullptr, q.data(), k.data(), v.data(), good); });
  Array<float> dq(stream, 4096), dk(stream, 4096), dv(stream, 4096), dout(stream, 4096), delta(stream, 64);
  const auto backward = [&](float* dk_at, float* delta_at) {
    attention_backward<float>(stream, dq.data(), dk_at, dv.data(), delta_at, dout.data(), out.data(), lse.data(),
                              q.data(), k.data(), v.data(), good);
  };
  checker.refused("dk over v", "dk overlaps v", [&] { backward(v.data(), delta.data()); });
  checker.refused("no dk", "dk is at", [&] { backward(nullptr, delta.data()); });
  checker.refused("no scratch", "delta is null", [&] { backward(dk.data(), nullptr); });
}

// ---------------------------------------------------------------------------------------------- bench

template <class T>
void bench_shape(Bencher& bencher, int B, int T_, int NH, int NKV, int HD) {
  Stream& stream = bencher.stream;
  Case c{B, T_, T_, NH, NKV, HD};
  c.layout = Layout::packed;
  const Inputs<T> in(c, 1);
  const Placement& place = in.place;
  const size_t rows = size_t(B) * NH * T_;
  Array<T> qkv(stream, in.qkv), dout(stream, in.dout), out(stream, place.out_size), dqkv(stream, place.size);
  Array<float> lse(stream, rows), delta(stream, rows);
  const T *q = qkv.data(), *k = q + place.k.first, *v = q + place.v.first;
  T *dq = dqkv.data(), *dk = dq + place.k.first, *dv = dq + place.v.first;
  const std::string shape = format("%s B=%d T=%d NH=%d NKV=%d HD=%d", dtype_name(kDType<T>), B, T_, NH, NKV, HD);
  const double flops = 4.0 * HD * B * NH * attention_pairs(place.shape);  // that forward needs
  const double bytes = double(place.size + place.out_size) * sizeof(T) + double(rows) * 4;
  bencher.time<T>("forward  " + shape, bytes, flops,
                  [&] { attention_forward<T>(stream, out.data(), lse.data(), q, k, v, place.shape); });
  bencher.time<T>("backward " + shape, 2 * bytes, 2.5 * flops, [&] {
    attention_backward<T>(stream, dq, dk, dv, delta.data(), dout.data(), out.data(), lse.data(), q, k, v, place.shape);
  });
}

}  // namespace

void check(Checker& checker) {
  OtherOrders orders;
  const Documents none = Documents::none, packed = Documents::packed, arbitrary = Documents::arbitrary;
  const std::vector<Case> cases = {
      // As training has them.
      {1, 1, 1, 1, 1, 16, 0, 0, none, Layout::packed},
      {2, 2, 2, 2, 1, 24, 0, 0, none, Layout::packed},
      {2, 7, 7, 4, 4, 32, 0, 0, none, Layout::packed},
      {3, 33, 33, 4, 2, 32, 0, 0, none, Layout::packed},
      {1, 65, 65, 8, 1, 40, 0, 0, none, Layout::packed},
      {2, 63, 63, 7, 1, 64, 0, 0, none, Layout::packed},
      {1, 130, 130, 4, 1, 64, 0, 0, none, Layout::packed},
      {1, 257, 257, 4, 2, 32, 0, 0, none, Layout::packed},
      {1, 260, 260, 2, 1, 128, 0, 0, none, Layout::packed},
      {1, 129, 129, 7, 1, 72, 0, 0, none, Layout::packed},
      {1, 70, 70, 2, 2, 88, 0, 0, none, Layout::packed},
      {1, 97, 97, 2, 1, 96, 0, 0, none, Layout::packed},
      {1, 66, 66, 2, 1, 256, 0, 0, none, Layout::packed},
      // Fewer or more queries than keys; cached sampling; pieces of a sequence.
      {2, 1, 100, 8, 2, 64, 99, 0},
      {1, 1, 33, 4, 4, 16, 32, 0, none, Layout::gaps},
      {2, 31, 127, 4, 1, 32, 96, 0, none, Layout::sequences_inside},
      {1, 9, 255, 2, 1, 128, 100, 0, none, Layout::gaps},
      {2, 64, 40, 4, 2, 24, 0, 0, none, Layout::gaps},
      {1, 130, 8, 7, 1, 40, 0, 0},
      {1, 65, 65, 4, 2, 64, 64, 32, none, Layout::sequences_inside},
      {2, 50, 60, 4, 2, 32, 100, 120, none, Layout::gaps},  // the first 20 queries see nothing
      {1, 10, 20, 2, 1, 16, 5, 40},                         // no query sees anything
      // Documents.
      {2, 130, 130, 4, 2, 32, 0, 0, packed, Layout::packed},
      {2, 129, 129, 2, 1, 64, 0, 0, packed, Layout::packed},
      {1, 100, 160, 8, 2, 128, 60, 0, packed},
      {2, 90, 90, 4, 1, 32, 30, 20, packed, Layout::gaps},
      {2, 70, 75, 4, 2, 72, 10, 5, arbitrary},
      {2, 140, 140, 2, 2, 64, 0, 0, arbitrary, Layout::packed},
      {1, 70, 70, 2, 1, 256, 0, 0, packed},
      // Softmax far from uniform: scores of about 10, 1e4 and 1e9.
      {1, 130, 130, 4, 2, 32, 0, 0, none, Layout::packed, 3},
      {1, 130, 130, 4, 2, 64, 0, 0, packed, Layout::packed, 3},
      {1, 100, 100, 2, 1, 128, 0, 0, none, Layout::packed, 100},
      {1, 100, 100, 2, 1, 40, 0, 0, none, Layout::packed, 100},
      {1, 67, 67, 2, 1, 64, 0, 0, none, Layout::packed, 3e4},
  };
  for (const Case& c : cases) {
    check_case<float>(checker, orders, c);
    check_case<bf16>(checker, orders, c);
  }
  check_reference(checker);
  check_pieces<float>(checker);
  check_pieces<bf16>(checker);
  check_choice(checker);
  check_refusals(checker);
}

void bench(Bencher& bencher) {
  for (const auto& [model, N] : bencher.workloads())
    for (const int T : bencher.gpu() ? std::vector<int>{1024, 4096} : std::vector<int>{std::min(N, 256)}) {
      bench_shape<bf16>(bencher, N / T, T, model.NH, model.NKV, model.HD);
      if (T <= 1024) bench_shape<float>(bencher, N / T, T, model.NH, model.NKV, model.HD);
    }
}

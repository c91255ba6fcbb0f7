// One time step of the normalised GRU and LSTM behind their matrix products, forward and backward, on CPU.
// Shapes: rows of the batch B, hidden size H; every matrix has a contiguous last axis.

#include "rows.h"

namespace rmsexp {
namespace {

constexpr int64_t kRowsApart = 4096;  // units of a step that are worth a thread

int64_t grain(int64_t width) { return std::max<int64_t>(1, kRowsApart / width); }

// gain * normalised + shift of the units from j on.
template <typename T>
inline Vec<T> apply(const T* a, Statistics<T> of, const T* gain, const T* shift, int64_t j, int64_t count) {
  const auto normalised = (load(a + j, count) - Vec<T>(of.mean)) * Vec<T>(of.scale);
  return at::vec::fmadd(normalised, load(gain + j, count), load(shift + j, count));
}

// Takes the gradient of gain * normalised + shift at the units from j on: adds to those of gain and shift and to the
// sums that the gradient of the norm's input needs, and leaves that of the normalised values in `to`.
template <typename T>
struct Gathered {
  Vec<T> sum = Vec<T>(0), product = Vec<T>(0);

  inline void take(Vec<T> gradient, const T* a, Statistics<T> of, const T* gain, T* dgain, T* dshift, T* to, int64_t j, int64_t count) {
    const auto normalised = (load(a + j, count) - Vec<T>(of.mean)) * Vec<T>(of.scale);
    store(dgain + j, at::vec::fmadd(gradient, normalised, load(dgain + j, count)), count);
    store(dshift + j, load(dshift + j, count) + gradient, count);
    gradient = cut(gradient * load(gain + j, count), count);
    sum = sum + gradient;
    product = at::vec::fmadd(gradient, normalised, product);
    store(to + j, gradient, count);
  }

  void finish(T* to, const T* a, Statistics<T> of, const Form& form) const {
    to_input(to, a, of, correction<T>({total<T>(sum), total<T>(product)}, of.scale, form), form);
  }
};

const bool* mask_data(const OptionalTensor& mask) { return mask.has_value() ? mask->const_data_ptr<bool>() : nullptr; }

template <typename T>
void add_bias(T* a, const T* bias, int64_t n) {
  each<T>(0, n, [&](int64_t j, auto count) { store(a + j, load(a + j, count) + load(bias + j, count), count); });
}

void copy_row(auto* to, const auto* from, int64_t n) { std::copy(from, from + n, to); }

// form: kind, units in the statistic of the gates, of the candidate, whether eps lies inside the root
struct GruForms {
  Form gates, candidate;
  GruForms(at::IntArrayRef form, double eps, int64_t h)
      : gates{form[0], 2 * h, form[1], form[3] != 0, eps}, candidate{form[0], h, form[2], form[3] != 0, eps} {}
};

void gru_gates_forward(const Tensor& ax, const Tensor& ah, const Tensor& h, const OptionalTensor& mask, const OptionalTensor& bias,
                       const Tensor& affine, at::IntArrayRef form, double eps, const Tensor& gates, const Tensor& statistics_, const Tensor& out) {
  const int64_t rows = h.size(0), H = h.size(1);
  const GruForms forms(form, eps, H);
  const bool* real = mask_data(mask);
  const int64_t real_stride = real ? mask->stride(0) : 0;
  AT_DISPATCH_FLOATING_TYPES(h.scalar_type(), "gru_gates_forward", [&] {
    using T = scalar_t;
    const Rows<T> of_x(ax), of_h(ah), before(h), to_gates(gates), to_statistics(statistics_), to(out);
    const T* b = bias.has_value() ? bias->const_data_ptr<T>() : nullptr;
    const T *gain_x = affine.const_data_ptr<T>(), *shift_x = gain_x + 3 * H, *gain_h = shift_x + 3 * H, *shift_h = gain_h + 3 * H;
    at::parallel_for(0, rows, grain(3 * H), [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const T *x = of_x[row], *last = before[row];
        T *a = of_h[row], *gate = to_gates[row], *next = to[row];
        if (b) add_bias(a, b, 3 * H);
        const auto xg = statistics(x, forms.gates), xc = statistics(x + 2 * H, forms.candidate);
        const auto hg = statistics<T>(a, forms.gates), hc = statistics<T>(a + 2 * H, forms.candidate);
        T* s = to_statistics[row];
        s[0] = xg.mean, s[1] = xg.scale, s[2] = xc.mean, s[3] = xc.scale;
        s[4] = hg.mean, s[5] = hg.scale, s[6] = hc.mean, s[7] = hc.scale;
        if (real && !real[row * real_stride]) {
          copy_row(next, last, H);
          continue;
        }
        each<T>(0, H, [&](int64_t j, auto count) {
          const int64_t u = H + j, c = 2 * H + j;
          const auto reset = sigmoid<T>(apply(x, xg, gain_x, shift_x, j, count) + apply<T>(a, hg, gain_h, shift_h, j, count));
          const auto update = sigmoid<T>(apply(x, xg, gain_x, shift_x, u, count) + apply<T>(a, hg, gain_h, shift_h, u, count));
          const auto of_state = apply<T>(a, hc, gain_h, shift_h, c, count);
          const auto candidate = tanh<T>(at::vec::fmadd(reset, of_state, apply(x, xc, gain_x, shift_x, c, count)));
          store(gate + j, reset, count);
          store(gate + u, update, count);
          store(gate + c, candidate, count);
          store(next + j, at::vec::fmadd(update, load(last + j, count) - candidate, candidate), count);
        });
      }
    });
  });
}

void gru_gates_backward(const OptionalTensor& dout, const Tensor& dh, const Tensor& ax, const Tensor& ah, const Tensor& h, const Tensor& gates,
                        const Tensor& statistics_, const OptionalTensor& mask, const Tensor& affine, at::IntArrayRef form, double eps,
                        const Tensor& dax, const Tensor& dah, const Tensor& partials) {
  const int64_t rows = h.size(0), H = h.size(1);
  const GruForms forms(form, eps, H);
  const bool* real = mask_data(mask);
  const int64_t real_stride = real ? mask->stride(0) : 0;
  AT_DISPATCH_FLOATING_TYPES(h.scalar_type(), "gru_gates_backward", [&] {
    using T = scalar_t;
    const Rows<T> of_x(ax), of_h(ah), before(h), of_gates(gates), of_statistics(statistics_), carried(dh), to_x(dax), to_h(dah), parts(partials);
    const Rows<T> sent(dout.value_or(Tensor()));
    const T *gain_x = affine.const_data_ptr<T>(), *gain_h = gain_x + 6 * H;
    at::parallel_for(0, rows, grain(3 * H), [&](int64_t begin, int64_t end) {
      T* part = parts[at::get_thread_num()];
      T *dgain_x = part, *dshift_x = part + 3 * H, *dgain_h = part + 6 * H, *dshift_h = part + 9 * H;
      for (int64_t row = begin; row < end; ++row) {
        const T *x = of_x[row], *a = of_h[row], *last = before[row], *gate = of_gates[row], *s = of_statistics[row], *d = sent[row];
        T *dx = to_x[row], *da = to_h[row], *back = carried[row];
        if (real && !real[row * real_stride]) {
          std::fill(dx, dx + 3 * H, T(0));
          std::fill(da, da + 3 * H, T(0));
          if (d) add_bias(back, d, H);
          continue;
        }
        const Statistics<T> xg{s[0], s[1]}, xc{s[2], s[3]}, hg{s[4], s[5]}, hc{s[6], s[7]};
        Gathered<T> of_xg, of_xc, of_hg, of_hc;
        const T *gain_c = gain_h + 2 * H, *shift_c = gain_c + 3 * H;
        each<T>(0, H, [&](int64_t j, auto count) {
          const int64_t u = H + j, c = 2 * H + j;
          const Vec<T> one(1);
          const auto reset = load(gate + j, count), update = load(gate + u, count), candidate = load(gate + c, count);
          auto gradient = load(back + j, count);
          if (d) gradient = gradient + load(d + j, count);
          store(back + j, gradient * update, count);
          const auto of_candidate = gradient * (one - update) * (one - candidate * candidate);
          const auto of_update = gradient * (load(last + j, count) - candidate) * update * (one - update);
          const auto of_reset = of_candidate * apply<T>(a + 2 * H, hc, gain_c, shift_c, j, count) * reset * (one - reset);
          of_xg.take(of_reset, x, xg, gain_x, dgain_x, dshift_x, dx, j, count);
          of_xg.take(of_update, x, xg, gain_x, dgain_x, dshift_x, dx, u, count);
          of_xc.take(of_candidate, x, xc, gain_x, dgain_x, dshift_x, dx, c, count);
          of_hg.take(of_reset, a, hg, gain_h, dgain_h, dshift_h, da, j, count);
          of_hg.take(of_update, a, hg, gain_h, dgain_h, dshift_h, da, u, count);
          of_hc.take(of_candidate * reset, a, hc, gain_h, dgain_h, dshift_h, da, c, count);
        });
        of_xg.finish(dx, x, xg, forms.gates);
        of_xc.finish(dx + 2 * H, x + 2 * H, xc, forms.candidate);
        of_hg.finish(da, a, hg, forms.gates);
        of_hc.finish(da + 2 * H, a + 2 * H, hc, forms.candidate);
      }
    });
  });
}

// form: kind, units in the statistic of the gates, of the cell, whether eps lies inside the root
struct LstmForms {
  Form gates, cell;
  LstmForms(at::IntArrayRef form, double eps, int64_t h)
      : gates{form[0], 4 * h, form[1], form[3] != 0, eps}, cell{form[0], h, form[2], form[3] != 0, eps} {}
};

void lstm_gates_forward(const Tensor& ax, const Tensor& ah, const Tensor& h, const Tensor& c, const OptionalTensor& mask, const Tensor& affine,
                        const Tensor& cell_affine, at::IntArrayRef form, double eps, const Tensor& gates, const Tensor& statistics_,
                        const Tensor& out_h, const Tensor& out_c) {
  const int64_t rows = h.size(0), H = h.size(1);
  const LstmForms forms(form, eps, H);
  const bool* real = mask_data(mask);
  const int64_t real_stride = real ? mask->stride(0) : 0;
  AT_DISPATCH_FLOATING_TYPES(h.scalar_type(), "lstm_gates_forward", [&] {
    using T = scalar_t;
    const Rows<T> of_x(ax), of_h(ah), hidden(h), cell(c), to_gates(gates), to_statistics(statistics_), to_hidden(out_h), to_cell(out_c);
    const T *gain_x = affine.const_data_ptr<T>(), *shift_x = gain_x + 4 * H, *gain_h = shift_x + 4 * H, *shift_h = gain_h + 4 * H;
    const T *gain_c = cell_affine.const_data_ptr<T>(), *shift_c = gain_c + H;
    at::parallel_for(0, rows, grain(4 * H), [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const T *x = of_x[row], *a = of_h[row], *before = cell[row];
        T *gate = to_gates[row], *s = to_statistics[row], *after = to_cell[row], *next = to_hidden[row];
        const auto sx = statistics(x, forms.gates), sh = statistics(a, forms.gates);
        s[0] = sx.mean, s[1] = sx.scale, s[2] = sh.mean, s[3] = sh.scale;
        if (real && !real[row * real_stride]) {
          s[4] = T(0), s[5] = T(1);
          copy_row(after, before, H);
          copy_row(next, static_cast<const T*>(hidden[row]), H);
          continue;
        }
        each<T>(0, H, [&](int64_t j, auto count) {
          const auto summed = [&](int64_t from) {
            return apply(x, sx, gain_x, shift_x, from + j, count) + apply(a, sh, gain_h, shift_h, from + j, count);
          };
          const auto in = sigmoid<T>(summed(0)), forget = sigmoid<T>(summed(H)), out = sigmoid<T>(summed(2 * H)), value = tanh<T>(summed(3 * H));
          store(gate + j, in, count);
          store(gate + H + j, forget, count);
          store(gate + 2 * H + j, out, count);
          store(gate + 3 * H + j, value, count);
          store(after + j, at::vec::fmadd(forget, load(before + j, count), in * value), count);
        });
        const auto sc = statistics<T>(after, forms.cell);
        s[4] = sc.mean, s[5] = sc.scale;
        each<T>(0, H, [&](int64_t j, auto count) {
          const auto seen = tanh<T>(apply<T>(after, sc, gain_c, shift_c, j, count));
          store(gate + 4 * H + j, seen, count);
          store(next + j, load(gate + 2 * H + j, count) * seen, count);
        });
      }
    });
  });
}

void lstm_gates_backward(const OptionalTensor& dout, const Tensor& dh, const Tensor& dc, const Tensor& ax, const Tensor& ah, const Tensor& c,
                         const Tensor& out_c, const Tensor& gates, const Tensor& statistics_, const OptionalTensor& mask, const Tensor& affine,
                         const Tensor& cell_affine, at::IntArrayRef form, double eps, const Tensor& dax, const Tensor& dah,
                         const Tensor& partials, const Tensor& cell_partials) {
  const int64_t rows = c.size(0), H = c.size(1);
  const LstmForms forms(form, eps, H);
  const bool* real = mask_data(mask);
  const int64_t real_stride = real ? mask->stride(0) : 0;
  AT_DISPATCH_FLOATING_TYPES(c.scalar_type(), "lstm_gates_backward", [&] {
    using T = scalar_t;
    const Rows<T> of_x(ax), of_h(ah), before(c), after(out_c), of_gates(gates), of_statistics(statistics_), hidden(dh), cell(dc), to_x(dax), to_h(dah);
    const Rows<T> parts(partials), cell_parts(cell_partials), sent(dout.value_or(Tensor()));
    const T *gain_x = affine.const_data_ptr<T>(), *gain_h = gain_x + 8 * H, *gain_c = cell_affine.const_data_ptr<T>();
    at::parallel_for(0, rows, grain(4 * H), [&](int64_t begin, int64_t end) {
      T *part = parts[at::get_thread_num()], *cell_part = cell_parts[at::get_thread_num()];
      T *dgain_x = part, *dshift_x = part + 4 * H, *dgain_h = part + 8 * H, *dshift_h = part + 12 * H;
      std::vector<T> of_cell(H);
      for (int64_t row = begin; row < end; ++row) {
        const T *x = of_x[row], *a = of_h[row], *old = before[row], *fresh = after[row], *gate = of_gates[row], *s = of_statistics[row], *d = sent[row];
        T *dx = to_x[row], *da = to_h[row], *back = hidden[row], *carried = cell[row];
        if (real && !real[row * real_stride]) {
          std::fill(dx, dx + 4 * H, T(0));
          std::fill(da, da + 4 * H, T(0));
          if (d) add_bias(back, d, H);
          continue;
        }
        const Statistics<T> sx{s[0], s[1]}, sh{s[2], s[3]}, sc{s[4], s[5]};
        const Vec<T> one(1);
        Gathered<T> through_cell, through_x, through_h;
        each<T>(0, H, [&](int64_t j, auto count) {
          auto gradient = load(back + j, count);
          if (d) gradient = gradient + load(d + j, count);
          store(back + j, Vec<T>(0), count);
          const auto out = load(gate + 2 * H + j, count), seen = load(gate + 4 * H + j, count);
          through_cell.take(gradient * out * (one - seen * seen), fresh, sc, gain_c, cell_part, cell_part + H, of_cell.data(), j, count);
          const auto of_out = gradient * seen * out * (one - out);
          through_x.take(of_out, x, sx, gain_x, dgain_x, dshift_x, dx, 2 * H + j, count);
          through_h.take(of_out, a, sh, gain_h, dgain_h, dshift_h, da, 2 * H + j, count);
        });
        through_cell.finish(of_cell.data(), fresh, sc, forms.cell);
        each<T>(0, H, [&](int64_t j, auto count) {
          const auto in = load(gate + j, count), forget = load(gate + H + j, count), value = load(gate + 3 * H + j, count);
          const auto gradient = load(carried + j, count) + load(of_cell.data() + j, count);
          store(carried + j, gradient * forget, count);
          const auto both = [&](int64_t from, const Vec<T>& of) {
            through_x.take(of, x, sx, gain_x, dgain_x, dshift_x, dx, from + j, count);
            through_h.take(of, a, sh, gain_h, dgain_h, dshift_h, da, from + j, count);
          };
          both(0, gradient * value * in * (one - in));
          both(H, gradient * load(old + j, count) * forget * (one - forget));
          both(3 * H, gradient * in * (one - value * value));
        });
        through_x.finish(dx, x, sx, forms.gates);
        through_h.finish(da, a, sh, forms.gates);
      }
    });
  });
}

}  // namespace
}  // namespace rmsexp

TORCH_LIBRARY_FRAGMENT(rmsexp, m) {
  m.def(
      "gru_gates_forward(Tensor ax, Tensor(a!) ah, Tensor h, Tensor? mask, Tensor? bias, Tensor affine, int[] form, float eps, "
      "Tensor(b!) gates, Tensor(c!) statistics, Tensor(d!) out) -> ()");
  m.def(
      "gru_gates_backward(Tensor? dout, Tensor(a!) dh, Tensor ax, Tensor ah, Tensor h, Tensor gates, Tensor statistics, Tensor? mask, "
      "Tensor affine, int[] form, float eps, Tensor(b!) dax, Tensor(c!) dah, Tensor(d!) partials) -> ()");
  m.def(
      "lstm_gates_forward(Tensor ax, Tensor ah, Tensor h, Tensor c, Tensor? mask, Tensor affine, Tensor cell_affine, int[] form, "
      "float eps, Tensor(a!) gates, Tensor(b!) statistics, Tensor(c!) out_h, Tensor(d!) out_c) -> ()");
  m.def(
      "lstm_gates_backward(Tensor? dout, Tensor(a!) dh, Tensor(b!) dc, Tensor ax, Tensor ah, Tensor c, Tensor out_c, Tensor gates, "
      "Tensor statistics, Tensor? mask, Tensor affine, Tensor cell_affine, int[] form, float eps, Tensor(c!) dax, Tensor(d!) dah, "
      "Tensor(e!) partials, Tensor(f!) cell_partials) -> ()");
}

TORCH_LIBRARY_IMPL(rmsexp, CPU, m) {
  m.impl("gru_gates_forward", rmsexp::gru_gates_forward);
  m.impl("gru_gates_backward", rmsexp::gru_gates_backward);
  m.impl("lstm_gates_forward", rmsexp::lstm_gates_forward);
  m.impl("lstm_gates_backward", rmsexp::lstm_gates_backward);
}

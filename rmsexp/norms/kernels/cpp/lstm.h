// The operators of one step of an LSTM on CPU.
#pragma once

#include <vector>

#include "steps.h"

namespace rmsexp {
namespace {

// The gates of one row of the batch, (5, H); `seen` is tanh of the normalised new cell.
template <typename T>
struct LstmGates {
  T *in, *forget, *out, *value, *seen;

  LstmGates(T* row, int64_t hidden)
      : in(row), forget(row + hidden), out(row + 2 * hidden), value(row + 3 * hidden), seen(row + 4 * hidden) {}
};

// Writes the gates, the new cell, the new hidden state and the statistics of the new cell, for one row.
template <typename T>
void row_forward(const NormedRow<T>& x, const NormedRow<T>& h, const Affine<const T>& cell_affine, const Form& form,
                 const T* c, T* out_c, LstmGates<T> gates, Statistics<T>& cell_statistics, T* out_h, int64_t hidden) {
  for_each_vector<T>(0, hidden, [&](int64_t j, auto count) {
    const auto summed = [&](int64_t gate) {
      return x.value(gate * hidden + j, count) + h.value(gate * hidden + j, count);
    };
    const auto in = sigmoid<T>(summed(0)), forget = sigmoid<T>(summed(1)), out = sigmoid<T>(summed(2));
    const auto value = tanh<T>(summed(3));
    store(gates.in + j, in, count);
    store(gates.forget + j, forget, count);
    store(gates.out + j, out, count);
    store(gates.value + j, value, count);
    store(out_c + j, at::vec::fmadd(forget, load(c + j, count), in * value), count);
  });
  cell_statistics = row_statistics<T>(out_c, form);
  const NormedRow<T> normed_cell{out_c, cell_statistics, cell_affine};
  for_each_vector<T>(0, hidden, [&](int64_t j, auto count) {
    const auto seen = tanh<T>(normed_cell.value(j, count));
    store(gates.seen + j, seen, count);
    store(out_h + j, load(gates.out + j, count) * seen, count);
  });
}

// Writes dh, dc, dax (in x.da) and dah (in h.da) of one row, and adds the gradients of gains and shifts to the daffine
// of x, h and cell, but for the shift of h, whose gradient is that of the shift of x. cell.da is a buffer of H values.
// dout may be null: zeros.
template <typename T>
void row_backward(NormBackward<T> x, NormBackward<T> h, NormBackward<T> cell, const StepForms& forms, const T* c,
                  LstmGates<T> gates, const T* dout, T* dh, T* dc, int64_t hidden) {
  const Vec<T> one(1);
  const auto add = [&](int64_t j, const Vec<T>& gradient, auto count) {
    x.add(gradient, j, count);
    h.template add<false>(gradient, j, count);
  };
  for_each_vector<T>(0, hidden, [&](int64_t j, auto count) {
    auto gradient = load(dh + j, count);
    if (dout) gradient = gradient + load(dout + j, count);
    store(dh + j, Vec<T>(0), count);
    const auto out = load(gates.out + j, count), seen = load(gates.seen + j, count);
    cell.add(gradient * out * (one - seen * seen), j, count);
    add(2 * hidden + j, gradient * seen * out * (one - out), count);
  });
  cell.finish(forms.inner);
  for_each_vector<T>(0, hidden, [&](int64_t j, auto count) {
    const auto in = load(gates.in + j, count), forget = load(gates.forget + j, count);
    const auto value = load(gates.value + j, count);
    const auto gradient = load(dc + j, count) + load(cell.da + j, count);
    store(dc + j, gradient * forget, count);
    add(j, gradient * value * in * (one - in), count);
    add(hidden + j, gradient * load(c + j, count) * forget * (one - forget), count);
    add(3 * hidden + j, gradient * in * (one - value * value), count);
  });
  x.finish(forms.gates);
  h.finish(forms.gates);
}

}  // namespace

// ax and ah are the summed inputs (weight times vector) from input and hidden state. The 4H units of each have one
// norm:
//
//   [in, forget, out] = sigmoid(N(ax) + N(ah)), value = tanh(N(ax) + N(ah))
//   out_c = forget * c + in * value, out_h = out * tanh(N(out_c))
//
// Ba et al. (2016), Eqs. 20 to 22. Where the mask is false, out_h is h, out_c is c, and gates is not written.
void lstm_gates_forward(const Tensor& ax,            // (B, 4H)
                        const Tensor& ah,            // (B, 4H)
                        const Tensor& h,             // (B, H)
                        const Tensor& c,             // (B, H)
                        const OptionalTensor& mask,  // (B,)
                        const Tensor& affine,        // (2, 2, 4H): gain and shift for ax, gain and shift for ah
                        const Tensor& cell_affine,   // (2, H): gain and shift for out_c
                        at::IntArrayRef form, double eps,
                        const Tensor& gates,       // (B, 5H), written: in, forget, out, value, tanh(N(out_c))
                        const Tensor& statistics,  // (B, 6), written: LstmStatistics
                        const Tensor& out_h,       // (B, H), written
                        const Tensor& out_c) {     // (B, H), written
  const int64_t rows = c.size(0), hidden = c.size(-1), width = 4 * hidden;
  const StepForms forms(form, eps, 4, hidden);
  const Rows<bool> real(mask);
  AT_DISPATCH_FLOATING_TYPES(c.scalar_type(), "lstm_gates_forward", [&] {
    using T = scalar_t;
    const Rows<T> ax_rows(ax), ah_rows(ah), h_rows(h), c_rows(c);
    const Rows<T> gate_rows(gates), statistics_rows(statistics), out_h_rows(out_h), out_c_rows(out_c);
    const StepAffine<const T> step_affine(affine.const_data_ptr<T>(), width);
    const Affine<const T> of_cell(cell_affine.const_data_ptr<T>(), hidden);
    at::parallel_for(0, rows, rows_per_thread(width), [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const T *x = ax_rows[row], *a = ah_rows[row];
        const T* last = c_rows[row];
        T* next = out_c_rows[row];
        LstmStatistics<T> s{row_statistics(x, forms.gates), row_statistics(a, forms.gates), {T(0), T(1)}};
        if (is_real(real, row)) {
          row_forward<T>({x, s.x, step_affine.x}, {a, s.h, step_affine.h}, of_cell, forms.inner, last, next,
                         {gate_rows[row], hidden}, s.cell, out_h_rows[row], hidden);
        } else {
          std::copy(last, last + hidden, next);
          std::copy(h_rows[row], h_rows[row] + hidden, out_h_rows[row]);
        }
        write_struct(statistics_rows[row], s);
      }
    });
  });
}

// On entry, dh and dc are the gradients that later steps send to out_h and out_c. On return, dc is the gradient of c,
// and dh that of h, except through ah, which the caller adds. With D = dout + dh on entry, seen = tanh(N(out_c)), and
// d_in, d_forget, d_out and d_value the gradients with respect to the arguments of sigmoid and tanh:
//
//   d_out    = D * seen * out * (1 - out)
//   E        = dc (on entry) + N'(D * out * (1 - seen^2)), the whole gradient of out_c
//   d_in     = E * value * in * (1 - in)
//   d_forget = E * c * forget * (1 - forget)
//   d_value  = E * in * (1 - value^2)
//   dax = N'([d_in, d_forget, d_out, d_value]), and dah likewise, with the statistics of ah
//   dc  = E * forget (on return), dh = 0 (on return)
//
// Where the mask is false, dax and dah are 0, dh is D on return, and dc does not change.
void lstm_gates_backward(const OptionalTensor& dout,  // (B, H): gradient of this step's output
                         const Tensor& dh,            // (B, H), read and written
                         const Tensor& dc,            // (B, H), read and written
                         const Tensor& ax, const Tensor& ah, const Tensor& c, const Tensor& out_c, const Tensor& gates,
                         const Tensor& statistics, const OptionalTensor& mask, const Tensor& affine,
                         const Tensor& cell_affine, at::IntArrayRef form, double eps,
                         const Tensor& dax,              // (B, 4H), written
                         const Tensor& dah,              // (B, 4H), written
                         const Tensor& partials,         // (P, 2, 2, 4H), accumulated in place: gradient of affine
                         const Tensor& cell_partials) {  // (P, 2, H), accumulated in place: gradient of cell_affine
  const int64_t rows = c.size(0), hidden = c.size(-1), width = 4 * hidden;
  const StepForms forms(form, eps, 4, hidden);
  const Rows<bool> real(mask);
  AT_DISPATCH_FLOATING_TYPES(c.scalar_type(), "lstm_gates_backward", [&] {
    using T = scalar_t;
    const Rows<T> ax_rows(ax), ah_rows(ah), c_rows(c), out_c_rows(out_c), gate_rows(gates), statistics_rows(statistics);
    const Rows<T> dout_rows(dout), dh_rows(dh), dc_rows(dc), dax_rows(dax), dah_rows(dah);
    const Rows<T> partial_rows(partials), cell_partial_rows(cell_partials);
    const StepAffine<const T> step_affine(affine.const_data_ptr<T>(), width);
    const Affine<const T> of_cell(cell_affine.const_data_ptr<T>(), hidden);
    at::parallel_for(0, rows, rows_per_thread(width), [&](int64_t begin, int64_t end) {
      const StepAffine<T> daffine(partial_rows[at::get_thread_num()], width);
      const Affine<T> dcell_affine(cell_partial_rows[at::get_thread_num()], hidden);
      std::vector<T> buffer(hidden);
      for (int64_t row = begin; row < end; ++row) {
        if (const int64_t next = row + 1; next < end) {
          for (const auto* read : {&ax_rows, &ah_rows}) read->template prefetch<false>(next, width);
          gate_rows.template prefetch<false>(next, 5 * hidden);
          for (const auto* written : {&dax_rows, &dah_rows}) written->template prefetch<true>(next, width);
        }
        const T* sent = dout_rows[row];
        T *dx = dax_rows[row], *da = dah_rows[row], *carried = dh_rows[row];
        if (is_real(real, row)) {
          const auto s = read_struct<LstmStatistics<T>>(statistics_rows[row]);
          row_backward<T>({{ax_rows[row], s.x, step_affine.x}, daffine.x, dx},
                          {{ah_rows[row], s.h, step_affine.h}, daffine.h, da},
                          {{out_c_rows[row], s.cell, of_cell}, dcell_affine, buffer.data()}, forms, c_rows[row],
                          {gate_rows[row], hidden}, sent, carried, dc_rows[row], hidden);
        } else {
          std::fill(dx, dx + width, T(0));
          std::fill(da, da + width, T(0));
          if (sent) add_to(carried, sent, hidden);
        }
      }
    });
  });
}

}  // namespace rmsexp

// The operators of one step of a GRU on CPU.
#pragma once

#include "steps.h"

namespace rmsexp {
namespace {

// The gates of one row of the batch, (3, H).
template <typename T>
struct GruGates {
  T *reset, *update, *candidate;

  GruGates(T* row, int64_t hidden) : reset(row), update(row + hidden), candidate(row + 2 * hidden) {}
};

// The four parts of the summed inputs that are normalised separately: of ax (x_...) and of ah (h_...).
template <typename T>
struct NormedStep {
  NormedRow<T> x_gates, x_candidate, h_gates, h_candidate;

  NormedStep(const T* ax, const T* ah, const GruStatistics<T>& s, const StepAffine<const T>& affine, int64_t hidden)
      : x_gates{ax, s.x_gates, affine.x},
        x_candidate{ax + 2 * hidden, s.x_candidate, affine.x.from(2 * hidden)},
        h_gates{ah, s.h_gates, affine.h},
        h_candidate{ah + 2 * hidden, s.h_candidate, affine.h.from(2 * hidden)} {}
};

template <typename T>
void row_forward(const NormedStep<T>& step, const T* h, GruGates<T> gates, T* out, int64_t hidden) {
  for_each_vector<T>(0, hidden, [&](int64_t j, auto count) {
    const int64_t u = hidden + j;
    const auto reset = sigmoid<T>(step.x_gates.value(j, count) + step.h_gates.value(j, count));
    const auto update = sigmoid<T>(step.x_gates.value(u, count) + step.h_gates.value(u, count));
    const auto of_state = step.h_candidate.value(j, count);
    const auto candidate = tanh<T>(at::vec::fmadd(reset, of_state, step.x_candidate.value(j, count)));
    store(gates.reset + j, reset, count);
    store(gates.update + j, update, count);
    store(gates.candidate + j, candidate, count);
    store(out + j, at::vec::fmadd(update, load(h + j, count) - candidate, candidate), count);
  });
}

// Writes dax, dah and dh of one row, and adds the gradients of gains and shifts to daffine. dout may be null: zeros.
template <typename T>
void row_backward(const NormedStep<T>& step, const StepForms& forms, const T* h, GruGates<T> gates, const T* dout,
                  T* dh, T* dax, T* dah, StepAffine<T> daffine, int64_t hidden) {
  const int64_t c = 2 * hidden;
  NormBackward<T> x_gates{step.x_gates, daffine.x, dax}, x_candidate{step.x_candidate, daffine.x.from(c), dax + c};
  NormBackward<T> h_gates{step.h_gates, daffine.h, dah}, h_candidate{step.h_candidate, daffine.h.from(c), dah + c};
  for_each_vector<T>(0, hidden, [&](int64_t j, auto count) {
    const Vec<T> one(1);
    const auto reset = load(gates.reset + j, count), update = load(gates.update + j, count);
    const auto candidate = load(gates.candidate + j, count);
    auto gradient = load(dh + j, count);
    if (dout) gradient = gradient + load(dout + j, count);
    store(dh + j, gradient * update, count);
    const auto d_candidate = gradient * (one - update) * (one - candidate * candidate);
    const auto d_update = gradient * (load(h + j, count) - candidate) * update * (one - update);
    const auto d_reset = d_candidate * step.h_candidate.value(j, count) * reset * (one - reset);
    x_gates.add(d_reset, j, count);
    x_gates.add(d_update, hidden + j, count);
    x_candidate.add(d_candidate, j, count);
    h_gates.add(d_reset, j, count);
    h_gates.add(d_update, hidden + j, count);
    h_candidate.add(d_candidate * reset, j, count);
  });
  x_gates.finish(forms.gates);
  x_candidate.finish(forms.inner);
  h_gates.finish(forms.gates);
  h_candidate.finish(forms.inner);
}

}  // namespace

// ax and ah are the summed inputs (weight times vector) from input and state. Their first 2H units, the gates, have one
// norm, their last H units, the candidate, another:
//
//   [reset, update] = sigmoid(N(ax) + N(ah)), candidate = tanh(N(ax) + reset * N(ah))
//   out = update * h + (1 - update) * candidate
//
// Cho et al. (2014), with norms as in Nematus (Zhang & Sennrich 2019, section 6.1). Where the mask is false, out is h,
// and gates is not written.
void gru_gates_forward(const Tensor& ax,            // (B, 3H)
                       const Tensor& ah,            // (B, 3H); the bias is added in place
                       const Tensor& h,             // (B, H)
                       const OptionalTensor& mask,  // (B,)
                       const OptionalTensor& bias,  // (3H,)
                       const Tensor& affine,        // (2, 2, 3H): gain and shift for ax, gain and shift for ah
                       at::IntArrayRef form, double eps,
                       const Tensor& gates,       // (B, 3H), written: reset, update, candidate
                       const Tensor& statistics,  // (B, 8), written: GruStatistics
                       const Tensor& out) {       // (B, H), written
  const int64_t rows = h.size(0), hidden = h.size(-1), width = 3 * hidden;
  const StepForms forms(form, eps, 2, hidden);
  const Rows<bool> real(mask);
  AT_DISPATCH_FLOATING_TYPES(h.scalar_type(), "gru_gates_forward", [&] {
    using T = scalar_t;
    const Rows<T> ax_rows(ax), ah_rows(ah), h_rows(h), gate_rows(gates), statistics_rows(statistics), out_rows(out);
    const T* bias_data = bias.has_value() ? bias->const_data_ptr<T>() : nullptr;
    const StepAffine<const T> step_affine(affine.const_data_ptr<T>(), width);
    at::parallel_for(0, rows, rows_per_thread(width), [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const T *x = ax_rows[row], *last = h_rows[row];
        T *a = ah_rows[row], *next = out_rows[row];
        if (bias_data) add_to(a, bias_data, width);
        const GruStatistics<T> s{
            .x_gates = row_statistics(x, forms.gates),
            .x_candidate = row_statistics(x + 2 * hidden, forms.inner),
            .h_gates = row_statistics<T>(a, forms.gates),
            .h_candidate = row_statistics<T>(a + 2 * hidden, forms.inner),
        };
        write_struct(statistics_rows[row], s);
        if (is_real(real, row)) {
          row_forward<T>({x, a, s, step_affine, hidden}, last, {gate_rows[row], hidden}, next, hidden);
        } else {
          std::copy(last, last + hidden, next);
        }
      }
    });
  });
}

// On entry, dh is the gradient that later steps send to `out`; on return, it is the gradient of h, except through ah,
// which the caller adds. With D = dout + dh on entry, and d_update, d_candidate and d_reset the gradients with respect
// to the arguments of sigmoid and tanh:
//
//   d_update    = D * (h - candidate) * update * (1 - update)
//   d_candidate = D * (1 - update) * (1 - candidate^2)
//   d_reset     = d_candidate * N(ah) * reset * (1 - reset)
//   dax = N'([d_reset, d_update, d_candidate]), dah = N'([d_reset, d_update, d_candidate * reset])
//   dh  = D * update (on return)
//
// Where the mask is false, dax and dah are 0, and dh is D on return.
void gru_gates_backward(const OptionalTensor& dout,  // (B, H): gradient of this step's output
                        const Tensor& dh,            // (B, H), read and written
                        const Tensor& ax, const Tensor& ah, const Tensor& h, const Tensor& gates,
                        const Tensor& statistics, const OptionalTensor& mask, const Tensor& affine,
                        at::IntArrayRef form, double eps,
                        const Tensor& dax,         // (B, 3H), written
                        const Tensor& dah,         // (B, 3H), written
                        const Tensor& partials) {  // (P, 2, 2, 3H), accumulated in place: gradient of affine
  const int64_t rows = h.size(0), hidden = h.size(-1), width = 3 * hidden;
  const StepForms forms(form, eps, 2, hidden);
  const Rows<bool> real(mask);
  AT_DISPATCH_FLOATING_TYPES(h.scalar_type(), "gru_gates_backward", [&] {
    using T = scalar_t;
    const Rows<T> ax_rows(ax), ah_rows(ah), h_rows(h), gate_rows(gates), statistics_rows(statistics);
    const Rows<T> dout_rows(dout), dh_rows(dh), dax_rows(dax), dah_rows(dah), partial_rows(partials);
    const StepAffine<const T> step_affine(affine.const_data_ptr<T>(), width);
    at::parallel_for(0, rows, rows_per_thread(width), [&](int64_t begin, int64_t end) {
      const StepAffine<T> daffine(partial_rows[at::get_thread_num()], width);
      for (int64_t row = begin; row < end; ++row) {
        if (const int64_t next = row + 1; next < end) {
          for (const auto* read : {&ax_rows, &ah_rows, &gate_rows}) read->template prefetch<false>(next, width);
          for (const auto* written : {&dax_rows, &dah_rows}) written->template prefetch<true>(next, width);
        }
        const T* sent = dout_rows[row];
        T *dx = dax_rows[row], *da = dah_rows[row], *carried = dh_rows[row];
        if (is_real(real, row)) {
          const auto s = read_struct<GruStatistics<T>>(statistics_rows[row]);
          const NormedStep<T> step{ax_rows[row], ah_rows[row], s, step_affine, hidden};
          row_backward<T>(step, forms, h_rows[row], {gate_rows[row], hidden}, sent, carried, dx, da, daffine, hidden);
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

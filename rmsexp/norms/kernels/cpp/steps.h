// The operators of one time step, which have an implementation for each device, and the statistics that they save. Only
// the operators over whole sequences call them, whose arguments kernels/recurrences.py has checked.
//
// Shapes: B rows of a batch, H units of a state, S source positions, C units of a key, A units of a value. The last
// axis of every matrix is contiguous. N is the norm that `form` and `eps` describe, with the gain and shift in
// `affine`; the integers of `form` are listed at StepForms and query_form. N' is the backward pass of N: from
// the gradient of N(a) it computes the gradient of a (forms.h, correction()). A gradient dz is that of the loss with
// respect to z. `partials` have P parts, one for each thread on CPU and one for each row of the batch on CUDA, so that
// no two threads add to the same sum; the gradient is the sum of the parts.
#pragma once

#include "forms.h"
#include "operators.h"

namespace rmsexp {

// Returns the integers of `form` after checking their number.
inline at::IntArrayRef integers(at::IntArrayRef form, size_t count) {
  TORCH_CHECK_VALUE(form.size() == count, "expected ", count, " integers that describe a norm, got ", form.size());
  return form;
}

// The integers of `form` are: kind of norm, number of units in the statistics of the gates, number of units in the
// statistic of the candidate (GRU) or of the cell (LSTM), and 1 if eps is inside the root, otherwise 0. The norms of
// the gates are over `blocks` x `hidden` units.
struct StepForms {
  Form gates, inner;
  StepForms(at::IntArrayRef form, double eps, int64_t blocks, int64_t hidden)
      : gates{integers(form, 4)[0], blocks * hidden, form[1], form[3] != 0, eps},
        inner{form[0], hidden, form[2], form[3] != 0, eps} {
    check(gates);
    check(inner);
  }
};

// The integers of `form` are: kind of norm, number of units in the statistic, and 1 if eps is inside the root,
// otherwise 0.
inline Form query_form(at::IntArrayRef form, double eps, int64_t width) {
  const Form norm{integers(form, 3)[0], width, form[1], form[2] != 0, eps};
  check(norm);
  return norm;
}

// A row of a GRU's tensor `statistics`: mean and scale of each of its four norms, in this order.
template <typename T>
struct GruStatistics {
  Statistics<T> x_gates, x_candidate, h_gates, h_candidate;
};

// A row of an LSTM's tensor `statistics`: mean and scale of each of its three norms, in this order.
template <typename T>
struct LstmStatistics {
  Statistics<T> x, h, cell;
};

// The number of values in a row of a tensor `statistics`.
template <template <typename> typename Row>
constexpr int64_t kWidth = sizeof(Row<float>) / sizeof(float);

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
                       const Tensor& out);        // (B, H), written

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
                        const Tensor& dax,        // (B, 3H), written
                        const Tensor& dah,        // (B, 3H), written
                        const Tensor& partials);  // (P, 2, 2, 3H), accumulated in place: gradient of affine

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
                        const Tensor& out_c);      // (B, H), written

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
                         const Tensor& dax,             // (B, 4H), written
                         const Tensor& dah,             // (B, 4H), written
                         const Tensor& partials,        // (P, 2, 2, 4H), accumulated in place: gradient of affine
                         const Tensor& cell_partials);  // (P, 2, H), accumulated in place: gradient of cell_affine

// Additive attention (Bahdanau et al. 2015, section 3.1) with a normalised query, over the positions p where the mask
// is true:
//
//   energy_p = score . tanh(key_p + N(query)), alpha = softmax(energy), context = sum_p alpha_p value_p
//
// Where the mask is false, alpha is 0.
void attention_forward(const Tensor& keys,    // (B, S, C)
                       const Tensor& query,   // (B, C)
                       const Tensor& values,  // (B, S, A)
                       const Tensor& mask,    // (B, S)
                       const Tensor& score,   // (C,)
                       const Tensor& affine,  // (2, C): gain and shift of the query
                       at::IntArrayRef form, double eps,
                       const Tensor& statistics,  // (B, 2), written: Statistics
                       const Tensor& alpha,       // (B, S), written
                       const Tensor& context);    // (B, A), written

// With seen_p = tanh(key_p + N(query)):
//
//   dalpha_p  = dcontext . value_p
//   denergy_p = alpha_p (dalpha_p - sum_i alpha_i dalpha_i)
//   dscore    = sum_p denergy_p seen_p
//   dkey_p    = denergy_p score (1 - seen_p^2)
//   dquery    = N'(sum_p dkey_p)
//
// The caller computes the gradient of the values, which is a matrix product.
void attention_backward(const Tensor& dcontext,  // (B, A)
                        const Tensor& keys, const Tensor& query, const Tensor& values, const Tensor& mask,
                        const Tensor& score, const Tensor& affine, const Tensor& statistics, const Tensor& alpha,
                        at::IntArrayRef form, double eps,
                        const Tensor& dkeys,      // (B, S, C), accumulated in place: gradient of the keys
                        const Tensor& dquery,     // (B, C), written: gradient of the query
                        const Tensor& partials);  // (P, 3, C), accumulated in place: gradients of score, gain and shift

}  // namespace rmsexp

// The operators of one time step, which each device implements, and the rows that their forward passes save.
//
// B rows of a batch, H units of a state, S source positions, C units of a key, A units of a value. The last axis of
// every matrix is contiguous. N is the norm of a form, with gain and shift of `affine`; `form` is documented with the
// struct that it becomes. `partials` have a first axis of P parts, one for each thread here and one for each row of the
// batch on CUDA, so that no two of them add to the same sum.
#pragma once

#include "forms.h"
#include "operators.h"

namespace rmsexp {

// form: kind, units in the statistic of the gates, of the candidate, and whether eps is inside of the root.
struct GruForms {
  Form gates, candidate;
  GruForms(at::IntArrayRef form, double eps, int64_t hidden)
      : gates{form[0], 2 * hidden, form[1], form[3] != 0, eps},
        candidate{form[0], hidden, form[2], form[3] != 0, eps} {}
};

// form: kind, units in the statistic of the gates, of the cell, and whether eps is inside of the root.
struct LstmForms {
  Form gates, cell;
  LstmForms(at::IntArrayRef form, double eps, int64_t hidden)
      : gates{form[0], 4 * hidden, form[1], form[3] != 0, eps}, cell{form[0], hidden, form[2], form[3] != 0, eps} {}
};

// form: kind, units in the statistic, and whether eps is inside of the root.
inline Form query_form(at::IntArrayRef form, double eps, int64_t width) {
  return {form[0], width, form[1], form[2] != 0, eps};
}

// Rows of the tensors `statistics`, with the members in this order.
template <typename T>
struct GruStatistics {
  Statistics<T> x_gates, x_candidate, h_gates, h_candidate;
};

template <typename T>
struct LstmStatistics {
  Statistics<T> x, h, cell;
};

template <template <typename> typename Row>
constexpr int64_t kWidth = sizeof(Row<float>) / sizeof(float);

// ax and ah are the products of input and state, whose first 2 H units, the gates, are normed jointly:
//
//   [reset, update] = sigmoid(N(ax) + N(ah)), candidate = tanh(N(ax) + reset * N(ah))
//   out = update * h + (1 - update) * candidate
//
// Cho et al. (2014), with norms as in Nematus (Zhang & Sennrich 2019, section 6.1). Where the mask is false, out is h.
void gru_gates_forward(const Tensor& ax,            // (B, 3H)
                       const Tensor& ah,            // (B, 3H); the bias is added to it, in place
                       const Tensor& h,             // (B, H)
                       const OptionalTensor& mask,  // (B,)
                       const OptionalTensor& bias,  // (3H,)
                       const Tensor& affine,        // (2, 2, 3H): of input and state; gain and shift
                       at::IntArrayRef form, double eps,
                       const Tensor& gates,       // (B, 3H), written: reset, update, candidate
                       const Tensor& statistics,  // (B, 8), written: GruStatistics
                       const Tensor& out);        // (B, H), written

// With D = dout + dh and N' the norm's backward pass (forms.h, correction()):
//
//   d_update    = D * (h - candidate) * update * (1 - update)
//   d_candidate = D * (1 - update) * (1 - candidate^2)
//   d_reset     = d_candidate * N(ah) * reset * (1 - reset)
//   dax = N'([d_reset, d_update, d_candidate]), dah = N'([d_reset, d_update, d_candidate * reset])
//   dh  = D * update, without what the products send back
//
// the derivatives of the formulas above. Where the mask is false, dax and dah are 0 and dh is D.
void gru_gates_backward(const OptionalTensor& dout,  // (B, H): the gradient of this step's output
                        const Tensor& dh,            // (B, H): in, from later steps; out, of h
                        const Tensor& ax, const Tensor& ah, const Tensor& h, const Tensor& gates,
                        const Tensor& statistics, const OptionalTensor& mask, const Tensor& affine,
                        at::IntArrayRef form, double eps,
                        const Tensor& dax,        // (B, 3H), written
                        const Tensor& dah,        // (B, 3H), written
                        const Tensor& partials);  // (P, 2, 2, 3H), added to: of affine

// The 4 H units of ax and ah are normed jointly:
//
//   [in, forget, out] = sigmoid(N(ax) + N(ah)), value = tanh(N(ax) + N(ah))
//   out_c = forget * c + in * value, out_h = out * tanh(N(out_c))
//
// Ba et al. (2016), Eqs. 20 to 22. Where the mask is false, out_h is h and out_c is c.
void lstm_gates_forward(const Tensor& ax,            // (B, 4H)
                        const Tensor& ah,            // (B, 4H)
                        const Tensor& h,             // (B, H)
                        const Tensor& c,             // (B, H)
                        const OptionalTensor& mask,  // (B,)
                        const Tensor& affine,        // (2, 2, 4H): of input and state; gain and shift
                        const Tensor& cell_affine,   // (2, H): gain and shift
                        at::IntArrayRef form, double eps,
                        const Tensor& gates,       // (B, 5H), written: in, forget, out, value, tanh(N(out_c))
                        const Tensor& statistics,  // (B, 6), written: LstmStatistics
                        const Tensor& out_h,       // (B, H), written
                        const Tensor& out_c);      // (B, H), written

// With D = dout + dh, seen = tanh(N(out_c)) and N' the norm's backward pass (forms.h, correction()):
//
//   d_out    = D * seen * out * (1 - out)
//   E        = dc + N'(D * out * (1 - seen^2)), the gradient of out_c
//   d_in     = E * value * in * (1 - in)
//   d_forget = E * c * forget * (1 - forget)
//   d_value  = E * in * (1 - value^2)
//   dax = dah = N'([d_in, d_forget, d_out, d_value]), each with its own statistics
//   dc  = E * forget, dh = 0 without what the product sends back
//
// the derivatives of the formulas above. Where the mask is false, dax and dah are 0, dh is D, and dc stays.
void lstm_gates_backward(const OptionalTensor& dout,  // (B, H): the gradient of this step's output
                         const Tensor& dh,            // (B, H): in, from later steps; out, of h
                         const Tensor& dc,            // (B, H): in, from later steps; out, of c
                         const Tensor& ax, const Tensor& ah, const Tensor& c, const Tensor& out_c, const Tensor& gates,
                         const Tensor& statistics, const OptionalTensor& mask, const Tensor& affine,
                         const Tensor& cell_affine, at::IntArrayRef form, double eps,
                         const Tensor& dax,             // (B, 4H), written
                         const Tensor& dah,             // (B, 4H), written
                         const Tensor& partials,        // (P, 2, 2, 4H), added to: of affine
                         const Tensor& cell_partials);  // (P, 2, H), added to: of cell_affine

// Additive attention (Bahdanau et al. 2015, section 3.1) with a normalised query, over the positions p of the mask:
//
//   energy_p = score . tanh(key_p + N(query)), alpha = softmax(energy), context = sum_p alpha_p value_p
void attention_forward(const Tensor& keys,    // (B, S, C)
                       const Tensor& query,   // (B, C)
                       const Tensor& values,  // (B, S, A)
                       const Tensor& mask,    // (B, S)
                       const Tensor& score,   // (C,)
                       const Tensor& affine,  // (2, C): gain and shift
                       at::IntArrayRef form, double eps,
                       const Tensor& statistics,  // (B, 2), written: Statistics
                       const Tensor& alpha,       // (B, S), written
                       const Tensor& context);    // (B, A), written

// With seen_p = tanh(key_p + N(query)) and N' the norm's backward pass (forms.h, correction()):
//
//   dalpha_p  = dcontext . value_p
//   denergy_p = alpha_p (dalpha_p - sum_i alpha_i dalpha_i)
//   dscore    = sum_p denergy_p seen_p
//   dkey_p    = denergy_p score (1 - seen_p^2)
//   dquery    = N'(sum_p dkey_p)
//
// the derivatives of the formulas above. The gradient of the values is a product that the caller forms.
void attention_backward(const Tensor& dcontext,  // (B, A)
                        const Tensor& keys, const Tensor& query, const Tensor& values, const Tensor& mask,
                        const Tensor& score, const Tensor& affine, const Tensor& statistics, const Tensor& alpha,
                        at::IntArrayRef form, double eps,
                        const Tensor& dkeys,      // (B, S, C), added to
                        const Tensor& dquery,     // (B, C), written
                        const Tensor& partials);  // (P, 3, C), added to: of score, gain and shift

}  // namespace rmsexp

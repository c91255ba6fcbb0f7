// The sum of two tensors and a norm of the sum over its last axis, as one operator: a residual addition and the norm
// that follows it.
//
//   total = x + addend, y = normalised(total) * gain + shift
//
// The total is rounded to its dtype before it is normalised. One pass over memory reads x and addend and writes both
// results. An addition followed by the operator normalise reads the total once more.
#pragma once

#include "norms.h"

namespace rmsexp {

using AddNormOutputs = std::tuple<Tensor, Tensor, Tensor, Tensor>;

// Returns total, y, mean and scale; for mean and scale see normalise_forward().
AddNormOutputs add_normalise_forward(const Tensor& x,       // (..., n)
                                     const Tensor& addend,  // as x, or of lower precision
                                     const OptionalTensor& gain, const OptionalTensor& shift, int64_t kind, int64_t k,
                                     bool inside, double eps);

// Returns the gradient of x, which autograd rounds to the dtype of addend for that of addend, and the gradients of gain
// and shift (normalise_backward()). With N' the backward pass of the norm, the gradient of x is dtotal + N'(dy).
NormOutputs add_normalise_backward(const Tensor& dtotal,  // gradient of total, with the shape of total
                                   const Tensor& dy,      // gradient of y, with the shape of y
                                   const Tensor& total, const OptionalTensor& gain, const Tensor& mean,
                                   const Tensor& scale, const OptionalTensor& shift, int64_t kind, int64_t k,
                                   bool inside, double eps);

// Checks the arguments of the operator add_normalise, except the form. Sizes may be symbolic.
void check_addition(const Tensor& x, const Tensor& addend, const OptionalTensor& gain, const OptionalTensor& shift);

}  // namespace rmsexp

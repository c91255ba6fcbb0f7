// Pointwise functions that take the place of a norm: the operators, and what they compute.
//
// y = activation(f(alpha * x + offset) * gain + shift), with f = tanh (DyT, Zhu et al. 2025) or f = erf (Derf, Chen et
// al. 2025). alpha and offset are numbers; without an offset it is 0. Gain and shift belong to the units of the last
// axis, or with `maps` to the channels. The activation is a leaky ReLU with `slope` in (0, 1]; 1 means no activation.
#pragma once

#include <c10/util/string_view.h>

#include "operators.h"

namespace rmsexp {

// Returns y.
Tensor pointwise_forward(const Tensor& input,           // (..., n), or maps (batch, channels, height, width)
                         const Tensor& alpha,           // (1,)
                         const OptionalTensor& offset,  // (1,)
                         const Tensor& gain,            // (n,) or (channels,)
                         const OptionalTensor& shift,   // as gain
                         c10::string_view function,     // "tanh" or "erf"
                         bool maps, double slope);

// Returns the gradients of x; of alpha and offset, together (2,); of gain; and of shift, empty if there is none. The
// gradients of parameters are float32 if x is float16 or bfloat16.
std::tuple<Tensor, Tensor, Tensor, Tensor> pointwise_backward(const Tensor& gradient,  // gradient of y
                                                              const Tensor& input, const Tensor& alpha,
                                                              const OptionalTensor& offset, const Tensor& gain,
                                                              const OptionalTensor& shift, c10::string_view function,
                                                              bool maps, double slope);

// Checks the arguments of the operator pointwise. Sizes may be symbolic.
void check_pointwise(const Tensor& x, const Tensor& alpha, const OptionalTensor& offset, const Tensor& gain,
                     const OptionalTensor& shift, c10::string_view function, bool maps, double slope);

}  // namespace rmsexp

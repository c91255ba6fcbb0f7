// Norms whose statistics are of one example: the operators, and code that their kernels share.
//
// y = activation(normalised * gain + shift). The activation is a leaky ReLU with `slope` in (0, 1]; 1 means no
// activation. The statistics are over the last axis of x, or with `maps` over the positions of each channel of an
// example. Computing the leaky ReLU in the same kernel saves two passes over memory. Zhang & Sennrich (2019), Eq. 4; Ba
// et al. (2016), Eq. 3.
#pragma once

#include "forms.h"
#include "operators.h"

namespace rmsexp {

using NormOutputs = std::tuple<Tensor, Tensor, Tensor>;

// Returns y, mean and scale. Mean and scale have shape (rows,), or (batch * channels,) for maps. They are float32 if x
// is float16 or bfloat16. The mean is empty except for layer norm.
NormOutputs normalise_forward(const Tensor& input,          // (..., n), or maps (batch, channels, height, width)
                              const OptionalTensor& gain,   // (n,) or (channels,)
                              const OptionalTensor& shift,  // as gain
                              bool maps, int64_t kind,
                              int64_t k,  // number of units in a statistic; not read for layer norm
                              bool inside, double eps, double slope);

// Returns the gradients of x, gain and shift. Those of gain and shift have the dtype of the statistics. The gradient of
// a missing gain or shift is empty.
NormOutputs normalise_backward(const Tensor& gradient,  // gradient of y, with the shape of y
                               const Tensor& input, const OptionalTensor& gain,
                               const Tensor& mean,   // (rows,) or (batch * channels,), or empty
                               const Tensor& scale,  // (rows,) or (batch * channels,)
                               const OptionalTensor& shift, bool maps, int64_t kind, int64_t k, bool inside, double eps,
                               double slope);

// Checks the arguments of the operator normalise, except the form. Sizes may be symbolic.
void check_arguments(const Tensor& x, const OptionalTensor& gain, const OptionalTensor& shift, bool maps, double slope);

namespace {

constexpr int64_t kElementsPerThread = 16384;  // with fewer elements per thread, another thread saves no time

// How the kernels read the memory of an input. For contiguous maps, a row is one channel of one example, (n,). For
// channels-last maps, a row is one example, (n, channels).
struct Layout {
  int64_t rows;
  int64_t n;                   // number of units or positions that share a statistic
  int64_t channels = 0;        // number of channels of maps; 0 if the input is not maps
  bool channels_last = false;  // whether the input is maps in channels-last memory format
};

template <typename W>
Vec<W> leaky_relu(const Vec<W>& x, W slope) {
  return at::vec::maximum(x, x * Vec<W>(slope));
}

// Returns the gradient of x; `gradient` is that of leaky_relu(x, slope).
template <typename W>
Vec<W> leaky_relu_backward(const Vec<W>& gradient, const Vec<W>& x, W slope) {
  return Vec<W>::blendv(gradient * Vec<W>(slope), gradient, x > Vec<W>(0));
}

// Calls f with each flag as a compile-time constant, so that the inner loops of f do not branch on the flags.
template <typename F>
void with_constants(F f) {
  f();
}

template <typename F, typename... Flags>
void with_constants(F f, bool flag, Flags... others) {
  const auto call = [&](auto constant) {
    with_constants([&](auto... constants) { f(constant, constants...); }, others...);
  };
  flag ? call(std::true_type{}) : call(std::false_type{});
}

}  // namespace
}  // namespace rmsexp

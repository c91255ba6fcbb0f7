// Norms with one statistic per example and position: the operators, and what their kernels share.
//
// y = activation(normalised * gain + shift), where the activation is a leaky ReLU with `slope` in (0, 1], 1 for none.
// The statistics are over the last axis of x, or with `maps` over the positions of each channel of an example. The
// leaky ReLU in the same kernel saves two passes over memory.
// Zhang & Sennrich (2019), section 4; Ba et al. (2016), Eq. 3.
#pragma once

#include "forms.h"
#include "operators.h"

namespace rmsexp {

using NormOutputs = std::tuple<Tensor, Tensor, Tensor>;

// Returns y and the statistics. float16 and bfloat16 have statistics in float32. Of layer norms alone the mean is
// saved; otherwise it is empty.
NormOutputs normalise_forward(const Tensor& input,          // (..., n), or maps (batch, channels, height, width)
                              const OptionalTensor& gain,   // (n,) or (channels,)
                              const OptionalTensor& shift,  // as gain
                              bool maps, int64_t kind,
                              int64_t k,  // units in the statistic
                              bool inside, double eps, double slope);

// Returns the gradients of x, gain and shift; the latter are in the type of the statistics, and empty without a gain or
// a shift.
NormOutputs normalise_backward(const Tensor& gradient,  // of y, shaped as it
                               const Tensor& input, const OptionalTensor& gain,
                               const Tensor& mean,   // (rows,) or (batch * channels,), or empty
                               const Tensor& scale,  // (rows,) or (batch * channels,)
                               const OptionalTensor& shift, bool maps, int64_t kind, int64_t k, bool inside, double eps,
                               double slope);

constexpr int64_t kElementsPerThread = 16384;  // fewer are not worth another thread

// How the memory of an input is read. Contiguous maps have one row per channel of an example, channels-last maps one
// row per example: (n, channels).
struct Layout {
  int64_t rows;
  int64_t n;                   // elements in a statistic
  int64_t channels = 0;        // of maps; 0 otherwise
  bool channels_last = false;  // maps whose channels are contiguous
};

template <typename W>
Vec<W> leaky_relu(const Vec<W>& x, W slope) {
  return at::vec::maximum(x, x * Vec<W>(slope));
}

// The gradient of x, from the gradient of leaky_relu(x, slope).
template <typename W>
Vec<W> leaky_relu_backward(const Vec<W>& gradient, const Vec<W>& x, W slope) {
  return Vec<W>::blendv(gradient * Vec<W>(slope), gradient, x > Vec<W>(0));
}

// Calls f with each flag as a compile-time constant, so that its inner loops do not branch on them.
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

}  // namespace rmsexp

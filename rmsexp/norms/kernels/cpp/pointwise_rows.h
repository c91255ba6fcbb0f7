// Kernels of pointwise functions that take the place of a norm, over contiguous rows (norm_rows.h).
//
// y = activation(f(alpha * x + offset) * gain + shift), with f = tanh (DyT, Zhu et al. 2025) or f = erf (Derf, Chen et
// al. 2025). alpha and offset are numbers. Gain and shift belong to the units of the last axis, or to the channels of
// maps. The rows of channels-last maps are the positions, and their units the channels.
#pragma once

#include "norms.h"

namespace rmsexp {
namespace {

// Returns f(u) for a vector u: tanh, or with `erf` the error function.
template <bool erf, typename V>
V function(const V& u) {
  if constexpr (!erf) return tanh(u);
  if constexpr (!std::is_same_v<V, Vec<float>>) return u.erf();
  // Below 0.5 the Taylor series to u^11: in float32 the vector function is exact to 1e-7, but not relative to erf(u).
  const V square = u * u;
  V series(-1.0 / 1320);
  for (const double term : {1.0 / 216, -1.0 / 42, 1.0 / 10, -1.0 / 3, 1.0}) {
    series = at::vec::fmadd(square, series, V(term));
  }
  return V::blendv(u * series * V(1.1283791670955126), u.erf(), u.abs() >= V(0.5));
}

// Returns the derivative of f at u, where its value is `value`.
template <bool erf, typename V>
V derivative(const V& u, const V& value) {
  if constexpr (erf) return V(1.1283791670955126) * (u * u).neg().exp();  // 2 / sqrt(pi)
  return V(1) - value * value;
}

// Calls f(gain_at, shift_at, activated) with functions that return gain and shift of the units j to j + count of a row,
// and with a compile-time constant: whether there is an activation. If there are channels, row i is of channel
// i % channels.
template <typename W, typename F>
void with_row(const Parameters<W>& parameters, int64_t channels, int64_t row, F f) {
  const W *gain = parameters.gain, *shift = parameters.shift;
  const int64_t channel = channels ? row % channels : 0;
  const Vec<W> channel_gain(gain[channel]), channel_shift(shift ? shift[channel] : W(0));
  with_constants(
      [&](auto per_unit, auto shifted, auto activated) {
        const auto gain_at = [&](int64_t j, auto count) { return per_unit ? load(gain + j, count) : channel_gain; };
        const auto shift_at = [&](int64_t j, auto count) {
          return per_unit && shifted ? load(shift + j, count) : channel_shift;
        };
        f(gain_at, shift_at, activated);
      },
      channels == 0, shift != nullptr, parameters.slope != W(1));
}

template <typename T, bool erf>
void pointwise_forward(const Layout& layout, const Parameters<Wide<T>>& parameters,
                       const T* x,  // (rows, n)
                       T* y) {      // (rows, n), written
  using W = Wide<T>;
  const int64_t n = layout.n;
  const Vec<W> alpha(parameters.alpha), offset(parameters.offset);
  at::parallel_for(0, layout.rows, std::max<int64_t>(1, kElementsPerThread / n), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      with_row(parameters, layout.channels, row, [&](auto gain_at, auto shift_at, auto activated) {
        for_each_vector<W>(0, n, [&](int64_t j, auto count) {
          const auto value = function<erf>(at::vec::fmadd(load(x + row * n + j, count), alpha, offset));
          auto result = at::vec::fmadd(value, gain_at(j, count), shift_at(j, count));
          if constexpr (activated) result = leaky_relu(result, parameters.slope);
          store(y + row * n + j, result, count);
        });
      });
    }
  });
}

// With d the gradient of the loss with respect to f(u) * gain + shift, u = alpha * x + offset, and h = d * gain *
// f'(u):
//
//   dx = alpha * h, dalpha = sum of h * x, doffset = sum of h, dgain = sum of d * f(u), dshift = sum of d
//
// The sums are over all elements, those of dgain and dshift over the elements of each unit or channel.
template <typename T, bool erf>
void pointwise_backward(const Layout& layout, const Parameters<Wide<T>>& parameters,
                        const T* dy,        // (rows, n)
                        const T* x,         // (rows, n)
                        T* dx,              // (rows, n), written
                        Wide<T>* dscalars,  // (slots, 2), accumulated in place: gradients of alpha and offset
                        Wide<T>* dgain,     // (slots, n) or (slots, channels), accumulated in place
                        Wide<T>* dshift,    // as dgain; null without a shift
                        int64_t slots) {    // 1, or the number of threads, each of which adds to its own sums
  using W = Wide<T>;
  const Vec<W> alpha(parameters.alpha), offset(parameters.offset);
  const int64_t n = layout.n, channels = layout.channels, width = channels ? channels : n;
  at::parallel_for(0, layout.rows, std::max<int64_t>(1, kElementsPerThread / n), [&](int64_t begin, int64_t end) {
    const int64_t slot = slots == 1 ? 0 : at::get_thread_num();
    W *dgain_sum = dgain + slot * width, *dshift_sum = dshift ? dshift + slot * width : nullptr;
    double dalpha = 0, doffset = 0;
    for (int64_t row = begin; row < end; ++row) {
      with_row(parameters, channels, row, [&](auto gain_at, auto shift_at, auto activated) {
        Vec<W> of_alpha(0), of_offset(0), of_gain(0), of_shift(0);
        for_each_vector<W>(0, n, [&](int64_t j, auto count) {
          const auto input = load(x + row * n + j, count), u = at::vec::fmadd(input, alpha, offset);
          const auto value = function<erf>(u), gain = gain_at(j, count);
          auto gradient = load(dy + row * n + j, count);  // elements from index `count` on are zero
          if constexpr (activated) {
            const auto result = at::vec::fmadd(value, gain, shift_at(j, count));
            gradient = leaky_relu_backward(gradient, result, parameters.slope);
          }
          const auto product = zero_tail(gradient * value, count);
          const auto inner = zero_tail(gradient * gain * derivative<erf>(u, value), count);
          if (channels) {
            of_gain = of_gain + product, of_shift = of_shift + gradient;
          } else {
            store(dgain_sum + j, load(dgain_sum + j, count) + product, count);
            if (dshift_sum) store(dshift_sum + j, load(dshift_sum + j, count) + gradient, count);
          }
          of_alpha = of_alpha + zero_tail(inner * input, count), of_offset = of_offset + inner;
          store(dx + row * n + j, inner * alpha, count);
        });
        dalpha += horizontal_sum<W>(of_alpha), doffset += horizontal_sum<W>(of_offset);
        if (channels) {
          dgain_sum[row % channels] += horizontal_sum<W>(of_gain);
          if (dshift_sum) dshift_sum[row % channels] += horizontal_sum<W>(of_shift);
        }
      });
    }
    dscalars[2 * slot] += static_cast<W>(dalpha), dscalars[2 * slot + 1] += static_cast<W>(doffset);
  });
}

}  // namespace
}  // namespace rmsexp

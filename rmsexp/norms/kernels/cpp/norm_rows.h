// Kernels of norms over contiguous rows. A row is a vector along the last axis of a tensor; in feature maps, a row is
// the positions of one channel of one example.
//
// `streaming` is for tensors that exceed the cache (vectors.h, exceeds_cache()): the next row is prefetched, and
// results are written by the streaming store() of vectors.h. With `added`, the norm is of a sum, x + addend; there are
// then no maps and no activation.
#pragma once

#include <vector>

#include "norms.h"

namespace rmsexp {
namespace {

template <typename T, bool streaming, bool added>
void rows_forward(const Layout& layout, const Form& form, const Parameters<Wide<T>>& parameters,
                  const T* x,        // (rows, n)
                  const T* addend,   // (rows, n), read with `added` only
                  T* total,          // (rows, n), written with `added` only
                  T* y,              // (rows, n), written
                  Wide<T>* mean,     // (rows,), written for layer norm only
                  Wide<T>* scale) {  // (rows,), written
  using W = Wide<T>;
  const int64_t n = layout.n, channels = layout.channels;
  const W *gain = parameters.gain, *shift = parameters.shift;
  at::parallel_for(0, layout.rows, std::max<int64_t>(1, kElementsPerThread / n), [&](int64_t begin, int64_t end) {
    // A streaming store removes its cache line, so that a row is first summed in a buffer, which stays in the cache.
    std::vector<T> buffer(added && streaming ? n : 0);
    for (int64_t row = begin; row < end; ++row) {
      const T *a = x + row * n, *b = added ? addend + row * n : nullptr, *x_row = a;
      T *target = y + row * n, *total_row = added ? total + row * n : nullptr;
      if constexpr (added) {
        T* sum = streaming ? buffer.data() : total_row;
        for_each_vector<W>(
            0, n, [&](int64_t j, auto count) { store(sum + j, load(x_row + j, count) + load(b + j, count), count); });
        a = sum;
      }
      const auto statistics = row_statistics(a, form);
      scale[row] = statistics.scale;
      if (form.kind == kLayer) mean[row] = statistics.mean;
      const int64_t channel = channels ? row % channels : 0;
      const Vec<W> centre(statistics.mean);
      const Vec<W> factor(channels && gain ? statistics.scale * gain[channel] : statistics.scale);
      const Vec<W> channel_shift(channels && shift ? shift[channel] : W(0));
      const auto write = [&](auto unit_gains, auto unit_shifts, auto activated) {
        for_each_vector<W>(0, n, [&](int64_t j, auto count) {
          if constexpr (streaming) __builtin_prefetch(x_row + n + j);
          auto value = load(a + j, count);
          if constexpr (added && streaming) {
            __builtin_prefetch(b + n + j);
            store<streaming>(total_row + j, value, count);
          }
          value = value - centre;
          value = unit_gains ? value * factor * load(gain + j, count) : at::vec::fmadd(value, factor, channel_shift);
          if constexpr (unit_shifts) value = value + load(shift + j, count);
          if constexpr (activated) value = leaky_relu(value, parameters.slope);
          store<streaming>(target + j, value, count);
        });
      };
      with_constants(write, gain && !channels, shift && !channels, parameters.slope != W(1));
    }
    if constexpr (streaming) fence();
  });
}

// With d the gradient of the loss with respect to normalised * gain + shift:
//
//   dgain = sum over rows of d * normalised, dshift = sum over rows of d (for maps: over rows and positions)
//   g = d * gain, from which dx follows as in forms.h, correction(); with `added`, dtotal is added to it
//
// A first pass over a row computes the sums, a second pass writes dx.
template <typename T, bool streaming, bool added>
void rows_backward(const Layout& layout, const Form& form, const Parameters<Wide<T>>& parameters,
                   const T* dtotal,       // (rows, n), read with `added` only
                   const T* dy,           // (rows, n)
                   const T* x,            // (rows, n): what was normalised
                   const Wide<T>* mean,   // (rows,), read for layer norm only
                   const Wide<T>* scale,  // (rows,)
                   T* dx,                 // (rows, n), written
                   Wide<T>* dgain,  // (slots, n), for maps (slots, channels), accumulated in place; null without a gain
                   Wide<T>* dshift,  // as dgain; null without a shift
                   int64_t slots) {  // 1, or the number of threads, each of which adds to its own sums
  using W = Wide<T>;
  const int64_t n = layout.n, channels = layout.channels, width = channels ? channels : n;
  const W *gain = parameters.gain, *shift = parameters.shift;
  const auto backward = [&](int64_t begin, int64_t end, auto unit_gains, auto unit_shifts, auto activated) {
    const int64_t slot = slots == 1 ? 0 : at::get_thread_num();
    W* dgain_sum = dgain ? dgain + slot * width : nullptr;
    W* dshift_sum = dshift ? dshift + slot * width : nullptr;
    for (int64_t row = begin; row < end; ++row) {
      const T *a = x + row * n, *dy_row = dy + row * n, *direct = added ? dtotal + row * n : nullptr;
      T* target = dx + row * n;
      const Vec<W> centre(form.kind == kLayer ? mean[row] : W(0)), factor(scale[row]);
      const int64_t channel = channels ? row % channels : 0;
      const Vec<W> channel_gain(channels && gain ? gain[channel] : W(1));
      const Vec<W> channel_shift(channels && shift ? shift[channel] : W(0));
      const auto gain_at = [&](int64_t j, auto count) { return unit_gains ? load(gain + j, count) : channel_gain; };
      // The gradient of the loss with respect to normalised * gain + shift.
      const auto incoming = [&](int64_t j, auto count, const Vec<W>& normalised) {
        auto gradient = load(dy_row + j, count);
        if constexpr (activated) {
          const auto shift_at_j = unit_shifts ? load(shift + j, count) : channel_shift;
          const auto value = at::vec::fmadd(normalised, gain_at(j, count), shift_at_j);
          gradient = leaky_relu_backward(gradient, value, parameters.slope);
        }
        return gradient;
      };
      Vec<W> products(0), gradients(0);
      for_each_vector<W>(0, n, [&](int64_t j, auto count) {
        const auto normalised = (load(a + j, count) - centre) * factor;
        auto gradient = incoming(j, count, normalised);  // elements from index `count` on are zero
        if constexpr (unit_shifts) store(dshift_sum + j, load(dshift_sum + j, count) + gradient, count);
        auto product = gradient * normalised;
        if constexpr (unit_gains) {
          store(dgain_sum + j, load(dgain_sum + j, count) + product, count);
          const auto unit_gain = load(gain + j, count);
          gradient = gradient * unit_gain;
          product = product * unit_gain;
        }
        products = products + product;
        gradients = gradients + gradient;
      });
      GradientSums<W> sums{horizontal_sum<W>(gradients), horizontal_sum<W>(products)};
      if (channels) {
        if (dgain_sum) dgain_sum[channel] += sums.product;
        if (dshift_sum) dshift_sum[channel] += sums.gradient;
        const W g = gain ? gain[channel] : W(1);
        sums.gradient *= g, sums.product *= g;
      }
      const auto by = correction<W>(sums, scale[row], form);
      const Vec<W> mean_gradient(by.mean), projection(by.slope);
      const auto write = [&](int64_t first, int64_t last, auto in_statistic) {
        for_each_vector<W>(first, last, [&](int64_t j, auto count) {
          if constexpr (streaming) {
            __builtin_prefetch(a + n + j);
            __builtin_prefetch(dy_row + n + j);
            if constexpr (added) __builtin_prefetch(direct + n + j);
          }
          const auto normalised = (load(a + j, count) - centre) * factor;
          auto gradient = incoming(j, count, normalised) * gain_at(j, count);
          if constexpr (in_statistic) gradient = gradient - mean_gradient - normalised * projection;
          gradient = added ? at::vec::fmadd(factor, gradient, load(direct + j, count)) : factor * gradient;
          store<streaming>(target + j, gradient, count);
        });
      };
      write(0, form.k, std::true_type{});
      write(form.k, n, std::false_type{});
    }
    if constexpr (streaming) fence();
  };
  at::parallel_for(0, layout.rows, std::max<int64_t>(1, kElementsPerThread / n), [&](int64_t begin, int64_t end) {
    const auto call = [&](auto... constants) { backward(begin, end, constants...); };
    with_constants(call, gain && !channels, shift && !channels, parameters.slope != W(1));
  });
}

}  // namespace
}  // namespace rmsexp

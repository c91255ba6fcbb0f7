// Kernels of additions that a norm follows (add_norms.h), over contiguous rows. For `streaming` see norm_rows.h.
#pragma once

#include "norms.h"

namespace rmsexp {
namespace {

template <typename T, bool streaming>
void add_rows_forward(int64_t rows, const Form& form,
                      const T* x,            // (rows, n)
                      const T* addend,       // (rows, n)
                      const Wide<T>* gain,   // (n,) or null
                      const Wide<T>* shift,  // (n,) or null
                      T* total,              // (rows, n), written
                      T* y,                  // (rows, n), written
                      Wide<T>* mean,         // (rows,), written for layer norm only
                      Wide<T>* scale) {      // (rows,), written
  using W = Wide<T>;
  const int64_t n = form.n;
  at::parallel_for(0, rows, std::max<int64_t>(1, kElementsPerThread / n), [&](int64_t begin, int64_t end) {
    // A streaming store removes its cache line, so that a row is first summed in a buffer, which stays in the cache.
    std::vector<T> buffer(streaming ? n : 0);
    for (int64_t row = begin; row < end; ++row) {
      const T *a = x + row * n, *b = addend + row * n;
      T *total_row = total + row * n, *target = y + row * n;
      T* sum = streaming ? buffer.data() : total_row;
      for_each_vector<W>(
          0, n, [&](int64_t j, auto count) { store(sum + j, load(a + j, count) + load(b + j, count), count); });
      const auto statistics = row_statistics(sum, form);
      scale[row] = statistics.scale;
      if (form.kind == kLayer) mean[row] = statistics.mean;
      const Vec<W> centre(statistics.mean), factor(statistics.scale);
      const auto write = [&](auto has_gain, auto has_shift) {
        for_each_vector<W>(0, n, [&](int64_t j, auto count) {
          auto value = load(sum + j, count);
          if constexpr (streaming) {
            __builtin_prefetch(a + n + j);
            __builtin_prefetch(b + n + j);
            store<streaming>(total_row + j, value, count);
          }
          value = (value - centre) * factor;
          if constexpr (has_gain) value = value * load(gain + j, count);
          if constexpr (has_shift) value = value + load(shift + j, count);
          store<streaming>(target + j, value, count);
        });
      };
      with_constants(write, gain != nullptr, shift != nullptr);
    }
    if constexpr (streaming) fence();
  });
}

// With g = dy * gain, the gradient of x and addend is dtotal plus the gradient of the norm's input (forms.h,
// correction()). The gradients of gain and shift are sums over the rows (norm_rows.h, rows_backward()).
//
// A first pass over a row computes the sums, a second pass writes dx.
template <typename T, bool streaming>
void add_rows_backward(int64_t rows, const Form& form,
                       const T* dtotal,       // (rows, n)
                       const T* dy,           // (rows, n)
                       const T* total,        // (rows, n)
                       const Wide<T>* gain,   // (n,) or null
                       const Wide<T>* mean,   // (rows,), read for layer norm only
                       const Wide<T>* scale,  // (rows,)
                       T* dx,                 // (rows, n), written
                       Wide<T>* dgain,        // (slots, n), accumulated in place; null without a gain
                       Wide<T>* dshift,       // (slots, n), accumulated in place; null without a shift
                       int64_t slots) {       // 1, or the number of threads, each of which adds to its own sums
  using W = Wide<T>;
  const int64_t n = form.n;
  const auto backward = [&](int64_t begin, int64_t end, auto has_gain, auto has_shift) {
    const int64_t slot = slots == 1 ? 0 : at::get_thread_num();
    W* dgain_sum = dgain ? dgain + slot * n : nullptr;
    W* dshift_sum = dshift ? dshift + slot * n : nullptr;
    for (int64_t row = begin; row < end; ++row) {
      const T *a = total + row * n, *dy_row = dy + row * n, *direct = dtotal + row * n;
      T* target = dx + row * n;
      const Vec<W> centre(form.kind == kLayer ? mean[row] : W(0)), factor(scale[row]);
      Vec<W> products(0), gradients(0);
      for_each_vector<W>(0, n, [&](int64_t j, auto count) {
        const auto normalised = (load(a + j, count) - centre) * factor;
        auto gradient = load(dy_row + j, count);  // elements from index `count` on are zero
        if constexpr (has_shift) store(dshift_sum + j, load(dshift_sum + j, count) + gradient, count);
        auto product = gradient * normalised;
        if constexpr (has_gain) {
          store(dgain_sum + j, load(dgain_sum + j, count) + product, count);
          const auto unit_gain = load(gain + j, count);
          gradient = gradient * unit_gain;
          product = product * unit_gain;
        }
        products = products + product;
        gradients = gradients + gradient;
      });
      const GradientSums<W> sums{horizontal_sum<W>(gradients), horizontal_sum<W>(products)};
      const auto by = correction<W>(sums, scale[row], form);
      const Vec<W> mean_gradient(by.mean), projection(by.slope);
      const auto write = [&](int64_t first, int64_t last, auto in_statistic) {
        for_each_vector<W>(first, last, [&](int64_t j, auto count) {
          if constexpr (streaming) {
            __builtin_prefetch(a + n + j);
            __builtin_prefetch(dy_row + n + j);
            __builtin_prefetch(direct + n + j);
          }
          auto gradient = load(dy_row + j, count);
          if constexpr (has_gain) gradient = gradient * load(gain + j, count);
          if constexpr (in_statistic) {
            const auto normalised = (load(a + j, count) - centre) * factor;
            gradient = gradient - mean_gradient - normalised * projection;
          }
          store<streaming>(target + j, at::vec::fmadd(factor, gradient, load(direct + j, count)), count);
        });
      };
      write(0, form.k, std::true_type{});
      write(form.k, n, std::false_type{});
    }
    if constexpr (streaming) fence();
  };
  at::parallel_for(0, rows, std::max<int64_t>(1, kElementsPerThread / n), [&](int64_t begin, int64_t end) {
    const auto call = [&](auto... constants) { backward(begin, end, constants...); };
    with_constants(call, dgain != nullptr, dshift != nullptr);
  });
}

}  // namespace
}  // namespace rmsexp

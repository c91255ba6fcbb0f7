// Kernels of norms over the positions of channels-last maps. A row is one example with n positions, (n, channels). Each
// channel of a row has its own statistic. SIMD vectors run over the channels.
#pragma once

#include <array>
#include <vector>

#include "norms.h"

namespace rmsexp {
namespace {

constexpr int64_t kPositionsPerBlock = 128;  // with more positions, their sum is the sum of the sums of both halves

// Returns N sums over the positions [begin, end). `add(p, sums)` adds the terms of position p to the sums. Rounding
// errors grow with the logarithm of the number of blocks, instead of with the number of positions.
template <typename W, size_t N, typename F>
std::array<Vec<W>, N> sum_positions(int64_t begin, int64_t end, const F& add) {
  std::array<Vec<W>, N> sums;
  if (end - begin > kPositionsPerBlock) {
    const int64_t middle = begin + (end - begin) / 2;
    const auto first = sum_positions<W, N>(begin, middle, add), second = sum_positions<W, N>(middle, end, add);
    for (size_t i = 0; i < N; ++i) sums[i] = first[i] + second[i];
  } else {
    sums.fill(Vec<W>(0));
    for (int64_t p = begin; p < end; ++p) add(p, sums);
  }
  return sums;
}

template <typename T>
void maps_forward(const Layout& layout, const Form& form, const Parameters<Wide<T>>& parameters,
                  const T* x,        // (rows, n, channels)
                  T* y,              // (rows, n, channels), written
                  Wide<T>* mean,     // (rows, channels), written for layer norm only
                  Wide<T>* scale) {  // (rows, channels), written
  using W = Wide<T>;
  const int64_t n = layout.n, c = layout.channels;
  const W *gain = parameters.gain, *shift = parameters.shift;
  at::parallel_for(0, layout.rows, std::max<int64_t>(1, kElementsPerThread / (n * c)), [&](int64_t begin, int64_t end) {
    std::vector<W> factor(c), offset(c);  // y = activation(x * factor + offset)
    for (int64_t row = begin; row < end; ++row) {
      const T* a = x + row * n * c;
      T* target = y + row * n * c;
      W *row_mean = form.kind == kLayer ? mean + row * c : nullptr, *row_scale = scale + row * c;
      for_each_vector<W>(0, c, [&](int64_t j, auto count) {
        Vec<W> centre(0);
        if (row_mean) {
          const auto [sum] =
              sum_positions<W, 1>(0, n, [&](int64_t p, auto& sums) { sums[0] = sums[0] + load(a + p * c + j, count); });
          centre = sum / Vec<W>(static_cast<W>(n));
          store(row_mean + j, centre, count);
        }
        const auto [squares] = sum_positions<W, 1>(0, form.k, [&](int64_t p, auto& sums) {
          const auto difference = load(a + p * c + j, count) - centre;
          sums[0] = sums[0] + difference * difference;
        });
        store(row_scale + j, squares, count);
      });
      for (int64_t j = 0; j < c; ++j) {
        row_scale[j] = form.kind == kNone ? W(1) : statistics_from_squares(row_scale[j], form).scale;
        factor[j] = gain ? row_scale[j] * gain[j] : row_scale[j];
        offset[j] = (shift ? shift[j] : W(0)) - (row_mean ? row_mean[j] * factor[j] : W(0));
      }
      const auto write = [&](auto activated) {
        for (int64_t p = 0; p < n; ++p) {
          for_each_vector<W>(0, c, [&](int64_t j, auto count) {
            const auto factors = load(factor.data() + j, count), offsets = load(offset.data() + j, count);
            auto value = at::vec::fmadd(load(a + p * c + j, count), factors, offsets);
            if constexpr (activated) value = leaky_relu(value, parameters.slope);
            store(target + p * c + j, value, count);
          });
        }
      };
      with_constants(write, parameters.slope != W(1));
    }
  });
}

// Computes the gradients that rows_backward computes. With d the gradient of the loss with respect to
// normalised * gain + shift, dx (forms.h, correction()) at position p of a channel is:
//
//   dx = d * of_gradient + [p < k] * (x * of_value + constant)
//   of_gradient = scale * gain, of_value = -scale^2 * slope, constant = -scale * mean(g) - of_value * mean
template <typename T>
void maps_backward(const Layout& layout, const Form& form, const Parameters<Wide<T>>& parameters,
                   const T* dy,           // (rows, n, channels)
                   const T* x,            // (rows, n, channels)
                   const Wide<T>* mean,   // (rows, channels), read for layer norm only
                   const Wide<T>* scale,  // (rows, channels)
                   T* dx,                 // (rows, n, channels), written
                   Wide<T>* dgain,        // (slots, channels), accumulated in place; null without a gain
                   Wide<T>* dshift,       // (slots, channels), accumulated in place; null without a shift
                   int64_t slots) {       // 1, or the number of threads, each of which adds to its own sums
  using W = Wide<T>;
  const int64_t n = layout.n, c = layout.channels;
  const W *gain = parameters.gain, *shift = parameters.shift;
  const auto backward = [&](int64_t begin, int64_t end, auto activated) {
    const int64_t slot = slots == 1 ? 0 : at::get_thread_num();
    std::vector<W> gradients(c), products(c), of_gradient(c), of_value(c), constant(c), factor(c), offset(c);
    for (int64_t row = begin; row < end; ++row) {
      const T *a = x + row * n * c, *dy_row = dy + row * n * c;
      T* target = dx + row * n * c;
      const W *row_mean = form.kind == kLayer ? mean + row * c : nullptr, *row_scale = scale + row * c;
      for (int64_t j = 0; j < c; ++j) {
        factor[j] = gain ? row_scale[j] * gain[j] : row_scale[j];
        offset[j] = (shift ? shift[j] : W(0)) - (row_mean ? row_mean[j] * factor[j] : W(0));
      }
      // The gradient of the loss with respect to normalised * gain + shift.
      const auto incoming = [&](int64_t p, int64_t j, auto count) {
        auto gradient = load(dy_row + p * c + j, count);
        if constexpr (activated) {
          const auto factors = load(factor.data() + j, count), offsets = load(offset.data() + j, count);
          const auto value = at::vec::fmadd(load(a + p * c + j, count), factors, offsets);
          gradient = leaky_relu_backward(gradient, value, parameters.slope);
        }
        return gradient;
      };
      for_each_vector<W>(0, c, [&](int64_t j, auto count) {
        const Vec<W> centre = row_mean ? load(row_mean + j, count) : Vec<W>(0);
        const auto [gradient_sum, product_sum] = sum_positions<W, 2>(0, n, [&](int64_t p, auto& sums) {
          const auto gradient = incoming(p, j, count);
          sums[0] = sums[0] + gradient;
          sums[1] = at::vec::fmadd(gradient, load(a + p * c + j, count) - centre, sums[1]);
        });
        store(gradients.data() + j, gradient_sum, count);
        store(products.data() + j, product_sum * load(row_scale + j, count), count);
      });
      for (int64_t j = 0; j < c; ++j) {
        if (dgain) dgain[slot * c + j] += products[j];
        if (dshift) dshift[slot * c + j] += gradients[j];
        const W g = gain ? gain[j] : W(1);
        const auto by = correction<W>({gradients[j] * g, products[j] * g}, row_scale[j], form);
        of_gradient[j] = row_scale[j] * g;
        of_value[j] = -row_scale[j] * row_scale[j] * by.slope;
        constant[j] = -row_scale[j] * by.mean - (row_mean ? of_value[j] * row_mean[j] : W(0));
      }
      for (int64_t p = 0; p < n; ++p) {
        for_each_vector<W>(0, c, [&](int64_t j, auto count) {
          auto gradient = incoming(p, j, count) * load(of_gradient.data() + j, count);
          if (p < form.k) {
            gradient = at::vec::fmadd(load(a + p * c + j, count), load(of_value.data() + j, count), gradient);
            if (row_mean) gradient = gradient + load(constant.data() + j, count);
          }
          store(target + p * c + j, gradient, count);
        });
      }
    }
  };
  at::parallel_for(0, layout.rows, std::max<int64_t>(1, kElementsPerThread / (n * c)), [&](int64_t begin, int64_t end) {
    with_constants([&](auto activated) { backward(begin, end, activated); }, parameters.slope != W(1));
  });
}

}  // namespace
}  // namespace rmsexp

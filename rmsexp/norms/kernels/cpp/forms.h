// The norms that the kernels compute: statistics and gradients of one row.
//
// For a row a of n values, of which the first k enter the statistic (layer norm: all n):
//
//   normalised_j = (a_j - mean) * scale
//   none:   mean = 0, scale = 1
//   RMS:    mean = 0, scale = 1 / sqrt(q + eps), or 1 / (sqrt(q) + eps); q = sum_{j < k} a_j^2 / k
//   Euclid: as RMS, with q = sum_{j < k} a_j^2
//   layer:  mean = sum_j a_j / n, scale = 1 / sqrt(sum_j (a_j - mean)^2 / n + eps)
//
// Zhang & Sennrich (2019), Eq. 4 and Table 2; Ba et al. (2016), Eq. 3.
#pragma once

#include "vectors.h"

namespace rmsexp {

// The kinds' numbers are defined in kernels/norms.py; kernels/build.py passes them to the compiler. kTanh and kErf are
// the pointwise functions of pointwise_rows.h, which have no statistics.
enum Kind : int64_t {
  kNone = RMSEXP_KIND_NONE,
  kRms = RMSEXP_KIND_RMS,
  kLayer = RMSEXP_KIND_LAYER,
  kEuclid = RMSEXP_KIND_EUCLID,
  kTanh = RMSEXP_KIND_TANH,
  kErf = RMSEXP_KIND_ERF,
};

// A norm over `n` units, of which the first `k` enter the statistic. eps is added under the root if `inside` is true,
// otherwise to the root. For layer norm, `inside` must be true.
struct Form {
  int64_t kind, n, k;
  bool inside;
  double eps;

  // The number by which the sum of the squares in the statistic is divided.
  double divisor() const { return kind == kEuclid ? 1.0 : static_cast<double>(k); }
};

inline void check(const Form& form) {
  TORCH_CHECK_VALUE(1 <= form.k && form.k <= form.n, "expected from 1 to ", form.n,
                    " units in the statistic of a norm, got ", form.k);
}

template <typename W>
struct Statistics {
  W mean, scale;
};

// Returns mean 0, and the scale that results from `squares`, the sum of the squares in the statistic.
template <typename W>
inline Statistics<W> statistics_from_squares(W squares, const Form& form) {
  const W mean_square = squares / static_cast<W>(form.divisor());
  const W eps = static_cast<W>(form.eps);
  return {W(0), form.inside ? W(1) / std::sqrt(mean_square + eps) : W(1) / (std::sqrt(mean_square) + eps)};
}

template <typename T>
inline Statistics<Wide<T>> row_statistics(const T* a, const Form& form) {
  using W = Wide<T>;
  if (form.kind == kNone) return {W(0), W(1)};
  if (form.kind == kLayer) {
    const W mean = sum<W>(form.n, [&](int64_t j, auto count) { return load(a + j, count); }) / static_cast<W>(form.n);
    const Vec<W> centre(mean);
    const W squares = sum<W>(form.n, [&](int64_t j, auto count) {
      const auto difference = zero_tail(load(a + j, count) - centre, count);
      return difference * difference;
    });
    return {mean, W(1) / std::sqrt(squares / static_cast<W>(form.n) + static_cast<W>(form.eps))};
  }
  const W squares = sum<W>(form.k, [&](int64_t j, auto count) {
    const auto value = load(a + j, count);
    return value * value;
  });
  return statistics_from_squares(squares, form);
}

// Two sums over a row. With g the gradient of the loss with respect to the normalised values, `gradient` is the sum of
// g, and `product` is the sum of g * normalised.
template <typename W>
struct GradientSums {
  W gradient, product;
};

// The terms `mean` and `slope` of the formula below. They arise because mean and scale of the norm depend on the row.
template <typename W>
struct Correction {
  W mean, slope;
};

// With g_j the gradient of the loss with respect to normalised_j, the gradient with respect to a_j is
//
//   da_j = scale * (g_j - mean - [j < k] * normalised_j * slope)
//   RMS, Euclid: mean = 0,       slope = sum_j g_j normalised_j / d, with d = k for RMS, 1 for Euclid;
//                                if eps is outside the root, slope is divided by scale * sqrt(q)
//   layer:       mean = mean(g), slope = mean(g * normalised)
//
// These are the derivatives of the formulas at the top of this file. For kind none, both terms are 0. For RMS with
// eps = 0 and k = n, see Eq. 9 of Zhang & Sennrich (2019).
//
// With eps outside the root, sqrt(q) is computed as 1 / scale - eps, which loses digits where sqrt(q) is much smaller
// than eps: in float32, the slope's relative error reaches 6e-3 for sqrt(q) = 1e-11 and eps = 1e-5.
template <typename W>
inline Correction<W> correction(GradientSums<W> sums, W scale, const Form& form) {
  if (form.kind == kNone) return {W(0), W(0)};
  const W slope = sums.product / static_cast<W>(form.divisor());
  if (form.kind == kLayer) return {sums.gradient / static_cast<W>(form.n), slope};
  if (form.inside) return {W(0), slope};
  // Where the root is 0, the formula gives 0 / 0, and the slope is set to 0.
  const W root = W(1) / scale - static_cast<W>(form.eps);
  return {W(0), root > W(0) ? slope / (scale * root) : W(0)};
}

// Replaces `gradient`, which holds the gradient with respect to the normalised values of row `a`, by the gradient with
// respect to `a`.
template <typename T>
inline void gradient_of_row(T* gradient, const T* a, Statistics<T> statistics, Correction<T> by, const Form& form) {
  if (form.kind == kNone) return;
  const Vec<T> mean(statistics.mean), scale(statistics.scale), mean_gradient(by.mean), slope(by.slope);
  for_each_vector<T>(0, form.k, [&](int64_t j, auto count) {
    const auto normalised = (load(a + j, count) - mean) * scale;
    store(gradient + j, scale * (load(gradient + j, count) - mean_gradient - normalised * slope), count);
  });
  for_each_vector<T>(form.k, form.n,
                     [&](int64_t j, auto count) { store(gradient + j, scale * load(gradient + j, count), count); });
}

}  // namespace rmsexp

// The operators of one time step, which have an implementation for each device, and the statistics that they save. Only
// the operators over whole sequences call them, whose arguments kernels/recurrences.py has checked. Here is the code
// that their implementations on CPU share: rows of matrices, norms of rows, and the backward pass of norms.
//
// Shapes: B rows of a batch, H units of a state, S source positions, C units of a key, A units of a value. The last
// axis of every matrix is contiguous. N is the norm that `form` and `eps` describe, with the gain and shift in
// `affine`; the integers of `form` are listed at StepForms and query_form. N' is the backward pass of N: from
// the gradient of N(a) it computes the gradient of a (forms.h, correction()). A gradient dz is that of the loss with
// respect to z. `partials` have P parts, one for each thread on CPU and one for each row of the batch on CUDA, so that
// no two threads add to the same sum; the gradient is the sum of the parts.
#pragma once

#include <cstring>

#include "forms.h"
#include "operators.h"

namespace rmsexp {

// The integers of `form` are: kind of norm, number of units in the statistics of the gates, number of units in the
// statistic of the candidate (GRU) or of the cell (LSTM), and 1 if eps is inside the root, otherwise 0. The norms of
// the gates are over `blocks` x `hidden` units.
struct StepForms {
  Form gates, inner;
  StepForms(at::IntArrayRef form, double eps, int64_t blocks, int64_t hidden)
      : gates{form[0], blocks * hidden, form[1], form[3] != 0, eps},
        inner{form[0], hidden, form[2], form[3] != 0, eps} {
    check(gates);
    check(inner);
  }
};

// The integers of `form` are: kind of norm, number of units in the statistic, and 1 if eps is inside the root,
// otherwise 0.
inline Form query_form(at::IntArrayRef form, double eps, int64_t width) {
  const Form norm{form[0], width, form[1], form[2] != 0, eps};
  check(norm);
  return norm;
}

// A row of a GRU's tensor `statistics`: mean and scale of each of its four norms, in this order.
template <typename T>
struct GruStatistics {
  Statistics<T> x_gates, x_candidate, h_gates, h_candidate;
};

// A row of an LSTM's tensor `statistics`: mean and scale of each of its three norms, in this order.
template <typename T>
struct LstmStatistics {
  Statistics<T> x, h, cell;
};

// The number of values in a row of a tensor `statistics`.
template <template <typename> typename Row>
constexpr int64_t kWidth = sizeof(Row<float>) / sizeof(float);

namespace {

constexpr size_t kLongRow = 8192;  // in bytes: two pages

// Pointers to the rows of a matrix whose last axis is contiguous; null pointers if there is no matrix.
template <typename T>
struct Rows {
  T* data = nullptr;
  int64_t stride = 0;

  explicit Rows(const Tensor& matrix) : data(matrix.mutable_data_ptr<T>()), stride(matrix.stride(0)) {}
  explicit Rows(const OptionalTensor& matrix) {
    if (matrix.has_value()) *this = Rows(*matrix);
  }
  T* operator[](int64_t row) const { return data == nullptr ? nullptr : data + row * stride; }
  // Makes the processor load the first n values of a row into its cache. Unasked, it loads ahead only within a memory
  // page, which is enough for rows of several pages.
  template <bool kWritten>
  void prefetch(int64_t row, int64_t n) const {
    if (n * sizeof(T) > kLongRow) return;
    for (int64_t j = 0; j < n; j += 64 / sizeof(T)) __builtin_prefetch((*this)[row] + j, kWritten, 2);
  }
};

// Whether a row of the batch is not padding; without a mask, no row is.
inline bool is_real(const Rows<bool>& mask, int64_t row) { return mask.data == nullptr || *mask[row]; }

constexpr int64_t kUnitsPerThread = 4096;  // with fewer units per thread, another thread saves no time

// Returns the grain size of at::parallel_for, in rows, for rows of `width` units.
inline int64_t rows_per_thread(int64_t width) { return std::max<int64_t>(1, kUnitsPerThread / width); }

// Returns a row of a tensor `statistics` as a struct S, such as GruStatistics.
template <typename S, typename T>
S read_struct(const T* row) {
  S result;
  std::memcpy(&result, row, sizeof(S));
  return result;
}

template <typename S, typename T>
void write_struct(T* row, const S& value) {
  std::memcpy(row, &value, sizeof(S));
}

template <typename T>
void add_to(T* sum, const T* summand, int64_t n) {
  for_each_vector<T>(
      0, n, [&](int64_t j, auto count) { store(sum + j, load(sum + j, count) + load(summand + j, count), count); });
}

// Gain and shift of a norm, or the gradients of both.
template <typename T>
struct Affine {
  T *gain, *shift;

  Affine(T* data, int64_t width) : gain(data), shift(data + width) {}
  Affine from(int64_t unit) const { return {gain + unit, shift - gain}; }
};

// Gain and shift for the summed inputs ax, in member x, and for ah, in member h; data is a tensor (2, 2, width).
template <typename T>
struct StepAffine {
  Affine<T> x, h;

  StepAffine(T* data, int64_t width) : x(data, width), h(data + 2 * width, width) {}
};

// A row, its statistics, and the gain and shift of its norm.
template <typename T>
struct NormedRow {
  const T* a;
  Statistics<T> statistics;
  Affine<const T> affine;

  inline Vec<T> normalised(int64_t j, int64_t count) const {
    return (load(a + j, count) - Vec<T>(statistics.mean)) * Vec<T>(statistics.scale);
  }

  // normalised * gain + shift
  inline Vec<T> value(int64_t j, int64_t count) const {
    return at::vec::fmadd(normalised(j, count), load(affine.gain + j, count), load(affine.shift + j, count));
  }
};

// The backward pass of the norm of a row. Callers call add() once for every unit, in vectors, and then finish().
template <typename T>
struct NormBackward {
  NormedRow<T> row;
  Affine<T> daffine;  // gradients of gain and shift, accumulated in place
  T* da;              // gradient of row.a, written
  Vec<T> gradients = Vec<T>(0), products = Vec<T>(0);

  // `gradient` is the gradient of the loss with respect to row.value(j, count). Without kShift, the gradient of the
  // shift is not accumulated.
  template <bool kShift = true>
  inline void add(Vec<T> gradient, int64_t j, int64_t count) {
    const auto normalised = row.normalised(j, count);
    store(daffine.gain + j, at::vec::fmadd(gradient, normalised, load(daffine.gain + j, count)), count);
    if constexpr (kShift) store(daffine.shift + j, load(daffine.shift + j, count) + gradient, count);
    gradient = zero_tail(gradient * load(row.affine.gain + j, count), count);
    gradients = gradients + gradient;
    products = at::vec::fmadd(gradient, normalised, products);
    store(da + j, gradient, count);
  }

  void finish(const Form& form) const {
    const GradientSums<T> sums{horizontal_sum<T>(gradients), horizontal_sum<T>(products)};
    gradient_of_row(da, row.a, row.statistics, correction<T>(sums, row.statistics.scale, form), form);
  }
};

}  // namespace
}  // namespace rmsexp

// What all CPU kernels share: rows of vectors, and how a norm's statistics and gradients are computed on one row.
#pragma once

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/cpu/vec/functional.h>
#include <ATen/cpu/vec/vec.h>
#include <torch/library.h>

#include <algorithm>
#include <cmath>
#include <type_traits>

namespace rmsexp {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

template <typename T>
using Vec = at::vec::Vectorized<T>;

// Statistics and sums are computed in float for half and bfloat16.
template <typename T>
using Wide = std::conditional_t<std::is_same_v<T, double>, double, float>;

template <typename T>
inline Vec<Wide<T>> load(const T* from, int64_t count) {
  using W = Wide<T>;
  if constexpr (std::is_same_v<T, W>) {
    return count == Vec<W>::size() ? Vec<W>::loadu(from) : Vec<W>::loadu(from, count);
  } else {
    alignas(64) T whole[Vec<W>::size()] = {};
    if (count < Vec<W>::size()) from = std::copy(from, from + count, whole) - count;
    Vec<W> value;
    if constexpr (std::is_same_v<T, at::BFloat16>) {
      at::vec::load_fp32_from_bf16(from, value);
    } else {
      at::vec::load_fp32_from_fp16(from, value);
    }
    return value;
  }
}

template <typename T>
inline void store(T* to, Vec<Wide<T>> value, int64_t count) {
  using W = Wide<T>;
  if constexpr (std::is_same_v<T, W>) {
    if (count == Vec<W>::size()) {
      value.store(to);
    } else {
      value.store(to, count);
    }
  } else {
    at::vec::convert_from_float<T>(value, value).store(to, count);
  }
}

// Whether a thread's share of a tensor is more than what a core has of the last cache, so that its beginning has left
// the caches when its end is written.
inline bool is_far(const Tensor& of) { return of.nbytes() > static_cast<size_t>(at::get_num_threads()) << 22; }

// `past`: results go past the caches where the processor can, which spares reading what they replace; the thread calls
// fence() after its last one.
template <bool past, typename T, typename C>
inline void store(T* to, const Vec<Wide<T>>& value, C count) {
#if defined(CPU_CAPABILITY_AVX2) || defined(CPU_CAPABILITY_AVX512)
  constexpr bool whole = !std::is_same_v<C, int64_t>;
  if constexpr (past && whole && sizeof(T) == sizeof(Wide<T>)) {
    if (reinterpret_cast<uintptr_t>(to) % sizeof(value) == 0) {
#if defined(CPU_CAPABILITY_AVX512)
      _mm512_stream_si512(reinterpret_cast<__m512i*>(to), *reinterpret_cast<const __m512i*>(&value));
#else
      _mm256_stream_si256(reinterpret_cast<__m256i*>(to), *reinterpret_cast<const __m256i*>(&value));
#endif
      return;
    }
  }
#endif
  store(to, value, count);
}

inline void fence() {
#if defined(CPU_CAPABILITY_AVX2) || defined(CPU_CAPABILITY_AVX512)
  _mm_sfence();
#endif
}

// Calls f(j, count) for the vectors from `begin` to `end`; count is less than a vector's size for the last one only.
template <typename T, typename F>
inline void each(int64_t begin, int64_t end, F f) {
  constexpr std::integral_constant<int64_t, Vec<T>::size()> whole{};
  int64_t j = begin;
  for (; j + whole <= end; j += whole) f(j, whole);
  if (j < end) f(j, end - j);
}

template <typename T>
inline T total(Vec<T> value) {
  return at::vec::vec_reduce_all<T>([](const Vec<T>& a, const Vec<T>& b) { return a + b; }, value);
}

// `value` with zeros beyond the first `count`.
template <typename T>
inline Vec<T> cut(const Vec<T>& value, int64_t count) {
  return count == Vec<T>::size() ? value : Vec<T>::set(Vec<T>(0), value, count);
}

// The sum over j < n of what f(j, count) gives, zeros beyond count; four chains of additions hide their latency.
template <typename T, typename F>
inline T sum(int64_t n, F f) {
  constexpr std::integral_constant<int64_t, Vec<T>::size()> whole{};
  Vec<T> parts[4] = {Vec<T>(0), Vec<T>(0), Vec<T>(0), Vec<T>(0)};
  int64_t j = 0;
  for (; j + 4 * whole <= n; j += 4 * whole) {
    for (int i = 0; i < 4; ++i) parts[i] = parts[i] + f(j + i * whole, whole);
  }
  for (; j + whole <= n; j += whole) parts[0] = parts[0] + f(j, whole);
  if (j < n) parts[1] = parts[1] + f(j, n - j);
  return total<T>((parts[0] + parts[1]) + (parts[2] + parts[3]));
}

template <typename T>
inline Vec<T> sigmoid(const Vec<T>& x) {
  if constexpr (std::is_same_v<T, float>) return Vec<T>(1) / (Vec<T>(1) + x.neg().exp_u20());
  return Vec<T>(1) / (Vec<T>(1) + x.neg().exp());
}

// In float to about 5e-7 of its value, at a third of the cost of the library's, which is exact to the last bit.
template <typename T>
inline Vec<T> tanh(const Vec<T>& x) {
  if constexpr (!std::is_same_v<T, float>) return x.tanh();
  const Vec<T> one(1), size = x.abs(), square = x * x;
  const auto large = one - Vec<T>(2) / ((size + size).exp_u20() + one);
  auto series = at::vec::fmadd(square, Vec<T>(62.0 / 2835), Vec<T>(-17.0 / 315));  // of Taylor, where `large` cancels
  series = at::vec::fmadd(square, series, Vec<T>(2.0 / 15));
  series = at::vec::fmadd(square, series, Vec<T>(-1.0 / 3));
  return Vec<T>::blendv(large | (x & Vec<T>(-0.0)), at::vec::fmadd(x * square, series, x), size < Vec<T>(0.25));
}

enum Kind : int64_t { kNone = 0, kRms = 1, kLayer = 2, kEuclid = 3 };

// A norm over `n` units of which the first `k` enter the statistic. `inside`: eps lies inside the root.
struct Form {
  int64_t kind, n, k;
  bool inside;
  double eps;
  double divisor() const { return kind == kEuclid ? 1.0 : static_cast<double>(k); }
};

// normalised = (a - mean) * scale
template <typename W>
struct Statistics {
  W mean, scale;
};

template <typename W>
inline Statistics<W> from_squares(W squares, const Form& form) {
  const W mean_square = squares / static_cast<W>(form.divisor());
  const W eps = static_cast<W>(form.eps);
  return {W(0), form.inside ? W(1) / std::sqrt(mean_square + eps) : W(1) / (std::sqrt(mean_square) + eps)};
}

template <typename T>
inline Statistics<Wide<T>> statistics(const T* a, const Form& form) {
  using W = Wide<T>;
  if (form.kind == kNone) return {W(0), W(1)};
  if (form.kind == kLayer) {
    const W mean = sum<W>(form.n, [&](int64_t j, auto count) { return load(a + j, count); }) / static_cast<W>(form.n);
    const Vec<W> centre(mean);
    const W squares = sum<W>(form.n, [&](int64_t j, auto count) {
      const auto d = cut(load(a + j, count) - centre, count);
      return d * d;
    });
    return {mean, W(1) / std::sqrt(squares / static_cast<W>(form.n) + static_cast<W>(form.eps))};
  }
  const W squares = sum<W>(form.k, [&](int64_t j, auto count) {
    const auto v = load(a + j, count);
    return v * v;
  });
  return from_squares(squares, form);
}

// Of the gradient g of gain * normalised: its sum, and its product with the normalised values.
template <typename W>
struct Projections {
  W sum, product;
};

// The gradient of a is scale * (g - mean - [j < k] * normalised * slope).
template <typename W>
struct Correction {
  W mean, slope;
};

template <typename W>
inline Correction<W> correction(Projections<W> of, W scale, const Form& form) {
  if (form.kind == kNone) return {W(0), W(0)};
  const W slope = of.product / static_cast<W>(form.divisor());
  if (form.kind == kLayer) return {of.sum / static_cast<W>(form.n), slope};
  if (form.inside) return {W(0), slope};
  // The root, without eps; where it is 0 the formula's 0/0 is taken as 0.
  const W root = W(1) / scale - static_cast<W>(form.eps);
  return {W(0), root > W(0) ? slope / (scale * root) : W(0)};
}

// Turns `gradient`, of gain * normalised, into that of `a`, in place.
template <typename T>
inline void to_input(T* gradient, const T* a, Statistics<T> of, Correction<T> by, const Form& form) {
  if (form.kind == kNone) return;
  const Vec<T> mean(of.mean), scale(of.scale), shift(by.mean), slope(by.slope);
  each<T>(0, form.k, [&](int64_t j, auto count) {
    const auto normalised = (load(a + j, count) - mean) * scale;
    store(gradient + j, scale * (load(gradient + j, count) - shift - normalised * slope), count);
  });
  each<T>(form.k, form.n, [&](int64_t j, auto count) { store(gradient + j, scale * load(gradient + j, count), count); });
}

// Rows of a matrix whose last axis is contiguous.
template <typename T>
struct Rows {
  T* data = nullptr;
  int64_t stride = 0;
  Rows() = default;
  explicit Rows(const Tensor& of) : data(of.defined() ? of.mutable_data_ptr<T>() : nullptr), stride(of.defined() ? of.stride(0) : 0) {}
  T* operator[](int64_t row) const { return data == nullptr ? nullptr : data + row * stride; }
};

}  // namespace rmsexp

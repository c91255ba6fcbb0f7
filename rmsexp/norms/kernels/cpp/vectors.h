// SIMD vectors: loads, stores, loops over a row, sums, sigmoid and tanh.
//
// Headers define kernels in anonymous namespaces, which gives the functions internal linkage. The compiler then inlines
// a function that is called once, whatever its size; without this, a kernel over short rows was a fifth slower.
#pragma once

#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/cpu/vec/functional.h>
#include <ATen/cpu/vec/vec.h>

#include <algorithm>
#include <cmath>
#include <type_traits>

namespace rmsexp {

template <typename T>
using Vec = at::vec::Vectorized<T>;

// The type of statistics and sums for values of type T: double for double, float for float, half and bfloat16.
template <typename T>
using Wide = std::conditional_t<std::is_same_v<T, double>, double, float>;

// Returns the first `count` values at `source`, followed by zeros.
template <typename T>
inline Vec<Wide<T>> load(const T* source, int64_t count) {
  using W = Wide<T>;
  if constexpr (std::is_same_v<T, W>) {
    return count == Vec<W>::size() ? Vec<W>::loadu(source) : Vec<W>::loadu(source, count);
  } else {
    alignas(64) T padded[Vec<W>::size()] = {};
    if (count < Vec<W>::size()) source = std::copy(source, source + count, padded) - count;
    Vec<W> value;
    if constexpr (std::is_same_v<T, at::BFloat16>) {
      at::vec::load_fp32_from_bf16(source, value);
    } else {
      at::vec::load_fp32_from_fp16(source, value);
    }
    return value;
  }
}

// Returns whether a thread's part of a tensor is larger than 4 MiB, about a core's share of the last-level cache. When
// the thread reaches the end of such a part, the beginning of the part is no longer in the cache.
inline bool exceeds_cache(const at::Tensor& tensor) {
  return tensor.nbytes() > static_cast<size_t>(at::get_num_threads()) << 22;
}

// Stores the first `count` elements of `value` at `target`. With `streaming`, whole vectors of float or double at an
// aligned target are written by non-temporal stores, if the vectors are AVX2 or AVX-512. Such a store does not first
// read the cache line that it overwrites. A thread must call fence() after its last streaming store.
template <bool streaming = false, typename T, typename C>
inline void store(T* target, const Vec<Wide<T>>& value, C count) {
#if defined(CPU_CAPABILITY_AVX2) || defined(CPU_CAPABILITY_AVX512)
  constexpr bool is_whole = !std::is_same_v<C, int64_t>;
  if constexpr (streaming && is_whole && sizeof(T) == sizeof(Wide<T>)) {
    if (reinterpret_cast<uintptr_t>(target) % sizeof(value) == 0) {
#if defined(CPU_CAPABILITY_AVX512)
      _mm512_stream_si512(reinterpret_cast<__m512i*>(target), *reinterpret_cast<const __m512i*>(&value));
#else
      _mm256_stream_si256(reinterpret_cast<__m256i*>(target), *reinterpret_cast<const __m256i*>(&value));
#endif
      return;
    }
  }
#endif
  if constexpr (!std::is_same_v<T, Wide<T>>) {
    at::vec::convert_from_float<T>(value, value).store(target, count);
  } else {
    value.store(target, count);
  }
}

// Makes this thread's streaming stores visible to other threads before any of its later stores.
inline void fence() {
#if defined(CPU_CAPABILITY_AVX2) || defined(CPU_CAPABILITY_AVX512)
  _mm_sfence();
#endif
}

// Divides [begin, end) into vectors and calls f(j, count) for each, with j the index of the vector's first element and
// `count` its number of elements. `count` is a compile-time constant, except for a shorter last vector: an int64_t.
template <typename T, typename F>
inline void for_each_vector(int64_t begin, int64_t end, F f) {
  constexpr std::integral_constant<int64_t, Vec<T>::size()> whole{};
  int64_t j = begin;
  for (; j + whole <= end; j += whole) f(j, whole);
  if (j < end) f(j, end - j);
}

// Returns the sum of a vector's elements.
template <typename T>
inline T horizontal_sum(Vec<T> value) {
  return at::vec::vec_reduce_all<T>([](const Vec<T>& a, const Vec<T>& b) { return a + b; }, value);
}

// Returns `value` with zeros in place of all but the first `count` elements.
template <typename T>
inline Vec<T> zero_tail(const Vec<T>& value, int64_t count) {
  return count == Vec<T>::size() ? value : Vec<T>::set(Vec<T>(0), value, count);
}

// Calls f(j, count) for each vector of [0, n), as for_each_vector does, and returns the sum of all elements of the
// vectors that f returns. Elements from index `count` on must be 0 in these vectors. Four independent chains of
// additions hide the latency of an addition.
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
  return horizontal_sum<T>((parts[0] + parts[1]) + (parts[2] + parts[3]));
}

// For float, this uses exp_u20, whose error is up to 20 units in the last place, and which is finite for NaN. The
// comparison sets all bits where x is NaN, which makes the result NaN there.
template <typename T>
inline Vec<T> sigmoid(const Vec<T>& x) {
  if constexpr (std::is_same_v<T, float>) return (x != x) | (Vec<T>(1) / (Vec<T>(1) + x.neg().exp_u20()));
  return Vec<T>(1) / (Vec<T>(1) + x.neg().exp());
}

// For float, the relative error is up to about 5e-7, and the time is a third of that of Vec<T>::tanh.
template <typename T>
inline Vec<T> tanh(const Vec<T>& x) {
  if constexpr (!std::is_same_v<T, float>) return x.tanh();
  const Vec<T> one(1), magnitude = x.abs(), square = x * x;
  const auto large = one - Vec<T>(2) / ((magnitude + magnitude).exp_u20() + one);
  // For |x| < 0.25, `large` loses digits by cancellation, so that the Taylor series to x^9 is used. The comparison is
  // false for NaN, for which the series is NaN, but `large` is finite.
  auto series = at::vec::fmadd(square, Vec<T>(62.0 / 2835), Vec<T>(-17.0 / 315));
  series = at::vec::fmadd(square, series, Vec<T>(2.0 / 15));
  series = at::vec::fmadd(square, series, Vec<T>(-1.0 / 3));
  const auto small = at::vec::fmadd(x * square, series, x);
  return Vec<T>::blendv(small, large | (x & Vec<T>(-0.0)), magnitude >= Vec<T>(0.25));
}

}  // namespace rmsexp

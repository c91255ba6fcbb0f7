// Matrix products: of float on CPUs with AVX2 or AVX-512 by oneDNN's kernels for blocks, which torch exports, and
// otherwise by ATen. The small products of a time step take a sixth less time with them than with ATen's BLAS (MKL).
#pragma once

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/native/CPUBlas.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/zeros.h>

#include "operators.h"

namespace rmsexp {

constexpr int64_t kProductsPerThread = 1 << 20;  // multiplications; with fewer, another thread saves no time
constexpr int64_t kInCache = 1 << 17;            // values of a second factor that stay in a core's cache (512 KiB)
constexpr int64_t kBlock = 128;                  // rows of the first factor that are multiplied with them at a time
constexpr int64_t kColumns = 64;                 // the smallest part of a result's columns

// Returns whether products of such tensors are computed by oneDNN.
inline bool by_blocks(const Tensor& a) {
#if defined(CPUBLAS_BRGEMM_F32F32F32) && (defined(CPU_CAPABILITY_AVX2) || defined(CPU_CAPABILITY_AVX512))
  return a.is_cpu() && a.scalar_type() == at::kFloat && at::globalContext().userEnabledMkldnn();
#else
  return false;
#endif
}

// out = a b, or with `add` out += a b. a, (M, K), b, (K, N), and out, (M, N), have contiguous rows.
inline void product(const Tensor& out, const Tensor& a, const Tensor& b, bool add = false) {
#if defined(CPUBLAS_BRGEMM_F32F32F32)
  if (by_blocks(a) && a.numel() > 0 && b.numel() > 0) {
    const int64_t M = a.size(0), K = a.size(1), N = b.size(1);
    const float *from_a = a.const_data_ptr<float>(), *from_b = b.const_data_ptr<float>();
    float* to = out.mutable_data_ptr<float>();
    const int64_t grain = std::max<int64_t>(1, kProductsPerThread / (M * K * kColumns));
    const int64_t most = std::max<int64_t>(1, kInCache / (K * kColumns)) * kColumns;
    at::parallel_for(0, (N + kColumns - 1) / kColumns, grain, [&](int64_t begin, int64_t end) {
      const int64_t last = std::min(end * kColumns, N);
      for (int64_t column = begin * kColumns; column < last; column += most) {
        const int64_t width = std::min(most, last - column);
        for (int64_t row = 0; row < M; row += kBlock) {
          at::native::cpublas::brgemm(std::min(kBlock, M - row), width, K, a.stride(0), b.stride(0), out.stride(0), add,
                                      from_a + row * a.stride(0), from_b + column,
                                      to + row * out.stride(0) + column, /*is_vnni=*/false);
        }
      }
    });
    return;
  }
#endif
  Tensor result = out;
  add ? result.addmm_(a, b) : at::mm_out(result, a, b);
}

// Returns the gradient of a weight W, from the gradients of the vectors W v and the vectors v, both (T, B, ...). This
// is one sum over all steps, whose parts fit in the cache, instead of one product per step.
inline Tensor weight_gradient(const Tensor& dproduct, const Tensor& input) {
  if (!by_blocks(input)) return at::mm(dproduct.flatten(0, 1).t(), input.flatten(0, 1));
  const Tensor d = dproduct.flatten(0, 1), v = input.flatten(0, 1).t().contiguous();
  const Tensor sum = at::zeros({v.size(0), d.size(1)}, d.options());
  for (int64_t row = 0; row < d.size(0); row += kBlock) {
    const int64_t count = std::min(kBlock, d.size(0) - row);
    product(sum, v.narrow(1, row, count), d.narrow(0, row, count), true);
  }
  return sum.t().contiguous();
}

}  // namespace rmsexp

// Matrix products of a time step: of float on CPUs with AVX2 or AVX-512 by oneDNN's kernels for blocks, which torch
// exports, and otherwise by ATen.
#pragma once

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/native/CPUBlas.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>

#include "operators.h"

namespace rmsexp {

constexpr int64_t kProductsPerThread = 1 << 20;  // multiplications; with fewer, another thread saves no time
constexpr int64_t kColumns = 64;                 // of a panel: with contiguous rows they stay in a core's cache

// The second factor of the products of all time steps, (K, N). For oneDNN its values are in panels of kColumns columns
// (the last one may have fewer), one after the other, each of them contiguous.
struct Factor {
  Tensor matrix;
  bool in_panels;

  explicit Factor(const Tensor& b) : matrix(b), in_panels(false) {
#if defined(CPUBLAS_BRGEMM_F32F32F32) && (defined(CPU_CAPABILITY_AVX2) || defined(CPU_CAPABILITY_AVX512))
    in_panels = b.is_cpu() && b.scalar_type() == at::kFloat && b.numel() && at::globalContext().userEnabledMkldnn();
#endif
    const int64_t K = b.size(0), N = b.size(1);
    matrix = in_panels ? at::empty({K, N}, b.options()) : b.contiguous();
    for (int64_t j = 0; in_panels && j < N; j += kColumns) {
      const int64_t width = std::min(kColumns, N - j);
      matrix.view({-1}).narrow(0, K * j, K * width).view({K, width}).copy_(b.narrow(1, j, width));
    }
  }
};

// out = a b, or with `add` out += a b. The rows of a, (M, K), and of out, (M, N), are contiguous.
inline void product(const Tensor& out, const Tensor& a, const Factor& b, bool add = false) {
#if defined(CPUBLAS_BRGEMM_F32F32F32)
  if (b.in_panels && a.numel()) {
    const int64_t M = a.size(0), K = a.size(1), N = out.size(1), ld_a = a.stride(0), ld_out = out.stride(0);
    const float *left = a.const_data_ptr<float>(), *right = b.matrix.const_data_ptr<float>();
    float* to = out.mutable_data_ptr<float>();
    const int64_t grain = std::max<int64_t>(1, kProductsPerThread / (M * K * kColumns));
    at::parallel_for(0, (N + kColumns - 1) / kColumns, grain, [&](int64_t begin, int64_t end) {
      for (int64_t j = begin * kColumns; j < std::min(end * kColumns, N); j += kColumns) {
        const int64_t width = std::min(kColumns, N - j);
        at::native::cpublas::brgemm(M, width, K, ld_a, width, ld_out, add, left, right + K * j, to + j, false);
      }
    });
    return;
  }
#endif
  Tensor result = out;
  add ? result.addmm_(a, b.matrix) : at::mm_out(result, a, b.matrix);
}

}  // namespace rmsexp

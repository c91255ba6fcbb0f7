// Tensors of the operators for norms: memory layouts that kernels read, parameters and their gradients, forms.
#pragma once

#include <ATen/EmptyTensor.h>
#include <ATen/ops/empty_like.h>

#include <cstring>

#include "norms.h"

namespace rmsexp {
namespace {

bool is_channels_last(const Tensor& x) { return x.is_contiguous(at::MemoryFormat::ChannelsLast) && !x.is_contiguous(); }

bool is_readable(const Tensor& x, bool maps) {
  if (maps) return x.is_contiguous() || is_channels_last(x);
  return x.stride(-1) == 1 && x.is_non_overlapping_and_dense();
}

// Returns x, or a contiguous copy if the kernels cannot read the memory of x.
Tensor readable(const Tensor& x, bool maps) { return is_readable(x, maps) ? x : x.contiguous(); }

// Returns x, or a copy with the memory layout of `like` if that of x differs.
Tensor with_layout(const Tensor& x, const Tensor& like) {
  return x.strides() == like.strides() ? x : at::empty_like(like).copy_(x);
}

at::ScalarType statistics_type(const Tensor& x) { return x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat; }

// Returns a gain or shift, contiguous and in the dtype of the statistics of x; undefined if there is none.
Tensor parameter(const OptionalTensor& tensor, const Tensor& x) {
  if (!tensor.has_value() || !tensor->defined()) return {};
  return as_type(*tensor, statistics_type(x)).contiguous();
}

// Return tensors on CPU that are not initialised. Unlike at::empty and at::empty_like, they do not call the dispatcher,
// which would take a large part of the time of a small norm.
Tensor uninitialised(at::IntArrayRef sizes, at::ScalarType type) { return at::detail::empty_cpu(sizes, type); }
Tensor uninitialised_like(const Tensor& x) {
  return at::detail::empty_strided_cpu(x.sizes(), x.strides(), x.scalar_type());
}

template <typename W>
const W* data_or_null(const Tensor& tensor) {
  return tensor.defined() ? tensor.const_data_ptr<W>() : nullptr;
}

// Returns zeros for the gradient of a parameter: (slots, width), where each thread adds to its own row, or (width,) for
// one slot. The result is empty if the parameter is undefined.
Tensor gradient_slots(const Tensor& parameter, int64_t slots, int64_t width, const Tensor& like) {
  const auto type = like.scalar_type();
  if (!parameter.defined()) return uninitialised({0}, type);
  Tensor zeros = slots == 1 ? uninitialised({width}, type) : uninitialised({slots, width}, type);
  std::memset(zeros.mutable_data_ptr(), 0, zeros.nbytes());
  return zeros;
}

Tensor sum_of_slots(const Tensor& slots) { return slots.dim() == 1 ? slots : slots.sum(0); }

// Returns the norm over `n` units, of which the first `k`, or all for layer norm, enter the statistic, after checking
// that the kernels can compute it for the elements of x, if there are any.
Form form_of(const Tensor& x, int64_t n, int64_t kind, int64_t k, bool inside, double eps) {
  const Form form{kind, n, kind == kLayer ? n : k, inside, eps};
  if (x.numel()) check(form);
  return form;
}

}  // namespace
}  // namespace rmsexp

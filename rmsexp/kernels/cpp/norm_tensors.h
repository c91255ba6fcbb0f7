// Tensors of the operators for norms: memory layouts that kernels read, parameters and their gradients, forms.
#pragma once

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>

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
  return tensor->to(statistics_type(x)).contiguous();
}

template <typename W>
const W* data_or_null(const Tensor& tensor) {
  return tensor.defined() ? tensor.const_data_ptr<W>() : nullptr;
}

// Returns zeros for the gradient of a parameter: (slots, width), where each thread adds to its own row, or (width,) for
// one slot. The result is empty if the parameter is undefined.
Tensor gradient_slots(const Tensor& parameter, int64_t slots, int64_t width, const Tensor& like) {
  if (!parameter.defined()) return at::empty({0}, like.options());
  return slots == 1 ? at::zeros({width}, like.options()) : at::zeros({slots, width}, like.options());
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

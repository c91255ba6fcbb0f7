// What the operators over whole sequences share. Their loops run on every device: matrix products are the library's,
// and the operators between them (steps.h) have kernels for each device.
//
// B rows of a batch, T time steps, H units of a state. Saved tensors begin with (T, B), in order of the positions.
#pragma once

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include "steps.h"

namespace rmsexp {

using TensorList = std::vector<Tensor>;

inline OptionalTensor mask_at(const OptionalTensor& mask, int64_t t) {
  return mask.has_value() ? OptionalTensor(mask->select(1, t)) : std::nullopt;
}

inline Tensor with_contiguous_rows(const Tensor& x) { return x.stride(-1) == 1 ? x : x.contiguous(); }

// An uninitialised gradient of x: with the strides of x where it is dense, contiguous otherwise.
inline Tensor empty_gradient(const Tensor& x) {
  return x.is_non_overlapping_and_dense() ? at::empty_like(x) : at::empty(x.sizes(), x.options());
}

// Zeros to which each thread, or on CUDA each row of the batch, adds its part of a gradient: (P, ...).
inline Tensor zero_partials(const Tensor& state, at::IntArrayRef shape) {
  std::vector<int64_t> sizes{state.is_cpu() ? at::get_num_threads() : state.size(0)};
  sizes.insert(sizes.end(), shape.begin(), shape.end());
  return at::zeros(sizes, state.options());
}

// A weight as the products of all steps read it. Transposed once, it makes each of them a fifth quicker.
inline Tensor transposed(const Tensor& weight) { return weight.t().contiguous(); }

// The gradient of a weight, from the gradients of its products and the values that it was applied to, both (T, B, ...).
// It is one product after the last step, not one per step.
inline Tensor weight_gradient(const Tensor& dproduct, const Tensor& input) {
  return at::mm(dproduct.flatten(0, 1).t(), input.flatten(0, 1));
}

// The states of a sequence. They lie in order of the positions, the initial state before the first one, or with
// `reverse` after the last one.
struct States {
  Tensor all;  // (T + 1, B, H)
  bool reverse;

  int64_t steps() const { return all.size(0) - 1; }
  Tensor initial() const { return all[reverse ? steps() : 0]; }
  // The states before and after the step that reads position t.
  Tensor before(int64_t t) const { return all[reverse ? t + 1 : t]; }
  Tensor after(int64_t t) const { return all[reverse ? t : t + 1]; }
  // The states before all steps, (T, B, H), in order of the positions.
  Tensor before() const { return all.narrow(0, reverse ? 1 : 0, steps()); }
  // The position that a step reads.
  int64_t position(int64_t step) const { return reverse ? steps() - 1 - step : step; }
};

// Uninitialised but for the initial state.
inline States empty_states(const Tensor& initial, int64_t steps, bool reverse) {
  const States states{at::empty({steps + 1, initial.size(0), initial.size(1)}, initial.options()), reverse};
  states.initial().copy_(initial);
  return states;
}

// The gates of a GRU on the device of the tensors.
inline const auto& gru_forward_step() {
  static const auto op = find_operator<decltype(gru_gates_forward)>("rmsexp::gru_gates_forward");
  return op;
}

inline const auto& gru_backward_step() {
  static const auto op = find_operator<decltype(gru_gates_backward)>("rmsexp::gru_gates_backward");
  return op;
}

}  // namespace rmsexp

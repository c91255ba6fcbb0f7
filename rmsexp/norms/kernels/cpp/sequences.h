// Code that the operators over whole sequences share. The loops of these operators over the time steps serve every
// device: ATen computes the matrix products, and the operators of a step (steps.h) have an implementation per device.
//
// Shapes: B rows of a batch, T time steps, H units of a state. The first axes of saved tensors are (T, B); positions
// along T are in the order of the sequence, also if it is read in reverse.
//
// All these operators have the same arguments. `inputs` are the tensors of kernels/recurrences.py, which has checked
// them, as a struct here. All but x are contiguous; a missing bias or mask is undefined. A forward operator returns the
// tensors that its backward operator takes as `saved`. That returns the gradients of the inputs in their order, except
// that of the mask; if there is no bias, its gradient is empty.
#pragma once

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <string>

#include "steps.h"

namespace rmsexp {

using TensorList = std::vector<Tensor>;
using Inputs = c10::List<OptionalTensor>;
using SequenceForward = TensorList(const Inputs& inputs, bool reverse, at::IntArrayRef form, double eps);
using SequenceBackward = TensorList(at::TensorList gradients, const Inputs& inputs, at::TensorList saved, bool reverse,
                                    at::IntArrayRef form, double eps);

// Defines the operators <name>_forward and <name>_backward, for every device.
inline void define_sequence(torch::Library& m, const std::string& name, SequenceForward forward,
                            SequenceBackward backward) {
  const std::string options = "bool reverse, int[] form, float eps) -> Tensor[]";
  const std::string names[] = {name + "_forward", name + "_backward"};
  m.def((names[0] + "(Tensor?[] inputs, " + options).c_str());
  m.def((names[1] + "(Tensor[] gradients, Tensor?[] inputs, Tensor[] saved, " + options).c_str());
  m.impl(names[0].c_str(), torch::dispatch(c10::DispatchKey::CompositeExplicitAutograd, forward));
  m.impl(names[1].c_str(), torch::dispatch(c10::DispatchKey::CompositeExplicitAutograd, backward));
}

inline OptionalTensor mask_at(const Tensor& mask, int64_t t) {
  return mask.defined() ? OptionalTensor(mask.select(1, t)) : std::nullopt;
}

inline Tensor with_contiguous_rows(const Tensor& x) { return x.stride(-1) == 1 ? x : x.contiguous(); }

// Returns an uninitialised tensor for the gradient of x: with the strides of x if x is dense, otherwise contiguous.
inline Tensor empty_gradient(const Tensor& x) {
  return x.is_non_overlapping_and_dense() ? at::empty_like(x) : at::empty(x.sizes(), x.options());
}

// Returns P tensors of zeros, each of shape `shape`, stacked. Each of P threads, or on CUDA each of P rows of the
// batch, adds its part of a gradient to one of them. `state`, (B, H), gives B, the dtype and the device.
inline Tensor zero_partials(const Tensor& state, at::IntArrayRef shape) {
  std::vector<int64_t> sizes{state.is_cpu() ? at::get_num_threads() : state.size(0)};
  sizes.insert(sizes.end(), shape.begin(), shape.end());
  return at::zeros(sizes, state.options());
}

// Returns a contiguous copy of the transposed weight. With it, the matrix product of every step is a fifth faster.
inline Tensor transposed(const Tensor& weight) { return weight.t().contiguous(); }

// Returns the gradient of a weight W, from the gradients of the vectors W v and the vectors v, both (T, B, ...). This
// is one matrix product over all steps, instead of one per step.
inline Tensor weight_gradient(const Tensor& dproduct, const Tensor& input) {
  return at::mm(dproduct.flatten(0, 1).t(), input.flatten(0, 1));
}

// The states of a sequence, in the order of its positions. The initial state comes before the first position, or with
// `reverse` after the last position.
struct States {
  Tensor all;  // (T + 1, B, H)
  bool reverse;

  int64_t steps() const { return all.size(0) - 1; }
  Tensor initial() const { return all[reverse ? steps() : 0]; }
  // The state before, and the state after, the step that reads position t; (B, H).
  Tensor before(int64_t t) const { return all[reverse ? t + 1 : t]; }
  Tensor after(int64_t t) const { return all[reverse ? t : t + 1]; }
  // The state before each step, (T, B, H), in the order of the positions.
  Tensor before() const { return all.narrow(0, reverse ? 1 : 0, steps()); }
  // The position that step number `step`, counted from 0, reads.
  int64_t position(int64_t step) const { return reverse ? steps() - 1 - step : step; }
};

// Returns states of which only the initial one has values, a copy of `initial`.
inline States empty_states(const Tensor& initial, int64_t steps, bool reverse) {
  const States states{at::empty({steps + 1, initial.size(0), initial.size(1)}, initial.options()), reverse};
  states.initial().copy_(initial);
  return states;
}

// The operators of one time step of a GRU.
inline const auto& gru_forward_step() {
  static const auto op = find_operator<decltype(gru_gates_forward)>("rmsexp::gru_gates_forward");
  return op;
}

inline const auto& gru_backward_step() {
  static const auto op = find_operator<decltype(gru_gates_backward)>("rmsexp::gru_gates_backward");
  return op;
}

}  // namespace rmsexp

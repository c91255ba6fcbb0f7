// Derivatives of operators that autograd can differentiate again. They are those of elementary operations.
#pragma once

#include <ATen/core/grad_mode.h>
#include <ATen/ops/alias.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <iterator>
#include <type_traits>

#include "operators.h"

namespace rmsexp {
namespace {

using torch::autograd::variable_list;

// Returns whether `holds` is true of one of the arguments, each a tensor or an optional tensor.
template <typename F, typename... Arguments>
bool any_tensor(const F& holds, const Arguments&... arguments) {
  const auto defined_and_holds = [&](const auto& argument) {
    if constexpr (std::is_same_v<std::decay_t<decltype(argument)>, OptionalTensor>) {
      return argument.has_value() && holds(*argument);
    } else {
      return holds(argument);
    }
  };
  return (defined_and_holds(arguments) || ...);
}

// Returns whether an operator has to be composed of elementary operations for these arguments: whether one of them has
// a forward-mode tangent, or a transform of torch.func, such as jvp or vmap, is active.
template <typename... Arguments>
bool needs_elementary_operations(const Arguments&... arguments) {
  const auto has_tangent = [](const Tensor& tensor) { return tensor._fw_grad(/*level=*/0).defined(); };
  // This key is included while a transform of torch.func is active.
  return any_tensor(has_tangent, arguments...) ||
         c10::impl::tls_is_dispatch_key_included(at::DispatchKey::FuncTorchDynamicLayerBackMode);
}

// Returns whether autograd needs a backward pass for these arguments.
template <typename... Arguments>
bool needs_gradients(const Arguments&... arguments) {
  return at::GradMode::is_enabled() &&
         any_tensor([](const Tensor& tensor) { return tensor.requires_grad(); }, arguments...);
}

// Returns the gradients of `inputs`, which autograd can differentiate again; `dy` is the gradient of
// `function(inputs)`, a tensor. The gradient of a tensor that is undefined or does not require one is undefined.
//
// The function gets aliases of the inputs. They are nodes of their own in autograd's graph, so that one input's
// gradient has no part that goes through another input that depends on it.
template <typename F>
variable_list differentiable_gradients(const F& function, const Tensor& dy, const variable_list& inputs) {
  const auto aliased = [](const Tensor& tensor) { return tensor.defined() ? at::alias(tensor) : tensor; };
  const auto needed = [](const Tensor& tensor) { return tensor.defined() && tensor.requires_grad(); };
  variable_list aliases, leaves;
  std::ranges::transform(inputs, std::back_inserter(aliases), aliased);
  std::ranges::copy_if(aliases, std::back_inserter(leaves), needed);
  const auto gradients = torch::autograd::grad({function(aliases)}, leaves, {dy}, true, true, true);
  variable_list result(inputs.size());
  size_t next = 0;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (needed(inputs[i])) result[i] = gradients[next++];
  }
  return result;
}

}  // namespace
}  // namespace rmsexp

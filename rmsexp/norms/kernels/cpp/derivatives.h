// What the operators with autograd share. They have first derivatives, by a backward pass, and no others.
#pragma once

#include <ATen/core/grad_mode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include "operators.h"

namespace rmsexp {
namespace {

using torch::autograd::variable_list;

constexpr char kOnlyFirst[] =
    "fused norms have no second and no forward-mode derivatives, nor transforms of torch.func; use norm.impl=eager";

// Returns whether `holds` is true of one of the arguments, each a tensor or an optional tensor.
template <typename F, typename... Arguments>
bool any_tensor(const F& holds, const Arguments&... arguments) {
  const auto defined_and_holds = [&](const OptionalTensor& argument) {
    return argument.has_value() && argument->defined() && holds(*argument);
  };
  return (defined_and_holds(arguments) || ...);
}

// Returns whether autograd needs a backward pass for these arguments. Refuses tensors with a forward-mode tangent, and
// transforms of torch.func such as jvp and vmap: without this check, their derivatives would be 0.
template <typename... Arguments>
bool needs_gradients(const Arguments&... arguments) {
  const auto has_tangent = [](const Tensor& tensor) { return tensor._fw_grad(/*level=*/0).defined(); };
  // this key is included while a transform of torch.func is active
  const auto key = at::DispatchKey::FuncTorchDynamicLayerBackMode;
  TORCH_CHECK(!any_tensor(has_tangent, arguments...) && !c10::impl::tls_is_dispatch_key_included(key), kOnlyFirst);
  return at::GradMode::is_enabled() &&
         any_tensor([](const Tensor& tensor) { return tensor.requires_grad(); }, arguments...);
}

// To be called at the beginning of a backward pass.
inline void refuse_second_derivatives() { TORCH_CHECK(!at::GradMode::is_enabled(), kOnlyFirst); }

}  // namespace
}  // namespace rmsexp

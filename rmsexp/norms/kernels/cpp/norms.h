// What norms.cpp and the kernels of rows and maps share: layouts, tensors that the kernels read and write, autograd.
//
// y = activation(normalised * gain + shift). The activation is a leaky ReLU with `slope` in (0, 1]; 1 means no
// activation. The statistics are over the last axis of x, or with `maps` over the positions of each channel of an
// example. Computing the leaky ReLU in the same kernel saves two passes over memory. Zhang & Sennrich (2019), Eq. 4; Ba
// et al. (2016), Eq. 3.
//
// The operators have first derivatives, by a backward pass, and no others.
#pragma once

#include <ATen/EmptyTensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include <cstring>

#include "forms.h"
#include "operators.h"

namespace rmsexp {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

namespace {

constexpr int64_t kElementsPerThread = 16384;  // with fewer elements per thread, another thread saves no time

// How the kernels read the memory of an input. For contiguous maps, a row is one channel of one example, (n,). For
// channels-last maps, a row is one example, (n, channels).
struct Layout {
  int64_t rows;
  int64_t n;                   // number of units or positions that share a statistic
  int64_t channels = 0;        // number of channels of maps; 0 if the input is not maps
  bool channels_last = false;  // whether the input is maps in channels-last memory format
};

template <typename W>
Vec<W> leaky_relu(const Vec<W>& x, W slope) {
  return at::vec::maximum(x, x * Vec<W>(slope));
}

// Returns the gradient of x; `gradient` is that of leaky_relu(x, slope).
template <typename W>
Vec<W> leaky_relu_backward(const Vec<W>& gradient, const Vec<W>& x, W slope) {
  return Vec<W>::blendv(gradient * Vec<W>(slope), gradient, x > Vec<W>(0));
}

// Calls f with each flag as a compile-time constant, so that the inner loops of f do not branch on the flags.
template <typename F>
void with_constants(F f) {
  f();
}

template <typename F, typename... Flags>
void with_constants(F f, bool flag, Flags... others) {
  const auto call = [&](auto constant) {
    with_constants([&](auto... constants) { f(constant, constants...); }, others...);
  };
  flag ? call(std::true_type{}) : call(std::false_type{});
}

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

// The parameters of a norm or pointwise function, in the type in which the kernels compute.
template <typename W>
struct Parameters {
  W alpha, offset;        // numbers of a pointwise function; 1 and 0 if undefined
  const W *gain, *shift;  // (n,), or (channels,) for maps; null if undefined
  W slope;

  // `numbers`: alpha and offset; the tensors are those that parameter() returns.
  Parameters(const Tensor (&numbers)[2], const Tensor& gain, const Tensor& shift, double slope)
      : alpha(numbers[0].defined() ? *numbers[0].const_data_ptr<W>() : W(1)),
        offset(numbers[1].defined() ? *numbers[1].const_data_ptr<W>() : W(0)),
        gain(data_or_null<W>(gain)),
        shift(data_or_null<W>(shift)),
        slope(static_cast<W>(slope)) {}
};

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
// that the kernels can compute it for the elements of x, if there are any. Pointwise functions have no statistic.
Form form_of(const Tensor& x, int64_t n, int64_t kind, int64_t k, bool inside, double eps) {
  const Form form{kind, n, kind == kLayer ? n : k, inside, eps};
  if (x.numel() && kind != kTanh && kind != kErf) check(form);
  return form;
}

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

// Helpers to define operators: find another operator, convert dtypes, unpack lists of tensors.
#pragma once

#include <ATen/core/List.h>
#include <ATen/core/Tensor.h>
#include <torch/library.h>

#include <array>
#include <optional>

namespace rmsexp {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

// Returns the registered operator of this name, whose signature is F. A call runs the implementation for the device of
// its arguments.
template <typename F>
auto find_operator(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<F>();
}

// Returns the implementation of an operator on CPU, as Library::def() takes it.
template <typename F>
auto on_cpu(F* implementation) {
  return torch::dispatch(c10::DispatchKey::CPU, implementation);
}

// An undefined tensor stands for none; operators of a step take std::nullopt for it.
inline OptionalTensor optional(const Tensor& tensor) {
  return tensor.defined() ? OptionalTensor(tensor) : std::nullopt;
}

// Returns `tensor` in another dtype. Unlike Tensor::to, this does not call the dispatcher if nothing is to be done.
inline Tensor as_type(const Tensor& tensor, at::ScalarType type) {
  return tensor.scalar_type() == type ? tensor : tensor.to(type);
}

inline Tensor element(at::TensorList list, size_t i) { return list[i]; }
inline Tensor element(const c10::List<OptionalTensor>& list, size_t i) { return list.get(i).value_or(Tensor()); }

// Returns the N tensors of a list, for a structured binding; undefined where there is none.
template <size_t N, typename List>
std::array<Tensor, N> tensors(const List& list) {
  TORCH_CHECK_VALUE(list.size() == N, "expected ", N, " tensors, got ", list.size());
  std::array<Tensor, N> result;
  for (size_t i = 0; i < N; ++i) result[i] = element(list, i);
  return result;
}

}  // namespace rmsexp

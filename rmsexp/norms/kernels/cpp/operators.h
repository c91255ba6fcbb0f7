// Helpers to define operators: find another operator; convert dtypes, and between lists of tensors and structs.
#pragma once

#include <ATen/core/List.h>
#include <ATen/core/Tensor.h>
#include <torch/library.h>

#include <optional>
#include <tuple>
#include <vector>

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

// An undefined tensor stands for none in structs; operators take std::nullopt for it.
inline OptionalTensor optional(const Tensor& tensor) {
  return tensor.defined() ? OptionalTensor(tensor) : std::nullopt;
}

// Returns `tensor` in another dtype. Unlike Tensor::to, this does not call the dispatcher if nothing is to be done.
inline Tensor as_type(const Tensor& tensor, at::ScalarType type) {
  return tensor.scalar_type() == type ? tensor : tensor.to(type);
}

// Tensors that belong together, such as those that a forward pass saves for the backward pass, are a struct in this
// code and a list in the signatures of the operators. The struct's fields() returns the tensors in the order of the
// list.
template <typename Struct>
std::vector<Tensor> to_list(Struct tensors) {
  return std::apply([](const auto&... tensor) { return std::vector<Tensor>{tensor...}; }, tensors.fields());
}

inline Tensor element(at::TensorList list, size_t i) { return list[i]; }
inline Tensor element(const c10::List<OptionalTensor>& list, size_t i) { return list.get(i).value_or(Tensor()); }

template <typename Struct, typename List>
Struct from_list(const List& list) {
  Struct tensors;
  auto fields = tensors.fields();
  constexpr size_t size = std::tuple_size_v<decltype(fields)>;
  TORCH_CHECK_VALUE(list.size() == size, "expected ", size, " tensors, got ", list.size());
  size_t i = 0;
  std::apply([&](auto&... tensor) { ((tensor = element(list, i++)), ...); }, fields);
  return tensors;
}

}  // namespace rmsexp

// Helpers to define operators: find another operator; convert dtypes, and between a list of saved tensors and a struct.
#pragma once

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

// Returns `tensor` in another dtype. Unlike Tensor::to, this does not call the dispatcher if nothing is to be done.
inline Tensor as_type(const Tensor& tensor, at::ScalarType type) {
  return tensor.scalar_type() == type ? tensor : tensor.to(type);
}

// The tensors that a forward pass saves for the backward pass are a struct in this code, and a list in the signatures
// of the operators. The struct's fields() returns the tensors in the order of the list.
template <typename Saved>
std::vector<Tensor> to_list(Saved saved) {
  return std::apply([](const auto&... tensor) { return std::vector<Tensor>{tensor...}; }, saved.fields());
}

template <typename Saved>
Saved from_list(at::TensorList list) {
  Saved saved;
  auto fields = saved.fields();
  constexpr size_t size = std::tuple_size_v<decltype(fields)>;
  TORCH_CHECK(list.size() == size, "expected ", size, " saved tensors, got ", list.size());
  size_t i = 0;
  std::apply([&](auto&... tensor) { ((tensor = list[i++]), ...); }, fields);
  return saved;
}

}  // namespace rmsexp

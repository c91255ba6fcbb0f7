// What the definitions of operators share: finding other operators, and naming the tensors of a list.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/library.h>

#include <optional>
#include <tuple>
#include <vector>

namespace rmsexp {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

// A registered operator with the signature of the function F, called for the device of its tensors.
template <typename F>
auto find_operator(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<F>();
}

// Tensors saved between forward and backward pass are a struct here and a list in the operators' signatures. A struct's
// fields() are its tensors in the order of the list.
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

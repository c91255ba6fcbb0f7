// Checks of the arguments of operators. A check that passes costs a few comparisons and allocates nothing. A check that
// fails throws an exception that is a ValueError in Python.
#pragma once

#include "operators.h"

namespace rmsexp {

// Checks that the tensor has these sizes, and the dtype and device of `like`.
inline void check(const char* name, const Tensor& tensor, at::IntArrayRef sizes, const Tensor& like) {
  TORCH_CHECK_VALUE(tensor.sizes() == sizes, "expected ", name, " of shape ", sizes, ", got ", tensor.sizes());
  TORCH_CHECK_VALUE(tensor.scalar_type() == like.scalar_type() && tensor.device() == like.device(), "expected ", name,
                    " of dtype ", like.dtype(), " on ", like.device(), ", got ", tensor.dtype(), " on ",
                    tensor.device());
}

// Checks further that the tensor is contiguous.
inline void check_contiguous(const char* name, const Tensor& tensor, at::IntArrayRef sizes, const Tensor& like) {
  check(name, tensor, sizes, like);
  TORCH_CHECK_VALUE(tensor.is_contiguous(), "expected a contiguous tensor ", name);
}

// As check_contiguous, but the stride of the first axis may have any value.
inline void check_rows(const char* name, const Tensor& tensor, at::IntArrayRef sizes, const Tensor& like) {
  check(name, tensor, sizes, like);
  const auto strides = tensor.strides();
  int64_t stride = 1;
  bool contiguous = true;
  for (size_t axis = sizes.size(); axis-- > 1; stride *= sizes[axis]) {
    contiguous = contiguous && (sizes[axis] == 1 || strides[axis] == stride);
  }
  TORCH_CHECK_VALUE(contiguous || tensor.numel() == 0, "expected ", name,
                    " to be contiguous, except along its first axis; its strides are ", strides);
}

// Checks that the mask has these sizes and the device of `like`, and that it holds Boolean values.
inline void check_mask(const Tensor& mask, at::IntArrayRef sizes, const Tensor& like) {
  TORCH_CHECK_VALUE(mask.sizes() == sizes, "expected mask of shape ", sizes, ", got ", mask.sizes());
  TORCH_CHECK_VALUE(mask.scalar_type() == at::kBool && mask.device() == like.device(),
                    "expected mask of dtype bool on ", like.device(), ", got ", mask.dtype(), " on ", mask.device());
}

}  // namespace rmsexp

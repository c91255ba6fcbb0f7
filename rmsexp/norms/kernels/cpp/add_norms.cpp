// The operators add_normalise_forward and add_normalise_backward on CPU (add_norms.h).

#include "add_norms.h"

#include "add_norm_rows.h"
#include "norm_tensors.h"

namespace rmsexp {

void check_addition(const Tensor& x, const Tensor& addend, const OptionalTensor& gain, const OptionalTensor& shift) {
  check_arguments(x, gain, shift, /*maps=*/false, /*slope=*/1);
  TORCH_CHECK_VALUE(addend.sym_sizes() == x.sym_sizes(), "expected addend of shape ", x.sym_sizes(), ", got ",
                    addend.sym_sizes());
  const bool narrower =
      addend.is_floating_point() && c10::promoteTypes(x.scalar_type(), addend.scalar_type()) == x.scalar_type();
  TORCH_CHECK_VALUE(narrower && addend.device() == x.device(), "expected addend of dtype ", x.dtype(),
                    " or one of lower precision on ", x.device(), ", got ", addend.dtype(), " on ", addend.device());
}

AddNormOutputs add_normalise_forward(const Tensor& input, const Tensor& other, const OptionalTensor& gain,
                                     const OptionalTensor& shift, int64_t kind, int64_t k, bool inside, double eps) {
  const Tensor x = readable(input, false), addend = with_layout(as_type(other, x.scalar_type()), x);
  const Tensor g = parameter(gain, x), b = parameter(shift, x);
  const int64_t n = x.size(-1), rows = n == 0 ? 0 : x.numel() / n;
  const Form form = form_of(x, n, kind, k, inside, eps);
  Tensor total = uninitialised_like(x), y = uninitialised_like(x), scale = uninitialised({rows}, statistics_type(x));
  Tensor mean = uninitialised({kind == kLayer ? rows : 0}, scale.scalar_type());
  if (x.numel()) {
    AT_DISPATCH_FLOATING_TYPES_AND2(at::kBFloat16, at::kHalf, x.scalar_type(), "add_normalise", [&] {
      using W = Wide<scalar_t>;
      const auto forward = exceeds_cache(x) ? add_rows_forward<scalar_t, true> : add_rows_forward<scalar_t, false>;
      forward(rows, form, x.const_data_ptr<scalar_t>(), addend.const_data_ptr<scalar_t>(), data_or_null<W>(g),
              data_or_null<W>(b), total.mutable_data_ptr<scalar_t>(), y.mutable_data_ptr<scalar_t>(),
              mean.mutable_data_ptr<W>(), scale.mutable_data_ptr<W>());
    });
  }
  return {total, y, mean, scale};
}

NormOutputs add_normalise_backward(const Tensor& total_gradient, const Tensor& gradient, const Tensor& input,
                                   const OptionalTensor& gain, const Tensor& mean, const Tensor& scale,
                                   const OptionalTensor& shift, int64_t kind, int64_t k, bool inside, double eps) {
  const Tensor total = readable(input, false), dtotal = with_layout(total_gradient, total);
  const Tensor dy = with_layout(gradient, total), g = parameter(gain, total), b = parameter(shift, total);
  const int64_t n = total.size(-1), rows = n == 0 ? 0 : total.numel() / n;
  const Form form = form_of(total, n, kind, k, inside, eps);
  const int64_t slots = total.numel() <= kElementsPerThread ? 1 : at::get_num_threads();
  Tensor dx = uninitialised_like(total);
  Tensor dgain = gradient_slots(g, slots, n, scale), dshift = gradient_slots(b, slots, n, scale);
  if (total.numel()) {
    AT_DISPATCH_FLOATING_TYPES_AND2(at::kBFloat16, at::kHalf, total.scalar_type(), "add_normalise_backward", [&] {
      using W = Wide<scalar_t>;
      const auto backward =
          exceeds_cache(total) ? add_rows_backward<scalar_t, true> : add_rows_backward<scalar_t, false>;
      backward(rows, form, dtotal.const_data_ptr<scalar_t>(), dy.const_data_ptr<scalar_t>(),
               total.const_data_ptr<scalar_t>(), data_or_null<W>(g), mean.const_data_ptr<W>(),
               scale.const_data_ptr<W>(), dx.mutable_data_ptr<scalar_t>(),
               g.defined() ? dgain.mutable_data_ptr<W>() : nullptr,
               b.defined() ? dshift.mutable_data_ptr<W>() : nullptr, slots);
    });
  }
  return {dx, sum_of_slots(dgain), sum_of_slots(dshift)};
}

}  // namespace rmsexp

TORCH_LIBRARY_FRAGMENT(rmsexp, m) {
  m.def(
      "add_normalise_forward(Tensor x, Tensor addend, Tensor? gain, Tensor? shift, int kind, SymInt k, bool inside, "
      "float eps) -> (Tensor total, Tensor y, Tensor mean, Tensor scale)");
  m.def(
      "add_normalise_backward(Tensor dtotal, Tensor dy, Tensor total, Tensor? gain, Tensor mean, Tensor scale, "
      "Tensor? shift, int kind, SymInt k, bool inside, float eps) -> (Tensor dx, Tensor dgain, Tensor dshift)");
}

TORCH_LIBRARY_IMPL(rmsexp, CPU, m) {
  m.impl("add_normalise_forward", rmsexp::add_normalise_forward);
  m.impl("add_normalise_backward", rmsexp::add_normalise_backward);
}

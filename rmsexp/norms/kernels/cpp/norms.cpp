// The operators normalise_forward and normalise_backward on CPU (norms.h).

#include "norms.h"

#include "norm_maps.h"
#include "norm_rows.h"
#include "norm_tensors.h"

namespace rmsexp {
namespace {

Layout layout_of(const Tensor& x, bool maps) {
  if (!maps) return {x.size(-1) == 0 ? 0 : x.numel() / x.size(-1), x.size(-1)};
  const int64_t channels = x.size(1), positions = x.size(2) * x.size(3);
  if (is_channels_last(x)) return {x.size(0), positions, channels, true};
  return {x.size(0) * channels, positions, channels, false};
}

// The number of sets of units or positions that share a statistic.
int64_t number_of_statistics(const Layout& layout) {
  return layout.channels_last ? layout.rows * layout.channels : layout.rows;
}

void check_parameter(const char* name, const OptionalTensor& tensor, const Tensor& x, const c10::SymInt& width) {
  if (!tensor.has_value() || !tensor->defined()) return;
  TORCH_CHECK_VALUE(tensor->dim() == 1 && tensor->sym_size(0) == width, "expected ", name, " of shape [", width,
                    "], got ", tensor->sym_sizes());
  TORCH_CHECK_VALUE(tensor->is_floating_point() && tensor->device() == x.device(), "expected ", name,
                    " of a floating-point dtype on ", x.device(), ", got ", tensor->dtype(), " on ", tensor->device());
}

}  // namespace

void check_arguments(const Tensor& x, const OptionalTensor& gain, const OptionalTensor& shift, bool maps,
                     double slope) {
  TORCH_CHECK_VALUE(maps ? x.dim() == 4 : x.dim() >= 1, "expected x of shape ",
                    maps ? "(batch, channels, height, width)" : "(..., units)", ", got ", x.sym_sizes());
  const c10::SymInt width = x.sym_size(maps ? 1 : -1);
  check_parameter("gain", gain, x, width);
  check_parameter("shift", shift, x, width);
  TORCH_CHECK_VALUE(0 < slope && slope <= 1, "expected a slope in (0, 1], got ", slope);
}

NormOutputs normalise_forward(const Tensor& input, const OptionalTensor& gain, const OptionalTensor& shift, bool maps,
                              int64_t kind, int64_t k, bool inside, double eps, double slope) {
  const Tensor x = readable(input, maps), g = parameter(gain, x), b = parameter(shift, x);
  const Layout layout = layout_of(x, maps);
  const Form form = form_of(x, layout.n, kind, k, inside, eps);
  const auto type = statistics_type(x);
  const int64_t count = number_of_statistics(layout);
  Tensor y = uninitialised_like(x), scale = uninitialised({count}, type);
  Tensor mean = uninitialised({kind == kLayer ? count : 0}, type);
  if (x.numel()) {
    AT_DISPATCH_FLOATING_TYPES_AND2(at::kBFloat16, at::kHalf, x.scalar_type(), "normalise", [&] {
      using W = Wide<scalar_t>;
      const auto rows = exceeds_cache(x) ? rows_forward<scalar_t, true> : rows_forward<scalar_t, false>;
      const auto forward = layout.channels_last ? maps_forward<scalar_t> : rows;
      forward(layout, form, x.const_data_ptr<scalar_t>(), data_or_null<W>(g), data_or_null<W>(b), static_cast<W>(slope),
              y.mutable_data_ptr<scalar_t>(), mean.mutable_data_ptr<W>(), scale.mutable_data_ptr<W>());
    });
  }
  return {y, mean, scale};
}

NormOutputs normalise_backward(const Tensor& gradient, const Tensor& input, const OptionalTensor& gain,
                               const Tensor& mean, const Tensor& scale, const OptionalTensor& shift, bool maps,
                               int64_t kind, int64_t k, bool inside, double eps, double slope) {
  const Tensor x = readable(input, maps), dy = with_layout(gradient, x);
  const Tensor g = parameter(gain, x), b = parameter(shift, x);
  const Layout layout = layout_of(x, maps);
  const Form form = form_of(x, layout.n, kind, k, inside, eps);
  const int64_t width = maps ? layout.channels : layout.n;
  const int64_t slots = x.numel() <= kElementsPerThread ? 1 : at::get_num_threads();
  Tensor dx = uninitialised_like(x);
  Tensor dgain = gradient_slots(g, slots, width, scale), dshift = gradient_slots(b, slots, width, scale);
  if (x.numel()) {
    AT_DISPATCH_FLOATING_TYPES_AND2(at::kBFloat16, at::kHalf, x.scalar_type(), "normalise_backward", [&] {
      using W = Wide<scalar_t>;
      const auto rows = exceeds_cache(x) ? rows_backward<scalar_t, true> : rows_backward<scalar_t, false>;
      const auto backward = layout.channels_last ? maps_backward<scalar_t> : rows;
      backward(layout, form, dy.const_data_ptr<scalar_t>(), x.const_data_ptr<scalar_t>(), data_or_null<W>(g),
               data_or_null<W>(b), static_cast<W>(slope), mean.const_data_ptr<W>(), scale.const_data_ptr<W>(),
               dx.mutable_data_ptr<scalar_t>(), g.defined() ? dgain.mutable_data_ptr<W>() : nullptr,
               b.defined() ? dshift.mutable_data_ptr<W>() : nullptr, slots);
    });
  }
  return {dx, sum_of_slots(dgain), sum_of_slots(dshift)};
}

}  // namespace rmsexp

TORCH_LIBRARY_FRAGMENT(rmsexp, m) {
  m.def(
      "normalise_forward(Tensor x, Tensor? gain, Tensor? shift, bool maps, int kind, SymInt k, bool inside, float eps, "
      "float slope=1.0) -> (Tensor y, Tensor mean, Tensor scale)");
  m.def(
      "normalise_backward(Tensor dy, Tensor x, Tensor? gain, Tensor mean, Tensor scale, Tensor? shift, bool maps, "
      "int kind, SymInt k, bool inside, float eps, float slope=1.0) -> (Tensor dx, Tensor dgain, Tensor dshift)");
}

TORCH_LIBRARY_IMPL(rmsexp, CPU, m) {
  m.impl("normalise_forward", rmsexp::normalise_forward);
  m.impl("normalise_backward", rmsexp::normalise_backward);
}

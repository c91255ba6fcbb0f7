// The operator normalise, with autograd, and the operators of its forward and backward pass (norms.h).

#include "norms.h"

#include "derivatives.h"
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

// Returns y, mean and scale. Mean and scale have shape (rows,), or (batch * channels,) for maps. They are float32 if x
// is float16 or bfloat16. The mean is empty except for layer norm. Gain and shift: (n,), or (channels,) for maps. k:
// the number of units in a statistic; not read for layer norm.
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
      const auto call = [&](auto kernel, auto... sums) {
        kernel(layout, form, x.const_data_ptr<scalar_t>(), sums..., data_or_null<W>(g), data_or_null<W>(b),
               static_cast<W>(slope), y.mutable_data_ptr<scalar_t>(), mean.mutable_data_ptr<W>(),
               scale.mutable_data_ptr<W>());
      };
      if (layout.channels_last) {
        call(maps_forward<scalar_t>);
      } else {
        call(exceeds_cache(x) ? rows_forward<scalar_t, true, false> : rows_forward<scalar_t, false, false>, nullptr,
             nullptr);
      }
    });
  }
  return {y, mean, scale};
}

// Returns the gradients of x, gain and shift from that of y. Those of gain and shift have the dtype of the statistics.
// The gradient of a missing gain or shift is empty.
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
      const auto call = [&](auto kernel, auto... sums) {
        kernel(layout, form, sums..., dy.const_data_ptr<scalar_t>(), x.const_data_ptr<scalar_t>(), data_or_null<W>(g),
               data_or_null<W>(b), static_cast<W>(slope), mean.const_data_ptr<W>(), scale.const_data_ptr<W>(),
               dx.mutable_data_ptr<scalar_t>(), g.defined() ? dgain.mutable_data_ptr<W>() : nullptr,
               b.defined() ? dshift.mutable_data_ptr<W>() : nullptr, slots);
      };
      if (layout.channels_last) {
        call(maps_backward<scalar_t>);
      } else {
        call(exceeds_cache(x) ? rows_backward<scalar_t, true, false> : rows_backward<scalar_t, false, false>, nullptr);
      }
    });
  }
  return {dx, sum_of_slots(dgain), sum_of_slots(dshift)};
}

}  // namespace rmsexp

namespace rmsexp::normalise {
namespace {

using torch::autograd::AutogradContext;

// The arguments of the operators that are not tensors. When torch.compile traces maps whose sizes may change, k is an
// expression of these sizes.
struct Options {
  bool maps;
  int64_t kind;
  c10::SymInt k;
  bool inside;
  double eps, slope;
};

using OptionsTuple = std::tuple<bool, int64_t, c10::SymInt, bool, double, double>;
using Forward = NormOutputs(const Tensor&, const OptionalTensor&, const OptionalTensor&, bool, int64_t, c10::SymInt,
                            bool, double, double);
using Backward = NormOutputs(const Tensor&, const Tensor&, const OptionalTensor&, const Tensor&, const Tensor&,
                             const OptionalTensor&, bool, int64_t, c10::SymInt, bool, double, double);

OptionsTuple to_tuple(const Options& o) { return {o.maps, o.kind, o.k, o.inside, o.eps, o.slope}; }

Options from_tuple(const OptionsTuple& tuple) {
  const auto [maps, kind, k, inside, eps, slope] = tuple;
  return {maps, kind, k, inside, eps, slope};
}

// The tensors saved for the backward pass. Gain and shift are undefined if the norm has none.
struct SavedNorm {
  Tensor x, gain, shift, mean, scale;
  auto fields() { return std::tie(x, gain, shift, mean, scale); }
};

NormOutputs call_forward(const Tensor& x, const OptionalTensor& gain, const OptionalTensor& shift, const Options& o) {
  check_arguments(x, gain, shift, o.maps, o.slope);
  static const auto op = find_operator<Forward>("rmsexp::normalise_forward");
  return op.call(x, gain, shift, o.maps, o.kind, o.k, o.inside, o.eps, o.slope);
}

NormOutputs call_backward(const Tensor& dy, const SavedNorm& saved, const Options& o) {
  static const auto op = find_operator<Backward>("rmsexp::normalise_backward");
  return op.call(dy, saved.x, optional(saved.gain), saved.mean, saved.scale, optional(saved.shift), o.maps, o.kind, o.k,
                 o.inside, o.eps, o.slope);
}

class Normalise : public torch::autograd::Function<Normalise> {
 public:
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const OptionalTensor& gain, const OptionalTensor& shift,
                        bool maps, int64_t kind, c10::SymInt k, bool inside, double eps, double slope) {
    at::AutoDispatchBelowADInplaceOrView below;
    const Options options{maps, kind, std::move(k), inside, eps, slope};
    const auto [y, mean, scale] = call_forward(x, gain, shift, options);
    const SavedNorm saved{x, gain.value_or(Tensor()), shift.value_or(Tensor()), mean, scale};
    ctx->save_for_backward(to_list(saved));
    ctx->saved_data["options"] = to_tuple(options);
    return y;
  }

  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    refuse_second_derivatives();
    const auto saved = from_list<SavedNorm>(ctx->get_saved_variables());
    const auto options = from_tuple(ctx->saved_data["options"].to<OptionsTuple>());
    variable_list result(9);  // one gradient for each argument of forward
    at::AutoDispatchBelowADInplaceOrView below;
    const auto [dx, dgain, dshift] = call_backward(gradients[0], saved, options);
    result[0] = dx;
    if (saved.gain.defined()) result[1] = as_type(dgain, saved.gain.scalar_type());
    if (saved.shift.defined()) result[2] = as_type(dshift, saved.shift.scalar_type());
    return result;
  }
};

Tensor without_autograd(const Tensor& x, const OptionalTensor& gain, const OptionalTensor& shift, bool maps,
                        int64_t kind, c10::SymInt k, bool inside, double eps, double slope) {
  return std::get<0>(call_forward(x, gain, shift, {maps, kind, std::move(k), inside, eps, slope}));
}

Tensor with_autograd(const Tensor& x, const OptionalTensor& gain, const OptionalTensor& shift, bool maps, int64_t kind,
                     c10::SymInt k, bool inside, double eps, double slope) {
  if (needs_gradients(x, gain, shift)) {
    return Normalise::apply(x, gain, shift, maps, kind, std::move(k), inside, eps, slope);
  }
  at::AutoDispatchBelowADInplaceOrView below;
  return without_autograd(x, gain, shift, maps, kind, std::move(k), inside, eps, slope);
}

}  // namespace
}  // namespace rmsexp::normalise

TORCH_LIBRARY_FRAGMENT(rmsexp, m) {
  m.def(
      "normalise_forward(Tensor x, Tensor? gain, Tensor? shift, bool maps, int kind, SymInt k, bool inside, float eps, "
      "float slope=1.0) -> (Tensor y, Tensor mean, Tensor scale)");
  m.def(
      "normalise_backward(Tensor dy, Tensor x, Tensor? gain, Tensor mean, Tensor scale, Tensor? shift, bool maps, "
      "int kind, SymInt k, bool inside, float eps, float slope=1.0) -> (Tensor dx, Tensor dgain, Tensor dshift)");
  m.def(
      "normalise(Tensor x, Tensor? gain, Tensor? shift, bool maps, int kind, SymInt k, bool inside, float eps, "
      "float slope=1.0) -> Tensor");
}

TORCH_LIBRARY_IMPL(rmsexp, CPU, m) {
  m.impl("normalise_forward", rmsexp::normalise_forward);
  m.impl("normalise_backward", rmsexp::normalise_backward);
}

TORCH_LIBRARY_IMPL(rmsexp, CompositeExplicitAutograd, m) { m.impl("normalise", rmsexp::normalise::without_autograd); }

TORCH_LIBRARY_IMPL(rmsexp, Autograd, m) { m.impl("normalise", rmsexp::normalise::with_autograd); }

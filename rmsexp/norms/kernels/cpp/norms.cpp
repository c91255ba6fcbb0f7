// The operators normalise and add_normalise, with autograd, and those of their forward and backward pass (norms.h).
//
// add_normalise computes ``total = x + addend`` and the norm of the total, over the last axis, without activation, in
// one pass over memory. The total is rounded to its dtype before it is normalised.
//
// The kinds tanh and erf are pointwise functions with the parameters alpha and offset (pointwise_rows.h).

#include "norms.h"

#include "norm_maps.h"
#include "norm_rows.h"
#include "pointwise_rows.h"

namespace rmsexp {
namespace {

bool is_pointwise(int64_t kind) { return kind == kTanh || kind == kErf; }

Layout layout_of(const Tensor& x, bool maps, int64_t kind) {
  if (!maps) return {x.size(-1) == 0 ? 0 : x.numel() / x.size(-1), x.size(-1)};
  const int64_t channels = x.size(1), positions = x.size(2) * x.size(3);
  if (is_channels_last(x)) {
    return is_pointwise(kind) ? Layout{x.size(0) * positions, channels} : Layout{x.size(0), positions, channels, true};
  }
  return {x.size(0) * channels, positions, channels, false};
}

// The number of sets of units or positions that share a statistic.
int64_t number_of_statistics(const Layout& layout, int64_t kind) {
  if (is_pointwise(kind)) return 0;
  return layout.channels_last ? layout.rows * layout.channels : layout.rows;
}

// Checks one parameter, a vector of `width` numbers, of an operator on x.
void check_parameter(const char* name, const OptionalTensor& tensor, const Tensor& x, const c10::SymInt& width) {
  if (!tensor.has_value() || !tensor->defined()) return;
  TORCH_CHECK_VALUE(tensor->dim() == 1 && tensor->sym_size(0) == width, "expected ", name, " of shape [", width,
                    "], got ", tensor->sym_sizes());
  TORCH_CHECK_VALUE(tensor->is_floating_point() && tensor->device() == x.device(), "expected ", name,
                    " of a floating-point dtype on ", x.device(), ", got ", tensor->dtype(), " on ", tensor->device());
}

}  // namespace

using Outputs = std::tuple<Tensor, Tensor, Tensor, Tensor>;

// Returns y, mean, scale and total. Mean and scale have shape (rows,), or (batch * channels,) for maps. They are
// float32 if x is float16 or bfloat16. The mean is empty except for layer norm, the total except with an addend, for
// which there are no maps and no activation, and mean and scale for pointwise functions. Gain and shift: (n,), or
// (channels,) for maps. k: the number of units in a statistic; not read for layer norm. Alpha and offset: (1,), for
// pointwise functions only.
Outputs normalise_forward(const Tensor& input, const OptionalTensor& other, const OptionalTensor& gain,
                          const OptionalTensor& shift, bool maps, int64_t kind, c10::SymInt k, bool inside, double eps,
                          double slope, const OptionalTensor& alpha, const OptionalTensor& offset) {
  const Tensor x = readable(input, maps), g = parameter(gain, x), b = parameter(shift, x);
  const Tensor numbers[] = {parameter(alpha, x), parameter(offset, x)};
  const bool added = other.has_value();
  const Tensor addend = added ? with_layout(as_type(*other, x.scalar_type()), x) : Tensor();
  const Layout layout = layout_of(x, maps, kind);
  const Form form = form_of(x, layout.n, kind, k.expect_int(), inside, eps);
  const auto type = statistics_type(x);
  const int64_t count = number_of_statistics(layout, kind);
  Tensor y = uninitialised_like(x), scale = uninitialised({count}, type);
  Tensor mean = uninitialised({kind == kLayer ? count : 0}, type);
  Tensor total = added ? uninitialised_like(x) : uninitialised({0}, x.scalar_type());
  if (x.numel()) {
    AT_DISPATCH_FLOATING_TYPES_AND2(at::kBFloat16, at::kHalf, x.scalar_type(), "normalise", [&] {
      using T = scalar_t;
      using W = Wide<T>;
      const Parameters<W> parameters(numbers, g, b, slope);
      const auto call = [&](auto kernel, auto... sums) {
        kernel(layout, form, parameters, x.const_data_ptr<T>(), sums..., y.mutable_data_ptr<T>(),
               mean.mutable_data_ptr<W>(), scale.mutable_data_ptr<W>());
      };
      if (is_pointwise(kind)) {
        const auto kernel = kind == kErf ? pointwise_forward<T, true> : pointwise_forward<T, false>;
        kernel(layout, parameters, x.const_data_ptr<T>(), y.mutable_data_ptr<T>());
      } else if (layout.channels_last) {
        call(maps_forward<T>);
      } else if (added) {
        call(exceeds_cache(x) ? rows_forward<T, true, true> : rows_forward<T, false, true>, addend.const_data_ptr<T>(),
             total.mutable_data_ptr<T>());
      } else {
        call(exceeds_cache(x) ? rows_forward<T, true, false> : rows_forward<T, false, false>, nullptr, nullptr);
      }
    });
  }
  return {y, mean, scale, total};
}

// Returns the gradients of what was normalised, gain and shift from that of y, and those of alpha and offset, together
// (2,). To the first, the gradient of the total from elsewhere is added, if there is one; it is that of x and of
// addend. The others have the dtype of the statistics. The gradient of a missing parameter is empty, but there is one
// of the offset if there is one of alpha.
Outputs normalise_backward(const Tensor& gradient, const OptionalTensor& total_gradient, const Tensor& input,
                           const OptionalTensor& gain, const Tensor& mean, const Tensor& scale,
                           const OptionalTensor& shift, bool maps, int64_t kind, c10::SymInt k, bool inside, double eps,
                           double slope, const OptionalTensor& alpha, const OptionalTensor& offset) {
  const Tensor x = readable(input, maps), dy = with_layout(gradient, x);
  const bool added = total_gradient.has_value();
  const Tensor dtotal = added ? with_layout(*total_gradient, x) : Tensor();
  const Tensor g = parameter(gain, x), b = parameter(shift, x);
  const Tensor numbers[] = {parameter(alpha, x), parameter(offset, x)};
  const Layout layout = layout_of(x, maps, kind);
  const Form form = form_of(x, layout.n, kind, k.expect_int(), inside, eps);
  const int64_t slots = x.numel() <= kElementsPerThread ? 1 : at::get_num_threads();
  const auto zeros = [&](const Tensor& tensor, int64_t width) { return gradient_slots(tensor, slots, width, scale); };
  const int64_t width = x.size(maps ? 1 : -1);
  Tensor dx = uninitialised_like(x), dgain = zeros(g, width), dshift = zeros(b, width), dnumbers = zeros(numbers[0], 2);
  if (x.numel()) {
    AT_DISPATCH_FLOATING_TYPES_AND2(at::kBFloat16, at::kHalf, x.scalar_type(), "normalise_backward", [&] {
      using T = scalar_t;
      using W = Wide<T>;
      const Parameters<W> parameters(numbers, g, b, slope);
      W* dgain_data = g.defined() ? dgain.mutable_data_ptr<W>() : nullptr;
      W* dshift_data = b.defined() ? dshift.mutable_data_ptr<W>() : nullptr;
      const auto call = [&](auto kernel, auto... sums) {
        kernel(layout, form, parameters, sums..., dy.const_data_ptr<T>(), x.const_data_ptr<T>(),
               mean.const_data_ptr<W>(), scale.const_data_ptr<W>(), dx.mutable_data_ptr<T>(), dgain_data, dshift_data,
               slots);
      };
      if (is_pointwise(kind)) {
        const auto kernel = kind == kErf ? pointwise_backward<T, true> : pointwise_backward<T, false>;
        kernel(layout, parameters, dy.const_data_ptr<T>(), x.const_data_ptr<T>(), dx.mutable_data_ptr<T>(),
               dnumbers.mutable_data_ptr<W>(), dgain_data, dshift_data, slots);
      } else if (layout.channels_last) {
        call(maps_backward<T>);
      } else if (added) {
        call(exceeds_cache(x) ? rows_backward<T, true, true> : rows_backward<T, false, true>,
             dtotal.const_data_ptr<T>());
      } else {
        call(exceeds_cache(x) ? rows_backward<T, true, false> : rows_backward<T, false, false>, nullptr);
      }
    });
  }
  return {dx, sum_of_slots(dgain), sum_of_slots(dshift), sum_of_slots(dnumbers)};
}

}  // namespace rmsexp

namespace rmsexp::normalise {
namespace {

// The arguments of the operators that are not tensors: maps, kind, k, inside, eps and slope. When torch.compile traces
// maps whose sizes may change, k is an expression of these sizes.
using Options = std::tuple<bool, int64_t, c10::SymInt, bool, double, double>;

// Calls normalise_forward() for the device of x, after checking x and the parameters. Sizes may be symbolic.
Outputs call_forward(const Tensor& x, const OptionalTensor& addend, const OptionalTensor& gain,
                     const OptionalTensor& shift, const OptionalTensor& alpha, const OptionalTensor& offset,
                     const Options& options) {
  const bool maps = std::get<0>(options);
  TORCH_CHECK_VALUE(maps ? x.dim() == 4 : x.dim() >= 1, "expected x of shape ",
                    maps ? "(batch, channels, height, width)" : "(..., units)", ", got ", x.sym_sizes());
  const c10::SymInt width = x.sym_size(maps ? 1 : -1);
  check_parameter("gain", gain, x, width);
  check_parameter("shift", shift, x, width);
  check_parameter("alpha", alpha, x, 1);
  check_parameter("offset", offset, x, 1);
  TORCH_CHECK_VALUE(!is_pointwise(std::get<1>(options)) || (gain && alpha),
                    "a pointwise function needs gain and alpha");
  TORCH_CHECK_VALUE(!addend || (addend->sym_sizes() == x.sym_sizes() && addend->device() == x.device()),
                    "expected an addend of shape ", x.sym_sizes(), " on the device of x, got ", addend->sym_sizes());
  static const auto op = find_operator<decltype(normalise_forward)>("rmsexp::normalise_forward");
  const auto call = [&](auto... option) { return op.call(x, addend, gain, shift, option..., alpha, offset); };
  return std::apply(call, options);
}

using Results = std::tuple<Tensor, Tensor>;  // total, which is not used without an addend, and y

Results without_autograd(const Tensor& x, const OptionalTensor& addend, const OptionalTensor& gain,
                         const OptionalTensor& shift, const OptionalTensor& alpha, const OptionalTensor& offset,
                         const Options& options) {
  auto [y, mean, scale, total] = call_forward(x, addend, gain, shift, alpha, offset, options);
  return {std::move(total), std::move(y)};
}

class Normalise : public torch::autograd::Function<Normalise> {
 public:
  // Returns y, and with an addend the total.
  static variable_list forward(AutogradContext* ctx, const Tensor& x, const OptionalTensor& addend,
                               const OptionalTensor& gain, const OptionalTensor& shift, const OptionalTensor& alpha,
                               const OptionalTensor& offset, const Options& options) {
    at::AutoDispatchBelowADInplaceOrView below;
    const auto [y, mean, scale, total] = call_forward(x, addend, gain, shift, alpha, offset, options);
    const bool added = addend.has_value();
    const auto given = [](const OptionalTensor& tensor) { return tensor.value_or(Tensor()); };
    ctx->save_for_backward({added ? total : x, given(gain), given(shift), mean, scale, given(alpha), given(offset)});
    ctx->saved_data["options"] = options;
    ctx->set_materialize_grads(false);
    if (!added) return {y};
    if (!x.requires_grad() && !addend->requires_grad()) ctx->mark_non_differentiable({total});
    return {y, total};
  }

  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    refuse_second_derivatives();
    static const auto op = find_operator<decltype(normalise_backward)>("rmsexp::normalise_backward");
    const bool added = gradients.size() == 2;
    const Tensor dy = gradients[0], dtotal = added ? gradients[1] : Tensor();
    variable_list result(7);  // one gradient for each argument of forward
    if (!dy.defined()) {
      result[0] = result[1] = dtotal;
      return result;
    }
    const auto saved = ctx->get_saved_variables();
    const Tensor &x = saved[0], &gain = saved[1], &shift = saved[2], &mean = saved[3], &scale = saved[4];
    const Tensor &alpha = saved[5], &offset = saved[6];
    at::AutoDispatchBelowADInplaceOrView below;
    const auto call = [&](auto... option) {
      return op.call(dy, optional(dtotal), x, optional(gain), mean, scale, optional(shift), option..., optional(alpha),
                     optional(offset));
    };
    const auto [dx, dgain, dshift, dnumbers] = std::apply(call, ctx->saved_data["options"].to<Options>());
    result[0] = dx;
    if (added) result[1] = dx;
    if (gain.defined()) result[2] = as_type(dgain, gain.scalar_type());
    if (shift.defined()) result[3] = as_type(dshift, shift.scalar_type());
    if (alpha.defined()) result[4] = as_type(dnumbers.narrow(0, 0, 1), alpha.scalar_type());
    if (offset.defined()) result[5] = as_type(dnumbers.narrow(0, 1, 1), offset.scalar_type());
    return result;
  }
};

Results with_autograd(const Tensor& x, const OptionalTensor& addend, const OptionalTensor& gain,
                      const OptionalTensor& shift, const OptionalTensor& alpha, const OptionalTensor& offset,
                      const Options& options) {
  if (needs_gradients(x, addend, gain, shift, alpha, offset)) {
    const auto results = Normalise::apply(x, addend, gain, shift, alpha, offset, options);
    return {results.back(), results[0]};
  }
  at::AutoDispatchBelowADInplaceOrView below;
  return without_autograd(x, addend, gain, shift, alpha, offset, options);
}

// The operators; `run` is with_autograd or without_autograd.
template <auto run>
Tensor normalise(const Tensor& x, const OptionalTensor& gain, const OptionalTensor& shift, bool maps, int64_t kind,
                 c10::SymInt k, bool inside, double eps, double slope, const OptionalTensor& alpha,
                 const OptionalTensor& offset) {
  const Options options{maps, kind, std::move(k), inside, eps, slope};
  return std::get<1>(run(x, std::nullopt, gain, shift, alpha, offset, options));
}

template <auto run>
Results add_normalise(const Tensor& x, const Tensor& addend, const OptionalTensor& gain, const OptionalTensor& shift,
                      int64_t kind, c10::SymInt k, bool inside, double eps) {
  const Options options{/*maps=*/false, kind, std::move(k), inside, eps, /*slope=*/1};
  return run(x, addend, gain, shift, std::nullopt, std::nullopt, options);
}

}  // namespace
}  // namespace rmsexp::normalise

TORCH_LIBRARY_FRAGMENT(rmsexp, m) {
  m.def(
      "normalise_forward(Tensor x, Tensor? addend, Tensor? gain, Tensor? shift, bool maps, int kind, SymInt k, "
      "bool inside, float eps, float slope=1.0, Tensor? alpha=None, Tensor? offset=None) "
      "-> (Tensor y, Tensor mean, Tensor scale, Tensor total)",
      rmsexp::on_cpu(rmsexp::normalise_forward));
  m.def(
      "normalise_backward(Tensor dy, Tensor? dtotal, Tensor x, Tensor? gain, Tensor mean, Tensor scale, Tensor? shift, "
      "bool maps, int kind, SymInt k, bool inside, float eps, float slope=1.0, Tensor? alpha=None, "
      "Tensor? offset=None) -> (Tensor dx, Tensor dgain, Tensor dshift, Tensor dnumbers)",
      rmsexp::on_cpu(rmsexp::normalise_backward));
  m.def(
      "normalise(Tensor x, Tensor? gain, Tensor? shift, bool maps, int kind, SymInt k, bool inside, float eps, "
      "float slope=1.0, Tensor? alpha=None, Tensor? offset=None) -> Tensor");
  m.def(
      "add_normalise(Tensor x, Tensor addend, Tensor? gain, Tensor? shift, int kind, SymInt k, bool inside, float eps) "
      "-> (Tensor total, Tensor y)");
  using namespace rmsexp::normalise;
  m.impl("normalise", torch::dispatch(c10::DispatchKey::CompositeExplicitAutograd, normalise<without_autograd>));
  m.impl("add_normalise",
         torch::dispatch(c10::DispatchKey::CompositeExplicitAutograd, add_normalise<without_autograd>));
  m.impl("normalise", torch::dispatch(c10::DispatchKey::Autograd, normalise<with_autograd>));
  m.impl("add_normalise", torch::dispatch(c10::DispatchKey::Autograd, add_normalise<with_autograd>));
}

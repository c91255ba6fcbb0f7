// The operator normalise: y of normalise_forward, with autograd. normalise_backward computes the gradients, or with
// create_graph=True elementary operations do, which autograd can differentiate again. Forward-mode derivatives and the
// transforms of torch.func use elementary operations for the result, too.

#include <ATen/ATen.h>

#include "derivatives.h"
#include "norms.h"

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

// Computes the operator's result by elementary operations, which autograd can differentiate any number of times and in
// both modes.
Tensor composed(const Tensor& x, const Tensor& gain, const Tensor& shift, const Options& options) {
  const auto type = x.scalar_type();
  Tensor a = type == at::kHalf || type == at::kBFloat16 ? x.to(at::kFloat) : x;
  const std::vector<int64_t> axes = options.maps ? std::vector<int64_t>{2, 3} : std::vector<int64_t>{-1};
  if (options.kind == kLayer) {
    a = a - a.mean(axes, true);
    a = a * (a.square().mean(axes, true) + options.eps).rsqrt();
  } else if (options.kind != kNone) {
    const Tensor units = options.maps ? a.flatten(2) : a;
    Tensor statistic = units.narrow_symint(-1, 0, options.k).square().sum(-1, true);
    if (options.maps) statistic = statistic.unsqueeze(-1);
    if (options.kind != kEuclid) statistic = statistic / at::Scalar(options.k);
    if (options.inside) {
      a = a * (statistic + options.eps).rsqrt();
    } else {
      const Tensor zero = statistic == 0;  // where this holds, the root has no derivative: 0 is used instead
      a = a / (statistic.masked_fill(zero, 1.0).sqrt().masked_fill(zero, 0.0) + options.eps);
    }
  }
  const auto broadcast = [&](const Tensor& vector) { return options.maps ? vector.view({-1, 1, 1}) : vector; };
  if (gain.defined()) a = a * broadcast(gain);
  if (shift.defined()) a = a + broadcast(shift);
  if (options.slope != 1) a = at::leaky_relu(a, options.slope);
  return a.to(type);
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
    const auto saved = from_list<SavedNorm>(ctx->get_saved_variables());
    const auto options = from_tuple(ctx->saved_data["options"].to<OptionsTuple>());
    variable_list result(9);  // one gradient for each argument of forward
    if (at::GradMode::is_enabled()) {
      const auto function = [&](const variable_list& v) { return composed(v[0], v[1], v[2], options); };
      std::ranges::copy(differentiable_gradients(function, gradients[0], {saved.x, saved.gain, saved.shift}),
                        result.begin());
      return result;
    }
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

Tensor by_elementary_operations(const Tensor& x, const OptionalTensor& gain, const OptionalTensor& shift, bool maps,
                                int64_t kind, c10::SymInt k, bool inside, double eps, double slope) {
  check_arguments(x, gain, shift, maps, slope);
  check_kind(kind, inside);
  const auto or_undefined = [](const OptionalTensor& tensor) { return tensor.value_or(Tensor()); };
  return composed(x, or_undefined(gain), or_undefined(shift), {maps, kind, std::move(k), inside, eps, slope});
}

Tensor with_autograd(const Tensor& x, const OptionalTensor& gain, const OptionalTensor& shift, bool maps, int64_t kind,
                     c10::SymInt k, bool inside, double eps, double slope) {
  if (needs_elementary_operations(x, gain, shift)) {
    return by_elementary_operations(x, gain, shift, maps, kind, std::move(k), inside, eps, slope);
  }
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
      "normalise(Tensor x, Tensor? gain, Tensor? shift, bool maps, int kind, SymInt k, bool inside, float eps, "
      "float slope=1.0) -> Tensor");
}

TORCH_LIBRARY_IMPL(rmsexp, CompositeExplicitAutograd, m) { m.impl("normalise", rmsexp::normalise::without_autograd); }

TORCH_LIBRARY_IMPL(rmsexp, Autograd, m) { m.impl("normalise", rmsexp::normalise::with_autograd); }

// vmap would otherwise call the operator once for each element of the batch.
TORCH_LIBRARY_IMPL(rmsexp, FuncTorchBatchedDecomposition, m) {
  m.impl("normalise", rmsexp::normalise::by_elementary_operations);
}

// The operator pointwise: pointwise_forward with autograd, as normalise.cpp defines normalise. pointwise_backward
// computes the gradients, or with create_graph=True elementary operations do, which autograd can differentiate again.

#include <ATen/ATen.h>

#include "derivatives.h"
#include "pointwise.h"

namespace rmsexp::pointwise {
namespace {

using torch::autograd::AutogradContext;

using Forward = Tensor(const Tensor&, const Tensor&, const OptionalTensor&, const Tensor&, const OptionalTensor&,
                       c10::string_view, bool, double);
using Backward = std::tuple<Tensor, Tensor, Tensor, Tensor>(const Tensor&, const Tensor&, const Tensor&,
                                                            const OptionalTensor&, const Tensor&, const OptionalTensor&,
                                                            c10::string_view, bool, double);

Tensor without_autograd(const Tensor& x, const Tensor& alpha, const OptionalTensor& offset, const Tensor& gain,
                        const OptionalTensor& shift, c10::string_view function, bool maps, double slope) {
  check_pointwise(x, alpha, offset, gain, shift, function, maps, slope);
  static const auto op = find_operator<Forward>("rmsexp::pointwise_forward");
  return op.call(x, alpha, offset, gain, shift, function, maps, slope);
}

// The tensors saved for the backward pass. Offset and shift are undefined if there is none.
struct SavedPointwise {
  Tensor x, alpha, offset, gain, shift;
  auto fields() { return std::tie(x, alpha, offset, gain, shift); }
};

// Computes the operator's result by elementary operations, which autograd can differentiate any number of times and in
// both modes.
Tensor composed(const SavedPointwise& inputs, c10::string_view function, bool maps, double slope) {
  const auto type = inputs.x.scalar_type();
  const auto broadcast = [&](const Tensor& vector) { return maps ? vector.view({-1, 1, 1}) : vector; };
  Tensor u = (type == at::kHalf || type == at::kBFloat16 ? inputs.x.to(at::kFloat) : inputs.x) * inputs.alpha;
  if (inputs.offset.defined()) u = u + inputs.offset;
  Tensor y = (function == "erf" ? u.erf() : u.tanh()) * broadcast(inputs.gain);
  if (inputs.shift.defined()) y = y + broadcast(inputs.shift);
  if (slope != 1) y = at::leaky_relu(y, slope);
  return y.to(type);
}

class Pointwise : public torch::autograd::Function<Pointwise> {
 public:
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const Tensor& alpha, const OptionalTensor& offset,
                        const Tensor& gain, const OptionalTensor& shift, c10::string_view function, bool maps,
                        double slope) {
    at::AutoDispatchBelowADInplaceOrView below;
    const SavedPointwise saved{x, alpha, offset.value_or(Tensor()), gain, shift.value_or(Tensor())};
    ctx->save_for_backward(to_list(saved));
    ctx->saved_data["function"] = std::string(function);
    ctx->saved_data["maps"] = maps;
    ctx->saved_data["slope"] = slope;
    return without_autograd(x, alpha, offset, gain, shift, function, maps, slope);
  }

  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    static const auto op = find_operator<Backward>("rmsexp::pointwise_backward");
    const auto saved = from_list<SavedPointwise>(ctx->get_saved_variables());
    const auto& [x, alpha, offset, gain, shift] = saved;
    const std::string function = ctx->saved_data["function"].toStringRef();
    const bool maps = ctx->saved_data["maps"].toBool();
    const double slope = ctx->saved_data["slope"].toDouble();
    variable_list result(8);  // one gradient for each argument of forward
    if (at::GradMode::is_enabled()) {
      const auto of_inputs = [&](const variable_list& v) {
        return composed({v[0], v[1], v[2], v[3], v[4]}, function, maps, slope);
      };
      std::ranges::copy(differentiable_gradients(of_inputs, gradients[0], {x, alpha, offset, gain, shift}),
                        result.begin());
      return result;
    }
    at::AutoDispatchBelowADInplaceOrView below;
    const auto [dx, dscalars, dgain, dshift] =
        op.call(gradients[0], x, alpha, optional(offset), gain, optional(shift), function, maps, slope);
    result[0] = dx;
    result[1] = dscalars.narrow(0, 0, 1).to(alpha.scalar_type());
    if (offset.defined()) result[2] = dscalars.narrow(0, 1, 1).to(offset.scalar_type());
    result[3] = dgain.to(gain.scalar_type());
    if (shift.defined()) result[4] = dshift.to(shift.scalar_type());
    return result;
  }
};

Tensor by_elementary_operations(const Tensor& x, const Tensor& alpha, const OptionalTensor& offset, const Tensor& gain,
                                const OptionalTensor& shift, c10::string_view function, bool maps, double slope) {
  check_pointwise(x, alpha, offset, gain, shift, function, maps, slope);
  return composed({x, alpha, offset.value_or(Tensor()), gain, shift.value_or(Tensor())}, function, maps, slope);
}

Tensor with_autograd(const Tensor& x, const Tensor& alpha, const OptionalTensor& offset, const Tensor& gain,
                     const OptionalTensor& shift, c10::string_view function, bool maps, double slope) {
  if (needs_elementary_operations(x, alpha, offset, gain, shift)) {
    return by_elementary_operations(x, alpha, offset, gain, shift, function, maps, slope);
  }
  if (needs_gradients(x, alpha, offset, gain, shift)) {
    return Pointwise::apply(x, alpha, offset, gain, shift, function, maps, slope);
  }
  at::AutoDispatchBelowADInplaceOrView below;
  return without_autograd(x, alpha, offset, gain, shift, function, maps, slope);
}

}  // namespace
}  // namespace rmsexp::pointwise

TORCH_LIBRARY_FRAGMENT(rmsexp, m) {
  m.def(
      "pointwise(Tensor x, Tensor alpha, Tensor? offset, Tensor gain, Tensor? shift, str function, bool maps, "
      "float slope=1.0) -> Tensor");
}

TORCH_LIBRARY_IMPL(rmsexp, CompositeExplicitAutograd, m) { m.impl("pointwise", rmsexp::pointwise::without_autograd); }

TORCH_LIBRARY_IMPL(rmsexp, Autograd, m) { m.impl("pointwise", rmsexp::pointwise::with_autograd); }

// vmap would otherwise call the operator once for each element of the batch.
TORCH_LIBRARY_IMPL(rmsexp, FuncTorchBatchedDecomposition, m) {
  m.impl("pointwise", rmsexp::pointwise::by_elementary_operations);
}

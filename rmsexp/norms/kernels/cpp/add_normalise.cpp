// The operator add_normalise: total and y of add_normalise_forward, with autograd (add_norms.h).
//
// Where the kernels have no derivative, an addition and the operator normalise compute the results: in second
// derivatives, forward-mode derivatives and the transforms of torch.func.

#include <ATen/ops/add.h>

#include "add_norms.h"
#include "derivatives.h"

namespace rmsexp::add_normalise {
namespace {

using torch::autograd::AutogradContext;

using Sum = std::tuple<Tensor, Tensor>;  // total and y

struct AddOptions {
  int64_t kind;
  c10::SymInt k;
  bool inside;
  double eps;
};

using AddOptionsTuple = std::tuple<int64_t, c10::SymInt, bool, double>;
using Forward = AddNormOutputs(const Tensor&, const Tensor&, const OptionalTensor&, const OptionalTensor&, int64_t,
                               c10::SymInt, bool, double);
using Backward = NormOutputs(const Tensor&, const Tensor&, const Tensor&, const OptionalTensor&, const Tensor&,
                             const Tensor&, const OptionalTensor&, int64_t, c10::SymInt, bool, double);
using BackwardOfNorm = NormOutputs(const Tensor&, const Tensor&, const OptionalTensor&, const Tensor&, const Tensor&,
                                   const OptionalTensor&, bool, int64_t, c10::SymInt, bool, double, double);
using Norm = Tensor(const Tensor&, const OptionalTensor&, const OptionalTensor&, bool, int64_t, c10::SymInt, bool,
                    double, double);

// The tensors saved for the backward pass. Gain and shift are undefined if the norm has none.
struct SavedSum {
  Tensor total, gain, shift, mean, scale;
  auto fields() { return std::tie(total, gain, shift, mean, scale); }
};

AddNormOutputs call_forward(const Tensor& x, const Tensor& addend, const OptionalTensor& gain,
                            const OptionalTensor& shift, const AddOptions& o) {
  check_addition(x, addend, gain, shift);
  static const auto op = find_operator<Forward>("rmsexp::add_normalise_forward");
  return op.call(x, addend, gain, shift, o.kind, o.k, o.inside, o.eps);
}

// `dtotal` may be undefined: zeros.
NormOutputs call_backward(const Tensor& dtotal, const Tensor& dy, const SavedSum& saved, const AddOptions& o) {
  const auto gain = optional(saved.gain), shift = optional(saved.shift);
  if (dtotal.defined()) {
    static const auto op = find_operator<Backward>("rmsexp::add_normalise_backward");
    return op.call(dtotal, dy, saved.total, gain, saved.mean, saved.scale, shift, o.kind, o.k, o.inside, o.eps);
  }
  static const auto op = find_operator<BackwardOfNorm>("rmsexp::normalise_backward");
  return op.call(dy, saved.total, gain, saved.mean, saved.scale, shift, /*maps=*/false, o.kind, o.k, o.inside, o.eps,
                 /*slope=*/1);
}

Tensor norm_of(const Tensor& total, const OptionalTensor& gain, const OptionalTensor& shift, const AddOptions& o) {
  static const auto op = find_operator<Norm>("rmsexp::normalise");
  return op.call(total, gain, shift, /*maps=*/false, o.kind, o.k, o.inside, o.eps, /*slope=*/1);
}

// Returns the gradients of the total, gain and shift, which autograd can differentiate again. The gradient of a tensor
// that does not require one is undefined. `dtotal` may be undefined: zeros.
variable_list gradients_of_sum(const Tensor& dtotal, const Tensor& dy, const SavedSum& saved,
                               const AddOptions& options) {
  const auto norm = [&](const variable_list& v) { return norm_of(v[0], optional(v[1]), optional(v[2]), options); };
  variable_list result = differentiable_gradients(norm, dy, {saved.total, saved.gain, saved.shift});
  if (dtotal.defined()) result[0] = result[0].defined() ? at::add(result[0], dtotal) : dtotal;
  return result;
}

class AddNormalise : public torch::autograd::Function<AddNormalise> {
 public:
  static variable_list forward(AutogradContext* ctx, const Tensor& x, const Tensor& addend, const OptionalTensor& gain,
                               const OptionalTensor& shift, int64_t kind, c10::SymInt k, bool inside, double eps) {
    at::AutoDispatchBelowADInplaceOrView below;
    const AddOptions options{kind, std::move(k), inside, eps};
    const auto [total, y, mean, scale] = call_forward(x, addend, gain, shift, options);
    const SavedSum saved{total, gain.value_or(Tensor()), shift.value_or(Tensor()), mean, scale};
    ctx->save_for_backward(to_list(saved));
    ctx->saved_data["options"] = AddOptionsTuple{options.kind, options.k, options.inside, options.eps};
    ctx->set_materialize_grads(false);
    if (!x.requires_grad() && !addend.requires_grad()) ctx->mark_non_differentiable({total});
    return {total, y};
  }

  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    const Tensor &dtotal = gradients[0], &dy = gradients[1];
    variable_list result(8);  // one gradient for each argument of forward
    if (!dy.defined()) {
      result[0] = result[1] = dtotal;
      return result;
    }
    const auto saved = from_list<SavedSum>(ctx->get_saved_variables());
    const auto [kind, k, inside, eps] = ctx->saved_data["options"].to<AddOptionsTuple>();
    const AddOptions options{kind, k, inside, eps};
    if (at::GradMode::is_enabled()) {
      const auto of_sum = gradients_of_sum(dtotal, dy, saved, options);
      result[0] = result[1] = of_sum[0], result[2] = of_sum[1], result[3] = of_sum[2];
      return result;
    }
    at::AutoDispatchBelowADInplaceOrView below;
    const auto [dx, dgain, dshift] = call_backward(dtotal, dy, saved, options);
    result[0] = result[1] = dx;
    if (saved.gain.defined()) result[2] = as_type(dgain, saved.gain.scalar_type());
    if (saved.shift.defined()) result[3] = as_type(dshift, saved.shift.scalar_type());
    return result;
  }
};

Sum without_autograd(const Tensor& x, const Tensor& addend, const OptionalTensor& gain, const OptionalTensor& shift,
                     int64_t kind, c10::SymInt k, bool inside, double eps) {
  const auto [total, y, mean, scale] = call_forward(x, addend, gain, shift, {kind, std::move(k), inside, eps});
  return {total, y};
}

Sum by_two_operators(const Tensor& x, const Tensor& addend, const OptionalTensor& gain, const OptionalTensor& shift,
                     int64_t kind, c10::SymInt k, bool inside, double eps) {
  check_addition(x, addend, gain, shift);
  const Tensor total = at::add(x, addend);
  return {total, norm_of(total, gain, shift, {kind, std::move(k), inside, eps})};
}

Sum with_autograd(const Tensor& x, const Tensor& addend, const OptionalTensor& gain, const OptionalTensor& shift,
                  int64_t kind, c10::SymInt k, bool inside, double eps) {
  if (needs_elementary_operations(x, addend, gain, shift)) {
    return by_two_operators(x, addend, gain, shift, kind, std::move(k), inside, eps);
  }
  if (needs_gradients(x, addend, gain, shift)) {
    const auto results = AddNormalise::apply(x, addend, gain, shift, kind, std::move(k), inside, eps);
    return {results[0], results[1]};
  }
  at::AutoDispatchBelowADInplaceOrView below;
  return without_autograd(x, addend, gain, shift, kind, std::move(k), inside, eps);
}

}  // namespace
}  // namespace rmsexp::add_normalise

TORCH_LIBRARY_FRAGMENT(rmsexp, m) {
  m.def(
      "add_normalise(Tensor x, Tensor addend, Tensor? gain, Tensor? shift, int kind, SymInt k, bool inside, float eps) "
      "-> (Tensor total, Tensor y)");
}

TORCH_LIBRARY_IMPL(rmsexp, CompositeExplicitAutograd, m) {
  m.impl("add_normalise", rmsexp::add_normalise::without_autograd);
}

TORCH_LIBRARY_IMPL(rmsexp, Autograd, m) { m.impl("add_normalise", rmsexp::add_normalise::with_autograd); }

TORCH_LIBRARY_IMPL(rmsexp, FuncTorchBatchedDecomposition, m) {
  m.impl("add_normalise", rmsexp::add_normalise::by_two_operators);
}

// The sum of two tensors and a norm of the sum over its last axis, as one operator, with autograd: a residual addition
// and the norm that follows it.
//
//   total = x + addend, y = normalised(total) * gain + shift
//
// The total is rounded to its dtype before it is normalised. One pass over memory reads x and addend and writes both
// results. An addition followed by the operator normalise reads the total once more.
#include "derivatives.h"
#include "norm_rows.h"
#include "norm_tensors.h"

namespace rmsexp {

using AddNormOutputs = std::tuple<Tensor, Tensor, Tensor, Tensor>;

// Checks the arguments of the operator add_normalise, except the form. Sizes may be symbolic.
void check_addition(const Tensor& x, const Tensor& addend, const OptionalTensor& gain, const OptionalTensor& shift) {
  check_arguments(x, gain, shift, /*maps=*/false, /*slope=*/1);
  TORCH_CHECK_VALUE(addend.sym_sizes() == x.sym_sizes(), "expected addend of shape ", x.sym_sizes(), ", got ",
                    addend.sym_sizes());
  const bool narrower =
      addend.is_floating_point() && c10::promoteTypes(x.scalar_type(), addend.scalar_type()) == x.scalar_type();
  TORCH_CHECK_VALUE(narrower && addend.device() == x.device(), "expected addend of dtype ", x.dtype(),
                    " or one of lower precision on ", x.device(), ", got ", addend.dtype(), " on ", addend.device());
}

// Returns total, y, mean and scale; for mean and scale see normalise_forward().
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
      const auto forward = exceeds_cache(x) ? rows_forward<scalar_t, true, true> : rows_forward<scalar_t, false, true>;
      forward({rows, n}, form, x.const_data_ptr<scalar_t>(), addend.const_data_ptr<scalar_t>(),
              total.mutable_data_ptr<scalar_t>(), data_or_null<W>(g), data_or_null<W>(b), /*slope=*/1,
              y.mutable_data_ptr<scalar_t>(), mean.mutable_data_ptr<W>(), scale.mutable_data_ptr<W>());
    });
  }
  return {total, y, mean, scale};
}

// Returns the gradient of x, which autograd rounds to the dtype of addend for that of addend, and the gradients of gain
// and shift (normalise_backward()). With N' the backward pass of the norm, the gradient of x is dtotal + N'(dy).
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
          exceeds_cache(total) ? rows_backward<scalar_t, true, true> : rows_backward<scalar_t, false, true>;
      backward({rows, n}, form, dtotal.const_data_ptr<scalar_t>(), dy.const_data_ptr<scalar_t>(),
               total.const_data_ptr<scalar_t>(), data_or_null<W>(g), data_or_null<W>(b), /*slope=*/1,
               mean.const_data_ptr<W>(), scale.const_data_ptr<W>(), dx.mutable_data_ptr<scalar_t>(),
               g.defined() ? dgain.mutable_data_ptr<W>() : nullptr,
               b.defined() ? dshift.mutable_data_ptr<W>() : nullptr, slots);
    });
  }
  return {dx, sum_of_slots(dgain), sum_of_slots(dshift)};
}

}  // namespace rmsexp

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
    refuse_second_derivatives();
    const Tensor &dtotal = gradients[0], &dy = gradients[1];
    variable_list result(8);  // one gradient for each argument of forward
    if (!dy.defined()) {
      result[0] = result[1] = dtotal;
      return result;
    }
    const auto saved = from_list<SavedSum>(ctx->get_saved_variables());
    const auto [kind, k, inside, eps] = ctx->saved_data["options"].to<AddOptionsTuple>();
    const AddOptions options{kind, k, inside, eps};
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

Sum with_autograd(const Tensor& x, const Tensor& addend, const OptionalTensor& gain, const OptionalTensor& shift,
                  int64_t kind, c10::SymInt k, bool inside, double eps) {
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
      "add_normalise_forward(Tensor x, Tensor addend, Tensor? gain, Tensor? shift, int kind, SymInt k, bool inside, "
      "float eps) -> (Tensor total, Tensor y, Tensor mean, Tensor scale)");
  m.def(
      "add_normalise_backward(Tensor dtotal, Tensor dy, Tensor total, Tensor? gain, Tensor mean, Tensor scale, "
      "Tensor? shift, int kind, SymInt k, bool inside, float eps) -> (Tensor dx, Tensor dgain, Tensor dshift)");
  m.def(
      "add_normalise(Tensor x, Tensor addend, Tensor? gain, Tensor? shift, int kind, SymInt k, bool inside, float eps) "
      "-> (Tensor total, Tensor y)");
}

TORCH_LIBRARY_IMPL(rmsexp, CPU, m) {
  m.impl("add_normalise_forward", rmsexp::add_normalise_forward);
  m.impl("add_normalise_backward", rmsexp::add_normalise_backward);
}

TORCH_LIBRARY_IMPL(rmsexp, CompositeExplicitAutograd, m) {
  m.impl("add_normalise", rmsexp::add_normalise::without_autograd);
}

TORCH_LIBRARY_IMPL(rmsexp, Autograd, m) { m.impl("add_normalise", rmsexp::add_normalise::with_autograd); }

// Whole sequences of normalised recurrences, forward and backward through time. The loops know no device: matrix
// products are the library's, and what lies between them are operators that each device has its own kernels for.
//
// The backward pass keeps the gradients of all steps' summed inputs, so that a weight's gradient is one product at the
// end and not one a step. Shapes: batch B, time T, hidden size H; saved tensors begin with (T, B).

#include "rows.h"

namespace rmsexp {
namespace {

using Many = std::vector<Tensor>;

template <typename Signature>
auto found(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Signature>();
}

void gru_forward_step(const Tensor& ax, const Tensor& ah, const Tensor& h, const OptionalTensor& mask, const OptionalTensor& bias,
                      const Tensor& affine, at::IntArrayRef form, double eps, const Tensor& gates, const Tensor& statistics, const Tensor& out) {
  using Signature = void(const Tensor&, const Tensor&, const Tensor&, const OptionalTensor&, const OptionalTensor&, const Tensor&,
                         at::IntArrayRef, double, const Tensor&, const Tensor&, const Tensor&);
  static const auto op = found<Signature>("rmsexp::gru_gates_forward");
  op.call(ax, ah, h, mask, bias, affine, form, eps, gates, statistics, out);
}

void gru_backward_step(const OptionalTensor& dout, const Tensor& dh, const Tensor& ax, const Tensor& ah, const Tensor& h, const Tensor& gates,
                       const Tensor& statistics, const OptionalTensor& mask, const Tensor& affine, at::IntArrayRef form, double eps,
                       const Tensor& dax, const Tensor& dah, const Tensor& partials) {
  using Signature = void(const OptionalTensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                         const OptionalTensor&, const Tensor&, at::IntArrayRef, double, const Tensor&, const Tensor&, const Tensor&);
  static const auto op = found<Signature>("rmsexp::gru_gates_backward");
  op.call(dout, dh, ax, ah, h, gates, statistics, mask, affine, form, eps, dax, dah, partials);
}

OptionalTensor at_step(const OptionalTensor& mask, int64_t t) {
  return mask.has_value() ? OptionalTensor(mask->select(1, t)) : std::nullopt;
}

Tensor with_dense_rows(const Tensor& x) { return x.stride(-1) == 1 ? x : x.contiguous(); }

Tensor like(const Tensor& x) { return x.is_non_overlapping_and_dense() ? at::empty_like(x) : at::empty(x.sizes(), x.options()); }

// Where gradients of gains and shifts gather: apart for whatever adds to them at the same time.
Tensor gathering(const Tensor& like, at::IntArrayRef shape) {
  std::vector<int64_t> all{like.is_cpu() ? at::get_num_threads() : like.size(0)};
  all.insert(all.end(), shape.begin(), shape.end());
  return at::zeros(all, like.options());
}

// A weight as all steps' products read it; turned once, each of them is a fifth quicker.
Tensor turned(const Tensor& weight) { return weight.t().contiguous(); }

// The gradient of a weight from the gradients of its products and what it was applied to, both (T, B, …).
Tensor weight_gradient(const Tensor& dproduct, const Tensor& input) {
  return at::mm(dproduct.flatten(0, 1).t(), input.flatten(0, 1));
}

// The states before all positions and after them, as (T, B, H), and one position's: they lie one after another in the
// order of reading, the first beside the first position read.
struct States {
  Tensor all;  // (T + 1, B, H)
  bool reverse;
  int64_t steps() const { return all.size(0) - 1; }
  Tensor first() const { return all[reverse ? steps() : 0]; }
  Tensor before(int64_t t) const { return all[reverse ? t + 1 : t]; }
  Tensor after(int64_t t) const { return all[reverse ? t : t + 1]; }
  Tensor before() const { return all.narrow(0, reverse ? 1 : 0, steps()); }
  int64_t position(int64_t step) const { return reverse ? steps() - 1 - step : step; }
};

States states(const Tensor& first, int64_t steps, bool reverse) {
  const States made{at::empty({steps + 1, first.size(0), first.size(1)}, first.options()), reverse};
  made.first().copy_(first);
  return made;
}

Many gru_forward(const Tensor& input, const Tensor& h0, const Tensor& weight, const OptionalTensor& bias, const Tensor& affine,
                 const OptionalTensor& mask, bool reverse, at::IntArrayRef form, double eps) {
  at::AutoDispatchBelowADInplaceOrView below;  // autograd needs no record of the steps
  const Tensor x = with_dense_rows(input), w = turned(weight);
  const int64_t B = x.size(0), T = x.size(1), H = h0.size(1);
  const States h = states(h0, T, reverse);
  const Tensor ah = at::empty({T, B, 3 * H}, x.options()), gates = at::empty_like(ah), statistics = at::empty({T, B, 8}, x.options());
  for (int64_t step = 0; step < T; ++step) {
    const int64_t t = h.position(step);
    Tensor a = ah[t];
    at::mm_out(a, h.before(t), w);
    gru_forward_step(x.select(1, t), a, h.before(t), at_step(mask, t), bias, affine, form, eps, gates[t], statistics[t], h.after(t));
  }
  return {h.all, ah, gates, statistics};
}

Many gru_backward(const Tensor& gradient, const Tensor& input, const Tensor& weight, bool biased, const Tensor& affine,
                  const OptionalTensor& mask, bool reverse, at::IntArrayRef form, double eps, const Tensor& all, const Tensor& ah,
                  const Tensor& gates, const Tensor& statistics) {
  at::AutoDispatchBelowADInplaceOrView below;  // autograd needs no record of the steps
  const Tensor x = with_dense_rows(input), dout = with_dense_rows(gradient);
  const States h{all, reverse};
  const Tensor dx = like(x), dah = at::empty_like(ah), partials = gathering(h.first(), affine.sizes());
  Tensor dh = at::zeros_like(h.first());
  for (int64_t step = h.steps() - 1; step >= 0; --step) {
    const int64_t t = h.position(step);
    gru_backward_step(dout.select(1, t), dh, x.select(1, t), ah[t], h.before(t), gates[t], statistics[t], at_step(mask, t), affine, form, eps,
                      dx.select(1, t), dah[t], partials);
    dh.addmm_(dah[t], weight);
  }
  const Tensor dbias = biased ? dah.sum(at::IntArrayRef{0, 1}) : at::empty({0}, x.options());
  return {dx, dh, weight_gradient(dah, h.before()), dbias, partials.sum(0)};
}

Many lstm_forward(const Tensor& input, const Tensor& h0, const Tensor& c0, const Tensor& weight, const Tensor& affine,
                  const Tensor& cell_affine, const OptionalTensor& mask, bool reverse, at::IntArrayRef form, double eps) {
  at::AutoDispatchBelowADInplaceOrView below;  // autograd needs no record of the steps
  using Signature = void(const Tensor&, const Tensor&, const Tensor&, const Tensor&, const OptionalTensor&, const Tensor&, const Tensor&,
                         at::IntArrayRef, double, const Tensor&, const Tensor&, const Tensor&, const Tensor&);
  static const auto forward_step = found<Signature>("rmsexp::lstm_gates_forward");
  const Tensor x = with_dense_rows(input), w = turned(weight);
  const int64_t B = x.size(0), T = x.size(1), H = h0.size(1);
  const States h = states(h0, T, reverse), c = states(c0, T, reverse);
  const Tensor ah = at::empty({T, B, 4 * H}, x.options()), gates = at::empty({T, B, 5 * H}, x.options());
  const Tensor statistics = at::empty({T, B, 6}, x.options());
  for (int64_t step = 0; step < T; ++step) {
    const int64_t t = h.position(step);
    Tensor a = ah[t];
    at::mm_out(a, h.before(t), w);
    forward_step.call(x.select(1, t), a, h.before(t), c.before(t), at_step(mask, t), affine, cell_affine, form, eps, gates[t], statistics[t],
                      h.after(t), c.after(t));
  }
  return {h.all, c.all, ah, gates, statistics};
}

Many lstm_backward(const Tensor& gradient, const Tensor& input, const Tensor& weight, const Tensor& affine, const Tensor& cell_affine,
                   const OptionalTensor& mask, bool reverse, at::IntArrayRef form, double eps, const Tensor& hidden, const Tensor& cells,
                   const Tensor& ah, const Tensor& gates, const Tensor& statistics) {
  at::AutoDispatchBelowADInplaceOrView below;  // autograd needs no record of the steps
  using Signature = void(const OptionalTensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                         const Tensor&, const Tensor&, const OptionalTensor&, const Tensor&, const Tensor&, at::IntArrayRef, double,
                         const Tensor&, const Tensor&, const Tensor&, const Tensor&);
  static const auto backward_step = found<Signature>("rmsexp::lstm_gates_backward");
  const Tensor x = with_dense_rows(input), dout = with_dense_rows(gradient);
  const States h{hidden, reverse}, c{cells, reverse};
  const Tensor dx = like(x), dah = at::empty_like(ah);
  const Tensor partials = gathering(h.first(), affine.sizes()), cell_partials = gathering(h.first(), cell_affine.sizes());
  Tensor dh = at::zeros_like(h.first()), dc = at::zeros_like(dh);
  for (int64_t step = h.steps() - 1; step >= 0; --step) {
    const int64_t t = h.position(step);
    backward_step.call(dout.select(1, t), dh, dc, x.select(1, t), ah[t], c.before(t), c.after(t), gates[t], statistics[t], at_step(mask, t),
                       affine, cell_affine, form, eps, dx.select(1, t), dah[t], partials, cell_partials);
    dh.addmm_(dah[t], weight);
  }
  return {dx, dh, dc, weight_gradient(dah, h.before()), partials.sum(0), cell_partials.sum(0)};
}

// The conditional GRU of a decoder: a GRU reads the previous token, attention reads the source with its state, and a
// second GRU, whose biases belong to its state's maps, reads the context (Sennrich et al. 2017, section 2).
// between: the weights of query and second GRU, which read the state between the two GRUs, one above the other.
Many decoder_forward(const Tensor& input, const Tensor& s0, const Tensor& keys, const Tensor& values, const Tensor& mask,
                     const Tensor& w_first, const Tensor& w_between, const OptionalTensor& bias, const Tensor& w_context,
                     const Tensor& score, const Tensor& affine_first, const Tensor& affine_second, const Tensor& affine_query,
                     at::IntArrayRef form, at::IntArrayRef query_form, double eps) {
  at::AutoDispatchBelowADInplaceOrView below;  // autograd needs no record of the steps
  using Signature = void(const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&, at::IntArrayRef, double,
                         const Tensor&, const Tensor&, const Tensor&);
  static const auto attend = found<Signature>("rmsexp::attention_forward");
  const Tensor x = with_dense_rows(input), of_first = turned(w_first), of_between = turned(w_between), of_context = turned(w_context);
  const int64_t B = x.size(0), T = x.size(1), H = s0.size(1), S = keys.size(1), C = keys.size(2);
  const auto make = [&](int64_t width) { return at::empty({T, B, width}, x.options()); };
  const States s = states(s0, T, false);
  const Tensor middle = make(H), contexts = make(values.size(2)), ah = make(3 * H), joint = make(C + 3 * H), ax = make(3 * H);
  const Tensor first_gates = make(3 * H), first_statistics = make(8), second_gates = make(3 * H), second_statistics = make(8);
  const Tensor query_statistics = make(2), alpha = make(S);
  for (int64_t t = 0; t < T; ++t) {
    Tensor a = ah[t], both = joint[t], read = ax[t];
    at::mm_out(a, s.before(t), of_first);
    gru_forward_step(x.select(1, t), a, s.before(t), std::nullopt, std::nullopt, affine_first, form, eps, first_gates[t], first_statistics[t],
                     middle[t]);
    at::mm_out(both, middle[t], of_between);
    attend.call(keys, both.narrow(1, 0, C), values, mask, score, affine_query, query_form, eps, query_statistics[t], alpha[t], contexts[t]);
    at::mm_out(read, contexts[t], of_context);
    gru_forward_step(read, both.narrow(1, C, 3 * H), middle[t], std::nullopt, bias, affine_second, form, eps, second_gates[t],
                     second_statistics[t], s.after(t));
  }
  return {s.all, contexts, middle, ah, joint, ax, first_gates, first_statistics, second_gates, second_statistics, query_statistics, alpha};
}

Many decoder_backward(const Tensor& gradient, const Tensor& context_gradient, const Tensor& input, const Tensor& keys, const Tensor& values,
                      const Tensor& mask, const Tensor& w_first, const Tensor& w_between, bool biased, const Tensor& w_context,
                      const Tensor& score, const Tensor& affine_first, const Tensor& affine_second, const Tensor& affine_query,
                      at::IntArrayRef form, at::IntArrayRef query_form, double eps, at::TensorList saved) {
  at::AutoDispatchBelowADInplaceOrView below;  // autograd needs no record of the steps
  using Signature = void(const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                         const Tensor&, at::IntArrayRef, double, const Tensor&, const Tensor&, const Tensor&);
  static const auto attend_backward = found<Signature>("rmsexp::attention_backward");
  const Tensor x = with_dense_rows(input), dout = with_dense_rows(gradient);
  const States s{saved[0], false};
  const Tensor &contexts = saved[1], &middle = saved[2], &ah = saved[3], &joint = saved[4], &ax = saved[5];
  const int64_t H = middle.size(2), C = keys.size(2);
  const Tensor dx = like(x), dah = at::empty_like(ah), djoint = at::empty_like(joint), dax = at::empty_like(ax), dkeys = at::zeros_like(keys);
  const Tensor dcontexts = context_gradient.transpose(0, 1).clone(at::MemoryFormat::Contiguous);
  const Tensor first = gathering(s.first(), affine_first.sizes()), second = gathering(s.first(), affine_second.sizes());
  const Tensor attention = gathering(s.first(), {3, C});
  Tensor ds = at::zeros_like(s.first());
  for (int64_t t = s.steps() - 1; t >= 0; --t) {
    const Tensor both = joint[t], dboth = djoint[t];
    gru_backward_step(dout.select(1, t), ds, ax[t], both.narrow(1, C, 3 * H), middle[t], saved[8][t], saved[9][t], std::nullopt, affine_second,
                      form, eps, dax[t], dboth.narrow(1, C, 3 * H), second);
    dcontexts[t].addmm_(dax[t], w_context);
    attend_backward.call(dcontexts[t], keys, both.narrow(1, 0, C), values, mask, score, affine_query, saved[10][t], saved[11][t], query_form, eps,
                         dkeys, dboth.narrow(1, 0, C), attention);
    ds.addmm_(dboth, w_between);
    gru_backward_step(std::nullopt, ds, x.select(1, t), ah[t], s.before(t), saved[6][t], saved[7][t], std::nullopt, affine_first, form, eps,
                      dx.select(1, t), dah[t], first);
    ds.addmm_(dah[t], w_first);
  }
  const Tensor dvalues = at::bmm(saved[11].permute({1, 2, 0}), dcontexts.transpose(0, 1));
  const Tensor dbias = biased ? djoint.narrow(2, C, 3 * H).sum(at::IntArrayRef{0, 1}) : at::empty({0}, x.options());
  const Tensor of_attention = attention.sum(0);
  return {dx, ds, dkeys, dvalues, weight_gradient(dah, s.before()), weight_gradient(djoint, middle), dbias, weight_gradient(dax, contexts),
          of_attention[0].clone(), first.sum(0), second.sum(0), of_attention.narrow(0, 1, 2).clone()};
}

}  // namespace
}  // namespace rmsexp

TORCH_LIBRARY_FRAGMENT(rmsexp, m) {
  m.def(
      "gru_forward(Tensor x, Tensor h0, Tensor weight, Tensor? bias, Tensor affine, Tensor? mask, bool reverse, int[] form, "
      "float eps) -> Tensor[]");
  m.def(
      "gru_backward(Tensor dout, Tensor x, Tensor weight, bool biased, Tensor affine, Tensor? mask, bool reverse, int[] form, "
      "float eps, Tensor states, Tensor ah, Tensor gates, Tensor statistics) -> Tensor[]");
  m.def(
      "lstm_forward(Tensor x, Tensor h0, Tensor c0, Tensor weight, Tensor affine, Tensor cell_affine, Tensor? mask, bool reverse, "
      "int[] form, float eps) -> Tensor[]");
  m.def(
      "lstm_backward(Tensor dout, Tensor x, Tensor weight, Tensor affine, Tensor cell_affine, Tensor? mask, bool reverse, int[] form, "
      "float eps, Tensor hidden, Tensor cells, Tensor ah, Tensor gates, Tensor statistics) -> Tensor[]");
  m.def(
      "decoder_forward(Tensor x, Tensor s0, Tensor keys, Tensor values, Tensor mask, Tensor w_first, Tensor w_between, Tensor? bias, "
      "Tensor w_context, Tensor score, Tensor affine_first, Tensor affine_second, Tensor affine_query, int[] form, int[] query_form, "
      "float eps) -> Tensor[]");
  m.def(
      "decoder_backward(Tensor dstates, Tensor dcontexts, Tensor x, Tensor keys, Tensor values, Tensor mask, Tensor w_first, "
      "Tensor w_between, bool biased, Tensor w_context, Tensor score, Tensor affine_first, Tensor affine_second, Tensor affine_query, "
      "int[] form, int[] query_form, float eps, Tensor[] saved) -> Tensor[]");
}

TORCH_LIBRARY_IMPL(rmsexp, CompositeExplicitAutograd, m) {
  m.impl("gru_forward", rmsexp::gru_forward);
  m.impl("gru_backward", rmsexp::gru_backward);
  m.impl("lstm_forward", rmsexp::lstm_forward);
  m.impl("lstm_backward", rmsexp::lstm_backward);
  m.impl("decoder_forward", rmsexp::decoder_forward);
  m.impl("decoder_backward", rmsexp::decoder_backward);
}

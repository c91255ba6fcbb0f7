// Whole sequences of a normalised GRU, LSTM, or decoder with attention, forward and backward through time. The loops
// over the time steps serve every device: ATen computes the matrix products, and the operators of a step (gru.h,
// lstm.h, attention.h) have an implementation per device.
//
// Shapes: B rows of a batch, T time steps, H units of a state. The first axes of saved tensors are (T, B); positions
// along T are in the order of the sequence, also if it is read in reverse.
//
// All these operators have the same arguments. `inputs` are the tensors of kernels/recurrences.py, which has checked
// them, in the same order. All but x are contiguous; a missing bias or mask is undefined. A forward operator returns
// the tensors that its backward operator takes as `saved`. That returns the gradients of the inputs in their order,
// except that of the mask; if there is no bias, its gradient is empty.
//
// x, (B, T, 3H) or for an LSTM (B, T, 4H), holds the summed inputs from the input sequence, before their norms. weight,
// (3H, H) or (4H, H), maps the state. mask, (B, T), is false on padding; without a mask, there is no padding. With
// `reverse`, positions are read from the last to the first. Biases, gains, shifts, form and eps are passed to the
// operators of a step.

#include <ATen/ops/bmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <string>

#include "attention.h"
#include "gru.h"
#include "lstm.h"
#include "products.h"

namespace rmsexp {
namespace {

using TensorList = std::vector<Tensor>;
using Inputs = c10::List<OptionalTensor>;
using SequenceForward = TensorList(const Inputs& inputs, bool reverse, at::IntArrayRef form, double eps);
using SequenceBackward = TensorList(at::TensorList gradients, const Inputs& inputs, at::TensorList saved, bool reverse,
                                    at::IntArrayRef form, double eps);

OptionalTensor mask_at(const Tensor& mask, int64_t t) {
  return mask.defined() ? OptionalTensor(mask.select(1, t)) : std::nullopt;
}

Tensor with_contiguous_rows(const Tensor& x) { return x.stride(-1) == 1 ? x : x.contiguous(); }

// Returns an uninitialised tensor for the gradient of x: with the strides of x if x is dense, otherwise contiguous.
Tensor empty_gradient(const Tensor& x) {
  return x.is_non_overlapping_and_dense() ? at::empty_like(x) : at::empty(x.sizes(), x.options());
}

// Returns P tensors of zeros, each of shape `shape`, stacked. Each of P threads, or on CUDA each of P rows of the
// batch, adds its part of a gradient to one of them. `state`, (B, H), gives B, the dtype and the device.
Tensor zero_partials(const Tensor& state, at::IntArrayRef shape) {
  std::vector<int64_t> sizes{state.is_cpu() ? at::get_num_threads() : state.size(0)};
  sizes.insert(sizes.end(), shape.begin(), shape.end());
  return at::zeros(sizes, state.options());
}

// Returns the gradient of a weight W, from the gradients of the vectors W v and the vectors v, both (T, B, ...). This
// is one matrix product over all steps, instead of one per step.
Tensor weight_gradient(const Tensor& dproduct, const Tensor& input) {
  return at::mm(dproduct.flatten(0, 1).t(), input.flatten(0, 1));
}

// The states of a sequence, in the order of its positions. The initial state comes before the first position, or with
// `reverse` after the last position.
struct States {
  Tensor all;  // (T + 1, B, H)
  bool reverse;

  int64_t steps() const { return all.size(0) - 1; }
  Tensor initial() const { return all[reverse ? steps() : 0]; }
  // The state before, and the state after, the step that reads position t; (B, H).
  Tensor before(int64_t t) const { return all[reverse ? t + 1 : t]; }
  Tensor after(int64_t t) const { return all[reverse ? t : t + 1]; }
  // The state before each step, (T, B, H), in the order of the positions.
  Tensor before() const { return all.narrow(0, reverse ? 1 : 0, steps()); }
  // The position that step number `step`, counted from 0, reads.
  int64_t position(int64_t step) const { return reverse ? steps() - 1 - step : step; }
};

// Returns states of which only the initial one has values, a copy of `initial`.
States empty_states(const Tensor& initial, int64_t steps, bool reverse) {
  const States states{at::empty({steps + 1, initial.size(0), initial.size(1)}, initial.options()), reverse};
  states.initial().copy_(initial);
  return states;
}

TensorList gru_forward(const Inputs& inputs, bool reverse, at::IntArrayRef form, double eps) {
  at::AutoDispatchBelowADInplaceOrView below;  // autograd need not record: gru_backward computes the gradients
  static const auto forward_step = find_operator<decltype(gru_gates_forward)>("rmsexp::gru_gates_forward");
  const auto [input, h0, weight, affine, bias, mask] = tensors<6>(inputs);
  const int64_t B = input.size(0), T = input.size(1), H = h0.size(-1);
  const Tensor x = with_contiguous_rows(input);
  const Factor w(weight.t());
  const auto empty = [&](int64_t width) { return at::empty({T, B, width}, x.options()); };
  const States h = empty_states(h0, T, reverse);
  const Tensor products = empty(3 * H);                    // weight times the state, plus the bias
  const Tensor gates = empty(3 * H);                       // reset, update, candidate
  const Tensor statistics = empty(kWidth<GruStatistics>);  // GruStatistics
  for (int64_t step = 0; step < T; ++step) {
    const int64_t t = h.position(step);
    Tensor ah = products[t];
    product(ah, h.before(t), w);
    forward_step.call(x.select(1, t), ah, h.before(t), mask_at(mask, t), optional(bias), affine, form, eps, gates[t],
                      statistics[t], h.after(t));
  }
  return {h.all, products, gates, statistics};
}

TensorList gru_backward(at::TensorList gradients, const Inputs& inputs, at::TensorList saved, bool reverse,
                        at::IntArrayRef form, double eps) {
  at::AutoDispatchBelowADInplaceOrView below;
  static const auto backward_step = find_operator<decltype(gru_gates_backward)>("rmsexp::gru_gates_backward");
  const auto [input, h0, weight, affine, bias, mask] = tensors<6>(inputs);
  const auto [states, products, gates, statistics] = tensors<4>(saved);
  const Tensor x = with_contiguous_rows(input), dout = with_contiguous_rows(gradients[0]);
  const States h{states, reverse};
  const Tensor dx = empty_gradient(x), dah = at::empty_like(products);
  const Tensor partials = zero_partials(h.initial(), affine.sizes());
  const Factor w(weight);
  Tensor dh = at::zeros_like(h.initial());
  for (int64_t step = h.steps() - 1; step >= 0; --step) {
    const int64_t t = h.position(step);
    backward_step.call(dout.select(1, t), dh, x.select(1, t), products[t], h.before(t), gates[t], statistics[t],
                       mask_at(mask, t), affine, form, eps, dx.select(1, t), dah[t], partials);
    product(dh, dah[t], w, true);
  }
  const Tensor dbias = bias.defined() ? dah.sum(at::IntArrayRef{0, 1}) : at::empty({0}, x.options());
  return {dx, dh, weight_gradient(dah, h.before()), partials.sum(0), dbias};
}

TensorList lstm_forward(const Inputs& inputs, bool reverse, at::IntArrayRef form, double eps) {
  at::AutoDispatchBelowADInplaceOrView below;
  static const auto forward_step = find_operator<decltype(lstm_gates_forward)>("rmsexp::lstm_gates_forward");
  const auto [input, h0, c0, weight, affine, cell_affine, mask] = tensors<7>(inputs);
  const int64_t B = input.size(0), T = input.size(1), H = h0.size(-1);
  const Tensor x = with_contiguous_rows(input);
  const Factor w(weight.t());
  const auto empty = [&](int64_t width) { return at::empty({T, B, width}, x.options()); };
  const States h = empty_states(h0, T, reverse), c = empty_states(c0, T, reverse);
  const Tensor products = empty(4 * H);                     // weight times the hidden state
  const Tensor gates = empty(5 * H);                        // in, forget, out, value, tanh of the normalised new cell
  const Tensor statistics = empty(kWidth<LstmStatistics>);  // LstmStatistics
  for (int64_t step = 0; step < T; ++step) {
    const int64_t t = h.position(step);
    Tensor ah = products[t];
    product(ah, h.before(t), w);
    forward_step.call(x.select(1, t), ah, h.before(t), c.before(t), mask_at(mask, t), affine, cell_affine, form, eps,
                      gates[t], statistics[t], h.after(t), c.after(t));
  }
  return {h.all, c.all, products, gates, statistics};
}

// `gradients` are those of the states, (B, T, H), and of the last cell, (B, H).
TensorList lstm_backward(at::TensorList gradients, const Inputs& inputs, at::TensorList saved, bool reverse,
                         at::IntArrayRef form, double eps) {
  at::AutoDispatchBelowADInplaceOrView below;
  static const auto backward_step = find_operator<decltype(lstm_gates_backward)>("rmsexp::lstm_gates_backward");
  const auto [input, h0, c0, weight, affine, cell_affine, mask] = tensors<7>(inputs);
  const auto [hidden, cells, products, gates, statistics] = tensors<5>(saved);
  const Tensor x = with_contiguous_rows(input), dout = with_contiguous_rows(gradients[0]);
  const States h{hidden, reverse}, c{cells, reverse};
  const Tensor dx = empty_gradient(x), dah = at::empty_like(products);
  const Tensor partials = zero_partials(h.initial(), affine.sizes());
  const Tensor cell_partials = zero_partials(h.initial(), cell_affine.sizes());
  const Factor w(weight);
  Tensor dh = at::zeros_like(h.initial()), dc = gradients[1].clone(at::MemoryFormat::Contiguous);
  for (int64_t step = h.steps() - 1; step >= 0; --step) {
    const int64_t t = h.position(step);
    backward_step.call(dout.select(1, t), dh, dc, x.select(1, t), products[t], c.before(t), c.after(t), gates[t],
                       statistics[t], mask_at(mask, t), affine, cell_affine, form, eps, dx.select(1, t), dah[t],
                       partials, cell_partials);
    product(dh, dah[t], w, true);
  }
  const Tensor daffine = partials.sum(0);
  daffine[1][1].copy_(daffine[0][1]);  // both shifts are added to the same sums
  return {dx, dh, dc, weight_gradient(dah, h.before()), daffine, cell_partials.sum(0)};
}

// The conditional GRU of a decoder (Sennrich et al. 2017, section 2). At each time step, the first GRU updates the
// state from the previous token, attention reads the source with a query computed from that state, and the second GRU
// updates the state from the attention's context. Only the second GRU has a bias, which is added to its summed inputs
// from the state.

// In joint_products, the first C units are the query. The other 3H are the second GRU's summed inputs from the state,
// with the bias.
Tensor query_part(const Tensor& joint, int64_t C) { return joint.narrow(-1, 0, C); }
Tensor gru_part(const Tensor& joint, int64_t C) { return joint.narrow(-1, C, joint.size(-1) - C); }

// The first four integers of `forms` are the form of the GRUs, the other three that of the query (steps.h).
TensorList decoder_forward(const Inputs& inputs, bool /*reverse*/, at::IntArrayRef forms, double eps) {
  at::AutoDispatchBelowADInplaceOrView below;  // autograd need not record: decoder_backward computes the gradients
  static const auto forward_step = find_operator<decltype(gru_gates_forward)>("rmsexp::gru_gates_forward");
  static const auto attend = find_operator<decltype(attention_forward)>("rmsexp::attention_forward");
  const auto [input, s0, keys, values, w_first, w_between, w_context, score, affine_first, affine_second, affine_query,
              bias, mask] = tensors<13>(inputs);
  const auto form = forms.slice(0, 4), query_form = forms.slice(4);
  const int64_t H = s0.size(-1), B = input.size(0), T = input.size(1);
  const int64_t S = keys.size(1), C = keys.size(2), A = values.size(2);
  const Tensor x = with_contiguous_rows(input);
  const Factor first(w_first.t()), second(w_between.t()), of_context(w_context.t());
  const auto empty = [&](int64_t width) { return at::empty({T, B, width}, x.options()); };
  const States s = empty_states(s0, T, false);
  const Tensor contexts = empty(A);                // results of the attention
  const Tensor between = empty(H);                 // states between the first and the second GRU
  const Tensor first_products = empty(3 * H);      // w_first times the state before the step
  const Tensor joint_products = empty(C + 3 * H);  // w_between times the state between the GRUs
  const Tensor context_products = empty(3 * H);    // w_context times the context
  const Tensor first_gates = empty(3 * H);         // reset, update, candidate
  const Tensor first_statistics = empty(kWidth<GruStatistics>);
  const Tensor second_gates = empty(3 * H);
  const Tensor second_statistics = empty(kWidth<GruStatistics>);
  const Tensor query_statistics = empty(kWidth<Statistics>);
  const Tensor attention = empty(S);  // attention weights
  for (int64_t t = 0; t < T; ++t) {
    Tensor ah = first_products[t], joint = joint_products[t], ax = context_products[t];
    product(ah, s.before(t), first);
    forward_step.call(x.select(1, t), ah, s.before(t), std::nullopt, std::nullopt, affine_first, form, eps,
                      first_gates[t], first_statistics[t], between[t]);
    product(joint, between[t], second);
    attend.call(keys, query_part(joint, C), values, mask, score, affine_query, query_form, eps, query_statistics[t],
                attention[t], contexts[t]);
    product(ax, contexts[t], of_context);
    forward_step.call(ax, gru_part(joint, C), between[t], std::nullopt, optional(bias), affine_second, form, eps,
                      second_gates[t], second_statistics[t], s.after(t));
  }
  return {s.all,       contexts,         between,      first_products,    joint_products,   context_products,
          first_gates, first_statistics, second_gates, second_statistics, query_statistics, attention};
}

// `gradients` are those of the states, (B, T, H), and of the contexts, (B, T, A).
TensorList decoder_backward(at::TensorList gradients, const Inputs& inputs, at::TensorList saved, bool /*reverse*/,
                            at::IntArrayRef forms, double eps) {
  at::AutoDispatchBelowADInplaceOrView below;
  static const auto backward_step = find_operator<decltype(gru_gates_backward)>("rmsexp::gru_gates_backward");
  static const auto attend_backward = find_operator<decltype(attention_backward)>("rmsexp::attention_backward");
  const auto [input, s0, keys, values, w_first, w_between, w_context, score, affine_first, affine_second, affine_query,
              bias, mask] = tensors<13>(inputs);
  const auto [states, contexts, between, first_products, joint_products, context_products, first_gates,
              first_statistics, second_gates, second_statistics, query_statistics, attention] = tensors<12>(saved);
  const auto form = forms.slice(0, 4), query_form = forms.slice(4);
  const int64_t C = keys.size(2);
  const Tensor x = with_contiguous_rows(input), dout = with_contiguous_rows(gradients[0]);
  const States s{states, false};
  const Tensor dx = empty_gradient(x), dah = at::empty_like(first_products);
  const Tensor djoint = at::empty_like(joint_products), dax = at::empty_like(context_products);
  const Tensor dkeys = at::zeros_like(keys);
  const Tensor dcontexts = gradients[1].transpose(0, 1).clone(at::MemoryFormat::Contiguous);
  const Tensor first_partials = zero_partials(s.initial(), affine_first.sizes());
  const Tensor second_partials = zero_partials(s.initial(), affine_second.sizes());
  const Tensor attention_partials = zero_partials(s.initial(), {3, C});  // gradients of score, gain and shift
  const Factor first(w_first), second(w_between), of_context(w_context);
  Tensor ds = at::zeros_like(s.initial());
  for (int64_t t = s.steps() - 1; t >= 0; --t) {
    const Tensor joint = joint_products[t], djoint_t = djoint[t];
    backward_step.call(dout.select(1, t), ds, context_products[t], gru_part(joint, C), between[t], second_gates[t],
                       second_statistics[t], std::nullopt, affine_second, form, eps, dax[t], gru_part(djoint_t, C),
                       second_partials);
    product(dcontexts[t], dax[t], of_context, true);
    attend_backward.call(dcontexts[t], keys, query_part(joint, C), values, mask, score, affine_query,
                         query_statistics[t], attention[t], query_form, eps, dkeys, query_part(djoint_t, C),
                         attention_partials);
    product(ds, djoint_t, second, true);
    backward_step.call(std::nullopt, ds, x.select(1, t), first_products[t], s.before(t), first_gates[t],
                       first_statistics[t], std::nullopt, affine_first, form, eps, dx.select(1, t), dah[t],
                       first_partials);
    product(ds, dah[t], first, true);
  }
  const Tensor dattention = attention_partials.sum(0);
  return {dx,
          ds,
          dkeys,
          at::bmm(attention.permute({1, 2, 0}), dcontexts.transpose(0, 1)),
          weight_gradient(dah, s.before()),
          weight_gradient(djoint, between),
          weight_gradient(dax, contexts),
          dattention[0].clone(),
          first_partials.sum(0),
          second_partials.sum(0),
          dattention.narrow(0, 1, 2).clone(),
          bias.defined() ? gru_part(djoint, C).sum(at::IntArrayRef{0, 1}) : at::empty({0}, x.options())};
}

// Defines the operators <name>_forward and <name>_backward, for every device.
void define_sequence(torch::Library& m, const std::string& name, SequenceForward forward, SequenceBackward backward) {
  const std::string options = "bool reverse, int[] form, float eps) -> Tensor[]";
  const std::string names[] = {name + "_forward", name + "_backward"};
  m.def((names[0] + "(Tensor?[] inputs, " + options).c_str());
  m.def((names[1] + "(Tensor[] gradients, Tensor?[] inputs, Tensor[] saved, " + options).c_str());
  m.impl(names[0].c_str(), torch::dispatch(c10::DispatchKey::CompositeExplicitAutograd, forward));
  m.impl(names[1].c_str(), torch::dispatch(c10::DispatchKey::CompositeExplicitAutograd, backward));
}

}  // namespace
}  // namespace rmsexp

TORCH_LIBRARY_FRAGMENT(rmsexp, m) {
  m.def(
      "gru_gates_forward(Tensor ax, Tensor(a!) ah, Tensor h, Tensor? mask, Tensor? bias, Tensor affine, int[] form, "
      "float eps, Tensor(b!) gates, Tensor(c!) statistics, Tensor(d!) out) -> ()",
      rmsexp::on_cpu(rmsexp::gru_gates_forward));
  m.def(
      "gru_gates_backward(Tensor? dout, Tensor(a!) dh, Tensor ax, Tensor ah, Tensor h, Tensor gates, "
      "Tensor statistics, Tensor? mask, Tensor affine, int[] form, float eps, Tensor(b!) dax, Tensor(c!) dah, "
      "Tensor(d!) partials) -> ()",
      rmsexp::on_cpu(rmsexp::gru_gates_backward));
  m.def(
      "lstm_gates_forward(Tensor ax, Tensor ah, Tensor h, Tensor c, Tensor? mask, Tensor affine, Tensor cell_affine, "
      "int[] form, float eps, Tensor(a!) gates, Tensor(b!) statistics, Tensor(c!) out, Tensor(d!) out_c) -> ()",
      rmsexp::on_cpu(rmsexp::lstm_gates_forward));
  m.def(
      "lstm_gates_backward(Tensor? dout, Tensor(a!) dh, Tensor(b!) dc, Tensor ax, Tensor ah, Tensor c, Tensor out_c, "
      "Tensor gates, Tensor statistics, Tensor? mask, Tensor affine, Tensor cell_affine, int[] form, float eps, "
      "Tensor(c!) dax, Tensor(d!) dah, Tensor(e!) partials, Tensor(f!) cell_partials) -> ()",
      rmsexp::on_cpu(rmsexp::lstm_gates_backward));
  m.def(
      "attention_forward(Tensor keys, Tensor query, Tensor values, Tensor mask, Tensor score, Tensor affine, "
      "int[] form, float eps, Tensor(a!) statistics, Tensor(b!) alpha, Tensor(c!) context) -> ()",
      rmsexp::on_cpu(rmsexp::attention_forward));
  m.def(
      "attention_backward(Tensor dcontext, Tensor keys, Tensor query, Tensor values, Tensor mask, Tensor score, "
      "Tensor affine, Tensor statistics, Tensor alpha, int[] form, float eps, Tensor(a!) dkeys, Tensor(b!) dquery, "
      "Tensor(c!) partials) -> ()",
      rmsexp::on_cpu(rmsexp::attention_backward));
  rmsexp::define_sequence(m, "gru", rmsexp::gru_forward, rmsexp::gru_backward);
  rmsexp::define_sequence(m, "lstm", rmsexp::lstm_forward, rmsexp::lstm_backward);
  rmsexp::define_sequence(m, "decoder", rmsexp::decoder_forward, rmsexp::decoder_backward);
}

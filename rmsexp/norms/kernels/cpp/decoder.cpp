// Whole sequences of the conditional GRU of a decoder, forward and backward through time (Sennrich et al. 2017,
// section 2). At each time step, the first GRU updates the state from the previous token, attention reads the source
// with a query computed from that state, and the second GRU updates the state from the attention's context. Only the
// second GRU has a bias, which is added to its summed inputs from the state.

#include <ATen/ops/bmm.h>

#include "sequences.h"

namespace rmsexp {
namespace {

// In joint_products, the first C units are the query. The other 3H are the second GRU's summed inputs from the state,
// with the bias.
struct SavedDecoder {
  Tensor states;             // (T + 1, B, H): the initial state, and the states after each step
  Tensor contexts;           // (T, B, A): results of the attention
  Tensor between;            // (T, B, H): states between the first and the second GRU
  Tensor first_products;     // (T, B, 3H): w_first times the state before the step
  Tensor joint_products;     // (T, B, C + 3H): w_between times the state between the GRUs
  Tensor context_products;   // (T, B, 3H): w_context times the context
  Tensor first_gates;        // (T, B, 3H): reset, update, candidate
  Tensor first_statistics;   // (T, B, 8): GruStatistics
  Tensor second_gates;       // (T, B, 3H): reset, update, candidate
  Tensor second_statistics;  // (T, B, 8): GruStatistics
  Tensor query_statistics;   // (T, B, 2): Statistics
  Tensor attention;          // (T, B, S): attention weights

  auto fields() {
    return std::tie(states, contexts, between, first_products, joint_products, context_products, first_gates,
                    first_statistics, second_gates, second_statistics, query_statistics, attention);
  }
};

void check_saved(const SavedDecoder& saved, const Tensor& x, int64_t H, int64_t S, int64_t C, int64_t A) {
  const int64_t B = x.size(0), T = x.size(1);
  const auto check_steps = [&](const char* name, const Tensor& tensor, int64_t width) {
    check_contiguous(name, tensor, {T, B, width}, x);
  };
  check_contiguous("states", saved.states, {T + 1, B, H}, x);
  check_steps("contexts", saved.contexts, A);
  check_steps("between", saved.between, H);
  check_steps("first_products", saved.first_products, 3 * H);
  check_steps("joint_products", saved.joint_products, C + 3 * H);
  check_steps("context_products", saved.context_products, 3 * H);
  check_steps("first_gates", saved.first_gates, 3 * H);
  check_steps("first_statistics", saved.first_statistics, kWidth<GruStatistics>);
  check_steps("second_gates", saved.second_gates, 3 * H);
  check_steps("second_statistics", saved.second_statistics, kWidth<GruStatistics>);
  check_steps("query_statistics", saved.query_statistics, kWidth<Statistics>);
  check_steps("attention", saved.attention, S);
}

Tensor query_part(const Tensor& joint, int64_t C) { return joint.narrow(-1, 0, C); }
Tensor gru_part(const Tensor& joint, int64_t C) { return joint.narrow(-1, C, joint.size(-1) - C); }

// Checks the arguments that decoder_forward and decoder_backward share; H is the number of units of a state.
void check_decoder(const Tensor& x, const Tensor& keys, const Tensor& values, const Tensor& mask, const Tensor& w_first,
                   const Tensor& w_between, const Tensor& w_context, const Tensor& score, const Tensor& affine_first,
                   const Tensor& affine_second, const Tensor& affine_query, at::IntArrayRef form,
                   at::IntArrayRef form_of_query, double eps, int64_t H) {
  const int64_t C = keys.size(-1), A = values.size(-1);
  GruForms(form, eps, H);
  query_form(form_of_query, eps, C);
  check_sequence(x, 3 * H, std::nullopt);
  TORCH_CHECK_VALUE(keys.dim() == 3, "expected keys of shape (batch, positions, units), got ", keys.sizes());
  const int64_t B = x.size(0), S = keys.size(1);
  check_contiguous("keys", keys, {B, S, C}, x);
  check_contiguous("values", values, {B, S, A}, x);
  check_mask(mask, {B, S}, x);
  check("w_first", w_first, {3 * H, H}, x);
  check("w_between", w_between, {C + 3 * H, H}, x);
  check("w_context", w_context, {3 * H, A}, x);
  check_contiguous("score", score, {C}, x);
  check_contiguous("affine_first", affine_first, {2, 2, 3 * H}, x);
  check_contiguous("affine_second", affine_second, {2, 2, 3 * H}, x);
  check_contiguous("affine_query", affine_query, {2, C}, x);
}

TensorList decoder_forward(const Tensor& input,          // (B, T, 3H): summed inputs from the previous tokens
                           const Tensor& s0,             // (B, H)
                           const Tensor& keys,           // (B, S, C)
                           const Tensor& values,         // (B, S, A)
                           const Tensor& mask,           // (B, S)
                           const Tensor& w_first,        // (3H, H): maps the state, for the first GRU
                           const Tensor& w_between,      // (C + 3H, H): maps the state between the GRUs
                           const OptionalTensor& bias,   // (3H,): bias of the second GRU
                           const Tensor& w_context,      // (3H, A): maps the context, for the second GRU
                           const Tensor& score,          // (C,)
                           const Tensor& affine_first,   // (2, 2, 3H): as in steps.h
                           const Tensor& affine_second,  // (2, 2, 3H): as in steps.h
                           const Tensor& affine_query,   // (2, C): gain and shift of the query
                           at::IntArrayRef form, at::IntArrayRef query_form, double eps) {
  at::AutoDispatchBelowADInplaceOrView below;  // autograd need not record: decoder_backward computes the gradients
  static const auto attend = find_operator<decltype(attention_forward)>("rmsexp::attention_forward");
  const int64_t H = s0.size(-1);
  check_decoder(input, keys, values, mask, w_first, w_between, w_context, score, affine_first, affine_second,
                affine_query, form, query_form, eps, H);
  const int64_t B = input.size(0), T = input.size(1), S = keys.size(1), C = keys.size(2), A = values.size(2);
  check("s0", s0, {B, H}, input);
  if (bias.has_value()) check_contiguous("bias", *bias, {3 * H}, input);
  const Tensor x = with_contiguous_rows(input);
  const Tensor first = transposed(w_first), between = transposed(w_between), of_context = transposed(w_context);
  const auto empty = [&](int64_t width) { return at::empty({T, B, width}, x.options()); };
  const States s = empty_states(s0, T, false);
  const SavedDecoder saved{.states = s.all,
                           .contexts = empty(A),
                           .between = empty(H),
                           .first_products = empty(3 * H),
                           .joint_products = empty(C + 3 * H),
                           .context_products = empty(3 * H),
                           .first_gates = empty(3 * H),
                           .first_statistics = empty(kWidth<GruStatistics>),
                           .second_gates = empty(3 * H),
                           .second_statistics = empty(kWidth<GruStatistics>),
                           .query_statistics = empty(kWidth<Statistics>),
                           .attention = empty(S)};
  for (int64_t t = 0; t < T; ++t) {
    Tensor ah = saved.first_products[t], joint = saved.joint_products[t], ax = saved.context_products[t];
    at::mm_out(ah, s.before(t), first);
    gru_forward_step().call(x.select(1, t), ah, s.before(t), std::nullopt, std::nullopt, affine_first, form, eps,
                            saved.first_gates[t], saved.first_statistics[t], saved.between[t]);
    at::mm_out(joint, saved.between[t], between);
    attend.call(keys, query_part(joint, C), values, mask, score, affine_query, query_form, eps,
                saved.query_statistics[t], saved.attention[t], saved.contexts[t]);
    at::mm_out(ax, saved.contexts[t], of_context);
    gru_forward_step().call(ax, gru_part(joint, C), saved.between[t], std::nullopt, bias, affine_second, form, eps,
                            saved.second_gates[t], saved.second_statistics[t], s.after(t));
  }
  return to_list(saved);
}

// Returns the gradients of the tensors that decoder_forward takes, except the mask, in the order of its arguments. The
// gradient of bias is empty if there is no bias.
TensorList decoder_backward(const Tensor& gradient,          // (B, T, H): gradient of the states
                            const Tensor& context_gradient,  // (B, T, A): gradient of the contexts
                            const Tensor& input, const Tensor& keys, const Tensor& values, const Tensor& mask,
                            const Tensor& w_first, const Tensor& w_between, bool biased, const Tensor& w_context,
                            const Tensor& score, const Tensor& affine_first, const Tensor& affine_second,
                            const Tensor& affine_query, at::IntArrayRef form, at::IntArrayRef query_form, double eps,
                            at::TensorList saved_list) {
  at::AutoDispatchBelowADInplaceOrView below;
  static const auto attend_backward = find_operator<decltype(attention_backward)>("rmsexp::attention_backward");
  const int64_t H = w_first.size(-1);
  check_decoder(input, keys, values, mask, w_first, w_between, w_context, score, affine_first, affine_second,
                affine_query, form, query_form, eps, H);
  const auto saved = from_list<SavedDecoder>(saved_list);
  const int64_t C = keys.size(2), A = values.size(2);
  check_saved(saved, input, H, keys.size(1), C, A);
  check("dstates", gradient, {input.size(0), input.size(1), H}, input);
  check("dcontexts", context_gradient, {input.size(0), input.size(1), A}, input);
  const Tensor x = with_contiguous_rows(input), dout = with_contiguous_rows(gradient);
  const States s{saved.states, false};
  const Tensor dx = empty_gradient(x), dah = at::empty_like(saved.first_products),
               djoint = at::empty_like(saved.joint_products);
  const Tensor dax = at::empty_like(saved.context_products), dkeys = at::zeros_like(keys);
  const Tensor dcontexts = context_gradient.transpose(0, 1).clone(at::MemoryFormat::Contiguous);
  const Tensor first_partials = zero_partials(s.initial(), affine_first.sizes());
  const Tensor second_partials = zero_partials(s.initial(), affine_second.sizes());
  const Tensor attention_partials = zero_partials(s.initial(), {3, C});  // gradients of score, gain and shift
  Tensor ds = at::zeros_like(s.initial());
  for (int64_t t = s.steps() - 1; t >= 0; --t) {
    const Tensor joint = saved.joint_products[t], djoint_t = djoint[t];
    gru_backward_step().call(dout.select(1, t), ds, saved.context_products[t], gru_part(joint, C), saved.between[t],
                             saved.second_gates[t], saved.second_statistics[t], std::nullopt, affine_second, form, eps,
                             dax[t], gru_part(djoint_t, C), second_partials);
    dcontexts[t].addmm_(dax[t], w_context);
    attend_backward.call(dcontexts[t], keys, query_part(joint, C), values, mask, score, affine_query,
                         saved.query_statistics[t], saved.attention[t], query_form, eps, dkeys, query_part(djoint_t, C),
                         attention_partials);
    ds.addmm_(djoint_t, w_between);
    gru_backward_step().call(std::nullopt, ds, x.select(1, t), saved.first_products[t], s.before(t),
                             saved.first_gates[t], saved.first_statistics[t], std::nullopt, affine_first, form, eps,
                             dx.select(1, t), dah[t], first_partials);
    ds.addmm_(dah[t], w_first);
  }
  const Tensor dvalues = at::bmm(saved.attention.permute({1, 2, 0}), dcontexts.transpose(0, 1));
  const Tensor dbias = biased ? gru_part(djoint, C).sum(at::IntArrayRef{0, 1}) : at::empty({0}, x.options());
  const Tensor dattention = attention_partials.sum(0);
  return {dx,
          ds,
          dkeys,
          dvalues,
          weight_gradient(dah, s.before()),
          weight_gradient(djoint, saved.between),
          dbias,
          weight_gradient(dax, saved.contexts),
          dattention[0].clone(),
          first_partials.sum(0),
          second_partials.sum(0),
          dattention.narrow(0, 1, 2).clone()};
}

}  // namespace
}  // namespace rmsexp

TORCH_LIBRARY_FRAGMENT(rmsexp, m) {
  m.def(
      "decoder_forward(Tensor x, Tensor s0, Tensor keys, Tensor values, Tensor mask, Tensor w_first, Tensor w_between, "
      "Tensor? bias, Tensor w_context, Tensor score, Tensor affine_first, Tensor affine_second, Tensor affine_query, "
      "int[] form, int[] query_form, float eps) -> Tensor[]");
  m.def(
      "decoder_backward(Tensor dstates, Tensor dcontexts, Tensor x, Tensor keys, Tensor values, Tensor mask, "
      "Tensor w_first, Tensor w_between, bool biased, Tensor w_context, Tensor score, Tensor affine_first, "
      "Tensor affine_second, Tensor affine_query, int[] form, int[] query_form, float eps, Tensor[] saved) -> "
      "Tensor[]");
}

TORCH_LIBRARY_IMPL(rmsexp, CompositeExplicitAutograd, m) {
  m.impl("decoder_forward", rmsexp::decoder_forward);
  m.impl("decoder_backward", rmsexp::decoder_backward);
}

// Whole sequences of the conditional GRU of a decoder, forward and backward through time (Sennrich et al. 2017,
// section 2). At each time step, the first GRU updates the state from the previous token, attention reads the source
// with a query computed from that state, and the second GRU updates the state from the attention's context. Only the
// second GRU has a bias, which is added to its summed inputs from the state.

#include <ATen/ops/bmm.h>

#include "sequences.h"

namespace rmsexp {
namespace {

struct DecoderInputs {
  Tensor x;              // (B, T, 3H): summed inputs from the previous tokens
  Tensor s0;             // (B, H)
  Tensor keys;           // (B, S, C)
  Tensor values;         // (B, S, A)
  Tensor w_first;        // (3H, H): maps the state, for the first GRU
  Tensor w_between;      // (C + 3H, H): maps the state between the GRUs
  Tensor w_context;      // (3H, A): maps the context, for the second GRU
  Tensor score;          // (C,)
  Tensor affine_first;   // (2, 2, 3H): as in steps.h
  Tensor affine_second;  // (2, 2, 3H): as in steps.h
  Tensor affine_query;   // (2, C): gain and shift of the query
  Tensor bias;           // (3H,): bias of the second GRU
  Tensor mask;           // (B, S)

  auto fields() {
    return std::tie(x, s0, keys, values, w_first, w_between, w_context, score, affine_first, affine_second,
                    affine_query, bias, mask);
  }
};

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

Tensor query_part(const Tensor& joint, int64_t C) { return joint.narrow(-1, 0, C); }
Tensor gru_part(const Tensor& joint, int64_t C) { return joint.narrow(-1, C, joint.size(-1) - C); }

// The first four integers of `forms` are the form of the GRUs, the other three that of the query (steps.h).
TensorList decoder_forward(const Inputs& inputs, bool /*reverse*/, at::IntArrayRef forms, double eps) {
  at::AutoDispatchBelowADInplaceOrView below;  // autograd need not record: decoder_backward computes the gradients
  static const auto attend = find_operator<decltype(attention_forward)>("rmsexp::attention_forward");
  const auto in = from_list<DecoderInputs>(inputs);
  const auto form = forms.slice(0, 4), query_form = forms.slice(4);
  const int64_t H = in.s0.size(-1), B = in.x.size(0), T = in.x.size(1);
  const int64_t S = in.keys.size(1), C = in.keys.size(2), A = in.values.size(2);
  const Tensor x = with_contiguous_rows(in.x);
  const Tensor first = transposed(in.w_first), between = transposed(in.w_between);
  const Tensor of_context = transposed(in.w_context);
  const auto empty = [&](int64_t width) { return at::empty({T, B, width}, x.options()); };
  const States s = empty_states(in.s0, T, false);
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
    gru_forward_step().call(x.select(1, t), ah, s.before(t), std::nullopt, std::nullopt, in.affine_first, form, eps,
                            saved.first_gates[t], saved.first_statistics[t], saved.between[t]);
    at::mm_out(joint, saved.between[t], between);
    attend.call(in.keys, query_part(joint, C), in.values, in.mask, in.score, in.affine_query, query_form, eps,
                saved.query_statistics[t], saved.attention[t], saved.contexts[t]);
    at::mm_out(ax, saved.contexts[t], of_context);
    gru_forward_step().call(ax, gru_part(joint, C), saved.between[t], std::nullopt, optional(in.bias), in.affine_second,
                            form, eps, saved.second_gates[t], saved.second_statistics[t], s.after(t));
  }
  return to_list(saved);
}

// `gradients` are those of the states, (B, T, H), and of the contexts, (B, T, A).
TensorList decoder_backward(at::TensorList gradients, const Inputs& inputs, at::TensorList saved_list, bool /*reverse*/,
                            at::IntArrayRef forms, double eps) {
  at::AutoDispatchBelowADInplaceOrView below;
  static const auto attend_backward = find_operator<decltype(attention_backward)>("rmsexp::attention_backward");
  const auto in = from_list<DecoderInputs>(inputs);
  const auto saved = from_list<SavedDecoder>(saved_list);
  const auto form = forms.slice(0, 4), query_form = forms.slice(4);
  const int64_t C = in.keys.size(2);
  const Tensor x = with_contiguous_rows(in.x), dout = with_contiguous_rows(gradients[0]);
  const States s{saved.states, false};
  const Tensor dx = empty_gradient(x), dah = at::empty_like(saved.first_products);
  const Tensor djoint = at::empty_like(saved.joint_products), dax = at::empty_like(saved.context_products);
  const Tensor dkeys = at::zeros_like(in.keys);
  const Tensor dcontexts = gradients[1].transpose(0, 1).clone(at::MemoryFormat::Contiguous);
  const Tensor first_partials = zero_partials(s.initial(), in.affine_first.sizes());
  const Tensor second_partials = zero_partials(s.initial(), in.affine_second.sizes());
  const Tensor attention_partials = zero_partials(s.initial(), {3, C});  // gradients of score, gain and shift
  Tensor ds = at::zeros_like(s.initial());
  for (int64_t t = s.steps() - 1; t >= 0; --t) {
    const Tensor joint = saved.joint_products[t], djoint_t = djoint[t];
    gru_backward_step().call(dout.select(1, t), ds, saved.context_products[t], gru_part(joint, C), saved.between[t],
                             saved.second_gates[t], saved.second_statistics[t], std::nullopt, in.affine_second, form,
                             eps, dax[t], gru_part(djoint_t, C), second_partials);
    dcontexts[t].addmm_(dax[t], in.w_context);
    attend_backward.call(dcontexts[t], in.keys, query_part(joint, C), in.values, in.mask, in.score, in.affine_query,
                         saved.query_statistics[t], saved.attention[t], query_form, eps, dkeys, query_part(djoint_t, C),
                         attention_partials);
    ds.addmm_(djoint_t, in.w_between);
    gru_backward_step().call(std::nullopt, ds, x.select(1, t), saved.first_products[t], s.before(t),
                             saved.first_gates[t], saved.first_statistics[t], std::nullopt, in.affine_first, form, eps,
                             dx.select(1, t), dah[t], first_partials);
    ds.addmm_(dah[t], in.w_first);
  }
  const Tensor dattention = attention_partials.sum(0);
  return {dx,
          ds,
          dkeys,
          at::bmm(saved.attention.permute({1, 2, 0}), dcontexts.transpose(0, 1)),
          weight_gradient(dah, s.before()),
          weight_gradient(djoint, saved.between),
          weight_gradient(dax, saved.contexts),
          dattention[0].clone(),
          first_partials.sum(0),
          second_partials.sum(0),
          dattention.narrow(0, 1, 2).clone(),
          in.bias.defined() ? gru_part(djoint, C).sum(at::IntArrayRef{0, 1}) : at::empty({0}, x.options())};
}

}  // namespace
}  // namespace rmsexp

TORCH_LIBRARY_FRAGMENT(rmsexp, m) {
  rmsexp::define_sequence(m, "decoder", rmsexp::decoder_forward, rmsexp::decoder_backward);
}

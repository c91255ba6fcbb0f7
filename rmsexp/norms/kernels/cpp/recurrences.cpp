// Whole sequences of a normalised GRU or LSTM, forward and backward through time.
//
// x, (B, T, 3H) for a GRU and (B, T, 4H) for an LSTM, holds the summed inputs from the input sequence, before their
// norms. weight, (3H, H) or (4H, H), maps the state. mask, (B, T), is false on padding; without a mask, there is no
// padding. With `reverse`, positions are read from the last to the first. Biases, gains, shifts, form and eps are
// passed to the operators of a step (steps.h).

#include "sequences.h"

namespace rmsexp {
namespace {

struct GruInputs {
  Tensor x, h0, weight, affine, bias, mask;
  auto fields() { return std::tie(x, h0, weight, affine, bias, mask); }
};

struct SavedGru {
  Tensor states;      // (T + 1, B, H), with the initial state
  Tensor products;    // (T, B, 3H): weight times the state, plus the bias
  Tensor gates;       // (T, B, 3H): reset, update, candidate
  Tensor statistics;  // (T, B, 8): GruStatistics

  auto fields() { return std::tie(states, products, gates, statistics); }
};

TensorList gru_forward(const Inputs& inputs, bool reverse, at::IntArrayRef form, double eps) {
  at::AutoDispatchBelowADInplaceOrView below;  // autograd need not record: gru_backward computes the gradients
  const auto [input, h0, weight, affine, bias, mask] = from_list<GruInputs>(inputs);
  const int64_t B = input.size(0), T = input.size(1), H = h0.size(-1);
  const Tensor x = with_contiguous_rows(input), w = transposed(weight);
  const auto empty = [&](int64_t width) { return at::empty({T, B, width}, x.options()); };
  const States h = empty_states(h0, T, reverse);
  const SavedGru saved{h.all, empty(3 * H), empty(3 * H), empty(kWidth<GruStatistics>)};
  for (int64_t step = 0; step < T; ++step) {
    const int64_t t = h.position(step);
    Tensor ah = saved.products[t];
    at::mm_out(ah, h.before(t), w);
    gru_forward_step().call(x.select(1, t), ah, h.before(t), mask_at(mask, t), optional(bias), affine, form, eps,
                            saved.gates[t], saved.statistics[t], h.after(t));
  }
  return to_list(saved);
}

TensorList gru_backward(at::TensorList gradients, const Inputs& inputs, at::TensorList saved_list, bool reverse,
                        at::IntArrayRef form, double eps) {
  at::AutoDispatchBelowADInplaceOrView below;
  const auto [input, h0, weight, affine, bias, mask] = from_list<GruInputs>(inputs);
  const auto saved = from_list<SavedGru>(saved_list);
  const Tensor x = with_contiguous_rows(input), dout = with_contiguous_rows(gradients[0]);
  const States h{saved.states, reverse};
  const Tensor dx = empty_gradient(x), dah = at::empty_like(saved.products);
  const Tensor partials = zero_partials(h.initial(), affine.sizes());
  Tensor dh = at::zeros_like(h.initial());
  for (int64_t step = h.steps() - 1; step >= 0; --step) {
    const int64_t t = h.position(step);
    gru_backward_step().call(dout.select(1, t), dh, x.select(1, t), saved.products[t], h.before(t), saved.gates[t],
                             saved.statistics[t], mask_at(mask, t), affine, form, eps, dx.select(1, t), dah[t],
                             partials);
    dh.addmm_(dah[t], weight);
  }
  const Tensor dbias = bias.defined() ? dah.sum(at::IntArrayRef{0, 1}) : at::empty({0}, x.options());
  return {dx, dh, weight_gradient(dah, h.before()), partials.sum(0), dbias};
}

struct LstmInputs {
  Tensor x, h0, c0, weight, affine, cell_affine, mask;
  auto fields() { return std::tie(x, h0, c0, weight, affine, cell_affine, mask); }
};

struct SavedLstm {
  Tensor hidden;      // (T + 1, B, H), with the initial state
  Tensor cells;       // (T + 1, B, H), with the initial cell
  Tensor products;    // (T, B, 4H): weight times the hidden state
  Tensor gates;       // (T, B, 5H): in, forget, out, value, tanh of the normalised new cell
  Tensor statistics;  // (T, B, 6): LstmStatistics

  auto fields() { return std::tie(hidden, cells, products, gates, statistics); }
};

TensorList lstm_forward(const Inputs& inputs, bool reverse, at::IntArrayRef form, double eps) {
  at::AutoDispatchBelowADInplaceOrView below;
  static const auto forward_step = find_operator<decltype(lstm_gates_forward)>("rmsexp::lstm_gates_forward");
  const auto [input, h0, c0, weight, affine, cell_affine, mask] = from_list<LstmInputs>(inputs);
  const int64_t B = input.size(0), T = input.size(1), H = h0.size(-1);
  const Tensor x = with_contiguous_rows(input), w = transposed(weight);
  const auto empty = [&](int64_t width) { return at::empty({T, B, width}, x.options()); };
  const States h = empty_states(h0, T, reverse), c = empty_states(c0, T, reverse);
  const SavedLstm saved{h.all, c.all, empty(4 * H), empty(5 * H), empty(kWidth<LstmStatistics>)};
  for (int64_t step = 0; step < T; ++step) {
    const int64_t t = h.position(step);
    Tensor ah = saved.products[t];
    at::mm_out(ah, h.before(t), w);
    forward_step.call(x.select(1, t), ah, h.before(t), c.before(t), mask_at(mask, t), affine, cell_affine, form, eps,
                      saved.gates[t], saved.statistics[t], h.after(t), c.after(t));
  }
  return to_list(saved);
}

TensorList lstm_backward(at::TensorList gradients, const Inputs& inputs, at::TensorList saved_list, bool reverse,
                         at::IntArrayRef form, double eps) {
  at::AutoDispatchBelowADInplaceOrView below;
  static const auto backward_step = find_operator<decltype(lstm_gates_backward)>("rmsexp::lstm_gates_backward");
  const auto [input, h0, c0, weight, affine, cell_affine, mask] = from_list<LstmInputs>(inputs);
  const auto saved = from_list<SavedLstm>(saved_list);
  const Tensor x = with_contiguous_rows(input), dout = with_contiguous_rows(gradients[0]);
  const States h{saved.hidden, reverse}, c{saved.cells, reverse};
  const Tensor dx = empty_gradient(x), dah = at::empty_like(saved.products);
  const Tensor partials = zero_partials(h.initial(), affine.sizes());
  const Tensor cell_partials = zero_partials(h.initial(), cell_affine.sizes());
  Tensor dh = at::zeros_like(h.initial()), dc = at::zeros_like(dh);
  for (int64_t step = h.steps() - 1; step >= 0; --step) {
    const int64_t t = h.position(step);
    backward_step.call(dout.select(1, t), dh, dc, x.select(1, t), saved.products[t], c.before(t), c.after(t),
                       saved.gates[t], saved.statistics[t], mask_at(mask, t), affine, cell_affine, form, eps,
                       dx.select(1, t), dah[t], partials, cell_partials);
    dh.addmm_(dah[t], weight);
  }
  return {dx, dh, dc, weight_gradient(dah, h.before()), partials.sum(0), cell_partials.sum(0)};
}

}  // namespace
}  // namespace rmsexp

TORCH_LIBRARY_FRAGMENT(rmsexp, m) {
  rmsexp::define_sequence(m, "gru", rmsexp::gru_forward, rmsexp::gru_backward);
  rmsexp::define_sequence(m, "lstm", rmsexp::lstm_forward, rmsexp::lstm_backward);
}

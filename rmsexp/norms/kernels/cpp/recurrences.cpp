// Whole sequences of a normalised GRU or LSTM, forward and backward through time.
//
// x, (B, T, 3H) for a GRU and (B, T, 4H) for an LSTM, holds the summed inputs from the input sequence, before their
// norms. weight, (3H, H) or (4H, H), maps the state. mask, (B, T), is false on padding; without a mask, there is no
// padding. With `reverse`, positions are read from the last to the first. Biases, gains, shifts, form and eps are
// passed to the operators of a step (steps.h).

#include "sequences.h"

namespace rmsexp {
namespace {

struct SavedGru {
  Tensor states;      // (T + 1, B, H), with the initial state
  Tensor products;    // (T, B, 3H): weight times the state, plus the bias
  Tensor gates;       // (T, B, 3H): reset, update, candidate
  Tensor statistics;  // (T, B, 8): GruStatistics

  auto fields() { return std::tie(states, products, gates, statistics); }
};

// Checks the arguments that gru_forward and gru_backward share; H is the number of units of a state.
void check_gru(const Tensor& x, const Tensor& weight, const Tensor& affine, const OptionalTensor& mask,
               at::IntArrayRef form, double eps, int64_t H) {
  GruForms(form, eps, H);
  check_sequence(x, 3 * H, mask);
  check("weight", weight, {3 * H, H}, x);
  check_contiguous("affine", affine, {2, 2, 3 * H}, x);
}

TensorList gru_forward(const Tensor& input, const Tensor& h0, const Tensor& weight, const OptionalTensor& bias,
                       const Tensor& affine, const OptionalTensor& mask, bool reverse, at::IntArrayRef form,
                       double eps) {
  at::AutoDispatchBelowADInplaceOrView below;  // autograd need not record: gru_backward computes the gradients
  const int64_t H = h0.size(-1);
  check_gru(input, weight, affine, mask, form, eps, H);
  const int64_t B = input.size(0), T = input.size(1);
  check("h0", h0, {B, H}, input);
  if (bias.has_value()) check_contiguous("bias", *bias, {3 * H}, input);
  const Tensor x = with_contiguous_rows(input), w = transposed(weight);
  const auto empty = [&](int64_t width) { return at::empty({T, B, width}, x.options()); };
  const States h = empty_states(h0, T, reverse);
  const SavedGru saved{h.all, empty(3 * H), empty(3 * H), empty(kWidth<GruStatistics>)};
  for (int64_t step = 0; step < T; ++step) {
    const int64_t t = h.position(step);
    Tensor ah = saved.products[t];
    at::mm_out(ah, h.before(t), w);
    gru_forward_step().call(x.select(1, t), ah, h.before(t), mask_at(mask, t), bias, affine, form, eps, saved.gates[t],
                            saved.statistics[t], h.after(t));
  }
  return to_list(saved);
}

// Returns the gradients of x, h0, weight, bias (empty if there is no bias) and affine.
TensorList gru_backward(const Tensor& gradient, const Tensor& input, const Tensor& weight, bool biased,
                        const Tensor& affine, const OptionalTensor& mask, bool reverse, at::IntArrayRef form,
                        double eps, at::TensorList saved_list) {
  at::AutoDispatchBelowADInplaceOrView below;
  const int64_t H = weight.size(-1);
  check_gru(input, weight, affine, mask, form, eps, H);
  const int64_t B = input.size(0), T = input.size(1);
  check("dout", gradient, {B, T, H}, input);
  const auto saved = from_list<SavedGru>(saved_list);
  check_contiguous("states", saved.states, {T + 1, B, H}, input);
  check_contiguous("products", saved.products, {T, B, 3 * H}, input);
  check_contiguous("gates", saved.gates, {T, B, 3 * H}, input);
  check_contiguous("statistics", saved.statistics, {T, B, kWidth<GruStatistics>}, input);
  const Tensor x = with_contiguous_rows(input), dout = with_contiguous_rows(gradient);
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
  const Tensor dbias = biased ? dah.sum(at::IntArrayRef{0, 1}) : at::empty({0}, x.options());
  return {dx, dh, weight_gradient(dah, h.before()), dbias, partials.sum(0)};
}

struct SavedLstm {
  Tensor hidden;      // (T + 1, B, H), with the initial state
  Tensor cells;       // (T + 1, B, H), with the initial cell
  Tensor products;    // (T, B, 4H): weight times the hidden state
  Tensor gates;       // (T, B, 5H): in, forget, out, value, tanh of the normalised new cell
  Tensor statistics;  // (T, B, 6): LstmStatistics

  auto fields() { return std::tie(hidden, cells, products, gates, statistics); }
};

// Checks the arguments that lstm_forward and lstm_backward share; H is the number of units of a state.
void check_lstm(const Tensor& x, const Tensor& weight, const Tensor& affine, const Tensor& cell_affine,
                const OptionalTensor& mask, at::IntArrayRef form, double eps, int64_t H) {
  LstmForms(form, eps, H);
  check_sequence(x, 4 * H, mask);
  check("weight", weight, {4 * H, H}, x);
  check_contiguous("affine", affine, {2, 2, 4 * H}, x);
  check_contiguous("cell_affine", cell_affine, {2, H}, x);
}

TensorList lstm_forward(const Tensor& input, const Tensor& h0, const Tensor& c0, const Tensor& weight,
                        const Tensor& affine, const Tensor& cell_affine, const OptionalTensor& mask, bool reverse,
                        at::IntArrayRef form, double eps) {
  at::AutoDispatchBelowADInplaceOrView below;
  static const auto forward_step = find_operator<decltype(lstm_gates_forward)>("rmsexp::lstm_gates_forward");
  const int64_t H = h0.size(-1);
  check_lstm(input, weight, affine, cell_affine, mask, form, eps, H);
  const int64_t B = input.size(0), T = input.size(1);
  check("h0", h0, {B, H}, input);
  check("c0", c0, {B, H}, input);
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

// Returns the gradients of x, h0, c0, weight, affine and cell_affine.
TensorList lstm_backward(const Tensor& gradient, const Tensor& input, const Tensor& weight, const Tensor& affine,
                         const Tensor& cell_affine, const OptionalTensor& mask, bool reverse, at::IntArrayRef form,
                         double eps, at::TensorList saved_list) {
  at::AutoDispatchBelowADInplaceOrView below;
  static const auto backward_step = find_operator<decltype(lstm_gates_backward)>("rmsexp::lstm_gates_backward");
  const int64_t H = weight.size(-1);
  check_lstm(input, weight, affine, cell_affine, mask, form, eps, H);
  const int64_t B = input.size(0), T = input.size(1);
  check("dout", gradient, {B, T, H}, input);
  const auto saved = from_list<SavedLstm>(saved_list);
  check_contiguous("hidden", saved.hidden, {T + 1, B, H}, input);
  check_contiguous("cells", saved.cells, {T + 1, B, H}, input);
  check_contiguous("products", saved.products, {T, B, 4 * H}, input);
  check_contiguous("gates", saved.gates, {T, B, 5 * H}, input);
  check_contiguous("statistics", saved.statistics, {T, B, kWidth<LstmStatistics>}, input);
  const Tensor x = with_contiguous_rows(input), dout = with_contiguous_rows(gradient);
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
  m.def(
      "gru_forward(Tensor x, Tensor h0, Tensor weight, Tensor? bias, Tensor affine, Tensor? mask, bool reverse, "
      "int[] form, float eps) -> Tensor[]");
  m.def(
      "gru_backward(Tensor dout, Tensor x, Tensor weight, bool biased, Tensor affine, Tensor? mask, bool reverse, "
      "int[] form, float eps, Tensor[] saved) -> Tensor[]");
  m.def(
      "lstm_forward(Tensor x, Tensor h0, Tensor c0, Tensor weight, Tensor affine, Tensor cell_affine, Tensor? mask, "
      "bool reverse, int[] form, float eps) -> Tensor[]");
  m.def(
      "lstm_backward(Tensor dout, Tensor x, Tensor weight, Tensor affine, Tensor cell_affine, Tensor? mask, "
      "bool reverse, int[] form, float eps, Tensor[] saved) -> Tensor[]");
}

TORCH_LIBRARY_IMPL(rmsexp, CompositeExplicitAutograd, m) {
  m.impl("gru_forward", rmsexp::gru_forward);
  m.impl("gru_backward", rmsexp::gru_backward);
  m.impl("lstm_forward", rmsexp::lstm_forward);
  m.impl("lstm_backward", rmsexp::lstm_backward);
}

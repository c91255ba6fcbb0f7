// One step of additive attention (Bahdanau et al. 2015) with a normalised query, forward and backward, on CPU.
// Shapes: keys (B, S, C), query (B, C), values (B, S, A), mask (B, S), score (C,).

#include "rows.h"

namespace rmsexp {
namespace {

// form: kind, units in the statistic, whether eps lies inside the root
Form form_of(at::IntArrayRef form, double eps, int64_t width) { return {form[0], width, form[1], form[2] != 0, eps}; }

template <typename T>
void normalise_row(const T* a, Statistics<T> of, const T* gain, const T* shift, int64_t n, T* to) {
  each<T>(0, n, [&](int64_t j, auto count) {
    const auto normalised = (load(a + j, count) - Vec<T>(of.mean)) * Vec<T>(of.scale);
    store(to + j, at::vec::fmadd(normalised, load(gain + j, count), load(shift + j, count)), count);
  });
}

void attention_forward(const Tensor& keys, const Tensor& query, const Tensor& values, const Tensor& mask, const Tensor& score,
                       const Tensor& affine, at::IntArrayRef form, double eps, const Tensor& statistics_, const Tensor& alpha,
                       const Tensor& context) {
  const int64_t rows = keys.size(0), S = keys.size(1), C = keys.size(2), A = values.size(2);
  const Form of = form_of(form, eps, C);
  AT_DISPATCH_FLOATING_TYPES(keys.scalar_type(), "attention_forward", [&] {
    using T = scalar_t;
    const Rows<T> of_keys(keys), of_query(query), of_values(values), to_statistics(statistics_), to_alpha(alpha), to_context(context);
    const T *gain = affine.const_data_ptr<T>(), *shift = gain + C, *v = score.const_data_ptr<T>();
    const bool* real = mask.const_data_ptr<bool>();
    at::parallel_for(0, rows, 1, [&](int64_t begin, int64_t end) {
      std::vector<T> q(C);
      for (int64_t row = begin; row < end; ++row) {
        const auto s = statistics<T>(of_query[row], of);
        to_statistics[row][0] = s.mean, to_statistics[row][1] = s.scale;
        normalise_row<T>(of_query[row], s, gain, shift, C, q.data());
        const bool* here = real + row * S;
        T *weight = to_alpha[row], *to = to_context[row];
        T most = -std::numeric_limits<T>::infinity();
        for (int64_t p = 0; p < S; ++p) {
          if (!here[p]) continue;
          const T* key = of_keys[row] + p * C;
          weight[p] = sum<T>(C, [&](int64_t j, auto count) { return tanh<T>(load(key + j, count) + load(q.data() + j, count)) * load(v + j, count); });
          most = std::max(most, weight[p]);
        }
        T all = 0;
        for (int64_t p = 0; p < S; ++p) all += weight[p] = here[p] ? std::exp(weight[p] - most) : T(0);
        std::fill(to, to + A, T(0));
        for (int64_t p = 0; p < S; ++p) {
          if (!here[p]) continue;
          weight[p] /= all;
          const T* value = of_values[row] + p * A;
          const Vec<T> w(weight[p]);
          each<T>(0, A, [&](int64_t j, auto count) { store(to + j, at::vec::fmadd(w, load(value + j, count), load(to + j, count)), count); });
        }
      }
    });
  });
}

void attention_backward(const Tensor& dcontext, const Tensor& keys, const Tensor& query, const Tensor& values, const Tensor& mask,
                        const Tensor& score, const Tensor& affine, const Tensor& statistics_, const Tensor& alpha, at::IntArrayRef form,
                        double eps, const Tensor& dkeys, const Tensor& dquery, const Tensor& partials) {
  const int64_t rows = keys.size(0), S = keys.size(1), C = keys.size(2), A = values.size(2);
  const Form of = form_of(form, eps, C);
  AT_DISPATCH_FLOATING_TYPES(keys.scalar_type(), "attention_backward", [&] {
    using T = scalar_t;
    const Rows<T> of_keys(keys), of_query(query), of_values(values), of_statistics(statistics_), of_alpha(alpha), sent(dcontext);
    const Rows<T> to_keys(dkeys), to_query(dquery), parts(partials);
    const T *gain = affine.const_data_ptr<T>(), *shift = gain + C, *v = score.const_data_ptr<T>();
    const bool* real = mask.const_data_ptr<bool>();
    at::parallel_for(0, rows, 1, [&](int64_t begin, int64_t end) {
      std::vector<T> q(C), gradients(S);
      T *dscore = parts[at::get_thread_num()], *dgain = dscore + C, *dshift = dgain + C;
      for (int64_t row = begin; row < end; ++row) {
        const Statistics<T> s{of_statistics[row][0], of_statistics[row][1]};
        const T *a = of_query[row], *weight = of_alpha[row], *d = sent[row];
        T* dq = to_query[row];
        normalise_row<T>(a, s, gain, shift, C, q.data());
        std::fill(dq, dq + C, T(0));
        const bool* here = real + row * S;
        T mean = 0;
        for (int64_t p = 0; p < S; ++p) {
          if (!here[p]) continue;
          const T* value = of_values[row] + p * A;
          gradients[p] = sum<T>(A, [&](int64_t j, auto count) { return load(d + j, count) * load(value + j, count); });
          mean += weight[p] * gradients[p];
        }
        for (int64_t p = 0; p < S; ++p) {
          if (!here[p]) continue;
          const T *key = of_keys[row] + p * C;
          T* dkey = to_keys[row] + p * C;
          const Vec<T> of_score(weight[p] * (gradients[p] - mean)), one(1);
          each<T>(0, C, [&](int64_t j, auto count) {
            const auto seen = tanh<T>(load(key + j, count) + load(q.data() + j, count));
            store(dscore + j, at::vec::fmadd(of_score, seen, load(dscore + j, count)), count);
            const auto gradient = of_score * load(v + j, count) * (one - seen * seen);
            store(dkey + j, load(dkey + j, count) + gradient, count);
            store(dq + j, load(dq + j, count) + gradient, count);
          });
        }
        Projections<T> projections{0, 0};
        each<T>(0, C, [&](int64_t j, auto count) {
          auto gradient = load(dq + j, count);
          const auto normalised = (load(a + j, count) - Vec<T>(s.mean)) * Vec<T>(s.scale);
          store(dgain + j, at::vec::fmadd(gradient, normalised, load(dgain + j, count)), count);
          store(dshift + j, load(dshift + j, count) + gradient, count);
          gradient = cut(gradient * load(gain + j, count), count);
          projections.sum += total<T>(gradient);
          projections.product += total<T>(gradient * normalised);
          store(dq + j, gradient, count);
        });
        to_input(dq, a, s, correction(projections, s.scale, of), of);
      }
    });
  });
}

}  // namespace
}  // namespace rmsexp

TORCH_LIBRARY_FRAGMENT(rmsexp, m) {
  m.def(
      "attention_forward(Tensor keys, Tensor query, Tensor values, Tensor mask, Tensor score, Tensor affine, int[] form, float eps, "
      "Tensor(a!) statistics, Tensor(b!) alpha, Tensor(c!) context) -> ()");
  m.def(
      "attention_backward(Tensor dcontext, Tensor keys, Tensor query, Tensor values, Tensor mask, Tensor score, Tensor affine, "
      "Tensor statistics, Tensor alpha, int[] form, float eps, Tensor(a!) dkeys, Tensor(b!) dquery, Tensor(c!) partials) -> ()");
}

TORCH_LIBRARY_IMPL(rmsexp, CPU, m) {
  m.impl("attention_forward", rmsexp::attention_forward);
  m.impl("attention_backward", rmsexp::attention_backward);
}

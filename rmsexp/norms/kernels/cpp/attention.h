// The operators of one step of additive attention on CPU.
#pragma once

#include <limits>
#include <vector>

#include "steps.h"

namespace rmsexp {
namespace {

// The source sequence of one row of the batch: S positions, with keys of C units and values of A units.
template <typename T>
struct Source {
  const T *keys, *values;
  const bool* mask;
  int64_t S, C, A;

  bool is_real(int64_t p) const { return mask[p]; }
  const T* key(int64_t p) const { return keys + p * C; }
  const T* value(int64_t p) const { return values + p * A; }
};

template <typename T>
void write_values(const NormedRow<T>& row, T* target, int64_t n) {
  for_each_vector<T>(0, n, [&](int64_t j, auto count) { store(target + j, row.value(j, count), count); });
}

// Writes the attention weights alpha, (S,), and the context, (A,), of one row. q, (C,), is the query after its norm,
// with gain and shift.
template <typename T>
void row_forward(const Source<T>& source, const T* q, const T* score, T* alpha, T* context) {
  const int64_t S = source.S, C = source.C, A = source.A;
  T largest = -std::numeric_limits<T>::infinity();
  for (int64_t p = 0; p < S; ++p) {
    if (!source.is_real(p)) continue;
    const T* key = source.key(p);
    alpha[p] = sum<T>(C, [&](int64_t j, auto count) {
      return tanh<T>(load(key + j, count) + load(q + j, count)) * load(score + j, count);
    });
    largest = std::max(largest, alpha[p]);
  }
  T total = 0;
  for (int64_t p = 0; p < S; ++p) total += alpha[p] = source.is_real(p) ? std::exp(alpha[p] - largest) : T(0);
  std::fill(context, context + A, T(0));
  for (int64_t p = 0; p < S; ++p) {
    if (!source.is_real(p)) continue;
    alpha[p] /= total;
    const T* value = source.value(p);
    const Vec<T> weight(alpha[p]);
    for_each_vector<T>(0, A, [&](int64_t j, auto count) {
      store(context + j, at::vec::fmadd(weight, load(value + j, count), load(context + j, count)), count);
    });
  }
}

// Adds the gradients of one row to dkeys, dscore and dq. dq is the gradient with respect to q, the query after its
// norm. dalpha is a buffer, (S,).
template <typename T>
void row_backward(const Source<T>& source, const T* q, const T* score, const T* alpha, const T* dcontext, T* dalpha,
                  T* dkeys, T* dscore, T* dq) {
  const int64_t S = source.S, C = source.C, A = source.A;
  T mean = 0;  // mean of dalpha, weighted by alpha
  for (int64_t p = 0; p < S; ++p) {
    if (!source.is_real(p)) continue;
    const T* value = source.value(p);
    dalpha[p] = sum<T>(A, [&](int64_t j, auto count) { return load(dcontext + j, count) * load(value + j, count); });
    mean += alpha[p] * dalpha[p];
  }
  for (int64_t p = 0; p < S; ++p) {
    if (!source.is_real(p)) continue;
    const T* key = source.key(p);
    T* dkey = dkeys + p * C;
    const Vec<T> denergy(alpha[p] * (dalpha[p] - mean)), one(1);
    for_each_vector<T>(0, C, [&](int64_t j, auto count) {
      const auto seen = tanh<T>(load(key + j, count) + load(q + j, count));
      store(dscore + j, at::vec::fmadd(denergy, seen, load(dscore + j, count)), count);
      const auto gradient = denergy * load(score + j, count) * (one - seen * seen);
      store(dkey + j, load(dkey + j, count) + gradient, count);
      store(dq + j, load(dq + j, count) + gradient, count);
    });
  }
}

}  // namespace

// Additive attention (Bahdanau et al. 2015, section 3.1) with a normalised query, over the positions p where the mask
// is true:
//
//   energy_p = score . tanh(key_p + N(query)), alpha = softmax(energy), context = sum_p alpha_p value_p
//
// Where the mask is false, alpha is 0.
void attention_forward(const Tensor& keys,    // (B, S, C)
                       const Tensor& query,   // (B, C)
                       const Tensor& values,  // (B, S, A)
                       const Tensor& mask,    // (B, S)
                       const Tensor& score,   // (C,)
                       const Tensor& affine,  // (2, C): gain and shift of the query
                       at::IntArrayRef form, double eps,
                       const Tensor& statistics,  // (B, 2), written: Statistics
                       const Tensor& alpha,       // (B, S), written
                       const Tensor& context) {   // (B, A), written
  const int64_t rows = keys.size(0), S = keys.size(1), C = keys.size(-1), A = values.size(-1);
  const Form norm = query_form(form, eps, C);
  AT_DISPATCH_FLOATING_TYPES(keys.scalar_type(), "attention_forward", [&] {
    using T = scalar_t;
    const Rows<T> key_rows(keys), query_rows(query), value_rows(values);
    const Rows<T> statistics_rows(statistics), alpha_rows(alpha), context_rows(context);
    const Affine<const T> query_affine(affine.const_data_ptr<T>(), C);
    const T* score_data = score.const_data_ptr<T>();
    const bool* real = mask.const_data_ptr<bool>();
    at::parallel_for(0, rows, 1, [&](int64_t begin, int64_t end) {
      std::vector<T> q(C);
      for (int64_t row = begin; row < end; ++row) {
        const auto s = row_statistics<T>(query_rows[row], norm);
        write_struct(statistics_rows[row], s);
        write_values<T>({query_rows[row], s, query_affine}, q.data(), C);
        row_forward<T>({key_rows[row], value_rows[row], real + row * S, S, C, A}, q.data(), score_data, alpha_rows[row],
                       context_rows[row]);
      }
    });
  });
}

// With seen_p = tanh(key_p + N(query)):
//
//   dalpha_p  = dcontext . value_p
//   denergy_p = alpha_p (dalpha_p - sum_i alpha_i dalpha_i)
//   dscore    = sum_p denergy_p seen_p
//   dkey_p    = denergy_p score (1 - seen_p^2)
//   dquery    = N'(sum_p dkey_p)
//
// The caller computes the gradient of the values, which is a matrix product.
void attention_backward(
    const Tensor& dcontext,  // (B, A)
    const Tensor& keys, const Tensor& query, const Tensor& values, const Tensor& mask, const Tensor& score,
    const Tensor& affine, const Tensor& statistics, const Tensor& alpha, at::IntArrayRef form, double eps,
    const Tensor& dkeys,       // (B, S, C), accumulated in place: gradient of the keys
    const Tensor& dquery,      // (B, C), written: gradient of the query
    const Tensor& partials) {  // (P, 3, C), accumulated in place: gradients of score, gain and shift
  const int64_t rows = keys.size(0), S = keys.size(1), C = keys.size(-1), A = values.size(-1);
  const Form norm = query_form(form, eps, C);
  AT_DISPATCH_FLOATING_TYPES(keys.scalar_type(), "attention_backward", [&] {
    using T = scalar_t;
    const Rows<T> key_rows(keys), query_rows(query), value_rows(values), statistics_rows(statistics), alpha_rows(alpha);
    const Rows<T> dcontext_rows(dcontext), dkey_rows(dkeys), dquery_rows(dquery), partial_rows(partials);
    const Affine<const T> query_affine(affine.const_data_ptr<T>(), C);
    const T* score_data = score.const_data_ptr<T>();
    const bool* real = mask.const_data_ptr<bool>();
    at::parallel_for(0, rows, 1, [&](int64_t begin, int64_t end) {
      std::vector<T> q(C), dalpha(S);
      T* dscore = partial_rows[at::get_thread_num()];
      const Affine<T> daffine(dscore + C, C);
      for (int64_t row = begin; row < end; ++row) {
        const auto s = read_struct<Statistics<T>>(statistics_rows[row]);
        const NormedRow<T> normed_query{query_rows[row], s, query_affine};
        const Source<T> source{key_rows[row], value_rows[row], real + row * S, S, C, A};
        T* dq = dquery_rows[row];
        write_values<T>(normed_query, q.data(), C);
        std::fill(dq, dq + C, T(0));
        row_backward<T>(source, q.data(), score_data, alpha_rows[row], dcontext_rows[row], dalpha.data(),
                        dkey_rows[row], dscore, dq);
        NormBackward<T> backward{normed_query, daffine, dq};
        for_each_vector<T>(0, C, [&](int64_t j, auto count) { backward.add(load(dq + j, count), j, count); });
        backward.finish(norm);
      }
    });
  });
}

}  // namespace rmsexp

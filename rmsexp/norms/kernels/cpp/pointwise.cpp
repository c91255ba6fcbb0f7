// Pointwise functions that take the place of a norm, with autograd, as norms.cpp defines normalise.
//
// y = activation(f(alpha * x + offset) * gain + shift), with f = tanh (DyT, Zhu et al. 2025) or f = erf (Derf, Chen et
// al. 2025). alpha and offset are numbers; without an offset it is 0. Gain and shift belong to the units of the last
// axis, or with `maps` to the channels. The activation is a leaky ReLU with `slope` in (0, 1]; 1 means no activation.
#include <c10/util/string_view.h>

#include "norms.h"

namespace rmsexp {
namespace {

// f, and its derivative at u with the value f(u).
struct Tanh {
  template <typename W>
  static Vec<W> value(const Vec<W>& u) {
    return tanh(u);
  }
  template <typename W>
  static Vec<W> derivative(const Vec<W>& /*u*/, const Vec<W>& value) {
    return Vec<W>(1) - value * value;
  }
};

struct Erf {
  template <typename W>
  static Vec<W> value(const Vec<W>& u) {
    return u.erf();
  }
  template <typename W>
  static Vec<W> derivative(const Vec<W>& u, const Vec<W>& /*value*/) {
    return Vec<W>(1.1283791670955126) * (u * u).neg().exp();  // 2 / sqrt(pi)
  }
};

// The parameters, in the type in which the kernels compute. Gain and shift have a value for each unit of a row, or if
// there are `channels`, a value for each channel; row i is then of channel i % channels.
template <typename W>
struct Parameters {
  W alpha, offset;
  const W *gain, *shift;  // shift may be null
  W slope;
  int64_t channels = 0;

  // Calls f(gain_at, shift_at, activated) with functions that return gain and shift of the units j to j + count of a
  // row, and with a compile-time constant: whether there is an activation.
  template <typename F>
  void with_row(int64_t row, F f) const {
    const int64_t channel = channels ? row % channels : 0;
    const Vec<W> channel_gain(gain[channel]), channel_shift(shift ? shift[channel] : W(0));
    with_constants(
        [&](auto per_unit, auto shifted, auto activated) {
          const auto gain_at = [&](int64_t j, auto count) {
            if constexpr (per_unit) return load(gain + j, count);
            return channel_gain;
          };
          const auto shift_at = [&](int64_t j, auto count) {
            if constexpr (per_unit && shifted) return load(shift + j, count);
            return channel_shift;
          };
          f(gain_at, shift_at, activated);
        },
        channels == 0, shift != nullptr, slope != W(1));
  }
};

template <typename T, typename Function>
void rows_forward(int64_t rows, int64_t n, const Parameters<Wide<T>>& parameters,
                  const T* x,  // (rows, n)
                  T* y) {      // (rows, n), written
  using W = Wide<T>;
  const Vec<W> alpha(parameters.alpha), offset(parameters.offset);
  at::parallel_for(0, rows, std::max<int64_t>(1, kElementsPerThread / n), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      parameters.with_row(row, [&](auto gain_at, auto shift_at, auto activated) {
        for_each_vector<W>(0, n, [&](int64_t j, auto count) {
          const auto value = Function::value(at::vec::fmadd(load(x + row * n + j, count), alpha, offset));
          auto result = at::vec::fmadd(value, gain_at(j, count), shift_at(j, count));
          if constexpr (activated) result = leaky_relu(result, parameters.slope);
          store(y + row * n + j, result, count);
        });
      });
    }
  });
}

// With d the gradient of the loss with respect to f(u) * gain + shift, u = alpha * x + offset, and h = d * gain *
// f'(u):
//
//   dx = alpha * h, dalpha = sum of h * x, doffset = sum of h, dgain = sum of d * f(u), dshift = sum of d
//
// The sums are over all elements, those of dgain and dshift over the elements of each unit or channel.
template <typename T, typename Function>
void rows_backward(int64_t rows, int64_t n, const Parameters<Wide<T>>& parameters,
                   const T* dy,        // (rows, n)
                   const T* x,         // (rows, n)
                   T* dx,              // (rows, n), written
                   Wide<T>* dscalars,  // (slots, 2), accumulated in place: gradients of alpha and offset
                   Wide<T>* dgain,     // (slots, n) or (slots, channels), accumulated in place
                   Wide<T>* dshift,    // as dgain; null without a shift
                   int64_t slots) {    // 1, or the number of threads, each of which adds to its own sums
  using W = Wide<T>;
  const Vec<W> alpha(parameters.alpha), offset(parameters.offset);
  const int64_t channels = parameters.channels, width = channels ? channels : n;
  at::parallel_for(0, rows, std::max<int64_t>(1, kElementsPerThread / n), [&](int64_t begin, int64_t end) {
    const int64_t slot = slots == 1 ? 0 : at::get_thread_num();
    W *dgain_sum = dgain + slot * width, *dshift_sum = dshift ? dshift + slot * width : nullptr;
    double dalpha = 0, doffset = 0;
    for (int64_t row = begin; row < end; ++row) {
      parameters.with_row(row, [&](auto gain_at, auto shift_at, auto activated) {
        Vec<W> of_alpha(0), of_offset(0), of_gain(0), of_shift(0);
        for_each_vector<W>(0, n, [&](int64_t j, auto count) {
          const auto input = load(x + row * n + j, count), u = at::vec::fmadd(input, alpha, offset);
          const auto value = Function::value(u), gain = gain_at(j, count);
          auto gradient = load(dy + row * n + j, count);  // elements from index `count` on are zero
          if constexpr (activated) {
            const auto result = at::vec::fmadd(value, gain, shift_at(j, count));
            gradient = leaky_relu_backward(gradient, result, parameters.slope);
          }
          const auto product = zero_tail(gradient * value, count);
          const auto inner = zero_tail(gradient * gain * Function::derivative(u, value), count);
          if (channels) {
            of_gain = of_gain + product, of_shift = of_shift + gradient;
          } else {
            store(dgain_sum + j, load(dgain_sum + j, count) + product, count);
            if (dshift_sum) store(dshift_sum + j, load(dshift_sum + j, count) + gradient, count);
          }
          of_alpha = of_alpha + zero_tail(inner * input, count), of_offset = of_offset + inner;
          store(dx + row * n + j, inner * alpha, count);
        });
        dalpha += horizontal_sum<W>(of_alpha), doffset += horizontal_sum<W>(of_offset);
        if (channels) {
          dgain_sum[row % channels] += horizontal_sum<W>(of_gain);
          if (dshift_sum) dshift_sum[row % channels] += horizontal_sum<W>(of_shift);
        }
      });
    }
    dscalars[2 * slot] += static_cast<W>(dalpha), dscalars[2 * slot + 1] += static_cast<W>(doffset);
  });
}

// Calls f with Tanh or Erf.
template <typename F>
void with_function(c10::string_view function, F f) {
  function == "erf" ? f(Erf{}) : f(Tanh{});
}

// The arguments of an operator after the checks: x in a layout that the kernels read, its rows, and the parameters.
struct Arguments {
  Tensor x, alpha, offset, gain, shift;
  int64_t n = 0, rows = 0, channels = 0;  // channels: 0, or the number of channels of contiguous maps
  double slope;

  Arguments(const Tensor& input, const Tensor& alpha, const OptionalTensor& offset, const Tensor& gain,
            const OptionalTensor& shift, bool maps, double slope)
      : x(readable(input, maps)),
        alpha(parameter(alpha, x)),
        offset(parameter(offset, x)),
        gain(parameter(gain, x)),
        shift(parameter(shift, x)),
        slope(slope) {
    if (!x.numel()) return;
    const bool channels_first = maps && !is_channels_last(x);
    channels = channels_first ? x.size(1) : 0;
    n = channels_first ? x.size(2) * x.size(3) : x.size(maps ? 1 : -1);
    rows = x.numel() / n;
  }

  template <typename W>
  Parameters<W> parameters() const {
    const auto number = [](const Tensor& tensor) { return tensor.defined() ? tensor.const_data_ptr<W>()[0] : W(0); };
    return {number(alpha),          number(offset),        gain.const_data_ptr<W>(),
            data_or_null<W>(shift), static_cast<W>(slope), channels};
  }
};

}  // namespace

// Returns y. Alpha and offset: (1,). Function: "tanh" or "erf".
Tensor pointwise_forward(const Tensor& input, const Tensor& alpha, const OptionalTensor& offset, const Tensor& gain,
                         const OptionalTensor& shift, c10::string_view function, bool maps, double slope) {
  const Arguments a(input, alpha, offset, gain, shift, maps, slope);
  Tensor y = uninitialised_like(a.x);
  if (!a.rows) return y;
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kBFloat16, at::kHalf, a.x.scalar_type(), "pointwise", [&] {
    with_function(function, [&](auto f) {
      rows_forward<scalar_t, decltype(f)>(a.rows, a.n, a.parameters<Wide<scalar_t>>(), a.x.const_data_ptr<scalar_t>(),
                                          y.mutable_data_ptr<scalar_t>());
    });
  });
  return y;
}

// Returns the gradients of x; of alpha and offset, together (2,); of gain; and of shift, empty if there is none. The
// gradients of parameters are float32 if x is float16 or bfloat16.
std::tuple<Tensor, Tensor, Tensor, Tensor> pointwise_backward(const Tensor& gradient, const Tensor& input,
                                                              const Tensor& alpha, const OptionalTensor& offset,
                                                              const Tensor& gain, const OptionalTensor& shift,
                                                              c10::string_view function, bool maps, double slope) {
  const Arguments a(input, alpha, offset, gain, shift, maps, slope);
  const Tensor dy = with_layout(gradient, a.x);
  const int64_t slots = a.x.numel() <= kElementsPerThread ? 1 : at::get_num_threads();
  Tensor dx = uninitialised_like(a.x), dscalars = gradient_slots(a.alpha, slots, 2, a.alpha);
  Tensor dgain = gradient_slots(a.gain, slots, a.gain.numel(), a.gain);
  Tensor dshift = gradient_slots(a.shift, slots, a.gain.numel(), a.gain);
  if (a.rows) {
    AT_DISPATCH_FLOATING_TYPES_AND2(at::kBFloat16, at::kHalf, a.x.scalar_type(), "pointwise_backward", [&] {
      using W = Wide<scalar_t>;
      with_function(function, [&](auto f) {
        rows_backward<scalar_t, decltype(f)>(a.rows, a.n, a.parameters<W>(), dy.const_data_ptr<scalar_t>(),
                                             a.x.const_data_ptr<scalar_t>(), dx.mutable_data_ptr<scalar_t>(),
                                             dscalars.mutable_data_ptr<W>(), dgain.mutable_data_ptr<W>(),
                                             a.shift.defined() ? dshift.mutable_data_ptr<W>() : nullptr, slots);
      });
    });
  }
  return {dx, sum_of_slots(dscalars), sum_of_slots(dgain), sum_of_slots(dshift)};
}

}  // namespace rmsexp

namespace rmsexp::pointwise {
namespace {

using Forward = Tensor(const Tensor&, const Tensor&, const OptionalTensor&, const Tensor&, const OptionalTensor&,
                       c10::string_view, bool, double);
using Backward = std::tuple<Tensor, Tensor, Tensor, Tensor>(const Tensor&, const Tensor&, const Tensor&,
                                                            const OptionalTensor&, const Tensor&, const OptionalTensor&,
                                                            c10::string_view, bool, double);

// Calls pointwise_forward() for the device of x, after checking the arguments. Sizes may be symbolic.
Tensor without_autograd(const Tensor& x, const Tensor& alpha, const OptionalTensor& offset, const Tensor& gain,
                        const OptionalTensor& shift, c10::string_view function, bool maps, double slope) {
  check_arguments(x, gain, shift, maps, slope);
  check_parameter("alpha", alpha, x, 1);
  check_parameter("offset", offset, x, 1);
  TORCH_CHECK_VALUE(function == "tanh" || function == "erf", "expected the function tanh or erf, got ", function);
  static const auto op = find_operator<Forward>("rmsexp::pointwise_forward");
  return op.call(x, alpha, offset, gain, shift, function, maps, slope);
}

class Pointwise : public torch::autograd::Function<Pointwise> {
 public:
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const Tensor& alpha, const OptionalTensor& offset,
                        const Tensor& gain, const OptionalTensor& shift, c10::string_view function, bool maps,
                        double slope) {
    at::AutoDispatchBelowADInplaceOrView below;
    ctx->save_for_backward({x, alpha, offset.value_or(Tensor()), gain, shift.value_or(Tensor())});
    ctx->saved_data["options"] = std::tuple(std::string(function), maps, slope);
    return without_autograd(x, alpha, offset, gain, shift, function, maps, slope);
  }

  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    refuse_second_derivatives();
    static const auto op = find_operator<Backward>("rmsexp::pointwise_backward");
    const auto saved = ctx->get_saved_variables();
    const Tensor &x = saved[0], &alpha = saved[1], &offset = saved[2], &gain = saved[3], &shift = saved[4];
    const auto [function, maps, slope] = ctx->saved_data["options"].to<std::tuple<std::string, bool, double>>();
    variable_list result(8);  // one gradient for each argument of forward
    at::AutoDispatchBelowADInplaceOrView below;
    const auto [dx, dscalars, dgain, dshift] =
        op.call(gradients[0], x, alpha, optional(offset), gain, optional(shift), function, maps, slope);
    result[0] = dx;
    result[1] = as_type(dscalars.narrow(0, 0, 1), alpha.scalar_type());
    if (offset.defined()) result[2] = as_type(dscalars.narrow(0, 1, 1), offset.scalar_type());
    result[3] = as_type(dgain, gain.scalar_type());
    if (shift.defined()) result[4] = as_type(dshift, shift.scalar_type());
    return result;
  }
};

Tensor with_autograd(const Tensor& x, const Tensor& alpha, const OptionalTensor& offset, const Tensor& gain,
                     const OptionalTensor& shift, c10::string_view function, bool maps, double slope) {
  if (needs_gradients(x, alpha, offset, gain, shift)) {
    return Pointwise::apply(x, alpha, offset, gain, shift, function, maps, slope);
  }
  at::AutoDispatchBelowADInplaceOrView below;
  return without_autograd(x, alpha, offset, gain, shift, function, maps, slope);
}

}  // namespace
}  // namespace rmsexp::pointwise

TORCH_LIBRARY_FRAGMENT(rmsexp, m) {
  m.def(
      "pointwise_forward(Tensor x, Tensor alpha, Tensor? offset, Tensor gain, Tensor? shift, str function, bool maps, "
      "float slope=1.0) -> Tensor",
      rmsexp::on_cpu(rmsexp::pointwise_forward));
  m.def(
      "pointwise_backward(Tensor dy, Tensor x, Tensor alpha, Tensor? offset, Tensor gain, Tensor? shift, "
      "str function, bool maps, float slope=1.0) -> (Tensor dx, Tensor dscalars, Tensor dgain, Tensor dshift)",
      rmsexp::on_cpu(rmsexp::pointwise_backward));
  m.def(
      "pointwise(Tensor x, Tensor alpha, Tensor? offset, Tensor gain, Tensor? shift, str function, bool maps, "
      "float slope=1.0) -> Tensor");
  using namespace rmsexp::pointwise;
  m.impl("pointwise", torch::dispatch(c10::DispatchKey::CompositeExplicitAutograd, without_autograd));
  m.impl("pointwise", torch::dispatch(c10::DispatchKey::Autograd, with_autograd));
}

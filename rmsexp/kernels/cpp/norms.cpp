// Norms with one statistic per example and position: over the last axis, or over each channel's positions of maps.
// `slope`, in (0, 1], is that of a leaky ReLU on the result, which spares maps two passes over memory; 1 for none.
// Zhang & Sennrich (2019), section 4, and Ba et al. (2016).

#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include "rows.h"

namespace rmsexp {
namespace {

constexpr int64_t kGrain = 16384;  // elements that are worth a thread

using Outputs = std::tuple<Tensor, Tensor, Tensor>;

// How the memory of an input is read. Maps that are not channels-last have a row a channel of an example.
struct Layout {
  int64_t rows, n;       // n: elements of a row
  int64_t channels = 0;  // of maps
  bool last = false;     // channels-last maps: a row an example, of n positions
};

bool rows_are_dense(const Tensor& x) { return x.stride(-1) == 1 && x.is_non_overlapping_and_dense(); }

bool channels_last(const Tensor& x) {
  return x.is_contiguous(at::MemoryFormat::ChannelsLast) && !x.is_contiguous();
}

Tensor readable(const Tensor& x, bool maps) {
  if (maps ? x.is_contiguous() || channels_last(x) : rows_are_dense(x)) return x;
  return x.contiguous();
}

// A tensor with the values of `x` and the layout of `like`.
Tensor laid_out(const Tensor& x, const Tensor& like) {
  return x.strides() == like.strides() ? x : at::empty_like(like).copy_(x);
}

Layout layout(const Tensor& x, bool maps) {
  if (!maps) return {x.size(-1) == 0 ? 0 : x.numel() / x.size(-1), x.size(-1)};
  const int64_t channels = x.size(1), positions = x.size(2) * x.size(3);
  if (channels_last(x)) return {x.size(0), positions, channels, true};
  return {x.size(0) * channels, positions, channels, false};
}

template <typename W>
const W* data(const Tensor& of) {
  return of.defined() ? of.const_data_ptr<W>() : nullptr;
}

// A parameter as the kernels read it, undefined where there is none.
Tensor parameter(const OptionalTensor& of, const Tensor& x) {
  if (!of.has_value() || !of->defined()) return {};
  const auto type = x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  return of->to(type).contiguous();
}

template <typename W>
Vec<W> leaky(const Vec<W>& x, W slope) {
  return at::vec::maximum(x, x * Vec<W>(slope));
}

// The gradient before a leaky ReLU, from that after it.
template <typename W>
Vec<W> before_leaky(const Vec<W>& gradient, const Vec<W>& x, W slope) {
  return Vec<W>::blendv(gradient * Vec<W>(slope), gradient, x > Vec<W>(0));
}

// Calls f with constants for the flags, so that its loops decide nothing: they are as short as a copy's.
template <typename F>
void decided(F f) {
  f();
}

template <typename F, typename... Flags>
void decided(F f, bool first, Flags... others) {
  const auto with = [&](auto constant) { decided([&](auto... rest) { f(constant, rest...); }, others...); };
  first ? with(std::true_type{}) : with(std::false_type{});
}

// `far`: the tensor is far larger than the caches. The next row is asked for early, and results go past the caches.
template <typename T, bool far>
void rows_forward(const Layout& l, const Form& form, const T* x, const Wide<T>* gain, const Wide<T>* shift, Wide<T> slope, T* y,
                  Wide<T>* mean, Wide<T>* scale) {
  using W = Wide<T>;
  at::parallel_for(0, l.rows, std::max<int64_t>(1, kGrain / l.n), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const T* a = x + row * l.n;
      T* to = y + row * l.n;
      const auto s = statistics(a, form);
      scale[row] = s.scale;
      if (form.kind == kLayer) mean[row] = s.mean;
      const int64_t channel = l.channels ? row % l.channels : 0;  // one gain and shift for the whole row
      const Vec<W> centre(s.mean), factor(l.channels && gain ? s.scale * gain[channel] : s.scale);
      const Vec<W> whole_shift(l.channels && shift ? shift[channel] : W(0));
      const auto write = [&](auto gained, auto shifted, auto activated) {
        each<W>(0, l.n, [&](int64_t j, auto count) {
          if constexpr (far) __builtin_prefetch(a + l.n + j);
          auto value = load(a + j, count) - centre;
          if constexpr (gained) value = value * factor * load(gain + j, count);
          else value = at::vec::fmadd(value, factor, whole_shift);
          if constexpr (shifted) value = value + load(shift + j, count);
          if constexpr (activated) value = leaky(value, slope);
          store<far>(to + j, value, count);
        });
      };
      decided(write, gain && !l.channels, shift && !l.channels, slope != W(1));
    }
    if constexpr (far) fence();
  });
}

template <typename T, bool far>
void rows_backward(const Layout& l, const Form& form, const T* dy, const T* x, const Wide<T>* gain, const Wide<T>* shift,
                   Wide<T> slope, const Wide<T>* mean, const Wide<T>* scale, T* dx, Wide<T>* dgain, Wide<T>* dshift, int64_t parts) {
  using W = Wide<T>;
  const int64_t width = l.channels ? l.channels : l.n;
  const auto rows = [&](int64_t begin, int64_t end, auto gained, auto shifted, auto activated) {
    const int64_t part = parts == 1 ? 0 : at::get_thread_num();
    W* of_gain = dgain ? dgain + part * width : nullptr;
    W* of_shift = dshift ? dshift + part * width : nullptr;
    for (int64_t row = begin; row < end; ++row) {
      const T *a = x + row * l.n, *d = dy + row * l.n;
      T* to = dx + row * l.n;
      const Vec<W> centre(form.kind == kLayer ? mean[row] : W(0)), factor(scale[row]);
      const int64_t channel = l.channels ? row % l.channels : 0;  // one gain and shift for the whole row
      const Vec<W> whole_gain(l.channels && gain ? gain[channel] : W(1));
      const Vec<W> whole_shift(l.channels && shift ? shift[channel] : W(0));
      // the gradient of gain * normalised + shift
      const auto arriving = [&](int64_t j, auto count, const Vec<W>& normalised) {
        auto gradient = load(d + j, count);
        if constexpr (activated) {
          auto value = whole_shift;
          if constexpr (shifted) value = load(shift + j, count);
          if constexpr (gained) value = at::vec::fmadd(normalised, load(gain + j, count), value);
          else value = at::vec::fmadd(normalised, whole_gain, value);
          gradient = before_leaky(gradient, value, slope);
        }
        return gradient;
      };
      Vec<W> product(0), added(0);
      each<W>(0, l.n, [&](int64_t j, auto count) {
        const auto normalised = (load(a + j, count) - centre) * factor;
        auto gradient = arriving(j, count, normalised);  // padded with zeros
        if constexpr (shifted) store(of_shift + j, load(of_shift + j, count) + gradient, count);
        auto with = gradient * normalised;
        if constexpr (gained) {
          store(of_gain + j, load(of_gain + j, count) + with, count);
          const auto g = load(gain + j, count);
          gradient = gradient * g;
          with = with * g;
        }
        product = product + with;
        added = added + gradient;
      });
      W sum = total<W>(added), along = total<W>(product);
      if (l.channels) {
        if (of_gain) of_gain[channel] += along;
        if (of_shift) of_shift[channel] += sum;
        const W g = gain ? gain[channel] : W(1);
        sum *= g, along *= g;
      }
      const auto by = correction<W>({sum, along}, scale[row], form);
      const Vec<W> less(by.mean), along_it(by.slope);
      const auto write = [&](int64_t from, int64_t until, auto in_statistic) {
        each<W>(from, until, [&](int64_t j, auto count) {
          if constexpr (far) __builtin_prefetch(a + l.n + j), __builtin_prefetch(d + l.n + j);
          const auto normalised = (load(a + j, count) - centre) * factor;
          auto gradient = arriving(j, count, normalised);
          if constexpr (gained) gradient = gradient * load(gain + j, count);
          else gradient = gradient * whole_gain;
          if constexpr (in_statistic) gradient = gradient - less - normalised * along_it;
          store<far>(to + j, factor * gradient, count);
        });
      };
      write(0, form.k, std::true_type{});
      write(form.k, l.n, std::false_type{});
    }
    if constexpr (far) fence();
  };
  at::parallel_for(0, l.rows, std::max<int64_t>(1, kGrain / l.n), [&](int64_t begin, int64_t end) {
    decided([&](auto... flags) { rows(begin, end, flags...); }, gain && !l.channels, shift && !l.channels, slope != W(1));
  });
}

// Channels-last maps: vectors run over channels, whose statistics are gathered side by side.
template <typename T>
void maps_forward(const Layout& l, const Form& form, const T* x, const Wide<T>* gain, const Wide<T>* shift, Wide<T> slope, T* y,
                  Wide<T>* mean, Wide<T>* scale) {
  using W = Wide<T>;
  const int64_t c = l.channels;
  at::parallel_for(0, l.rows, std::max<int64_t>(1, kGrain / (l.n * c)), [&](int64_t begin, int64_t end) {
    std::vector<W> by(c), then(c);
    for (int64_t row = begin; row < end; ++row) {
      const T* a = x + row * l.n * c;
      T* to = y + row * l.n * c;
      W *centre = form.kind == kLayer ? mean + row * c : nullptr, *factor = scale + row * c;
      each<W>(0, c, [&](int64_t j, auto count) {
        Vec<W> middle(0), squares(0);
        if (centre) {
          for (int64_t p = 0; p < l.n; ++p) middle = middle + load(a + p * c + j, count);
          middle = middle / Vec<W>(static_cast<W>(l.n));
          store(centre + j, middle, count);
        }
        for (int64_t p = 0; p < form.k; ++p) {
          const auto d = load(a + p * c + j, count) - middle;
          squares = squares + d * d;
        }
        store(factor + j, squares, count);
      });
      for (int64_t j = 0; j < c; ++j) {
        factor[j] = from_squares(factor[j], form).scale;
        by[j] = gain ? factor[j] * gain[j] : factor[j];
        then[j] = (shift ? shift[j] : W(0)) - (centre ? centre[j] * by[j] : W(0));
      }
      const auto write = [&](auto activated) {
        for (int64_t p = 0; p < l.n; ++p) {
          each<W>(0, c, [&](int64_t j, auto count) {
            auto value = at::vec::fmadd(load(a + p * c + j, count), load(by.data() + j, count), load(then.data() + j, count));
            if constexpr (activated) value = leaky(value, slope);
            store(to + p * c + j, value, count);
          });
        }
      };
      decided(write, slope != W(1));
    }
  });
}

template <typename T>
void maps_backward(const Layout& l, const Form& form, const T* dy, const T* x, const Wide<T>* gain, const Wide<T>* shift,
                   Wide<T> slope, const Wide<T>* mean, const Wide<T>* scale, T* dx, Wide<T>* dgain, Wide<T>* dshift, int64_t parts) {
  using W = Wide<T>;
  const int64_t c = l.channels;
  const auto rows = [&](int64_t begin, int64_t end, auto activated) {
    const int64_t part = parts == 1 ? 0 : at::get_thread_num();
    std::vector<W> sums(c), products(c), of_gradient(c), of_value(c), constant(c), by(c), then(c);
    for (int64_t row = begin; row < end; ++row) {
      const T *a = x + row * l.n * c, *d = dy + row * l.n * c;
      T* to = dx + row * l.n * c;
      const W *centre = form.kind == kLayer ? mean + row * c : nullptr, *factor = scale + row * c;
      for (int64_t j = 0; j < c; ++j) {
        by[j] = gain ? factor[j] * gain[j] : factor[j];
        then[j] = (shift ? shift[j] : W(0)) - (centre ? centre[j] * by[j] : W(0));
      }
      const auto arriving = [&](int64_t p, int64_t j, auto count) {
        auto gradient = load(d + p * c + j, count);
        if constexpr (activated) {
          const auto value = at::vec::fmadd(load(a + p * c + j, count), load(by.data() + j, count), load(then.data() + j, count));
          gradient = before_leaky(gradient, value, slope);
        }
        return gradient;
      };
      each<W>(0, c, [&](int64_t j, auto count) {
        const Vec<W> middle = centre ? load(centre + j, count) : Vec<W>(0);
        Vec<W> added(0), product(0);
        for (int64_t p = 0; p < l.n; ++p) {
          const auto gradient = arriving(p, j, count);
          added = added + gradient;
          product = at::vec::fmadd(gradient, load(a + p * c + j, count) - middle, product);
        }
        store(sums.data() + j, added, count);
        store(products.data() + j, product * load(factor + j, count), count);
      });
      for (int64_t j = 0; j < c; ++j) {
        if (dgain) dgain[part * c + j] += products[j];
        if (dshift) dshift[part * c + j] += sums[j];
        const W g = gain ? gain[j] : W(1);
        const auto less = correction<W>({sums[j] * g, products[j] * g}, factor[j], form);
        of_gradient[j] = factor[j] * g;
        of_value[j] = -factor[j] * factor[j] * less.slope;
        constant[j] = -factor[j] * less.mean - (centre ? of_value[j] * centre[j] : W(0));
      }
      for (int64_t p = 0; p < l.n; ++p) {
        each<W>(0, c, [&](int64_t j, auto count) {
          auto gradient = arriving(p, j, count) * load(of_gradient.data() + j, count);
          if (p < form.k) {
            gradient = at::vec::fmadd(load(a + p * c + j, count), load(of_value.data() + j, count), gradient);
            if (centre) gradient = gradient + load(constant.data() + j, count);
          }
          store(to + p * c + j, gradient, count);
        });
      }
    }
  };
  at::parallel_for(0, l.rows, std::max<int64_t>(1, kGrain / (l.n * c)), [&](int64_t begin, int64_t end) {
    decided([&](auto activated) { rows(begin, end, activated); }, slope != W(1));
  });
}

Outputs normalise_forward(const Tensor& input, const OptionalTensor& gain, const OptionalTensor& shift, bool maps,
                          int64_t kind, int64_t k, bool inside, double eps, double slope) {
  const Tensor x = readable(input, maps), g = parameter(gain, x), b = parameter(shift, x);
  const Layout l = layout(x, maps);
  const Form form{kind, l.n, kind == kLayer ? l.n : k, inside, eps};
  const auto wide = x.options().dtype(x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat);
  const int64_t count = l.last ? l.rows * l.channels : l.rows;
  Tensor y = at::empty_like(x), scale = at::empty({count}, wide), mean = at::empty({kind == kLayer ? count : 0}, wide);
  if (x.numel()) {
    AT_DISPATCH_FLOATING_TYPES_AND2(at::kBFloat16, at::kHalf, x.scalar_type(), "normalise", [&] {
      using W = Wide<scalar_t>;
      const auto rows = is_far(x) ? rows_forward<scalar_t, true> : rows_forward<scalar_t, false>;
      const auto forward = l.last ? maps_forward<scalar_t> : rows;
      forward(l, form, x.const_data_ptr<scalar_t>(), data<W>(g), data<W>(b), static_cast<W>(slope), y.mutable_data_ptr<scalar_t>(),
              mean.mutable_data_ptr<W>(), scale.mutable_data_ptr<W>());
    });
  }
  return {y, mean, scale};
}

Outputs normalise_backward(const Tensor& gradient, const Tensor& input, const OptionalTensor& gain, const Tensor& mean,
                           const Tensor& scale, const OptionalTensor& shift, bool maps, int64_t kind, int64_t k, bool inside,
                           double eps, double slope) {
  const Tensor x = readable(input, maps), dy = laid_out(gradient, x), g = parameter(gain, x), b = parameter(shift, x);
  const Layout l = layout(x, maps);
  const Form form{kind, l.n, kind == kLayer ? l.n : k, inside, eps};
  Tensor dx = at::empty_like(x);
  const int64_t width = maps ? l.channels : l.n;
  const int64_t parts = x.numel() <= kGrain ? 1 : at::get_num_threads();
  const auto gathering = [&](const Tensor& of) {  // a row for whatever adds at the same time
    if (!of.defined()) return at::empty({0}, scale.options());
    return parts == 1 ? at::zeros({width}, scale.options()) : at::zeros({parts, width}, scale.options());
  };
  Tensor dgain = gathering(g), dshift = gathering(b);
  if (x.numel()) {
    AT_DISPATCH_FLOATING_TYPES_AND2(at::kBFloat16, at::kHalf, x.scalar_type(), "normalise_backward", [&] {
      using W = Wide<scalar_t>;
      const auto rows = is_far(x) ? rows_backward<scalar_t, true> : rows_backward<scalar_t, false>;
      const auto backward = l.last ? maps_backward<scalar_t> : rows;
      backward(l, form, dy.const_data_ptr<scalar_t>(), x.const_data_ptr<scalar_t>(), data<W>(g), data<W>(b), static_cast<W>(slope), mean.const_data_ptr<W>(),
               scale.const_data_ptr<W>(), dx.mutable_data_ptr<scalar_t>(), g.defined() ? dgain.mutable_data_ptr<W>() : nullptr,
               b.defined() ? dshift.mutable_data_ptr<W>() : nullptr, parts);
    });
  }
  const auto joined = [](const Tensor& of) { return of.dim() == 1 ? of : of.sum(0); };
  return {dx, joined(dgain), joined(dshift)};
}

// The same in elementary operations, whose gradients have gradients.
Tensor composed(const Tensor& x, const Tensor& gain, const Tensor& shift, bool maps, int64_t kind, int64_t k, bool inside,
                double eps, double slope) {
  const auto type = x.scalar_type();
  Tensor a = type == at::kHalf || type == at::kBFloat16 ? x.to(at::kFloat) : x;
  if (maps) a = a.flatten(2);
  const auto along = [&](const Tensor& of) { return maps ? of.unsqueeze(1) : of; };
  if (kind == kLayer) {
    a = a - a.mean(-1, true);
    k = a.size(-1);
  }
  const Tensor squares = a.narrow(-1, 0, k).square().sum(-1, true) / (kind == kEuclid ? 1.0 : static_cast<double>(k));
  if (inside) {
    a = a * (squares + eps).rsqrt();
  } else {
    const Tensor zero = squares == 0;
    a = a / (squares.masked_fill(zero, 1.0).sqrt().masked_fill(zero, 0.0) + eps);
  }
  if (gain.defined()) a = a * along(gain);
  if (shift.defined()) a = a + along(shift);
  if (slope != 1) a = at::leaky_relu(a, slope);
  return a.to(type).view_as(x);
}

const auto& forward_op() {
  using Signature = Outputs(const Tensor&, const OptionalTensor&, const OptionalTensor&, bool, int64_t, int64_t, bool, double, double);
  static const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("rmsexp::normalise_forward", "").typed<Signature>();
  return op;
}

OptionalTensor optional(const Tensor& of) { return of.defined() ? OptionalTensor(of) : std::nullopt; }

class Normalise : public torch::autograd::Function<Normalise> {
 public:
  static Tensor forward(torch::autograd::AutogradContext* ctx, const Tensor& x, const OptionalTensor& gain,
                        const OptionalTensor& shift, bool maps, int64_t kind, int64_t k, bool inside, double eps,
                        double slope) {
    at::AutoDispatchBelowADInplaceOrView below;
    auto [y, mean, scale] = forward_op().call(x, gain, shift, maps, kind, k, inside, eps, slope);
    ctx->save_for_backward({x, gain.value_or(Tensor()), shift.value_or(Tensor()), mean, scale});
    ctx->saved_data["options"] = std::make_tuple(maps, kind, k, inside, eps, slope);
    return y;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx, torch::autograd::variable_list gradients) {
    const auto saved = ctx->get_saved_variables();
    const Tensor &x = saved[0], &gain = saved[1], &shift = saved[2], &dy = gradients[0];
    const auto [maps, kind, k, inside, eps, slope] = ctx->saved_data["options"].to<std::tuple<bool, int64_t, int64_t, bool, double, double>>();
    if (at::GradMode::is_enabled()) {
      torch::autograd::variable_list inputs;
      for (const Tensor& of : {x, gain, shift}) {
        if (of.defined() && of.requires_grad()) inputs.push_back(of);
      }
      const Tensor y = composed(x, gain, shift, maps, kind, k, inside, eps, slope);
      const auto found = torch::autograd::grad({y}, inputs, {dy}, true, true, true);
      torch::autograd::variable_list all(9);
      size_t next = 0;
      for (size_t i = 0; i < 3; ++i) {
        if (saved[i].defined() && saved[i].requires_grad()) all[i] = found[next++];
      }
      return all;
    }
    at::AutoDispatchBelowADInplaceOrView below;
    static const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("rmsexp::normalise_backward", "").typed<Outputs(const Tensor&, const Tensor&, const OptionalTensor&, const Tensor&, const Tensor&, const OptionalTensor&, bool, int64_t, int64_t, bool, double, double)>();
    auto [dx, dgain, dshift] = op.call(dy, x, optional(gain), saved[3], saved[4], optional(shift), maps, kind, k, inside, eps, slope);
    const auto like = [](const Tensor& d, const Tensor& p) { return p.defined() ? d.to(p.scalar_type()) : Tensor(); };
    return {dx, like(dgain, gain), like(dshift, shift), Tensor(), Tensor(), Tensor(), Tensor(), Tensor(), Tensor()};
  }
};

// Where no gradient is asked for.
Tensor normalise_alone(const Tensor& x, const OptionalTensor& gain, const OptionalTensor& shift, bool maps, int64_t kind,
                       int64_t k, bool inside, double eps, double slope) {
  return std::get<0>(forward_op().call(x, gain, shift, maps, kind, k, inside, eps, slope));
}

Tensor normalise(const Tensor& x, const OptionalTensor& gain, const OptionalTensor& shift, bool maps, int64_t kind,
                 int64_t k, bool inside, double eps, double slope) {
  const auto differentiated = [](const OptionalTensor& of) { return of.has_value() && of->requires_grad(); };
  if (at::GradMode::is_enabled() && (x.requires_grad() || differentiated(gain) || differentiated(shift))) {
    return Normalise::apply(x, gain, shift, maps, kind, k, inside, eps, slope);
  }
  at::AutoDispatchBelowADInplaceOrView below;
  return normalise_alone(x, gain, shift, maps, kind, k, inside, eps, slope);
}

}  // namespace
}  // namespace rmsexp

TORCH_LIBRARY_FRAGMENT(rmsexp, m) {
  m.def("normalise(Tensor x, Tensor? gain, Tensor? shift, bool maps, int kind, int k, bool inside, float eps, "
      "float slope=1.0) -> Tensor");
  m.def(
      "normalise_forward(Tensor x, Tensor? gain, Tensor? shift, bool maps, int kind, int k, bool inside, float eps, "
      "float slope=1.0) -> (Tensor y, Tensor mean, Tensor scale)");
  m.def(
      "normalise_backward(Tensor dy, Tensor x, Tensor? gain, Tensor mean, Tensor scale, Tensor? shift, bool maps, int kind, "
      "int k, bool inside, float eps, float slope=1.0) -> (Tensor dx, Tensor dgain, Tensor dshift)");
}

TORCH_LIBRARY_IMPL(rmsexp, CPU, m) {
  m.impl("normalise_forward", rmsexp::normalise_forward);
  m.impl("normalise_backward", rmsexp::normalise_backward);
}

TORCH_LIBRARY_IMPL(rmsexp, CompositeExplicitAutograd, m) { m.impl("normalise", rmsexp::normalise_alone); }

TORCH_LIBRARY_IMPL(rmsexp, Autograd, m) { m.impl("normalise", rmsexp::normalise); }

"""The interface between models and norms: what a model asks for, and what a norm has to define.

A model never asks which norm it has. It names its *sites*, the places that a norm may act on, and asks for::

    norm.linear(name, n_in, n_out)    a linear layer or convolution whose output (the summed inputs) is normalised
    norm.value(name, features)        a normaliser for a value that is not a layer's output (LSTM cell, residual sum)
    norm.plain(name, n_in, n_out)     a linear layer without normaliser; a re-parametrisation still applies to it
    norm.optional(name, n_in, n_out)  a linear layer that is normalised only by BN with everywhere=true

A norm is a frozen dataclass of options that inherits from :class:`Norm`. It defines :meth:`Norm.normaliser` (what
happens to activations), :meth:`Norm.reparametrisation` (what happens to weights), or both. docs/extending.md has an
example, DyISRU, with its config file, which names the class under ``_target_`` and lists the options;
``notebooks/04_add_your_own_norm.ipynb`` checks it.

Shapes of activations: ``(…, n)``, such as ``(batch, n)``, ``(batch, time, n)`` and, for the heads of attention,
``(batch, time, heads, n)``; and feature maps ``(batch, channels, height, width)``, where ``site.feature_maps`` is true.
"""

from __future__ import annotations

import copy
import sys
import warnings
from dataclasses import MISSING, asdict, dataclass, fields
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rmsexp.norms import kernels
from rmsexp.norms.kernels.norms import compute_dtype as compute_dtype
from rmsexp.system import checks

IMPLS = ("eager", "fused")
# names of gain and bias in other implementations, such as those of the paper's authors (scale, offset)
NAMES = {"weight": ("scale", "gamma", "g"), "bias": ("offset", "beta")}
# what the activations of a site are
ROLES = ("attention", "feed-forward", "query", "key", "value", "recurrent", "convolution", "embedding", "output")
DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)  # that norms take
EPS = {dtype: torch.finfo(compute_dtype(dtype)).eps for dtype in DTYPES}  # of the computing dtype, by that of input


@dataclass(frozen=True)
class Site:
    """A place in a model that a norm may act on, and what the model asks of the norm there.

    Attributes:
        name: The site's name, for error messages.
        features: Number of features; for feature maps, number of channels.
        feature_maps: Whether the norm's input is feature maps.
        shift: Whether the model asks for a shift, which is a bias after the norm. None leaves the choice to the norm.
            The norm may decide otherwise: RMSNorm by its option ``bias``; non-parametric LayerNorm never has a shift.
        then_bias: Whether the model itself adds a bias to the norm's output. Batch norm (``bn``) then has no shift.
        blocks: Number of equally wide parts, such as the gates of an LSTM, that are concatenated in the features.
            The weight of each part is initialised separately.
        data_init: Whether gain and shift are initialised from data (Salimans & Kingma 2016, section 3).
        depth: Index, from 0, of the block around the site, such as a layer of a Transformer's encoder; None outside.
        layers: Number of these blocks; outside of them it may be 0.
        role: What is normalised, one of ``ROLES`` ("attention", "feed-forward": input, output or residual sum of such a
            sublayer), or "" for anything else.
    """

    name: str
    features: int
    feature_maps: bool = False
    shift: bool | None = None
    then_bias: bool = False
    blocks: int = 1
    data_init: bool = False
    depth: int | None = None
    layers: int = 0
    role: str = ""


class Normaliser(nn.Module):
    """Base class of the modules that normalise activations.

    Gain and shift have the keys of torch's layers in state dicts, ``weight`` and ``bias``; keys of other libraries
    (``NAMES``) can be loaded, too. The state of a layer with a bias, such as LayerNorm's, loads into a layer without a
    bias only with ``strict=False``, which leaves the bias out.

    Args:
        shape: Shape of gain and shift.
        gain: Whether there is a gain, the parameter ``weight``.
        shift: Whether there is a shift, the parameter ``bias``; it starts at 0.
        maps: Whether the input is feature maps, with one gain and shift per channel.
        initial_gain: Initial value of the parameter ``weight``.
        factory_kwargs: ``device`` and ``dtype`` of the parameters.
    """

    fusible = False  # whether the fused kernels compute this layer, or there is nothing to compute
    fused = False  # whether `forward` computes by a kernel, which can also apply a leaky ReLU of a given `slope`
    is_site = True  # false in a layer of `Norm.plain`, which no norm normalises
    gain_offset = 0.0  # the gain is this number plus the parameter `weight`
    weight: nn.Parameter | None
    bias: nn.Parameter | None

    def __init__(
        self,
        shape: int | tuple[int, ...],
        *,
        gain: bool,
        shift: bool,
        maps: bool = False,
        initial_gain: float = 1.0,
        **factory_kwargs: Any,
    ) -> None:
        super().__init__()
        self.shape = (shape,) if isinstance(shape, int) else shape
        self.maps = maps
        self.elementwise_affine = gain  # the name in torch.nn.LayerNorm
        self.initial_gain = float(initial_gain)
        gains = torch.full(self.shape, self.initial_gain, **factory_kwargs)
        self.weight = nn.Parameter(gains) if gain else None
        self.bias = nn.Parameter(torch.zeros_like(gains)) if shift else None

    @property
    def effective_gain(self) -> Tensor | None:
        """``weight`` plus ``gain_offset``, or None if there is no ``weight``."""
        # a module finds a parameter slowly by its attribute; a weight with a parametrisation is no parameter
        weight = self._parameters["weight"] if "weight" in self._parameters else self.weight  # noqa: SIM401
        if weight is None or not self.gain_offset:
            return weight
        return weight.to(compute_dtype(weight.dtype)) + self.gain_offset

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Set gain and shift to their initial values, such as after ``to_empty``; other parameters and buffers stay."""
        if self.weight is not None:
            self.weight.fill_(self.initial_gain)
        if self.bias is not None:
            self.bias.zero_()

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *others: Any) -> None:
        """Load a state, whose keys may be those in ``NAMES``; warn if only the state, or only the layer, has a bias."""
        for name, others_names in NAMES.items():
            for other in (each for each in others_names if each not in self._parameters):
                if prefix + other in state_dict and prefix + name not in state_dict:
                    state_dict[prefix + name] = state_dict.pop(prefix + other)
        in_state, here = f"{prefix}bias" in state_dict, self._parameters.get("bias") is not None
        known = in_state or f"{prefix}weight" in state_dict  # else the state has nothing of this layer
        if known and in_state != here and (here or self.bias is None):
            only = "the state has a bias; make the layer" if in_state else "the layer has a bias; make it"
            advice = f"only {only} with bias={in_state}, or load with strict=False"
            warnings.warn(f"{prefix}bias: {type(self).__name__}: {advice}", stacklevel=6)
        super()._load_from_state_dict(state_dict, prefix, *others)

    def check_input(self, x: Tensor) -> None:
        """Raise TypeError if the dtype of ``x`` is not in ``DTYPES``, ValueError if its shape does not fit the norm."""
        if x.dtype not in EPS:
            raise TypeError(f"{type(self).__name__} expects input in {', '.join(map(str, EPS))}; got {x.dtype}")
        shape, expected = x.shape, self.shape
        if self.maps:
            if len(shape) != 4 or shape[1] != expected[0]:
                sizes = f"(batch, {expected[0]}, height, width)"
                raise ValueError(f"{type(self).__name__} expects feature maps {sizes}, got shape {tuple(shape)}")
        elif shape[-len(expected) :] != expected:
            raise ValueError(f"expected input whose shape ends with {expected}, got {tuple(shape)}")

    def forward(self, x: Tensor, mask: Tensor | None = None, steps: int | range | None = None) -> Tensor:
        """Return ``x`` normalised, with the same shape and dtype.

        Args:
            x: Activations, ``(…, n)``, or feature maps.
            mask: Padding mask, ``(batch,)`` or ``(batch, time)``, true where ``x`` is not padding.
            steps: In a recurrence, the time step of a 2-D ``x``, or the range of time steps of a 3-D ``x``. None
                outside of recurrences.

        Of this package's norms, only batch norms use ``mask`` and ``steps``. The others normalise each example
        separately, and each position of a sequence.
        """
        raise NotImplementedError

    def set_step(self, step: int) -> None:
        """Do nothing. A subclass may set values that depend on the number of the training step, counted from 0.

        The trainer calls this once before each step, which may have several micro-batches; and before an evaluation,
        with the number of steps so far. The values must depend on ``step`` alone, or resumed runs would differ.
        """

    def add(self, x: Tensor, addend: Tensor | None, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return ``x + addend`` (``x`` without an addend) and the norm of this sum; a subclass may use one operator."""
        total = x if addend is None else x + addend
        return total, self(total, mask=mask)

    def form(self, n: int, dtype: torch.dtype = torch.float32) -> kernels.Form:
        """Return what the fused kernels need to know about this norm, for ``n`` units of input of this ``dtype``.

        Raises: NotImplementedError if there is no fused kernel for this norm.
        """
        raise NotImplementedError(f"{type(self).__name__} has no fused kernel; use norm.impl=eager")

    def broadcast(self, vector: Tensor | None) -> Tensor | None:
        """Return ``vector``, gain, shift or None, broadcastable to the input. Raises: ValueError for a wrong shape."""
        if vector is None:
            return None
        if vector.shape != self.shape:
            name = type(self).__name__
            message = f"{name} expects weight and bias of shape {self.shape}, got {tuple(vector.shape)}"
            raise ValueError(f"{message}; for more gains, such as one per head, multiply the result of {name} by them")
        return vector.view(-1, 1, 1) if self.maps else vector


class FusedNormaliser(Normaliser):
    """Base class of normalisers with a fused kernel, which is used if ``impl`` is "fused" and kernels can be built.

    A subclass sets ``impl`` in its constructor, and defines :meth:`_eager` and :meth:`_by_kernel`. If there are cases
    without a kernel, it overrides ``fusible``, which setting ``impl`` reads. For float16 and bfloat16 input, all is
    computed in float32, and the result is rounded to the dtype of the input.
    """

    fusible = True

    def forward(
        self,
        x: Tensor,
        mask: Tensor | None = None,  # noqa: ARG002
        steps: int | range | None = None,  # noqa: ARG002
        slope: float = 1.0,
    ) -> Tensor:
        """Normalise ``x``, then apply a leaky ReLU of this ``slope``, in (0, 1]; a slope of 1 means no leaky ReLU."""
        self.check_input(x)
        if slope != 1:
            checks.fraction("slope", slope)
        if self.fused:
            return self._by_kernel(x, slope)
        y = self._eager(x.to(compute_dtype(x.dtype)), x.dtype)
        return (y if slope == 1 else F.leaky_relu(y, slope)).to(x.dtype)

    def _eager(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        """Return the norm of ``x``: the input, of this ``dtype``, converted to float32 unless it was float64."""
        raise NotImplementedError

    def _by_kernel(self, x: Tensor, slope: float) -> Tensor:
        """Return the norm of ``x`` and then a leaky ReLU of this ``slope``, by one kernel."""
        raise NotImplementedError

    @property
    def impl(self) -> str:
        """The implementation, "eager" or "fused". Raises: ValueError when it is set to another value."""
        return self._impl

    @impl.setter
    def impl(self, impl: str) -> None:
        checks.choice("impl", impl, IMPLS)
        self._impl = impl
        self.fused = impl == "fused" and self.fusible and kernels.load()

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore a pickled or copied layer, whose kernels may not be loaded, or not be available, in this process."""
        super().__setstate__(state)
        self.impl = self._impl


class Identity(Normaliser):
    """The normaliser of norms that do not act on activations, such as weight normalisation: it returns its input."""

    fusible = True

    def __init__(self, *, is_site: bool = True) -> None:
        super().__init__(1, gain=False, shift=False)
        self.is_site = is_site

    def form(self, n: int, dtype: torch.dtype = torch.float32) -> kernels.Form:  # noqa: ARG002
        return kernels.Form(kernels.Kind.NONE, n)

    def forward(self, x: Tensor, mask: Tensor | None = None, steps: int | range | None = None) -> Tensor:  # noqa: ARG002
        return x


def affine(x: Tensor, scale: Tensor | None, gain: Tensor | None, shift: Tensor | None, *, fold: bool) -> Tensor:
    """Return ``x * scale * gain + shift``, leaving out the factors and the summand that are None.

    With ``fold``, ``scale`` and ``gain`` are multiplied first, which saves a pass over ``x`` if their product is
    smaller than ``x``.
    """
    if scale is not None and gain is not None:
        if fold:
            gain = scale * gain
        else:
            x = x * scale
    factor = scale if gain is None else gain
    if factor is None:
        return x if shift is None else x + shift
    return x * factor if shift is None else torch.addcmul(shift, x, factor)


class Linear(nn.Module):
    """A linear layer or 2-D convolution, followed by the norm of its site: ``norm(W x + b)``.

    The weight has shape ``(n_out, n_in)`` or ``(n_out, n_in, kernel_size, kernel_size)``. It is NaN until
    :func:`rmsexp.models.init.initialise` draws it, so that a model that was not initialised returns NaN.

    Recurrences do not call :meth:`forward`: they compute :meth:`effective_weight` once per sequence.

    Args:
        n_in: Number of input features or channels; that of the output is ``site.features``.
        norm: The module that normalises the output.
        options: The norm whose :meth:`Norm.reparametrisation` and :meth:`Norm.initial_scale` apply to the weight.
        bias: Whether the layer has a bias ``b``, which is added before the norm.
        kernel_size: Height and width of the kernel of a convolution. None makes a linear layer.
        padding: Number of zeros added to each side of a convolution's input.
    """

    optional = False  # whether the layer is normalised only because of BN's option ``everywhere``

    def __init__(
        self,
        site: Site,
        n_in: int,
        norm: Normaliser,
        options: Norm,
        *,
        bias: bool,
        kernel_size: int | None = None,
        padding: int = 0,
    ) -> None:
        super().__init__()
        self.site = site
        self.padding = padding
        kernel = () if kernel_size is None else (kernel_size, kernel_size)
        self.weight = nn.Parameter(torch.full((site.features, n_in, *kernel), float("nan")))
        self.bias = nn.Parameter(torch.zeros(site.features)) if bias else None
        self.reparametrisation = options.reparametrisation(site)
        # the factor on the weights that are drawn; a norm may set it to one for each row, (n_out, 1)
        self.initial_scale: float | Tensor = options.initial_scale(site)
        self.norm = norm

    def effective_weight(self) -> Tensor:
        """Return ``W``, the re-parametrised weight."""
        return self.weight if self.reparametrisation is None else self.reparametrisation(self.weight)

    def map(self, x: Tensor, weight: Tensor) -> Tensor:
        """Return ``W x + b``, the summed inputs, with ``W`` given as ``weight``."""
        if weight.dim() == 2:
            return F.linear(x, weight, self.bias)
        return F.conv2d(x, weight, self.bias, padding=self.padding)

    def forward(self, x: Tensor, mask: Tensor | None = None, steps: int | range | None = None) -> Tensor:
        """Return ``norm(W x + b)``. For ``mask`` and ``steps`` see :meth:`Normaliser.forward`."""
        return self.norm(self.map(x, self.effective_weight()), mask=mask, steps=steps)

    def leaky_relu(self, x: Tensor, slope: float) -> Tensor:
        """Return ``leaky_relu(norm(W x + b))``, with norm and leaky ReLU in one operator if the norm supports this."""
        if self.norm.fused and not self.site.data_init:  # the initialisation needs the norm's output
            return self.norm(self.map(x, self.effective_weight()), slope=slope)
        return F.leaky_relu(self(x), slope)

    @torch.no_grad()
    def standardise_(self, mean: Tensor, std: Tensor) -> None:
        """Divide the gain by ``std`` and set the shift to ``-mean / std`` (Salimans & Kingma 2016, section 3).

        ``mean`` and ``std``, ``(features,)``, are those of the layer's outputs for some input. Afterwards, the outputs
        for this input have mean 0 and standard deviation 1, if the shift was 0. The gain is that of the
        re-parametrisation, if any, else the norm's. The shift is the bias of the norm, or of a layer without a norm.

        Raises: ValueError if there is no gain, or no shift.
        """
        weight = self.norm.weight if self.reparametrisation is None else self.reparametrisation.gain
        shift = self.bias if isinstance(self.norm, Identity) else self.norm.bias
        if not isinstance(weight, Tensor):
            raise ValueError(f"{self.site.name}: initialising from data needs a norm with a gain")
        if shift is None:
            raise ValueError(f"{self.site.name}: initialising from data needs a bias after the norm: norm.bias=true")
        offset = self.norm.gain_offset if self.reparametrisation is None else 0.0
        weight.add_(offset).div_(std).sub_(offset)
        shift.copy_(-mean / std)


@dataclass(frozen=True, kw_only=True)
class Norm:
    """A norm with its options, as a file ``configs/norm/<name>.yaml`` describes it.

    Attributes:
        name: The norm's name on the command line and in results.
        impl: "eager" composes the norm of elementary tensor operations. As this holds for every norm of the package
            but "module", none has the advantage of a fused kernel. "fused" computes norms, and recurrences as a whole,
            by the kernels of :mod:`rmsexp.norms.kernels`, or as "eager" where these are not available.
        fusible: Whether the norm's class supports ``impl="fused"``.
        fusible_recurrences: Whether whole recurrences have a fused form with this norm. Otherwise they run step by
            step, with a fused kernel for each norm if ``impl`` is "fused".

    Raises: ValueError for an ``impl`` that the norm does not support.
    """

    name: str
    impl: str = "eager"

    fusible: ClassVar[bool] = False
    fusible_recurrences: ClassVar[bool] = True
    # of the sites that `site` makes; `at` sets them
    role: ClassVar[str] = ""
    depth: ClassVar[int | None] = None
    layers: ClassVar[int] = 0
    parts: ClassVar[tuple[Norm, ...]] = ()  # the norms that the sites of a composed norm may have

    def __post_init__(self) -> None:
        checks.choice("norm.impl", self.impl, IMPLS)
        if self.impl == "fused" and not self.fusible:
            raise ValueError(f"norm={self.name} has no fused form; use norm.impl=eager")

    @property
    def imports(self) -> tuple[str, ...]:
        """Import paths of classes that a new run imports; to read a record, they must have been imported already."""
        return tuple(path for part in self.parts for path in part.imports)

    @property
    def fused(self) -> bool:
        """Whether fused kernels compute this norm: ``impl`` is "fused", and those for CPUs can be built and loaded."""
        return self.impl == "fused" and kernels.load()

    def as_config(self, *, defaults: bool = False) -> dict[str, Any]:
        """Return the content of a config file for this norm; with ``defaults``, with the default options."""
        kind, package = type(self), sys.modules["rmsexp.norms"]
        path = "rmsexp.norms" if getattr(package, kind.__name__, None) is kind else kind.__module__
        values = {each.name: each.default for each in fields(self) if each.default is not MISSING}
        made = {each.name: each.default_factory() for each in fields(self) if each.default_factory is not MISSING}
        return {"_target_": f"{path}.{kind.__qualname__}", **asdict(self), **(values | made if defaults else {})}

    def at(self, *, role: str = "", depth: int | None = None, layers: int = 0) -> Self:
        """Return a copy for sites of this role, depth and layers (:class:`Site`). What is not given stays as it was."""
        placed = copy.copy(self)
        given = {"role": role or self.role, "depth": self.depth if depth is None else depth}
        vars(placed).update(given, layers=layers or self.layers)  # no options, so not among the fields
        return placed

    def site(self, name: str, features: int, **asked: Any) -> Site:
        """Return a site with the role, depth and layers of this norm. ``asked``: other fields, such as ``shift``."""
        return Site(name, features, role=self.role, depth=self.depth, layers=self.layers, **asked)

    def linear(
        self,
        name: str,
        n_in: int,
        n_out: int,
        *,
        bias: bool = True,
        kernel_size: int | None = None,
        padding: int = 0,
        **asked: Any,
    ) -> Linear:
        """Return a linear layer, or with ``kernel_size`` a 2-D convolution, whose output is normalised.

        ``bias`` is added before the norm, and the ``shift`` of :class:`Site` after it. If the norm does not act on
        activations, the layer has a single bias if either is true. ``asked``: as for :meth:`site`. See :class:`Linear`
        for the other arguments.
        """
        site = self.site(name, n_out, feature_maps=kernel_size is not None, **asked)
        normaliser = self.normaliser(site)
        if isinstance(normaliser, Identity):  # a bias before the norm and a bias after it are then the same
            bias = bias or bool(site.shift)
        return Linear(site, n_in, normaliser, self, bias=bias, kernel_size=kernel_size, padding=padding)

    def value(self, name: str, features: int) -> Normaliser:
        """Return a normaliser for a value of shape ``(…, features)`` that is not the output of a layer."""
        return self.normaliser(self.site(name, features))

    def plain(self, name: str, n_in: int, n_out: int, *, bias: bool = True) -> Linear:
        """Return a linear layer whose output is not normalised. Its weight is re-parametrised if the norm does so."""
        return Linear(self.site(name, n_out), n_in, Identity(is_site=False), self, bias=bias)

    def optional(self, name: str, n_in: int, n_out: int, *, bias: bool = True) -> Linear:
        """Return the layer of :meth:`plain`; :class:`rmsexp.norms.BN` with ``everywhere`` returns a normalised one."""
        return self.plain(name, n_in, n_out, bias=bias)

    def check_effect(self, model: nn.Module) -> None:
        """Raise ValueError if ``impl`` is "fused" and a layer has no kernel, or an option has no effect on the model.

        Otherwise the record of a run would name an implementation or an option that the run did not use.
        """
        for layer in model.modules():
            if self.impl == "fused" and isinstance(layer, Normaliser) and not layer.fusible:
                raise ValueError(f"{type(layer).__name__} has no fused kernel; use norm.impl=eager")

    def normaliser(self, site: Site) -> Normaliser:  # noqa: ARG002
        """Return the module that normalises the activations of a site; by default, one that returns its input."""
        return Identity()

    def initial_scale(self, site: Site) -> float:  # noqa: ARG002
        """Return a factor on the initial weights of a site's linear layer; by default 1."""
        return 1.0

    def reparametrisation(self, site: Site) -> nn.Module | None:  # noqa: ARG002
        """Return the module that computes the effective weight of a site; None, the default, uses the weight itself.

        The module maps the weight to a tensor of the same shape, and has a parameter ``gain``, ``(features,)``.
        """
        return None

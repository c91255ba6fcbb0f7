"""Pointwise functions that take the place of a norm: DyT (Zhu et al. 2025) and Derf (Chen et al. 2025).

They have no statistics: each value is mapped by itself. So padding, other examples and other time steps have no
influence, there are no axes to choose, and a recurrence applies the same function at every step. On feature maps, gain
and shift have one value per channel, as those of other norms; alpha and the offset are single numbers everywhere.

Both papers start alpha at 0.5. For LLaMA, the code of DyT starts it at 0.2 to 0.8 before attention and at 0.05 to 0.2
elsewhere, depending on the size; here all sites start alike. In language models, the paper of DyT also multiplies the
embedded tokens by a trained number that starts at the root of the width: a pointwise function does not enlarge small
activations as a norm does. The files of ``language_model`` in configs/task_norm set ``model.embedding_scale`` for both.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from rmsexp.norms import kernels
from rmsexp.norms.base import FusedNormaliser, Norm, Site
from rmsexp.system import checks

ALPHA = 0.5  # initial value of alpha in both papers
KINDS = {"tanh": kernels.Kind.TANH, "erf": kernels.Kind.ERF}  # of the functions that the kernels know


class DynamicTanh(FusedNormaliser):
    """``y = tanh(alpha * x) * weight + bias``, DyT (Zhu et al. 2025, Eq. 1).

    ``alpha`` is a trained number. State dicts of the authors' class can be loaded.

    Args:
        features: Number of features, the last axis of the input; with ``maps``, the number of channels.
        alpha: Initial value of ``alpha``, greater than 0.
        bias, maps: Whether there is a shift, ``bias``, and whether the input is feature maps.

    See :class:`rmsexp.norms.per_example.PerExampleNorm` for ``impl`` and for errors.
    """

    function: ClassVar[str] = "tanh"  # the name of f in y = f(alpha * x + offset) * weight + bias
    has_offset: ClassVar[bool] = False
    offset: nn.Parameter | None

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        same = cls.forward is DynamicTanh.forward and cls._eager is DynamicTanh._eager
        cls.fusible = same and cls.function in KINDS

    def __init__(
        self, features: int, alpha: float = ALPHA, bias: bool = True, *, impl: str = "eager", maps: bool = False
    ) -> None:
        checks.positive("alpha", alpha)
        super().__init__(features, gain=True, shift=bias, maps=maps)
        self.initial_alpha, self.impl = float(alpha), impl
        self.alpha = nn.Parameter(torch.full((1,), self.initial_alpha))
        self.offset = nn.Parameter(torch.zeros_like(self.alpha)) if self.has_offset else None

    def _by_kernel(self, x: Tensor, slope: float) -> Tensor:
        form = kernels.Form(KINDS[self.function], k=1)  # k and eps have no effect
        vectors, numbers = (self.weight, self.bias), (self.alpha, self.offset)
        return torch.ops.rmsexp.normalise.default(x, *vectors, self.maps, *form, slope, *numbers)

    def _eager(self, x: Tensor, dtype: torch.dtype) -> Tensor:  # noqa: ARG002
        gain, shift = self.broadcast(self.weight), self.broadcast(self.bias)
        u = self.alpha * x
        y: Tensor = getattr(torch, self.function)(u if self.offset is None else u + self.offset) * gain
        return y if shift is None else y + shift

    def extra_repr(self) -> str:
        options = {"alpha": self.initial_alpha, "bias": self.bias is not None, "impl": self.impl, "maps": self.maps}
        return ", ".join([str(self.shape[0]), *(f"{name}={value!r}" for name, value in options.items())])


class DynamicErf(DynamicTanh):
    """``y = erf(alpha * x + offset) * weight + bias``, Derf (Chen et al. 2025, Eq. 10).

    ``offset``, the paper's s, is a trained number that starts at 0. Arguments and errors are those of
    :class:`DynamicTanh`.
    """

    function = "erf"
    has_offset = True


@dataclass(frozen=True, kw_only=True)
class DyT(Norm):
    """Options of DyT: ``alpha``, its initial alpha, greater than 0. There is a shift unless the model forbids one.

    Whole recurrences have no fused form with it: with ``impl="fused"``, they run step by step with a fused kernel for
    each norm, and the record says "fused norms".
    """

    alpha: float = ALPHA

    fusible = True
    fusible_recurrences = False
    layer: ClassVar[type[DynamicTanh]] = DynamicTanh

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.positive("norm.alpha", self.alpha)

    def normaliser(self, site: Site) -> DynamicTanh:
        return self.layer(site.features, self.alpha, site.shift is not False, impl=self.impl, maps=site.feature_maps)


@dataclass(frozen=True, kw_only=True)
class Derf(DyT):
    """Options of Derf. See :class:`DyT`."""

    layer = DynamicErf

"""Norms made of others: a norm for each role or block of a model, and any module as a norm."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

from rmsexp import config
from rmsexp.config import classes
from rmsexp.config.classes import Find
from rmsexp.config.words import override, overrides
from rmsexp.norms.base import ROLES, Norm, Normaliser, Site
from rmsexp.system import checks

COMPOSED = ("by_role", "module")  # the names of these norms, which have no formula of their own
# torch's norms of channels, which are the second axis of their input
OF_CHANNELS: tuple[type[nn.Module], ...] = (nn.GroupNorm, _BatchNorm, _InstanceNorm)
# the names of the argument that takes the number of features or channels, in torch and elsewhere
FEATURES = ("num_features", "num_channels", "normalized_shape", "features", "hidden_size", "dim")


@dataclass(frozen=True, kw_only=True)
class ByRole(Norm):
    """Other norms for some roles or blocks of a model. Norms are named with their options, as in ``prms+p=0.5``.

    Attributes:
        default: The norm of all other sites.
        roles: The norm by role (:attr:`rmsexp.norms.Site.role`), such as ``{query: ln}``.
        depths: The norm by :attr:`rmsexp.norms.Site.depth`; -1 is the last block. It takes precedence over ``roles``.
        eps, keep_scale: The values for norms that do not set them. Other options have the values of their files in
            ``configs/norm``.

    The norms are of this package; ``module+class=…`` is any class (:class:`ModuleNorm`). Recurrences run step by
    step.

    Raises: ValueError for an unknown role, and for a role or block that the model does not have.
    """

    default: str = "rms"
    roles: dict[str, str] | None = None
    depths: dict[int, str] | None = None
    eps: float = 1e-5
    keep_scale: bool | None = None

    fusible = True
    fusible_recurrences = False

    def __post_init__(self) -> None:
        super().__post_init__()
        for role in self.roles or {}:
            checks.choice("norm.roles: role", role, ROLES)
        chosen: dict[Any, str] = {**(self.roles or {}), **(self.depths or {})}
        parts = tuple(map(self._named, (self.default, *chosen.values())))
        vars(self).update(_chosen=chosen, _unused={*chosen}, parts=parts)  # no options, so not fields

    def name_at(self, site: Site) -> str:
        """Return the norm of a site, with its options."""
        depths = [] if site.depth is None else [site.depth, site.depth - site.layers]
        chosen = vars(self)["_chosen"]
        keys = [key for key in (*depths, site.role) if key in chosen]
        vars(self)["_unused"].difference_update(keys)
        return str(chosen[keys[0]]) if keys else self.default

    def _of(self, site: Site) -> Norm:
        return self._named(self.name_at(site))

    def _named(self, name: str) -> Norm:
        return _named(name, self.impl, self.eps, self.keep_scale)

    def normaliser(self, site: Site) -> Normaliser:
        return self._of(site).normaliser(site)

    def reparametrisation(self, site: Site) -> nn.Module | None:
        return self._of(site).reparametrisation(site)

    def initial_scale(self, site: Site) -> float:
        return self._of(site).initial_scale(site)

    def check_effect(self, model: nn.Module) -> None:
        super().check_effect(model)
        for part in self.parts:
            part.check_effect(model)
        self.check_used()

    def check_used(self) -> None:
        """Raise ValueError for a role or block of the options that none of the sites so far had."""
        if unused := vars(self)["_unused"]:
            raise ValueError(
                f"norm.roles, norm.depths: the model has no {', '.join(map(str, sorted(unused, key=str)))}"
            )


@cache
def _named(name: str, impl: str, eps: float, keep_scale: bool | None) -> Norm:
    words = config.norm_words(name)
    if "$" in name or any(not word.startswith("norm") or word.startswith("norm.impl=") for word in words):
        raise config.ConfigError(
            f"norm.default, norm.roles, norm.depths: {name} must be a norm with options of its own, as in prms+p=0.5; "
            "norm.impl holds for all"
        )
    more = [f"norm.impl={impl}", override("norm_eps", eps), override("keep_scale", keep_scale)]
    # a recorded config may name modules, which reading it must not import
    return composed_norm([*words, *more], find=classes.loaded)


def composed_norm(words: Sequence[str], config_dir: str | None = None, find: Find = classes.imported) -> Norm:
    """Return the norm of overrides such as ``norm=rms``. ``config_dir``: as ``--config-dir``; ``find``: as in job."""
    return config.job(["task=transformer", *overrides(words, config_dir)], config_dir, find=find).norm


@dataclass(frozen=True, kw_only=True)
class ModuleNorm(Norm):
    """Any module as a norm, such as ``torch.nn.GroupNorm`` with ``kwargs={num_groups: 2}``.

    Attributes:
        module: The import path of the class.
        kwargs: Arguments of its constructor, except the number of features or channels, which the model determines.

    torch's group and batch norms get input ``(…, n)`` as ``(N, n)``, a row per position: GroupNorm has statistics of
    each row, BatchNorm1d of all rows. Other classes get feature maps as ``(batch, height, width, channels)``.

    Raises: ValueError that names the site if the module cannot be made or changes the shape of its input; ConfigError
    if there is no such class.
    """

    module: str = "torch.nn.LayerNorm"
    kwargs: dict[str, Any] | None = None

    @property
    def imports(self) -> tuple[str, ...]:
        return (self.module,)

    def normaliser(self, site: Site) -> Wrapped:
        kind = classes.loaded(self.module)
        if not (isinstance(kind, type) and issubclass(kind, nn.Module)):
            raise ValueError(f"norm.module={self.module} is not a subclass of torch.nn.Module")
        names = [*inspect.signature(kind).parameters]
        key = next((name for name in FEATURES if name in names), next(iter(names), ""))
        try:
            inner = kind(**{key: site.features}, **(self.kwargs or {}))
        except Exception as error:  # a class of any library
            raise ValueError(f"{site.name}: {kind.__name__}({key}={site.features}, …): {error}") from None
        return Wrapped(site, inner)


class Wrapped(Normaliser):
    """A module as a normaliser of a site."""

    def __init__(self, site: Site, inner: nn.Module) -> None:
        super().__init__(site.features, gain=False, shift=False, maps=site.feature_maps)
        self.site, self.inner = site, inner

    def forward(self, x: Tensor, mask: Tensor | None = None, steps: int | range | None = None) -> Tensor:  # noqa: ARG002
        self.check_input(x)
        of_channels = isinstance(self.inner, OF_CHANNELS)
        try:
            if self.maps:
                y = self.inner(x) if of_channels else self.inner(x.movedim(1, -1)).movedim(-1, 1)
            else:
                y = self.inner(x.flatten(0, -2)).view_as(x) if of_channels else self.inner(x)
        except (ValueError, RuntimeError, TypeError) as error:
            raise ValueError(f"{self.site.name}: {type(self.inner).__name__}: {error}") from None
        if y.shape != x.shape:
            shapes = f"input {tuple(x.shape)}, output {tuple(y.shape)}"
            raise ValueError(f"{self.site.name}: {type(self.inner).__name__} changes the shape: {shapes}")
        return y

"""DeepNorm (Wang et al. 2022, arXiv 2203.00555): LayerNorm(a x + f(x)), with smaller initial weights in f.

For a decoder of N blocks a = (2 N)^(1/4), and the weights of f are drawn smaller by the factor (8 N)^(-1/4), except
those of queries and keys.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from rmsexp.norms import LN, LayerNorm, Linear, Site


class ScaledSum(LayerNorm):
    alpha = 1.0

    def add(self, x: Tensor, addend: Tensor | None, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        return super().add(x if addend is None else self.alpha * x, addend, mask)


@dataclass(frozen=True, kw_only=True)
class DeepNorm(LN):
    def normaliser(self, site: Site) -> ScaledSum:
        layer = ScaledSum(site.features, self.eps, bias=site.shift is not False, axes=self.axes_of(site))
        layer.alpha = (2 * max(site.layers, 1)) ** 0.25
        return layer

    def initial_scale(self, site: Site) -> float:
        is_scaled = site.role in ("attention", "feed-forward") and not site.name.endswith((".query", ".key"))
        return (8 * max(site.layers, 1)) ** -0.25 if is_scaled else 1.0

    def plain(self, name: str, n_in: int, n_out: int, *, bias: bool = True) -> Linear:
        layer = super().plain(name, n_in, n_out, bias=bias)
        if name.endswith(".joint"):  # the rows of n_in queries, of keys, and of as many values
            rows = torch.ones(n_out, 1)
            rows[(n_out + n_in) // 2 :] = self.initial_scale(layer.site)
            layer.initial_scale = rows
        return layer

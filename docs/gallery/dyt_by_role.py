"""DyT with another initial alpha before attention than elsewhere (Zhu et al. 2025, arXiv 2503.10622, section 7).

The LLaMA models of the paper start alpha at 0.8 before attention and at 0.2 elsewhere (7 billion parameters).
"""

from dataclasses import dataclass

from rmsexp.norms import DynamicTanh, DyT, Site


@dataclass(frozen=True, kw_only=True)
class DyTByRole(DyT):
    attention_alpha: float = 0.8

    def normaliser(self, site: Site) -> DynamicTanh:
        alpha = self.attention_alpha if site.role == "attention" else self.alpha
        return DynamicTanh(site.features, alpha, site.shift is not False, impl=self.impl, maps=site.feature_maps)

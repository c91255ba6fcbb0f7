"""Optimisers whose details the paper's recipes fix."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rmsexp import checks


@dataclass
class AdamConfig:
    """``clip``: the largest norm of the gradient, over all parameters; None for no limit."""

    lr: float
    beta2: float
    eps: float
    clip: float | None = None

    def __post_init__(self) -> None:
        checks.positive("optim.lr", self.lr)
        checks.probability("optim.beta2", self.beta2)
        checks.positive("optim.eps", self.eps)
        if self.clip is not None:
            checks.positive("optim.clip", self.clip)


@dataclass
class UncorrectedAdamConfig(AdamConfig):
    beta1: float = 0.9

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.probability("optim.beta1", self.beta1)


class UncorrectedAdam(torch.optim.Adam):
    """Adam with eps beside the uncorrected root: ``p -= lr * c_t * m / (sqrt(v) + eps)``, as TensorFlow and Theano do.

    ``c_t = sqrt(1 - beta2^t) / (1 - beta1^t)``. It is PyTorch's Adam with eps divided by ``sqrt(1 - beta2^t)``.
    """

    def __init__(self, params: Iterable[Tensor], lr: float, beta1: float, beta2: float, eps: float) -> None:
        super().__init__(params, lr, (beta1, beta2), eps, fused=True)
        self._eps = eps

    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            group["t"] = group.get("t", 0) + 1
            group["eps"] = self._eps / math.sqrt(1 - group["betas"][1] ** group["t"])
        return super().step(closure)


class Adam(torch.optim.Optimizer):
    """Adam with eps inside the root: ``p -= lr * m_hat / sqrt(v_hat + eps)`` (as in the weight_norm code).

    ``lr`` and ``beta1`` are read from the parameter groups at every step, as a schedule sets them.
    """

    def __init__(self, params: Iterable[Tensor], lr: float, beta1: float, beta2: float, eps: float) -> None:
        super().__init__(params, {"lr": lr, "beta1": beta1, "beta2": beta2, "eps": eps})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]  # noqa: ARG002
        for group in self.param_groups:
            params = [p for p in group["params"] if p.grad is not None]
            if not params:
                continue
            grads = [p.grad for p in params]
            for p in params:
                if not self.state[p]:
                    self.state[p] = {"step": 0, "m": torch.zeros_like(p), "v": torch.zeros_like(p)}
            states: list[dict[str, Any]] = [self.state[p] for p in params]
            for state in states:
                state["step"] += 1
            first, second = [s["m"] for s in states], [s["v"] for s in states]
            beta1, beta2 = group["beta1"], group["beta2"]
            torch._foreach_lerp_(first, grads, 1 - beta1)
            torch._foreach_mul_(second, beta2)
            torch._foreach_addcmul_(second, grads, grads, 1 - beta2)
            # lr * m / (1 - beta1^t) / sqrt(v / (1 - beta2^t) + eps), with the corrections outside the tensors
            corrections = [1 - beta2 ** s["step"] for s in states]
            denominator = torch._foreach_add(second, [group["eps"] * correction for correction in corrections])
            torch._foreach_sqrt_(denominator)
            rates = [c**0.5 / (1 - beta1 ** s["step"]) for c, s in zip(corrections, states, strict=True)]
            torch._foreach_addcdiv_(params, first, denominator, [-group["lr"] * rate for rate in rates])

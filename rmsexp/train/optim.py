"""Gradient clipping, AdamW, and variants of Adam as in code that the paper's experiments used."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rmsexp.system import checks


def clip_global(gradients: list[Tensor], limit: float, norm: Tensor) -> None:
    """Scale all gradients in place by one factor, so that their total norm ``norm`` becomes at most ``limit``."""
    torch._foreach_mul_(gradients, (limit / norm).clamp(max=1.0))


def clip_per_tensor(gradients: list[Tensor], limit: float, norm: Tensor) -> None:  # noqa: ARG001
    """Scale each gradient in place, so that its own norm becomes at most ``limit``, as in order-embedding's code."""
    for gradient, tensor_norm in zip(gradients, torch._foreach_norm(gradients), strict=True):
        gradient.mul_((limit / tensor_norm).clamp(max=1.0))


def clip_by_root(gradients: list[Tensor], limit: float, norm: Tensor) -> None:
    """Scale all gradients in place by one factor: a total ``norm`` above limit^2 becomes limit * sqrt(norm).

    The published code of the attentive reader does this, because it uses the norm where the squared norm is meant.
    """
    torch._foreach_mul_(gradients, torch.where(norm > limit**2, limit / norm.sqrt(), 1.0))


CLIPPING = {"global": clip_global, "per_tensor": clip_per_tensor, "by_root": clip_by_root}


@dataclass
class AdamConfig:
    """Options of Adam. ``clip``: the limit for clipping; None: do not clip. ``clipping``: a key of :data:`CLIPPING`."""

    lr: float
    beta2: float
    eps: float
    clip: float | None = None
    clipping: str = "global"

    def __post_init__(self) -> None:
        checks.positive("optim.lr", self.lr)
        checks.probability("optim.beta2", self.beta2)
        checks.positive("optim.eps", self.eps)
        checks.choice("optim.clipping", self.clipping, tuple(CLIPPING))
        checks.positive("optim.clip", self.clip)


@dataclass
class TensorFlowAdamConfig(AdamConfig):
    """Options of :class:`TensorFlowAdam`. ``beta1`` is an option here; for :class:`Adam` the schedule sets it."""

    beta1: float = 0.9

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.probability("optim.beta1", self.beta1)

    def optimizer(self, params: Iterable[Tensor]) -> TensorFlowAdam:
        return TensorFlowAdam(params, self.lr, self.beta1, self.beta2, self.eps)


@dataclass
class AdamWConfig(AdamConfig):
    """Options of AdamW (Loshchilov & Hutter 2019), and of the optimisers that may take its place.

    ``name``: "adamw"; "muon" (:class:`Muon`) for matrices inside the model, and AdamW for all else; or "sgd" with the
    momentum ``beta1``. ``weight_decay``: times the learning rate, the share by which matrices and the embedding shrink
    per step, with "sgd" in the long run 1 / (1 - ``beta1``) times as much, since torch adds the decay to the gradient;
    with ``decay_gains`` also vectors: gains, shifts and other parameters of norms.
    """

    beta1: float = 0.9
    weight_decay: float = 0.1
    name: str = "adamw"
    decay_gains: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.probability("optim.beta1", self.beta1)
        checks.at_least("optim.weight_decay", self.weight_decay, 0)
        checks.choice("optim.name", self.name, ("adamw", "muon", "sgd"))

    def optimizer(self, params: Iterable[Tensor], inside: Iterable[Tensor] = ()) -> torch.optim.Optimizer:
        """Return the optimiser of ``params``. ``inside``: those of them whose matrices Muon updates."""
        of_muon = {id(p) for p in inside if p.dim() == 2 and self.name == "muon"}
        trained = list(params)
        matrices = [p for p in trained if id(p) in of_muon]
        groups: list[dict[str, Any]] = [
            {"params": [p for p in trained if p.dim() >= 2 and id(p) not in of_muon]},
            {"params": [p for p in trained if p.dim() < 2], "weight_decay": self.weight_decay * self.decay_gains},
        ]
        groups = [group for group in groups if group["params"]]
        if self.name == "sgd":
            return SGD(groups, self.lr, self.beta1, weight_decay=self.weight_decay)
        adamw = AdamW(groups, self.lr, (self.beta1, self.beta2), self.eps, self.weight_decay, fused=True)
        return Muon(matrices, self.lr, self.weight_decay, adamw) if matrices else adamw


def step_of(optimiser: type[torch.optim.Optimizer]) -> Any:
    """Return the method ``step`` of an optimiser of torch, but without the import of torch's compiler (two seconds)."""
    return torch.no_grad()(inspect.unwrap(optimiser.step))


class AdamW(torch.optim.AdamW):
    """torch's AdamW, whose steps do not import torch's compiler (:func:`step_of`)."""

    step = step_of(torch.optim.AdamW)


class SGD(torch.optim.SGD):
    """torch's SGD, whose steps do not import torch's compiler (:func:`step_of`)."""

    step = step_of(torch.optim.SGD)


class Muon(torch.optim.Optimizer):
    """Muon for matrices (Jordan et al. 2024), which replaces their averaged gradient by a nearly orthogonal matrix.

    All other parameters get AdamW. Both have one learning rate: Muon's update is multiplied by
    ``0.2 sqrt(max(rows, columns))``, which gives it the root mean square of AdamW's (Liu et al. 2025, section 2.2).
    """

    def __init__(self, matrices: list[Tensor], lr: float, weight_decay: float, adamw: AdamW) -> None:
        self._muon = torch.optim.Muon(matrices, lr, weight_decay, adjust_lr_fn="match_rms_adamw")
        self._adamw = adamw
        super().__init__([*self._muon.param_groups, *adamw.param_groups], {})

    def step(self, closure: Any = None) -> Any:  # noqa: ARG002
        # this optimiser has the state and the groups of both, since load_state_dict replaces its own
        for part, groups in ((self._muon, self.param_groups[:1]), (self._adamw, self.param_groups[1:])):
            part.param_groups, part.state = groups, self.state
            part.step()


class TensorFlowAdam(torch.optim.Adam):
    """Adam with eps added to the root of the uncorrected v: ``p -= lr * c_t * m / (sqrt(v) + eps)``.

    m and v are the running averages of the gradient and its square, and ``c_t = sqrt(1 - beta2^t) / (1 - beta1^t)``
    corrects their bias at step t, from 1. TensorFlow and the published Theano code do this. With ``swapped``, each beta
    in c_t is replaced by 1 - beta, as in the published code of order-embedding; c_t is then close to 1 after a few
    steps. PyTorch's Adam computes the update, with eps divided by ``sqrt(1 - beta2^t)`` and, if ``swapped``, another
    learning rate.
    """

    _step = step_of(torch.optim.Adam)

    def __init__(
        self, params: Iterable[Tensor], lr: float, beta1: float, beta2: float, eps: float, *, swapped: bool = False
    ) -> None:
        super().__init__(params, lr, (beta1, beta2), eps, fused=True)
        self._eps, self._swapped = eps, swapped

    def step(self, closure: Any = None) -> Any:
        rates = [group["lr"] for group in self.param_groups]
        for group in self.param_groups:
            t = group["t"] = group.get("t", 0) + 1
            beta1, beta2 = group["betas"]
            group["eps"] = self._eps / math.sqrt(1 - beta2**t)
            if self._swapped:
                group["lr"] *= _correction(1 - beta1, 1 - beta2, t) / _correction(beta1, beta2, t)
        loss = self._step(closure)
        for group, rate in zip(self.param_groups, rates, strict=True):
            group["lr"] = rate
        return loss


def _correction(beta1: float, beta2: float, t: int) -> float:
    """Return ``c_t = sqrt(1 - beta2^t) / (1 - beta1^t)``, which corrects that the averages m and v start at zero."""
    return math.sqrt(1 - beta2**t) / (1 - beta1**t)


class Adam(torch.optim.Optimizer):
    """Adam with eps inside the root: ``p -= lr * m_hat / sqrt(v_hat + eps)``, as in Salimans & Kingma's code.

    m_hat and v_hat are the bias-corrected averages of the gradient and its square, as in Adam. ``lr`` and ``beta1`` are
    read from the parameter groups at every step, because a schedule may change them.
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
            # lr * m / (1 - beta1^t) / sqrt(v / (1 - beta2^t) + eps), with the corrections moved into scalar factors
            corrections = [1 - beta2 ** s["step"] for s in states]
            denominator = torch._foreach_add(second, [group["eps"] * correction for correction in corrections])
            torch._foreach_sqrt_(denominator)
            rates = [c**0.5 / (1 - beta1 ** s["step"]) for c, s in zip(corrections, states, strict=True)]
            torch._foreach_addcdiv_(params, first, denominator, [-group["lr"] * rate for rate in rates])

"""All that is drawn, each from a stream named by what it is for: a function of (seed, name), never of history."""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor


def stream(seed: int, *name: str | int, device: torch.device | str = "cpu") -> torch.Generator:
    """The generator of (seed, name), at its start."""
    return torch.Generator(device=device).manual_seed(seed_of(seed, *name))


def seed_of(*name: str | int) -> int:
    """63 bits that depend on all of the name."""
    digest = hashlib.sha256("/".join(map(str, name)).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def permutation(n: int, seed: int, *name: str | int) -> Tensor:
    """An order of n things, ``(n,)``."""
    return torch.randperm(n, generator=stream(seed, *name))


def choices(n: int, options: int, seed: int, *name: str | int) -> Tensor:
    """``n`` numbers below ``options``, ``(n,)``, each as likely."""
    return torch.randint(options, (n,), generator=stream(seed, *name))


def standard_normal(shape: torch.Size, seed: int, *name: str | int, device: torch.device | str = "cpu") -> Tensor:
    """Float32 values of mean 0 and variance 1."""
    return torch.empty(shape, device=device).normal_(generator=stream(seed, *name, device=device))


class StreamNoise:
    """The noise of one forward pass (:class:`rmsexp.models.noise.Noise`), drawn one after the other from one stream.

    It is drawn in float32 and in the order of the logical axes: filling a channels-last tensor in place would give
    another image other noise than the same tensor in contiguous memory.
    """

    def __init__(self, seed: int, *name: str | int, device: torch.device | str = "cpu") -> None:
        self._generator = stream(seed, *name, device=device)
        self._name, self._seeded = (seed, *name), 0

    def gaussian(self, x: Tensor, std: float) -> Tensor:
        if std == 0:
            return x
        noise = torch.empty(x.shape, device=x.device).normal_(0, std, generator=self._generator)
        return x + _like(noise, x).to(x.dtype)

    def dropout(self, x: Tensor, p: float) -> Tensor:
        if p == 0:
            return x
        # uniform_ and a comparison: bernoulli_ takes four times as long on a CPU
        kept = torch.empty(x.shape, device=x.device).uniform_(generator=self._generator) >= p
        return x * _like(kept, x).to(x.dtype).mul_(1 / (1 - p))

    def seed_default(self, device: torch.device) -> None:
        """See Noise. The seed is made on the host, from the place in the sequence of calls: no device is waited for."""
        self._seeded += 1
        cuda = device.type == "cuda"
        default = torch.cuda.default_generators[device.index or 0] if cuda else torch.default_generator
        default.manual_seed(seed_of(*self._name, "default", self._seeded))


def _like(noise: Tensor, x: Tensor) -> Tensor:
    """``noise`` in the memory layout of ``x``, so that later operations keep that layout."""
    channels_last = x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last)
    return noise.contiguous(memory_format=torch.channels_last) if channels_last else noise

"""All that is drawn, each from a stream named by what it is for: a function of (seed, name), never of history."""

from __future__ import annotations

import hashlib
from weakref import WeakValueDictionary

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
        self._handle = torch.tensor(id(self))
        _ALIVE[id(self)] = self

    def gaussian(self, x: Tensor, std: float) -> Tensor:
        if std == 0:
            return x
        return x + _like(self._draw(x, std), x).to(x.dtype)

    def dropout(self, x: Tensor, p: float) -> Tensor:
        if p == 0:
            return x
        # uniform_ and a comparison: bernoulli_ takes four times as long on a CPU
        kept = self._draw(x, None) >= p
        return x * _like(kept, x).to(x.dtype).mul_(1 / (1 - p))

    def _draw(self, x: Tensor, std: float | None) -> Tensor:
        """Float32 values of the shape of ``x``: normal with this standard deviation, or uniform from 0 to 1."""
        if torch.compiler.is_compiling():
            return _draw_compiled(x.detach(), self._handle, std)
        values = torch.empty(x.shape, device=x.device)
        if std is None:
            return values.uniform_(generator=self._generator)
        return values.normal_(0, std, generator=self._generator)

    def seed_default(self, device: torch.device) -> None:
        """See Noise. The seed is made on the host, from the place in the sequence of calls: no device is waited for."""
        self._seeded += 1
        cuda = device.type == "cuda"
        default = torch.cuda.default_generators[device.index or 0] if cuda else torch.default_generator
        default.manual_seed(seed_of(*self._name, "default", self._seeded))


# A graph that torch.compile makes can hold no generator. It holds an operator, which finds the stream by its handle;
# that this is said to change keeps the order of the draws.
_ALIVE: WeakValueDictionary[int, StreamNoise] = WeakValueDictionary()


@torch.library.custom_op("rmsexp::draw", mutates_args={"handle"})
def _draw_compiled(x: Tensor, handle: Tensor, std: float | None) -> Tensor:
    return _ALIVE[int(handle)]._draw(x, std)


@_draw_compiled.register_fake
def _(x: Tensor, handle: Tensor, std: float | None) -> Tensor:  # noqa: ARG001
    return torch.empty(x.shape, device=x.device)


def _like(noise: Tensor, x: Tensor) -> Tensor:
    """``noise`` in the memory layout of ``x``, so that later operations keep that layout."""
    channels_last = x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last)
    return noise.contiguous(memory_format=torch.channels_last) if channels_last else noise

"""Random numbers from named streams. The numbers of a stream depend only on its seed and name, not on other draws."""

import hashlib
from weakref import WeakValueDictionary

import torch
from torch import Tensor


def stream(seed: int, *name: str | int, device: torch.device | str = "cpu") -> torch.Generator:
    """Return a new generator, at the beginning of the stream for this seed and name."""
    return torch.Generator(device=device).manual_seed(seed_of(seed, *name))


def seed_of(*name: str | int) -> int:
    """Return a seed of 63 bits that depends on all parts of the name."""
    digest = hashlib.sha256("/".join(map(str, name)).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def permutation(n: int, seed: int, *name: str | int) -> Tensor:
    """Return a random permutation of 0 to n - 1, ``(n,)``."""
    return torch.randperm(n, generator=stream(seed, *name))


def choices(n: int, options: int, seed: int, *name: str | int) -> Tensor:
    """Return ``n`` uniformly distributed integers from 0 to ``options`` - 1, ``(n,)``."""
    return torch.randint(options, (n,), generator=stream(seed, *name))


def standard_normal(shape: torch.Size, seed: int, *name: str | int, device: torch.device | str = "cpu") -> Tensor:
    """Return a float32 tensor of the given shape with normally distributed values of mean 0 and variance 1."""
    return torch.empty(shape, device=device).normal_(generator=stream(seed, *name, device=device))


def drawn_index(logits: Tensor, temperature: float, generator: torch.Generator) -> Tensor:
    """Return an index drawn with the probabilities ``softmax(logits / temperature)``, ``(1,)``.

    ``logits`` has shape (option,). With temperature 0 the index is that of the largest logit.
    """
    if temperature == 0:
        return logits.argmax(0, keepdim=True)
    scaled = (logits.double() - logits.max()) / temperature  # at most 0, so that a low temperature gives no infinity
    return torch.multinomial(scaled.softmax(0), 1, generator=generator)


class StreamNoise:
    """The noise of one forward pass (:class:`rmsexp.task.Noise`); successive calls draw from one stream.

    Values are drawn in float32 for a contiguous tensor, and then copied to channels-last memory if the input is
    channels-last. A channels-last tensor thus gets the same noise as a contiguous one.
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
        mask = self._draw(x, None) >= p
        return x * _like(mask, x).to(x.dtype).mul_(1 / (1 - p))

    def _draw(self, x: Tensor, std: float | None) -> Tensor:
        """Return float32 values, shaped as ``x``: normal with deviation ``std``, or uniform in [0, 1) if it is None."""
        if torch.compiler.is_compiling():
            return _draw_compiled(x.detach(), self._handle, std)
        values = torch.empty(x.shape, device=x.device)
        if std is None:
            return values.uniform_(generator=self._generator)
        return values.normal_(0, std, generator=self._generator)

    def seed_default(self, device: torch.device) -> None:
        """Seed torch's default generator on ``device``.

        The seed depends on the stream and on how often this method was called on it. The host computes the seed, so it
        does not wait for the device.
        """
        self._seeded += 1
        cuda = device.type == "cuda"
        default = torch.cuda.default_generators[device.index or 0] if cuda else torch.default_generator
        default.manual_seed(seed_of(*self._name, "default", self._seeded))


# A compiled graph cannot contain a generator. It calls the operator rmsexp::draw, which looks up the StreamNoise by its
# handle, a tensor with its id(). Declaring the handle as mutated prevents torch.compile from reordering the draws.
_ALIVE: WeakValueDictionary[int, StreamNoise] = WeakValueDictionary()


@torch.library.custom_op("rmsexp::draw", mutates_args={"handle"})
def _draw_compiled(x: Tensor, handle: Tensor, std: float | None) -> Tensor:
    return _ALIVE[int(handle)]._draw(x, std)


@_draw_compiled.register_fake
def _(x: Tensor, handle: Tensor, std: float | None) -> Tensor:  # noqa: ARG001
    return torch.empty(x.shape, device=x.device)


def _like(noise: Tensor, x: Tensor) -> Tensor:
    """Return ``noise`` in channels-last memory if ``x`` is, so that later operations keep this layout."""
    channels_last = x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last)
    return noise.contiguous(memory_format=torch.channels_last) if channels_last else noise

"""What a kernel must know of a norm."""

from __future__ import annotations

from typing import Final, NamedTuple


class Kind:
    """As the C++ sources number them; plain numbers, since every call hands one over."""

    NONE: Final = 0
    RMS: Final = 1
    LAYER: Final = 2
    EUCLID: Final = 3


class Form(NamedTuple):
    """A norm of n units; the first ``k`` of them enter its statistic, and eps may lie ``inside`` the root."""

    kind: int
    k: int
    inside: bool = True
    eps: float = 0.0

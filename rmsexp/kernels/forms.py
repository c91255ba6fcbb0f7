"""What a kernel must know of a norm."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple


class Kind(IntEnum):
    """As the C++ sources number them."""

    NONE = 0
    RMS = 1
    LAYER = 2
    EUCLID = 3


class Form(NamedTuple):
    """A norm of n units; the first ``k`` of them enter its statistic, and eps may lie ``inside`` the root."""

    kind: Kind
    k: int
    inside: bool = True
    eps: float = 0.0

"""Figures of reports that are drawn again only if something that they depend on has changed."""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Callable
from functools import cache
from pathlib import Path

import matplotlib
from matplotlib.figure import Figure

from rmsexp.report.plots import canvas

PACKAGE = Path(__file__).parents[2]
SOURCES = (".py", ".csv")  # suffixes of the package's code and of the paper's numbers


def write(draw: Callable[[], Figure], path: Path) -> None:
    """Write the figure that ``draw`` returns as ``<path>.png``, unless this file is of the same :func:`key`.

    ``draw``: a function, with its arguments, that depends on nothing else than the key.
    """
    own = key(draw)
    if canvas.key(path.with_name(f"{path.name}.png")) != own:
        canvas.write(draw(), path, ["png"], own)


def key(draw: Callable[[], Figure]) -> str:
    """Return a digest of all that a figure depends on: ``draw`` with its arguments, this package, and matplotlib."""
    return hashlib.sha256(_software() + pickle.dumps(draw)).hexdigest()


@cache
def _software() -> bytes:
    """Return a digest of the package's files, and of matplotlib's version and settings."""
    sources = sorted(path for path in PACKAGE.rglob("*") if path.suffix in SOURCES)
    style = sorted(f"{key}={value}" for key, value in matplotlib.rcParams.items() if key != "backend")
    settings = [matplotlib.__version__.encode(), "\n".join(style).encode()]
    return hashlib.sha256(b"\0".join([*settings, *(path.read_bytes() for path in sources)])).digest()

"""The curves of each chart, and the matplotlib figures of reports, timing records and benchmarks.

``panels`` computes the curves, for the figures here and for the HTML page. Figures are made with matplotlib's classes
instead of pyplot, so they need no global state and no display.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress


def _import_matplotlib() -> None:
    """Import matplotlib also if MPLBACKEND names a backend that is not installed, as inherited from a notebook.

    In a command, figures do not depend on the user's ``matplotlibrc`` (see ``rmsexp/__init__.py``).
    """
    backend = None if "matplotlib" in sys.modules else os.environ.pop("MPLBACKEND", None)
    import matplotlib

    if os.environ.get("MATPLOTLIBRC") == os.devnull:  # a matplotlibrc in the working directory would come before it
        matplotlib.rcdefaults()
    if backend is not None:
        os.environ["MPLBACKEND"] = backend
        with suppress(ValueError):
            matplotlib.rcParams["backend"] = backend


_import_matplotlib()

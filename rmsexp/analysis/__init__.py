"""Analyses from the paper, one module each, run by ``python -m rmsexp.analysis NAME``.

An analysis returns a :class:`rmsexp.analysis.finding.Finding`; :mod:`rmsexp.analysis.__main__` writes and prints it.
"""

import rmsexp.compare.plots  # noqa: F401  # before modules that import matplotlib

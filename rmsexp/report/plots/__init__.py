"""The figures of reports and benchmarks: ``chart`` is their model, and ``canvas`` draws them with matplotlib.

Figures are made with matplotlib's classes instead of pyplot, so they need no global state and no display.
"""

import os

import matplotlib

if os.environ.get("MATPLOTLIBRC") == os.devnull:  # in a command, also without a matplotlibrc in the working directory
    matplotlib.rcdefaults()

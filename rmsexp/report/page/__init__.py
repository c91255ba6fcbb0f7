"""The texts of a report: the HTML page, Markdown and LaTeX."""

import rmsexp.compare.plots  # noqa: F401  # before matplotlib

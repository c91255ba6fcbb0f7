"""The texts of a report: the HTML page, Markdown and LaTeX."""

import rmsexp.report.plots  # noqa: F401  # before matplotlib

"""The curves of each chart, and the matplotlib figures of reports, timing records and benchmarks.

``panels`` computes the curves, for the figures here and for the HTML page. Figures are made with matplotlib's classes
instead of pyplot, so they need no global state and no display.
"""

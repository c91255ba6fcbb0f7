"""The curves of each chart, and all matplotlib figures.

``panels`` computes the curves, for the figures here and for the HTML page. Figures are made of matplotlib's objects,
without pyplot: they need no global state and no display.
"""

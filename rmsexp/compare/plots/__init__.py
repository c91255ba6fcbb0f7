"""The panel model of curves, and all matplotlib figures.

``panels`` computes what is drawn of a quantity, for the figures here and for the HTML page. Figures are made of
matplotlib's objects, without pyplot: no global state, no display.
"""

"""Analyses from the paper, one module each, run by ``python -m rmsexp.analysis NAME``.

An analysis returns tables; :mod:`rmsexp.commands.analysis` writes and prints them.
"""

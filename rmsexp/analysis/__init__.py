"""Analyses from the paper, one module each, run by ``python -m rmsexp.analysis NAME``.

An analysis returns a :class:`rmsexp.analysis.finding.Finding`; :mod:`rmsexp.commands.analysis` writes and prints it.
"""

"""The paper's analyses beside its training curves: ``python -m rmsexp.analysis NAME``, one module an analysis.

An analysis returns a :class:`rmsexp.analysis.finding.Finding`; :mod:`rmsexp.analysis.__main__` writes and prints it.
"""

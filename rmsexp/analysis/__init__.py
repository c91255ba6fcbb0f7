"""The paper's analyses other than training curves: ``python -m rmsexp.analysis NAME``, one module per analysis.

An analysis returns a :class:`rmsexp.analysis.finding.Finding`; :mod:`rmsexp.analysis.__main__` writes and prints it.
"""

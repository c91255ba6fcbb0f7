"""Runs as data frames, under the name that notebooks and scripts of users have: ``rmsexp.compare.load(results)``."""

from rmsexp.report import Records, draw, load

__all__ = ["Records", "draw", "load"]

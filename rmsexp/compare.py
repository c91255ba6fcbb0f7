"""The public name for loading runs as data frames: ``rmsexp.compare.load(results)``."""

from rmsexp.report import Records, draw, load

__all__ = ["Records", "draw", "load"]

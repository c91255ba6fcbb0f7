"""Doing runs: one (runner), many, and trials of some steps (worker); trained models (trained)."""

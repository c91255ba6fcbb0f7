"""Doing runs: one (runner), many (worker); trials of some steps (cost), and trained models (trained)."""

"""Runs and timing records as data frames, their statistics, and the caveats of a setting."""

"""Write and read the files of a run, and continue it; ``frames`` loads runs and timings as data frames."""

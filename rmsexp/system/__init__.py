"""Files, locks, processes, the machine, the terminal and the clock: what knows nothing of experiments."""

"""The commands: one file each, as ``python -m rmsexp.<name>`` or ``rmsexp <name>``."""

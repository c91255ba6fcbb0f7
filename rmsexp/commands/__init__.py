"""The commands, one file each, such as ``python -m rmsexp.report`` or ``rmsexp report``, and what they print."""

"""``python -m rmsexp.analysis``: see :mod:`rmsexp.commands.analysis`."""

from rmsexp.commands.analysis import main

if __name__ == "__main__":
    raise SystemExit(main())

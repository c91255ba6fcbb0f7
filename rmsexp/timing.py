"""``python -m rmsexp.timing``: see :mod:`rmsexp.commands.timing`."""

from rmsexp.commands.timing import main

if __name__ == "__main__":
    raise SystemExit(main())

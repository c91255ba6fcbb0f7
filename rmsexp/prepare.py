"""``python -m rmsexp.prepare``: see :mod:`rmsexp.commands.prepare`."""

from rmsexp.commands.prepare import main

if __name__ == "__main__":
    raise SystemExit(main())

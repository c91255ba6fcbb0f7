"""``python -m rmsexp.generate``: see :mod:`rmsexp.commands.generate`."""

from rmsexp.commands.generate import main

if __name__ == "__main__":
    raise SystemExit(main())

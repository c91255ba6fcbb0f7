"""``python -m rmsexp.report``: see :mod:`rmsexp.commands.report`."""

from rmsexp.commands.report import main

if __name__ == "__main__":
    raise SystemExit(main())

"""``python -m rmsexp.status``: see :mod:`rmsexp.commands.status`."""

from rmsexp.commands.status import main

if __name__ == "__main__":
    raise SystemExit(main())

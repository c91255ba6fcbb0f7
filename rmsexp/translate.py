"""``python -m rmsexp.translate``: see :mod:`rmsexp.commands.translate`."""

from rmsexp.commands.translate import main

if __name__ == "__main__":
    raise SystemExit(main())

"""``python -m rmsexp.bench``: see :mod:`rmsexp.commands.bench`."""

from rmsexp.commands.bench import main

if __name__ == "__main__":
    raise SystemExit(main())

"""``python -m rmsexp.published``: see :mod:`rmsexp.commands.published`."""

from rmsexp.commands.published import main

if __name__ == "__main__":
    raise SystemExit(main())

"""``python -m rmsexp.campaign``: see :mod:`rmsexp.commands.campaign`."""

from rmsexp.commands.campaign import main

if __name__ == "__main__":
    raise SystemExit(main())

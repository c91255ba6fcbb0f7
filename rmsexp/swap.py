"""``python -m rmsexp.swap``, and :func:`swap` in Python: see :mod:`rmsexp.commands.swap`."""

from rmsexp.commands.swap import main, swap  # noqa: F401

if __name__ == "__main__":
    raise SystemExit(main())

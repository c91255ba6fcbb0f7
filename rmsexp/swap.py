"""Should I swap the norms of my model? ``python -m rmsexp.swap``, and :func:`swap` in Python."""

import sys

from rmsexp.commands.swap import Swap, main, swap

__all__ = ["Swap", "swap"]

if __name__ == "__main__":
    sys.exit(main())

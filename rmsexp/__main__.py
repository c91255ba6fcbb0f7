"""``python -m rmsexp``."""

import sys

from rmsexp.app import main

if __name__ == "__main__":
    sys.exit(main())

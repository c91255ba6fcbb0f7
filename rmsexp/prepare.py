"""``python -m rmsexp.prepare task=… scale=…``: downloads, verifies and preprocesses what a run would."""

from __future__ import annotations

import sys

from rmsexp import config, tasks


def main() -> int:
    if {"-h", "--help"} & set(sys.argv):
        print(__doc__)
        return 0
    import torch

    from rmsexp.data import DataError

    try:
        job = config.job([config.expand_home(word) for word in sys.argv[1:]])
        task = tasks.make(job, torch.device("cpu"))
        task.prepare(print)
    except config.ConfigError as error:
        print(f"rmsexp: {error}", file=sys.stderr)
        return 2
    except (DataError, ValueError) as error:
        print(f"rmsexp: {error}", file=sys.stderr)
        return 1
    print(f"ready: {task.dataset.name}, digest {task.dataset.digest[:12]}, under {job.config.data.root}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

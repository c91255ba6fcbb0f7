"""``python -m rmsexp.prepare task=cifar10 scale=small``: download, verify and preprocess the data set of a run.

It takes the GROUP=CHOICE and KEY=VALUE arguments of one run, without ``-m`` and ``--config-dir``. A run with the same
arguments then uses the prepared data and needs no network.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from rmsexp import config
from rmsexp.command_line import documentation, entry_point


@entry_point
def main(argv: Sequence[str] | None = None) -> int:
    words = sys.argv[1:] if argv is None else list(argv)
    if {"-h", "--help"} & set(words):
        print(documentation(__file__))
        return 0
    import torch

    from rmsexp import tasks

    job = config.job([config.expand_home(word) for word in words])
    task = tasks.make(job, torch.device("cpu"))
    task.prepare(print)
    print(f"ready: {task.dataset.name}, digest {task.dataset.digest[:12]}, in {job.config.data.root}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

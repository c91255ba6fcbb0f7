"""``python -m rmsexp.prepare task=cifar10 scale=small``: download, verify and preprocess the data set of a run.

It takes the arguments of one run. A run with the same arguments then uses the prepared data and needs no network.
"""

from collections.abc import Sequence

from rmsexp import config
from rmsexp.config.words import overrides
from rmsexp.system import process
from rmsexp.system.command_line import Parser, entry_point


@entry_point
def main(argv: Sequence[str]) -> int:
    parser = Parser(prog="python -m rmsexp.prepare", description=__doc__)
    parser.add_argument("words", nargs="*", metavar="KEY=VALUE", help="a choice or value of a run's config")
    parser.add_config_dir()
    arguments = parser.parse_intermixed_args(argv)
    import torch

    from rmsexp import tasks

    job = config.job(overrides(arguments.words, arguments.config_dir), arguments.config_dir)
    with process.ending_on_signals():  # temporary files of downloads are removed then
        task = tasks.make(job, torch.device("cpu"))
        task.prepare(print)
    print(f"ready: {task.dataset.name}, digest {task.dataset.digest[:12]}, in {job.config.data.root}")
    return 0

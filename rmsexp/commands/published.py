"""``python -m rmsexp.published FILE``: draw a log that the authors published beside your runs.

A log, results.csv (CIFAR-10) or stats_*.pkl (attentive reader), becomes the record of a run in
<results>/<task>/paper/<norm>+published/seed<k>, and the curves of that setting are redrawn.
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

from rmsexp import config, tasks
from rmsexp.data import authors_files, files
from rmsexp.records import record
from rmsexp.report import draw
from rmsexp.system import atomic, readers
from rmsexp.system.command_line import Parser, command, entry_point, number, value_word

SCALE = "paper"


class Log(NamedTuple):
    """How a published log becomes the record of a run of ``task``. ``read`` returns its rows from the log's path.

    ``device``: on which the paper's times were measured. ``assumed``: what the log does not say, for the notes.
    """

    task: str
    read: Callable[[Path], list[record.Row]]
    dataset: str
    device: str
    assumed: str


LOGS = {  # by the ending of the log's name
    ".csv": Log(
        "cifar10",
        authors_files.cifar10_rows,
        "CIFAR-10",
        "GeForce RTX 2080 Ti",
        f"{authors_files.EPOCH_STEPS} updates per epoch; seconds include training and test passes",
    ),
    ".pkl": Log(
        "attentive_reader",
        authors_files.reader_rows,
        "CNN top4",
        "TITAN X (Pascal)",
        f"validated every {authors_files.VALID_STEPS} updates; training rows are running averages with dropout",
    ),
}


def import_log(path: Path, norm: str, seed: int, results: Path) -> Path:
    """Write the record of a published log and return its folder. If this log has been imported before, do nothing else.

    Raises: DataError if the log cannot be read; FileExistsError if the folder contains another run.
    """
    log, series = LOGS[path.suffix], f"{norm}+published"
    task, rows = log.task, log.read(path)
    step, digest = rows[-1]["step"], hashlib.sha256(path.read_bytes()).hexdigest()
    folder = results / task / SCALE / series / f"seed{seed}"
    run = {
        "format": 1,
        "task": task,
        "norm": norm,
        "scale": SCALE,
        "seed": seed,
        "setting": SCALE,
        "series": series,
        "impl": "theano",
        "recipe_steps": step,
        "target": asdict(tasks.task_class(task).target),
        "quantities": [asdict(quantity) for quantity in tasks.task_class(task).quantities],
        "dataset": {"name": log.dataset, "digest": "unknown", "builtin": False},
        "notes": {"source": f"published by the authors as {path.name} (sha256 {digest})", "assumed": log.assumed},
        "parameters": {"total": None, "modules": {}},
        "sessions": [{"from_step": 0, "device": log.device, "comparable": False}],
    }
    if folder.exists() and readers.read_json(folder / record.RUN).get("notes") == run["notes"]:
        return folder  # imported before, perhaps by an older version, whose description has other keys
    with files.staging(folder) as temporary:
        if folder.exists():
            raise FileExistsError(f"{folder} contains another run; choose another --seed or --results")
        atomic.write_json(temporary / record.RUN, run)
        record.RunFolder(temporary).append(rows)
        atomic.write_json(temporary / record.STATUS, {"status": "finished", "step": step, "error": None})
        files.publish(temporary, folder)
    return folder


@entry_point
def main(argv: Sequence[str] | None = None) -> int:
    parser = Parser(prog="python -m rmsexp.published", description=__doc__)
    parser.add_argument("file", type=Path, help="a file as the authors published it")
    parser.add_argument("--norm", choices=config.options("norm"), default="rms", help="the norm of FILE (%(default)s)")
    seed = number(int, 0, config.LARGEST_SEED)
    parser.add_argument("--seed", type=seed, default=0, help="tells several logs of one norm apart (%(default)s)")
    parser.add_argument("--results", type=Path, default=Path("results"), help="root of all records")
    arguments = parser.parse_args(argv)
    if arguments.file.suffix not in LOGS:
        parser.error(f"{arguments.file} ends in none of {', '.join(LOGS)}")
    task, results = LOGS[arguments.file.suffix].task, config.results_folder(arguments.results)
    print(f"record  {import_log(arguments.file, arguments.norm, arguments.seed, results)}")
    print(f"curves  {draw(results, task, SCALE) / 'curves.png'}")
    words = [f"task={task}", f"norm={arguments.norm}", f"scale={SCALE}", value_word("results", results)]
    print(f"next    {command('rmsexp', *words)}")
    return 0

"""``python -m rmsexp.published FILE``: draw the authors' published logs beside your runs, or evaluate their model.

A log, results.csv (CIFAR-10) or stats_*.pkl (attentive reader), becomes the record of a run in
<results>/<task>/paper/<norm>+published/seed<k>, and the curves of that setting are redrawn. A model, order.npz with
order.pkl in the same folder (order-embedding), is evaluated on the test split of <data-root>/coco, with features of
torchvision's VGG-19, which are similar to those that it was trained on. Its metrics are printed above those of the
paper's Table 7.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rmsexp import config, tasks
from rmsexp.data import authors_files, cache
from rmsexp.records import record
from rmsexp.records.frames import names
from rmsexp.report import draw
from rmsexp.system import atomic, readers
from rmsexp.system.command_line import Parser, command, entry_point, value_word

if TYPE_CHECKING:
    import pandas as pd
    import torch
    from torch import nn

SCALE = "paper"
TASKS = {".csv": "cifar10", ".pkl": "attentive_reader", ".npz": "order_embedding"}
TABLE_7_METRICS = [f"{kind}_{metric}" for kind in ("caption", "image") for metric in ("r1", "r5", "r10", "mean_rank")]
# linear map in our GRU -> (the authors' name of its weight matrix, their number of its norm)
GRU = {"gates_x": ("W", 1), "gates_h": ("U", 3), "candidate_x": ("Wx", 2), "candidate_h": ("Ux", 4)}
PARAMETERS = {  # the authors' name of a parameter -> our name
    "Wemb": "embedding",
    "ff_image_W": "image.weight",
    "ff_image_b": "image.bias",
    "gru_b": "gru.gates_x.bias",
    "gru_bx": "gru.candidate_x.bias",
    **{f"gru_{weight}": f"gru.{site}.weight" for site, (weight, _) in GRU.items()},
    **{f"gru_s{number}": f"gru.{site}.norm.weight" for site, (_, number) in GRU.items()},
    **{f"gru_b{number}": f"gru.{site}.norm.bias" for site, (_, number) in GRU.items()},
}


@dataclass(frozen=True)
class Log:
    """How a task's published log becomes a record.

    Attributes:
        read: a function that takes the path of the log and returns the metric rows of the record.
        dataset: the name of the data set.
        device: the device on which the paper's times were measured.
        assumed: what we assume because the log does not say it, for the record's notes.
    """

    read: Callable[[Path], list[record.Row]]
    dataset: str
    device: str
    assumed: str


LOGS = {
    "cifar10": Log(
        authors_files.cifar10_rows,
        "CIFAR-10",
        "GeForce RTX 2080 Ti",
        f"{authors_files.EPOCH_STEPS} updates per epoch; seconds include training and test passes",
    ),
    "attentive_reader": Log(
        authors_files.reader_rows,
        "CNN top4",
        "TITAN X (Pascal)",
        f"validated every {authors_files.VALID_STEPS} updates; training rows are running averages with dropout",
    ),
}


def import_log(path: Path, task: str, norm: str, seed: int, results: Path) -> Path:
    """Write the record of a published log and return its folder. If this log has been imported before, do nothing else.

    Raises:
        DataError: the log cannot be read.
        FileExistsError: the folder contains another run.
    """
    log, series = LOGS[task], f"{norm}+published"
    rows = log.read(path)
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
    with cache.staging(folder) as temporary:
        if folder.exists():
            raise FileExistsError(f"{folder} contains another run; choose another --seed or --results")
        atomic.write_json(temporary / record.RUN, run)
        record.RunFolder(temporary).append(rows)
        atomic.write_json(temporary / record.STATUS, {"status": "finished", "step": step, "error": None})
        cache.publish(temporary, folder)
    return folder


def evaluate(stored: authors_files.OrderModel, norm: str, root: Path) -> dict[str, float]:
    """Return the metrics of a stored model on the test split (see :func:`rmsexp.metrics.retrieval.retrieval`).

    ``norm``: the norm with which it was trained. ``root``: the folder that contains the data set ``coco``.

    Raises:
        config.ConfigError, ValueError: ``stored`` is not an order-embedding model with this norm.
        DataError: the data cannot be read.
    """
    import torch

    from rmsexp.tasks.order_embedding import Task

    embedding, hidden = stored.arrays["Wemb"].shape[1], stored.arrays["ff_image_W"].shape[1]
    overrides = [f"task={TASKS['.npz']}", f"scale={SCALE}", f"norm={norm}", value_word("data.root", root)]
    overrides += [f"model.embedding={embedding}", f"model.hidden={hidden}"]
    overrides += [value_word("penalty", str(stored.options.get("method")))]
    overrides += ["norm.bias=true"] if norm != "ln" and "gru_b1" in stored.arrays else []
    job = config.job(overrides)
    task = Task(job.config, torch.device("cuda" if torch.cuda.is_available() else "cpu"))
    task.prepare(print)
    model = task.build(job.norm)
    fill(model, stored, task.words)
    print("encoding and ranking captions, which takes minutes on a CPU", flush=True)
    with torch.no_grad():
        return task.evaluate(model.eval())["test"]


def fill(model: nn.Module, stored: authors_files.OrderModel, words: list[str]) -> None:
    """Load the stored parameters into our model.

    ``words``: our vocabulary by id. Words that the stored model does not know get its embedding of unknown words.

    Raises:
        ValueError: the stored parameters do not fit the model.
    """
    import torch

    arrays = {**stored.arrays, "Wemb": stored.arrays["Wemb"][stored.ids(words)]}
    state = {  # transposed, because the authors compute x W and we compute W x
        PARAMETERS.get(name, name): torch.tensor(array if name == "Wemb" else array.T).float()
        for name, array in arrays.items()
    }
    expected = model.state_dict()
    for name in {**expected, **state}:
        shape, expected_shape = _shape(state, name), _shape(expected, name)
        if shape != expected_shape:
            raise ValueError(
                f"the stored parameters do not fit: {name} is {shape}, but a model with this norm for these features "
                f"has {expected_shape}; set --norm to the norm that it was trained with"
            )
    model.load_state_dict(state)


def _shape(state: Mapping[str, torch.Tensor], name: str) -> str:
    return str(tuple(state[name].shape)) if name in state else "none"


def beside_table_7(metrics: Mapping[str, float], name: str) -> pd.DataFrame:
    """Return a table of ``metrics`` in a row called ``name`` and, below, those of the paper's own Theano models.

    Recalls are in percent. The last two columns, the median ranks, are NaN for the paper's models.
    """
    import pandas as pd

    from rmsexp.report import paper

    numbers = paper.numbers().query("table == 'Table 7' and framework == 'Theano' and metric in @TABLE_7_METRICS")
    published = numbers.pivot(index="norm", columns="metric", values="value").loc[names.in_order(numbers["norm"])]
    published.index = pd.Index([f"Table 7, {names.label(norm)}" for norm in published.index])
    columns = [*TABLE_7_METRICS, "caption_median_rank", "image_median_rank"]
    table = pd.concat([pd.DataFrame(metrics, index=[name]), published])[columns]
    table[[column for column in columns if not column.endswith("rank")]] *= 100
    return table


@entry_point
def main(argv: Sequence[str] | None = None) -> int:
    parser = Parser(prog="python -m rmsexp.published", description=__doc__)
    parser.add_argument("file", type=Path, help="a file as the authors published it")
    suffixes = ", ".join(f"{task} for {suffix}" for suffix, task in TASKS.items())
    parser.add_argument("--task", choices=TASKS.values(), help=f"default: {suffixes}")
    parser.add_argument("--norm", choices=config.options("norm"), default="rms", help="the norm of FILE (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="tells several logs of one norm apart (%(default)s)")
    parser.add_argument("--results", type=Path, default=Path("results"), help="of logs: root of all records")
    parser.add_argument("--data-root", type=Path, default=Path(config.DataConfig.root), help="of models: data sets")
    arguments = parser.parse_args(argv)
    task = arguments.task or TASKS.get(arguments.file.suffix)
    if task is None:
        parser.error(f"{arguments.file} ends in none of {', '.join(TASKS)}; set --task")
    if not 0 <= arguments.seed <= config.LARGEST_SEED:
        parser.error(f"--seed must be from 0 to {config.LARGEST_SEED}, got {arguments.seed}")
    results, root = config.results_folder(arguments.results), config.expanded(arguments.data_root)
    if task in LOGS:
        print(f"record  {import_log(arguments.file, task, arguments.norm, arguments.seed, results)}")
        print(f"curves  {draw(results, task, SCALE) / 'curves.png'}")
    else:
        metrics = evaluate(authors_files.order_model(arguments.file), arguments.norm, root)
        table = beside_table_7(metrics, arguments.file.name)
        print(table.to_string(float_format="{:.1f}".format, na_rep=""))
    root_override = value_word("results", results) if task in LOGS else value_word("data.root", root)
    words = [f"task={task}", f"norm={arguments.norm}", f"scale={SCALE}", root_override]
    print(f"next    {command('rmsexp', *words)}")
    return 0

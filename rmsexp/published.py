"""``python -m rmsexp.published FILE``: what the paper's authors published, drawn beside our runs or evaluated.

results.csv (CIFAR-10) and stats_*.pkl (attentive reader) become a record in
<results>/<task>/paper/<norm>+published/seed<k>, and the curves of that setting are redrawn. order.npz, with order.pkl
beside it (order-embedding), is evaluated on the test split of <data-root>/coco, in the layout of the order-embedding
release, and set beside the paper's Table 7.
"""

from __future__ import annotations

import argparse
import hashlib
import shlex
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rmsexp import compare, config, record, tasks
from rmsexp.compare.records import names
from rmsexp.data import DataError, authors_files, cache

if TYPE_CHECKING:
    import pandas as pd
    from torch import nn

SCALE = "paper"
TASKS = {".csv": "cifar10", ".pkl": "attentive_reader", ".npz": "order_embedding"}
COLUMNS = [f"{of}_{metric}" for of in ("caption", "image") for metric in ("r1", "r5", "r10", "mean_rank")]
TABLE_7 = {  # recalls in %
    "none": (45.8, 79.7, 88.8, 5.4, 37.6, 73.6, 85.8, 7.7),
    "ln": (47.9, 79.5, 89.2, 5.3, 38.4, 74.6, 86.7, 7.5),
    "rms": (48.7, 79.7, 89.5, 5.3, 39.0, 74.8, 86.3, 7.5),
    "prms": (46.8, 79.8, 90.3, 5.2, 39.0, 74.5, 86.3, 7.4),
}
GRU = {"gates_x": ("W", 1), "gates_h": ("U", 3), "candidate_x": ("Wx", 2), "candidate_h": ("Ux", 4)}  # map, norm
PARAMETERS = {  # ours by theirs
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
    """How a task's published log becomes a record. ``device``: what the paper says that its times are of."""

    read: Callable[[Path], list[record.Row]]
    dataset: str
    device: str
    assumed: str


LOGS = {
    "cifar10": Log(
        authors_files.cifar10_rows,
        "CIFAR-10",
        "GeForce RTX 2080 Ti",
        f"{authors_files.EPOCH_STEPS} updates an epoch; seconds are those of training and test passes together",
    ),
    "attentive_reader": Log(
        authors_files.reader_rows,
        "CNN, top4",
        "TITAN X (Pascal)",
        f"validated every {authors_files.VALID_STEPS} updates; training rows are running averages with dropout",
    ),
}


def import_log(path: Path, task: str, norm: str, seed: int, results: Path) -> Path:
    """Writes the record of a published log, unless it is there, and returns its folder.

    Raises: DataError; FileExistsError if another run is there.
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
        "dataset": {"name": log.dataset, "digest": "unknown", "builtin": False},
        "notes": {"source": f"published by the authors as {path.name} (sha256 {digest})", "assumed": log.assumed},
        "parameters": {"total": None, "modules": {}},
        "sessions": [{"from_step": 0, "device": log.device, "comparable": False}],
    }
    if folder.exists() and record.read_json(folder / record.RUN) == run:
        return folder
    with cache.staging(folder) as temporary:
        if folder.exists():
            raise FileExistsError(f"{folder} holds another run; choose another --seed or --results")
        record.write_json(temporary / record.RUN, run)
        record.RunFolder(temporary).append(rows)
        record.write_json(temporary / record.STATUS, {"status": "finished", "step": step, "error": None})
        temporary.rename(folder)
        record.sync_folder(folder.parent)
    return folder


def evaluate(stored: authors_files.OrderModel, norm: str, root: Path) -> dict[str, float]:
    """The metrics of the model on the test split (see :func:`rmsexp.metrics.retrieval.retrieval`).

    Raises: config.ConfigError and ValueError if it is no such model with this norm; DataError.
    """
    import torch

    from rmsexp.tasks.order_embedding import Task

    embedding, hidden = stored.arrays["Wemb"].shape[1], stored.arrays["ff_image_W"].shape[1]
    sizes = [f"model.embedding={embedding}", f"model.hidden={hidden}", f"penalty={stored.options.get('method')}"]
    biased = ["norm.bias=true"] if norm != "ln" and "gru_b1" in stored.arrays else []
    chosen = [f"task={TASKS['.npz']}", f"scale={SCALE}", f"norm={norm}", f"data.root={root}", *sizes, *biased]
    job = config.job(chosen)
    task = Task(job.config, torch.device("cuda" if torch.cuda.is_available() else "cpu"))
    task.prepare(print)
    model = task.build(job.norm)
    fill(model, stored, task.words)
    print("reading and ranking captions, which takes minutes on a CPU", flush=True)
    with torch.no_grad():
        return task.evaluate(model.eval())["test"]


def fill(model: nn.Module, stored: authors_files.OrderModel, words: list[str]) -> None:
    """Gives our model the stored parameters; the rows of its embedding are of ``words``, its vocabulary by id.

    Raises: ValueError if the model has others.
    """
    import torch

    arrays = {**stored.arrays, "Wemb": stored.arrays["Wemb"][stored.ids(words)]}
    given = {  # their maps are x W, ours W x
        PARAMETERS.get(name, name): torch.tensor(array if name == "Wemb" else array.T).float()
        for name, array in arrays.items()
    }
    known = model.state_dict()
    for name in {**known, **given}:
        found, wanted = (tuple(some[name].shape) if name in some else "none" for some in (given, known))
        if found != wanted:
            raise ValueError(
                f"the stored parameters do not fit: {name} is {found}, where a model with this norm for these features "
                f"has {wanted}; --norm says what it was trained with"
            )
    model.load_state_dict(given)


def beside_table_7(found: Mapping[str, float], name: str) -> pd.DataFrame:
    """The model's metrics above those of the paper, recalls in %, and its median ranks, which the paper leaves out."""
    import pandas as pd

    columns = [*COLUMNS, "caption_median_rank", "image_median_rank"]
    rows = {name: {key: found[key] * (1 if key.endswith("rank") else 100) for key in columns}}
    rows |= {f"Table 7, {names.label(norm)}": dict(zip(COLUMNS, line, strict=True)) for norm, line in TABLE_7.items()}
    return pd.DataFrame.from_dict(rows, orient="index")


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m rmsexp.published", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", type=Path, help="as the authors published it")
    parser.add_argument("--task", choices=TASKS.values(), help="told from the end of the file's name unless set")
    parser.add_argument("--norm", choices=config.options("norm"), default="rms", help="what it was trained with (rms)")
    parser.add_argument("--seed", type=int, default=0, help="a number that tells logs of one norm apart (0)")
    parser.add_argument("--results", type=Path, default=Path("results"), help="the root of all records (results)")
    parser.add_argument("--data-root", type=Path, default=Path(config.DataConfig.root), help="where data sets are")
    arguments = parser.parse_args()
    task = arguments.task or TASKS.get(arguments.file.suffix)
    if task is None:
        parser.error(f"{arguments.file} ends in none of {', '.join(TASKS)}; --task says what it is of")
    if arguments.seed < 0:
        parser.error(f"--seed must be at least 0, got {arguments.seed}")
    results, root = arguments.results.expanduser(), arguments.data_root.expanduser()
    try:
        if task in LOGS:
            print(f"record  {import_log(arguments.file, task, arguments.norm, arguments.seed, results)}")
            print(f"curves  {compare.draw(results, task, SCALE) / 'curves.png'}")
        else:
            found = evaluate(authors_files.order_model(arguments.file), arguments.norm, root)
            table = beside_table_7(found, arguments.file.name)
            print(table.to_string(float_format="{:.1f}".format, na_rep=""))
    except (config.ConfigError, DataError, ValueError, OSError) as error:
        print(f"rmsexp: {error}", file=sys.stderr)
        return 2 if isinstance(error, config.ConfigError) else 1
    where = f"results={results}" if task in LOGS else f"data.root={root}"
    words = [f"task={task}", f"norm={arguments.norm}", f"scale={SCALE}", where]
    print(f"next    {shlex.join(['python', '-m', 'rmsexp', *words])}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

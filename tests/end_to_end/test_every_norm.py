"""Every norm on every task through the command line, for ten steps, with elementary operations and with fused kernels.

The table of losses is printed: ``pytest -m minutes -n 0 -s tests/end_to_end/test_every_norm.py``.
"""

import math
from pathlib import Path

import pytest
from helpers import language_models, reading_and_retrieval, translation_tasks
from helpers.tasks import Ended, Main

from rmsexp import config
from rmsexp.commands import result
from rmsexp.records import record

# with the default p the statistic of a tiny model is that of one unit, which may be near 0
OPTIONS = {"prms": ["norm.p=0.5"]}
NORMS = [[f"norm={name}", *OPTIONS.get(name, [])] for name in config.options("norm")]
VARIANTS = [*NORMS, ["norm=rms", "norm.gain=false"]]
TASKS = {
    "cifar10": ["task=cifar10", "model.width=0.05", "batch_size=8", "schedule.period=1"],
    **{task: [*translation_tasks.tiny(task), *translation_tasks.SHORT] for task in translation_tasks.TASKS},
    **{task: reading_and_retrieval.tiny(task) for task in reading_and_retrieval.TASKS},
    "language_model": list(language_models.TINY),
}
NOT_FUSED = {"bn", "mean_only_bn", "module"}
BY_STEP = {"rnnsearch", "attentive_reader", "order_embedding"}  # tasks with recurrences

TABLE = [pytest.param(task, impl, VARIANTS, marks=pytest.mark.minutes) for impl in ("eager", "fused") for task in TASKS]
# Without the mark: some norms of each kind on each task, and fused kernels on two.
SOME = [
    ("rnnsearch", "eager", [["norm=rms"], ["norm=bn"]]),
    ("transformer", "eager", [["norm=ln"], ["norm=wn"]]),
    ("attentive_reader", "eager", [["norm=bn"], ["norm=wn"]]),
    ("order_embedding", "eager", [["norm=none"], ["norm=rms"]]),
    ("order_embedding", "fused", [["norm=dyt"], ["norm=bn"]]),
    ("language_model", "fused", [["norm=derf"], ["norm=prms"], ["norm=rms", "norm.gain=false"], ["norm=bn"]]),
    ("language_model", "eager", [["norm=wn"], ["norm=mean_only_bn"]]),
]

pytestmark = pytest.mark.usefixtures("fused_kernels", "small_synthetic_data")


def cell(done: Ended, folder: Path) -> str:
    """Return the last training loss and the implementation, or the message of a run that was refused."""
    if done.status != 0:
        return done.err.strip().splitlines()[-1]
    (path,) = record.find_runs(folder)
    run = result.read(path)
    assert run.status["status"] == "finished"
    rows = {split: [row for row in run.metrics if row["split"] == split] for split in ("train", "valid", "test")}
    losses = [row["loss"] for row in rows["train"]]
    assert all(math.isfinite(row["loss"]) and row["grad_norm"] > 0 for row in rows["train"])
    for held_out in (rows["valid"], rows["test"]):
        assert [row["step"] for row in held_out] in ([0, 10], [])
        assert all(value is not None for row in held_out for value in row.values())
    assert run.run["dataset"]["builtin"]
    return f"{losses[-1]:.3f} ({run.run['impl']})"


@pytest.mark.parametrize(("task", "impl", "variants"), [*SOME, *TABLE])
def test_every_norm_trains_or_is_refused_in_one_line(
    main: Main,
    data_root: Path,
    text_root: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    task: str,
    impl: str,
    variants: list[list[str]],
) -> None:
    root = {"cifar10": data_root, "rnnsearch": text_root, "transformer": text_root}.get(task, tmp_path)
    steps = ["max_steps=10", "schedule.steps=10", "log_every=10", "eval_every=10", f"data.root={root}"]
    rows = []
    for words in variants:
        folder = tmp_path / str(len(rows))
        done = main(*TASKS[task], *steps, *words, f"norm.impl={impl}", f"results={folder}")
        rows.append((words[0].removeprefix("norm="), words, done, cell(done, folder)))
    with capsys.disabled():
        print(
            "", f"{task}, norm.impl={impl}", *(f"  {' '.join(words):28} {text}" for _, words, _, text in rows), sep="\n"
        )
    for name, _, done, text in rows:
        if impl == "fused" and name in NOT_FUSED:
            done.assert_refused(f"norm={name} has no fused form; use norm.impl=eager")
            continue
        by_step = impl == "fused" and name in ("dyt", "derf", "by_role") and task in BY_STEP
        assert text.endswith(f"({'fused norms' if by_step else impl})"), text

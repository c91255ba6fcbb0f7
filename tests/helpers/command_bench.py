"""A bench for whole commands in this process, on a tiny run of CIFAR-10's built-in data."""

import contextlib
import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import disturb
import pytest
import yaml

from helpers.tasks import Ended
from rmsexp.commands import outcomes, run
from rmsexp.records import record
from rmsexp.tasks.cifar10 import Task

TINY = (
    *("max_steps=4", "log_every=2", "eval_every=2", "checkpoint_every=2"),
    *("model.width=0.02", "batch_size=8", "threads=1"),
)
SETTING = "demo+batch_size=8+model.width=0.02"


class Bench:
    """Runs command lines in this process, with their results in ``results``. Figures are drawn only with ``curves``."""

    def __init__(
        self, root: Path, data_root: Path, capsys: pytest.CaptureFixture[str], patch: pytest.MonkeyPatch
    ) -> None:
        self.results, self._data_root, self._capsys, self._patch = root / "all results", data_root, capsys, patch

    def __call__(self, *words: str, curves: bool = False) -> Ended:
        with contextlib.ExitStack() as stack:
            if not curves:
                patch = stack.enter_context(self._patch.context())
                patch.setattr(outcomes, "draw", lambda _: None)
            try:
                status = run.main([*self.words, *words])
            except SystemExit as end:
                status = int(end.code or 0)
        return Ended(status, *self._capsys.readouterr())

    @property
    def words(self) -> list[str]:
        """Words of all runs."""
        return [f"results={self.results}", f"data.root={self._data_root}", *TINY]

    def folder(self, series: str = "rms", seed: int = 0) -> Path:
        return self.results / "cifar10" / SETTING / series / f"seed{seed}"

    def status(self, series: str = "rms", seed: int = 0) -> dict[str, Any]:
        status = record.RunFolder(self.folder(series, seed)).read_status()
        return {key: status[key] for key in ("status", "step", "error")}

    def rows(self, series: str = "rms", seed: int = 0) -> list[record.Row]:
        """Return the rows of the metrics without their times, which differ if a run is interrupted."""
        rows, problem = record.RunFolder(self.folder(series, seed)).read_metrics()
        assert problem is None
        return [{key: value for key, value in row.items() if key != "seconds"} for row in rows]

    def edit(self, file: str, change: Callable[[dict[str, Any]], None]) -> None:
        path = self.folder() / file
        content = yaml.safe_load(path.read_text())
        change(content)
        path.write_text(json.dumps(content) if file.endswith("json") else yaml.safe_dump(content))


def assert_same_end(bench: Bench, undisturbed: Path) -> None:
    """Check that the bench's run has ended bit-identical to the undisturbed run."""
    ended, expected = (disturb.content(folder) for folder in (bench.folder(), undisturbed))
    for part in ("metrics", "last.pt"):
        assert disturb.differences(ended[part], expected[part]) == []


def at_step(monkeypatch: pytest.MonkeyPatch, step: int, action: Callable[[], object]) -> None:
    """Call ``action`` whenever the batches of ``step`` are fetched."""
    fetch = Task.batches

    def batches(self: Task, k: int) -> Any:
        if k == step:
            action()
        return fetch(self, k)

    monkeypatch.setattr(Task, "batches", batches)


def not_finite_at(monkeypatch: pytest.MonkeyPatch, step: int, norm: str | None = None) -> None:
    """Make the objective of one step NaN: in the runs of ``norm``, or in all runs."""
    current: dict[str, Any] = {}
    fetch, compute, build = Task.batches, Task.objective, Task.build

    def build_and_note(self: Task, run_norm: Any) -> Any:
        current["norm"] = run_norm.name
        return build(self, run_norm)

    def batches(self: Task, k: int) -> Any:
        current["step"] = k
        return fetch(self, k)

    def objective(self: Task, *args: Any) -> Any:
        result = compute(self, *args)
        spoilt = current["step"] == step and norm in (None, current["norm"])
        return dataclasses.replace(result, loss=result.loss * float("nan")) if spoilt else result

    for name, method in (("build", build_and_note), ("batches", batches), ("objective", objective)):
        monkeypatch.setattr(Task, name, method)

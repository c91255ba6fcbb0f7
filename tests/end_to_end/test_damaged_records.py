"""What a run wrote is checked when it is read: the previous checkpoint replaces a damaged one, the rest is named."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from helpers.stopping import SHORT_RUN, WARMUP, assert_same, execute_on_few_images, stop

from rmsexp.records import record
from rmsexp.train import checkpoint
from rmsexp.work import runner


class Runs:
    """Runs of four and eight steps that were not disturbed, by name, each in its own results folder below ``root``.

    Below ``root``, a run that is continued has the results folder ``damaged``.
    """

    def __init__(self, root: Path, data_root: Path) -> None:
        self.root, self._data_root = root, data_root

    def execute(self, name: str, *words: str) -> runner.Outcome:
        return execute_on_few_images(
            [*SHORT_RUN, f"data.root={self._data_root}", f"results={self.root / name}", *words]
        )

    def folder(self, name: str) -> Path:
        (folder,) = record.find_runs(self.root / name)
        return folder

    def checkpoint(self, name: str, file: str = checkpoint.LAST) -> Path:
        return self.folder(name) / record.CHECKPOINTS / file


@pytest.fixture(scope="module")
def undisturbed(data_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Runs:
    runs = Runs(tmp_path_factory.mktemp("runs"), data_root)
    runs.execute("whole")
    runs.execute("seed 0", "max_steps=4")
    runs.execute("seed 1", "max_steps=4", "seed=1")
    return runs


@pytest.fixture
def runs(undisturbed: Runs, tmp_path: Path, data_root: Path) -> Runs:
    """The undisturbed runs, and in ``damaged`` a copy of the run of four steps with seed 0, which a test may change."""
    for folder in undisturbed.root.iterdir():
        if folder.name == "seed 0":
            shutil.copytree(folder, tmp_path / "damaged")
        (tmp_path / folder.name).symlink_to(folder)
    return Runs(tmp_path, data_root)


def replace(file: str, old: str, new: str) -> Callable[[Runs], None]:
    """Return a function that replaces the last text of a kind in a file of the damaged run."""

    def act(runs: Runs) -> None:
        path = runs.folder("damaged") / file
        before, found, after = path.read_text().rpartition(old)
        assert found
        path.write_text(before + new + after)

    return act


def copy_checkpoints(runs: Runs) -> None:
    """Replace both checkpoints of the damaged run by those of another seed."""
    for file in (checkpoint.LAST, checkpoint.PREVIOUS):
        shutil.copy(runs.checkpoint("seed 1", file), runs.checkpoint("damaged", file))


def remove(*files: str) -> Callable[[Runs], None]:
    return lambda runs: [(runs.folder("damaged") / file).unlink() for file in files]


REPAIRED = {
    "no last checkpoint": (
        lambda runs: runs.checkpoint("damaged").unlink(),
        ["checkpoints lacks the last checkpoint, of step 4; continuing from an older one"],
        [],
    ),
    "no checkpoints": (
        lambda runs: shutil.rmtree(runs.checkpoint("damaged").parent),
        ["checkpoints has no checkpoint: the run begins again at step 0; its metrics are kept as metrics.jsonl.old0"],
        ["metrics.jsonl.old0"],
    ),
    "no status": (remove(record.STATUS), [], []),  # a damaged file that was removed is written again
    "no status and no description": (remove(record.STATUS, record.RUN), [], []),
    "no status and no config": (remove(record.STATUS, record.CONFIG), [], []),
}


@pytest.mark.parametrize("name", REPAIRED)
def test_a_run_with_a_damaged_file_warns_and_ends_as_an_undisturbed_run(
    name: str, runs: Runs, capsys: pytest.CaptureFixture[str]
) -> None:
    damage, messages, kept = REPAIRED[name]
    damage(runs)
    folder = runs.folder("damaged")
    outcome = runs.execute("damaged")
    assert (outcome.status, outcome.step, outcome.already) == ("finished", 8, False)
    printed = capsys.readouterr().err
    assert all(message in printed for message in messages), printed
    assert all(len(line) < 300 + 2 * len(str(folder)) for line in printed.splitlines())
    for file in kept:
        (folder / file).unlink()
    assert_same(runs.root / "whole", runs.root / "damaged")


REFUSED = {
    "two checkpoints of another seed": (
        copy_checkpoints,
        "last.pt is of another run (its seed is 1, not 0), and no other checkpoint can be used",
    ),
    "a changed row": (
        replace(record.METRICS, '"error": 0', '"error": 9'),
        "metrics.jsonl has changed since status.json was written",
    ),
    "other data": (replace(record.RUN, '"digest": "', '"digest": "other'), "was trained on other data (digest other"),
    "another config": (
        replace(record.CONFIG, "lr: 0.003", "lr: 0.5"),
        "was begun with another config (optim.lr is now 0.003)",
    ),
}


@pytest.mark.parametrize("steps", ["max_steps=4", "max_steps=8"])
@pytest.mark.parametrize("name", REFUSED)
def test_other_damage_is_named_and_changes_no_file_but_the_status_and_the_log(
    name: str, steps: str, runs: Runs
) -> None:
    """This includes a run that had finished: it does not count as finished if its metrics have changed."""
    damage, message = REFUSED[name]
    damage(runs)
    may_change = (record.STATUS, "run.log")

    def files() -> dict[Path, bytes]:
        paths = (path for path in runs.folder("damaged").rglob("*") if path.is_file() and path.name not in may_change)
        return {path: path.read_bytes() for path in paths}

    before = files()
    if name in ("two checkpoints of another seed", "other data") and steps == "max_steps=4":
        assert runs.execute("damaged", steps).already  # a finished run needs neither
    else:
        outcome = runs.execute("damaged", steps)
        assert outcome.status == "failed"
        assert message in str(outcome.error)
        assert "start a new run with force=true, which keeps this one beside it" in str(outcome.error)
    assert files() == before


@pytest.mark.parametrize("steps", ["max_steps=4", "max_steps=8"])
def test_a_renamed_folder_is_refused_and_left_as_it_was(runs: Runs, steps: str) -> None:
    folder = runs.folder("damaged")
    folder = folder.rename(folder.with_name("seed2"))
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    outcome = runs.execute("damaged", "seed=2", steps)
    assert outcome.status == "failed"
    assert str(outcome.error).startswith(f"{folder} holds the run cifar10/demo+")
    assert "/rms/seed0; give the folder its old name back" in str(outcome.error)
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_a_run_stops_writing_when_another_process_may_have_taken_it_over(
    runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lock's file is deleted while the run trains. A second process then does the whole run."""
    folder = record.RunFolder(runs.folder("damaged"))
    seconds = []

    def delete_the_lock_and_start_again() -> None:
        folder.lock.path.unlink()
        seconds.append(runs.execute("damaged"))

    stop(monkeypatch, "_update", WARMUP + 2, delete_the_lock_and_start_again)
    first = runs.execute("damaged")
    assert [second.status for second in seconds] == ["finished"]
    assert (first.status, first.signum) == ("failed", None)
    assert f"the lock {folder.lock.path} was deleted or replaced" in str(first.error)
    assert_same(runs.root / "whole", runs.root / "damaged")

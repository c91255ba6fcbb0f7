"""A task from outside the package: the example of docs/extending.md, and what is answered if it lacks something."""

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers import documents
from helpers.tasks import Main

from rmsexp import compare, config
from rmsexp.campaign import question
from rmsexp.commands import generate, prepare, result, run, timing
from rmsexp.records import record
from rmsexp.work import runner

SHORT = ("task=spirals", "max_steps=20", "eval_every=10")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Write the example to a folder, and change to it. Its module is forgotten after the test."""
    documents.write_spirals(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "spirals", raising=False)
    yield tmp_path
    sys.modules.pop("spirals", None)


def edit(path: Path, old: str, new: str) -> None:
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))


@pytest.mark.usefixtures("unwritten_figures")
def test_the_example_of_the_page_is_trained_compared_and_continued(folder: Path, main: Main) -> None:
    own = ("--config-dir", "my", *SHORT)
    done = main("-m", *own, "norm=ln,rms", "micro_batches=2", curves=True)
    assert done.status == 0
    assert all(word in done.out for word in ("LayerNorm", "RMSNorm", "curves.png"))
    records = compare.load(folder / "results")
    assert set(records.runs["task"]) == {"spirals"}
    assert {"train", "valid", "test"} == set(records.metrics["split"])
    assert main(*own, "norm=ln", "micro_batches=2", "max_steps=25").status == 0
    status = record.RunFolder(folder / "results/spirals/demo+micro_batches=2/ln/seed0").read_status()
    assert (status["status"], status["step"]) == ("finished", 25)


def test_campaigns_and_searches_need_the_target_of_the_class(folder: Path) -> None:
    target = 'target = tasks.Target(split="test", metric="error", mode="min", selection="valid")'
    edit(folder / "spirals.py", f"    {target}\n", "")
    before = "        self.config, self.dev"
    edit(folder / "spirals.py", before, f"        self.{target}\n{before}")
    with pytest.raises(config.ConfigError, match="task=spirals: a campaign or search needs target as an attribute"):
        question.read("quality", ["task=spirals", "norms=[ln,rms]", "margin=1"], "my")
    job, direction = config.job(["task=spirals"], "my"), "hydra.sweeper.direction=minimize"
    with pytest.raises(config.ConfigError, match="task=spirals: a campaign or search needs"):
        run._of_search(job, [])
    assert run._of_search(job, [direction]) == ["hydra.sweeper.sampler.seed=0"]


def test_the_example_learns(folder: Path) -> None:
    job = config.job(["task=spirals", "max_steps=300", f"results={folder}", "threads=1"], "my")
    assert runner.execute(job).status == "finished"
    assert result.read(job.folder).metrics[-1]["error"] < 0.1


def test_other_commands_take_the_task_too(
    folder: Path, capsys: pytest.CaptureFixture[str], main: Main, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert ", spirals, transformer\n" in main("--config-dir", "my", "--help").out
    assert prepare.main(["--config-dir", "my", "task=spirals"]) == 0
    assert "ready: two spirals" in capsys.readouterr().out
    _, jobs = timing.parse(["--config-dir", "my", "task=spirals", "norms=[ln,rms]"])
    assert {type(job.config).__module__ for job in jobs.values()} == {"spirals"}
    # the module may also be in the folder of the configs
    (folder / "spirals.py").rename(folder / "my/spirals.py")
    sys.modules.pop("spirals")
    importlib.invalidate_caches()
    (folder / "elsewhere").mkdir()
    monkeypatch.chdir("elsewhere")
    assert config.job(["task=spirals"], str(folder / "my")).config.hidden == 64


def test_the_record_of_such_a_run_is_read_if_its_class_is_trusted(
    folder: Path, main: Main, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main("--config-dir", "my", *SHORT, "max_steps=2").status == 0
    path, _ = folder / "results/spirals/demo/rms/seed0/config.yaml", sys.modules.pop("spirals")
    with pytest.raises(ValueError, match="if you trust it, use --config-dir"):
        config.read(path)
    assert generate.main([str(path.parent), "--config-dir", "my"]) == 2
    assert "is a run of task=spirals, for which this command does not work" in capsys.readouterr().err
    assert config.read(path)[0].hidden == 64


# what is replaced in which file -> what the message says
CODE, CONFIG = "spirals.py", "my/task/spirals.yaml"
OPTIM = "optim: dict[str, float | str | None] = MISSING"
MISTAKES = [
    (CODE, "    def examples(", "    def count(", "spirals.Task lacks examples;"),
    (CODE, "    target = ", "    goal = ", "spirals.Task lacks target;"),
    (CODE, "self.steps_per_epoch", "self.epoch", "spirals.Task lacks steps_per_epoch;"),
    (CODE, "optim: AdamConfig = MISSING", OPTIM, "its Config lacks optim.lr;"),
    (CODE, "class Config(RunConfig):", "class Options(RunConfig):", "spirals has no dataclass Config"),
    (CODE, "return tasks.MicroBatches(", "print(", "the task's batches must return MicroBatches"),
    (CODE, "return tasks.Objective(", "return (", "the task's objective must return Objective"),
    (CODE, 'Objective(sums["loss"]', 'Objective(sums.pop("loss")', "the task's objective lacks loss among its sums"),
    (CODE, '"error": (logits', '"epoch": 0 * labels.sum(), "error": (logits', "epoch means something else in records"),
    (CODE, '"error": (logits', '"mistakes": (logits', "error, but for split valid its evaluate returned only loss"),
    ("my/recipe/spirals/demo.yaml", "", "", "task=spirals has no scale=demo (recipe/spirals/demo.yaml)"),
    (CONFIG, "# @package _global_\n", "", "must begin with the line '# @package"),
    (CONFIG, "  lr: 0.003\n", "", "optim.lr has no value: its config lacks this key"),
    (CONFIG, "spirals.Task", "spiral.Task", "task=spirals: spiral.Task "),
    (CONFIG, "spirals.Task", "spirals.loss", "task=spirals: spirals.loss "),
    (CONFIG, "_target_: spirals.Task", "", "names its class under _target_"),
]


@pytest.mark.parametrize(("file", "old", "new", "message"), MISTAKES)
def test_what_a_task_lacks_is_named_in_one_line(
    file: str, old: str, new: str, message: str, folder: Path, main: Main
) -> None:
    if old:
        edit(folder / file, old, new)
    else:
        (folder / file).unlink()
    done = main("--config-dir", "my", *SHORT)
    assert done.status in (1, 2)
    (line,) = [line for line in done.err.splitlines() if line.startswith("rmsexp: ")]
    assert message in line

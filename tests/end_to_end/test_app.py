"""Single runs from end to end, a norm from outside the package, and the Python interface."""

import csv
import os
import platform
import re
import shlex
import shutil
from pathlib import Path

import pytest
import yaml
from helpers import documents
from helpers.command_bench import SETTING, TINY, Bench, assert_same_end

import rmsexp
from rmsexp import compare, config, norms
from rmsexp.commands import result
from rmsexp.records import record
from rmsexp.system import clock

# --- one run


def test_a_run_from_end_to_end(bench: Bench) -> None:
    done = bench("norm=rms", curves=True)
    assert done.status == 0
    first = done.err.splitlines()[0]
    assert "task=cifar10 norm=rms" in first
    assert "built-in data (shapes)" in first
    assert "scale=paper" in first
    folder, comparison = bench.folder(), bench.folder().parents[1] / "comparison"
    end = done.out.splitlines()
    assert end[0] == "finished at step 4"
    assert end[1].startswith("test    loss ")
    assert end[2:4] == [f"record  {folder}", f"curves  {comparison / 'curves.png'}"]
    assert end[4].startswith("next    python -m rmsexp ")
    following = config.job(shlex.split(end[4])[4:])
    assert following.folder == bench.folder("ln")
    names = {record.CONFIG, record.RUN, record.METRICS, record.STATUS, record.CHECKPOINTS, ".hydra", "run.log"}
    assert {path.name for path in folder.iterdir()} == names
    files = record.RunFolder(folder)
    assert yaml.safe_load(files.overrides_path.read_text()) == [*bench.words, "norm=rms"]
    assert [line.split(" ", 2)[2] for line in files.log_path.read_text().splitlines()] == done.err.splitlines()
    assert {path.name for path in (folder / record.CHECKPOINTS).iterdir()} == {"last.pt", "previous.pt", "best.pt"}
    assert {"curves.png", "curves.svg", "summary.csv", "summary.md"} <= {path.name for path in comparison.iterdir()}
    with (comparison / "summary.csv").open() as file:
        assert len(list(csv.DictReader(file))) == 1
    assert bench.status() == {"status": "finished", "step": 4, "error": None}
    rows = [(0, "test"), (2, "train"), (2, "test"), (4, "train"), (4, "test")]
    assert [(row["step"], row["split"]) for row in bench.rows()] == rows


def test_the_record_of_a_run_is_complete(undisturbed: Path) -> None:
    run = result.read(undisturbed).run
    identity = {"task": "cifar10", "norm": "rms", "scale": "demo", "seed": 0, "series": "rms", "impl": "eager"}
    assert identity | {"setting": SETTING} == {key: run[key] for key in [*identity, "setting"]}
    assert run["dataset"]["builtin"] is True
    assert run["dataset"].keys() == {"name", "digest", "builtin"}
    assert run["parameters"]["total"] == sum(run["parameters"]["modules"].values()) > 0
    (session,) = run["sessions"]
    assert {"from_step", "git", "code", "versions", "device", "threads", "contention", "comparable"} <= session.keys()
    assert session["git"].keys() == {"commit", "dirty"}
    assert (session["from_step"], session["comparable"], session["threads"]) == (0, True, 1)
    assert yaml.safe_load((undisturbed / record.CONFIG).read_text())["batch_size"] == 8
    train = [row for row in result.read(undisturbed).metrics if row["split"] == "train"]
    assert {"step", "epoch", "examples", "loss", "objective", "error", "lr", "grad_norm", "seconds"} <= train[0].keys()
    assert train[0]["seconds"].keys() == set(clock.BUCKETS)
    assert train[-1]["examples"] == 8 * 8


def test_a_finished_run_is_not_repeated_and_continues_with_more_steps(bench: Bench, undisturbed: Path) -> None:
    bench()
    before = {path: path.stat().st_mtime_ns for path in bench.folder().rglob("*")}
    done = bench()
    assert done.status == 0
    assert done.out.startswith("already finished at step 4 ")
    assert bench("max_steps=3").out.startswith("already finished at step 4 ")
    assert {path: path.stat().st_mtime_ns for path in bench.folder().rglob("*")} == before
    bench.edit(record.RUN, lambda run: run["sessions"][-1].update(code="other"))
    done = bench("max_steps=8")
    assert done.status == 0
    assert "continuing at step 4" in done.err
    assert "warning: changed since the run's last process: code; so its time counts as disturbed" in done.err
    assert "finished at step 8" in done.out
    sessions = result.read(bench.folder()).run["sessions"]
    assert [(session["from_step"], session["comparable"]) for session in sessions] == [(0, True), (4, False)]
    assert_same_end(bench, undisturbed)


def test_force_moves_the_old_run_aside(bench: Bench) -> None:
    bench("max_steps=2")
    old = (bench.folder() / record.METRICS).read_text()
    for number in range(2):
        done = bench("force=true", "max_steps=2")
        assert (done.status, "finished at step 2" in done.out) == (0, True)
        kept = bench.folder().with_name(f"seed0.old{number}")
        assert kept.is_dir()
        assert f"rmsexp: force=true begins a new run; the earlier one is kept as {kept}\n" in done.err
    assert (bench.folder().with_name("seed0.old0") / record.METRICS).read_text() == old
    assert list(record.find_runs(bench.results)) == [bench.folder()]


@pytest.mark.parametrize(
    ("launcher", "earlier_job", "continues"), [("TORCHELASTIC", "7", True), ("SLURM", "7", True), ("SLURM", "6", False)]
)
def test_a_command_that_a_launcher_repeats_continues_its_run(
    launcher: str, earlier_job: str, continues: bool, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A requeued job keeps its id; what another job began is no run of this command."""
    monkeypatch.setenv("SLURM_JOB_ID", earlier_job)
    bench("force=true", "max_steps=2")
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv(f"{launcher}_RESTART_COUNT", "1")
    done = bench("force=true", "max_steps=4")
    ignored = "rmsexp: force=true is ignored, because torchrun or SLURM has started this command again\n"
    assert (done.status, "continuing at step 2" in done.err, ignored in done.err) == (0, continues, continues)
    assert bench.folder().with_name("seed0.old0").exists() == (not continues)


def test_two_processes_never_write_one_run(bench: Bench) -> None:
    with record.RunFolder(bench.folder()).lock.held():
        for words in ([], ["force=true"]):
            done = bench(*words)
            assert done.status == 1
            assert (
                f"{bench.folder()} is being written by another process (id {os.getpid()} on {platform.node()})"
                in done.err
            )
        assert list(bench.folder().iterdir()) == []  # Hydra has made it
    assert bench().status == 0


def test_a_sweep_with_a_refused_run_fails_although_the_run_in_its_folder_has_finished(bench: Bench) -> None:
    bench()
    bench.edit(record.RUN, lambda run: run["dataset"].update(digest="other"))
    done = bench("-m", "norm=rms,none", "max_steps=6")
    assert done.status == 1
    assert f"interrupted: {bench.folder()}: finished at step 4 of max_steps=" in done.out
    assert bench.status("none")["status"] == "finished"
    shutil.copytree(bench.folder("none"), bench.folder("none", 1))
    done = bench("-m", "norm=none", "seed=0,1", "max_steps=6")
    assert done.status == 1
    assert f"failed: {bench.folder('none', 1)}: {bench.folder('none', 1)} holds the run cifar10/" in done.out


# --- a norm from outside the package


@pytest.mark.usefixtures("unwritten_figures")
def test_the_readmes_example_of_a_new_norm_works(bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    documents.write_dyisru(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    outside = ("--config-dir", str(tmp_path / "my"))
    assert bench(*outside, "norm=dyisru", "norm.c=0.1").status == 0
    done = bench("-m", *outside, "norm=rms,dyisru", curves=True)
    assert done.status == 0
    assert all(label in done.out for label in ("RMSNorm", "dyisru", "curves  ", "curves.png"))
    assert bench.status("dyisru")["status"] == bench.status("dyisru+c=0.1")["status"] == "finished"
    with (bench.folder().parents[1] / "comparison/summary.csv").open() as file:
        assert {row["series"] for row in csv.DictReader(file)} == {"rms", "dyisru", "dyisru+c=0.1"}
    assert bench(*outside, "norm=dyisru", "norm.cc=1").err.startswith("rmsexp: norm.cc is not known; did you mean")


# --- from Python; prepare


def test_run_from_python(bench: Bench, data_root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = [f"results={bench.results}", f"data.root={data_root}", *TINY]
    run = rmsexp.run(task="cifar10", norm="layernorm", overrides=options, quiet=True, seed=0)
    assert capsys.readouterr() == ("", "")
    assert re.fullmatch(r"<run cifar10/.*/ln/seed0: finished at step 4, test loss [0-9.]+, error [0-9.]+>", repr(run))
    assert set(run.curves()["split"]) == {"train", "test"}
    assert {"step", "time", "loss", "error"} <= set(run.curves().columns)
    assert [axes.get_xlabel() for axes in run.plot().axes].count("step") == 3
    assert (run.folder, run.status["status"], run.run["norm"]) == (bench.folder("ln"), "finished", "ln")
    assert run.metrics[-1]["step"] == 4
    assert len(compare.load(bench.results).metrics) == len(run.metrics) == 5
    with pytest.raises(config.ConfigError, match="did you mean rms"):
        rmsexp.run(norm="rmss", overrides=options)
    with pytest.raises(config.ConfigError, match="norm must be a name, such as 'rms', or a norm object, not None"):
        rmsexp.run(norm=None, overrides=options)  # type: ignore[arg-type]
    with pytest.raises(config.ConfigError, match=r"norm\.impl has no effect beside a norm object"):
        rmsexp.run(norm=norms.RMS(name="rms"), overrides=options, **{"norm.impl": "fused"})

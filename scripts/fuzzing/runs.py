"""Readers of runs: configs, records, checkpoints, trained models, and the commands that read folders of runs."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from fuzzing import capture
from fuzzing.inputs import once, plain, put
from fuzzing.workers import Broken, Reader, Refused
from rmsexp import compare, config
from rmsexp.campaign import campaign_file, question
from rmsexp.commands import analysis, report, status, translate
from rmsexp.data import DataError
from rmsexp.data.synthetic import phrases, stories
from rmsexp.records import record, sweep_file
from rmsexp.records.frames import timing_records
from rmsexp.tasks import attentive_reader, rnnsearch, translation
from rmsexp.train import checkpoint
from rmsexp.work import runner, trained

REFERENCE = Path(__file__).parents[2] / "results/reference/intel-xeon-2-cores/cifar10/small"
EDGES = ("threads=1", "log_every=1", "eval_every=2", "checkpoint_every=2", "data.root=data", "device=cpu")
READING = ("task=attentive_reader", "model.width=6", "batch_size=10", "results=results", *EDGES)
TRANSLATION = (
    *("task=rnnsearch", "model.embedding=8", "model.hidden=12", "batch_size=20", "pool=3", "decoding.beam=2"),
    *("decoding.max_length=6", "decoding.beyond_source=2", "results=results", *EDGES),
)
STEPS, MORE_STEPS = 4, 6  # steps of the valid run, and of the run that continues it


def small_data() -> ExitStack:
    """Replace the synthetic data of two tasks by a few examples until the context ends."""
    stack = ExitStack()
    questions, corpus = stories.stories(40, 10), phrases.phrases(310, 4, 4)
    stack.enter_context(mock.patch.dict(attentive_reader.SOURCES, stories=lambda *_: questions))
    stack.enter_context(mock.patch.dict(translation.SOURCES, phrases=lambda _: corpus))
    return stack


def train(words: tuple[str, ...], steps: int) -> Path:
    """Begin or continue a run below the working folder, and return its folder.

    Raises: Refused if the run fails; Broken if it ends otherwise, or because of an unexpected error.
    """
    job = config.job([*words, f"max_steps={steps}"])
    with small_data():
        outcome = runner.execute(job)
    if outcome.status == "failed" and "(traceback in" not in str(outcome.error):
        raise Refused(outcome.error)
    if outcome.status != "finished":
        raise Broken(f"{outcome.status}: {outcome.error}")
    return Path.cwd() / job.folder


def make_reading(_: Path) -> None:
    train(READING, STEPS)


def make_translation(folder: Path) -> None:
    """Write a translation run to the folder ``run``, with its data beside it."""
    train(TRANSLATION, 2).rename(folder / "run")
    shutil.rmtree(folder / "results")


def make_checkpoints(folder: Path) -> None:
    train(READING, STEPS).joinpath("checkpoints").rename(folder / "checkpoints")
    shutil.rmtree(folder / "results")


def make_records(folder: Path) -> None:
    """Copy runs and a timing record of the committed results, with fewer rows of metrics."""
    setting = folder / "results/cifar10/small"
    for name in ("ln/seed0", "rms/seed0", "prms/seed0", "timing/steps3"):
        shutil.copytree(REFERENCE / name, setting / name, ignore=shutil.ignore_patterns("*.png", "*.svg", "*.csv"))
    shutil.copytree(setting / "prms/seed0", setting / "prms+p=0.5/seed0")
    half = setting / "prms+p=0.5/seed0" / record.RUN
    half.write_text(half.read_text().replace('"series": "prms"', '"series": "prms+p=0.5"'))
    for path in setting.rglob(record.METRICS):
        rows = path.read_text().splitlines(keepends=True)
        path.write_text("".join(row for row in rows if json.loads(row)["step"] <= 400))


def make_campaign(folder: Path) -> None:
    """Write the records of :func:`make_records`, and a campaign and a sweep of two of these runs and a third."""
    make_records(folder)
    jobs = [
        {"stage": stage, "norm": norm, "rate": 0.001, "seed": 0, "folder": f"cifar10/small/{norm}/seed0"}
        for stage, norm in (("tune", "ln"), ("final", "rms"), ("final", "none"))
    ]
    claim = {"claim": "RMSNorm equals LayerNorm", "test": "equivalence", "a": "rms", "b": "ln", "margin": 1.5}
    content: dict[str, Any] = {
        "format": 1,
        "name": "quality",
        "question": "?",
        "runs": {"task": "cifar10"},
        "rate": "optim.lr",
        "mode": "min",
        "tuned_by": "valid error",
        "score": "test error",
        "norms": ["none", "ln", "rms"],
        "grid": [0.001, 0.002],
        "seeds": {"tune": [1000], "look": 8, "most": 16, "needed": None},
        "claims": [claim | {"family": None, "seeds": None}],
        "jobs": jobs,
    }
    seeds = {key: content["seeds"][key] for key in ("look", "most")}
    rules = {key: content[key] for key in ("question", "norms", "grid", "claims")}
    rules |= {"runs": ["task=cifar10"], "tune": {"first_seed": 1000, "over": {"optim.lr": content["grid"]}}}
    rules |= {"final": {"seeds": seeds}, "tuned_by": ["valid", "error"], "score": ["test", "error"]}
    registered = {"digest": campaign_file.digest(rules), "commit": "abc", "date": "2026-11-27T00:00:00+00:00"}
    campaign = folder / "results/campaigns/quality"
    put(campaign / campaign_file.FILE, json.dumps(content | {"registered": registered | {"changed": None}}))
    put(campaign / campaign_file.REGISTRATION, json.dumps(registered | {"rules": rules}))
    runs = {f"cifar10/small/{norm}/seed0": 400 for norm in ("none", "ln", "rms")}
    sweep_file.write(folder / "results", ["-m", "norm=none,ln,rms"], runs)


def make_campaign_file(folder: Path) -> None:
    put(folder / "campaign/mine.yaml", (config.CONFIGS / "campaign/quality_cifar10.yaml").read_bytes())


def read_campaign_file(place: Path) -> object:
    return question.read("mine", config_dir=str(place))


def run_of(place: Path) -> Path:
    """Return the folder of the run that :func:`make_reading` made, also if some of its files are gone."""
    return next(iter(sorted(place.glob("results/*/*/*/seed*"))), place / "results")


def read_config(place: Path) -> object:
    return config.read(run_of(place) / record.CONFIG)


def read_record(place: Path) -> object:
    return record.read(run_of(place))


def read_status(place: Path) -> object:
    return record.RunFolder(run_of(place)).read_status()


def read_metrics(place: Path) -> object:
    return record.RunFolder(run_of(place)).read_metrics()


def load_checkpoint(place: Path) -> object:
    payload, _ = checkpoint.load(place / "checkpoints")
    return plain(payload)


def right_checkpoints(place: Path) -> list[object]:
    """Return what :func:`load_checkpoint` may return: none, or one of the checkpoints, also of another file's name.

    The best one lacks the progress of the run; only the trainer refuses it (see :func:`continue_run`).
    """
    names = checkpoint.LAST, checkpoint.PREVIOUS, checkpoint.BEST
    return [plain(None), *(plain(checkpoint.read(place / "checkpoints" / name)) for name in names)]


def continue_run(place: Path) -> object:
    """Continue the run, and return the result of its training: parameters, optimiser, progress, metrics, status."""
    train(READING, MORE_STEPS)
    folder = record.RunFolder(run_of(place))
    payload = torch.load(folder.checkpoints / checkpoint.LAST, weights_only=True)
    status, (rows, problem) = folder.read_status(), folder.read_metrics()
    state = {key: value for key, value in payload["state"].items() if not key.startswith("metrics_")}
    progress = {"status": status["status"], "step": status["step"], "problem": problem}
    metrics = [row | {"seconds": None} for row in rows]
    return plain({"model": payload["model"], "optimizer": payload["optimizer"], "state": state} | progress), metrics


def in_small_data(read: Callable[[Path], object]) -> Callable[[Path], object]:
    def wrapped(place: Path) -> object:
        with small_data():
            return read(place)

    return wrapped


def load_records(place: Path) -> object:
    return compare.load(place / "results")


def load_timings(place: Path) -> object:
    return timing_records.load(place / "results", [])


@in_small_data
def load_trained(place: Path) -> object:
    return plain(trained.load(place / "run", rnnsearch.Task, torch.device("cpu"), print).model.state_dict())


@in_small_data
def translate_lines(place: Path) -> object:
    return capture.command(translate.main, [str(place / "run")], b"a red house sleeps\n\nsomething else\n")


def report_results(place: Path) -> object:
    return capture.command(report.main, [str(place / "results")])


def show_status(place: Path) -> object:
    return [capture.command(status.main, [str(place / "results"), *form]) for form in ([], ["--json"])]


def analyse_p(place: Path) -> object:
    return capture.command(analysis.main, ["p_sweep", str(place / "results"), "--out", str(place / "out")])


@in_small_data
def analyse_hidden_stats(place: Path) -> object:
    return capture.command(analysis.main, ["hidden_stats", str(place / "run"), "--out", str(place / "out")])


LOADING = (config.ConfigError, checkpoint.CheckpointError, DataError, ValueError, OSError)
READERS = (
    Reader("config of a run", make_reading, read_config, (ValueError,)),
    Reader("record of a run", make_reading, read_record, (OSError, ValueError)),
    Reader("status of a run", make_reading, read_status, (OSError, ValueError)),
    Reader("metrics of a run", make_reading, read_metrics, (OSError, ValueError)),
    Reader("checkpoints", make_checkpoints, load_checkpoint, (checkpoint.CheckpointError,), right_checkpoints),
    Reader("continued run", make_reading, continue_run, (Refused, OSError), once(continue_run), weight=10),
    Reader("campaign file", make_campaign_file, read_campaign_file, (config.ConfigError,), weight=10),
    Reader("records", make_records, load_records),
    Reader("timing records", make_records, load_timings),
    Reader("trained model", make_translation, load_trained, LOADING, once(load_trained)),
    Reader("translate", make_translation, translate_lines, (Refused,), weight=10),
    Reader("report", make_records, report_results, (Refused,), weight=30),
    Reader("status command", make_campaign, show_status, (Refused,)),
    Reader("analysis p_sweep", make_records, analyse_p, (Refused,), weight=20),
    Reader("analysis hidden_stats", make_translation, analyse_hidden_stats, (Refused,), weight=20),
)

"""Compare the training speed and the translations of rmsexp's models with those of JoeyNMT 2.3, on Multi30k.

    python -m venv ENVIRONMENT
    ENVIRONMENT/bin/pip install joeynmt==2.3.0 importlib_metadata
    python scripts/compare_joeynmt.py --joeynmt ENVIRONMENT data.root=~/data

Speed: in each round rmsexp and JoeyNMT train the same model for some steps, each in a process of its own, in random
order. Quality: each trains for some minutes, one after the other, and translates the test set; rmsexp with its last
weights, JoeyNMT with those of its best validation BLEU. JoeyNMT's configs are in scripts/joeynmt, its patches in
scripts/joeynmt/worker.py. rmsexp has fused RMSNorm; JoeyNMT's GRUs have no norm, its Transformer has LayerNorm.

Each finished measurement is a record (check_record.py), joeynmt_speed0, joeynmt_bleu0, …; the same command does those
that are not there yet. A record with other --threads, --steps or --minutes is another measurement. All take an hour and
three quarters: some minutes per model for the speeds, and twice --minutes for each of two models.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import check_record

from rmsexp import config, record
from rmsexp.command_line import ReportedError, inform
from rmsexp.compare.records.load import number
from rmsexp.compare.records.time_states import run_state, time_state
from rmsexp.machine_lock import measuring
from rmsexp.readers import read_json
from rmsexp.train import provenance

HERE = Path(__file__).parent
FILES = {"train": "train", "valid": "val", "test": "test_2016_flickr"}  # our names of the files, and Multi30k's
COMMON = ("scale=small", "norm=rms", "norm.impl=fused", "device=cpu")
GRU = ("task=rnnsearch", "batch_size=80", "model.dropout=0.2", "optim.lr=0.001")
# the overrides of rmsexp that make the model of the config of the same name in scripts/joeynmt
MODELS = {
    "gru256": GRU,
    "gru1024": (*GRU, "model.embedding=512", "model.hidden=1024"),
    "transformer256": (
        *("task=transformer", "model.width=256", "model.inner=1024", "tokens=1250"),
        *("optim.lr=0.001", "schedule.warmup=400"),
    ),
}
TRANSLATED = ("gru256", "transformer256")  # the other one trains too slowly


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--joeynmt", type=Path, required=True, help="folder of an environment with JoeyNMT")
    parser.add_argument("--rounds", type=check_record.at_least(2), default=5, help="number of rounds of each speed (5)")
    parser.add_argument(
        "--steps", type=check_record.at_least(1), default=40, help="number of timed steps in a round (40)"
    )
    parser.add_argument("--minutes", type=float, default=20, help="minutes of training before the translation (20)")
    parser.add_argument("--threads", type=int, default=2, help="number of CPU threads (2)")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS), help="(all)")
    check_record.add_option(parser)
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="data.root")
    options = parser.parse_args()
    options.overrides = [config.expand_home(word) for word in options.overrides]
    python = options.joeynmt.expanduser() / "bin/python"
    if not python.exists():
        parser.error(f"there is no {python}; see --help for how the environment is made")
    with tempfile.TemporaryDirectory(prefix="rmsexp-joeynmt-") as folder:
        joeynmt = JoeyNMT(python, Path(folder), options.threads)
        write_texts(Path(config.job(list(options.overrides)).config.data.root).expanduser(), joeynmt.folder)
        joeynmt.run("prepare")
        for model in options.models:
            if not check_record.is_done(options.results, "joeynmt_speed", speed_identity(model, options)):
                compare_speed(model, joeynmt, options)
        for model in (model for model in options.models if model in TRANSLATED):
            if not check_record.is_done(options.results, "joeynmt_bleu", translation_identity(model, options)):
                compare_translations(model, joeynmt, options)


class JoeyNMT:
    """Runs scripts/joeynmt/worker.py in JoeyNMT's environment. ``folder``: of its texts, subwords and models."""

    def __init__(self, python: Path, folder: Path, threads: int) -> None:
        self.folder = folder
        self._python, self._threads = python, threads

    def run(self, what: str, model: str = "", *words: str) -> dict[str, Any]:
        """Return what the worker found. Raises: ReportedError with its last line if it fails."""
        configs = [str(HERE / f"joeynmt/{model}.yaml")] if model else []
        command = [str(self._python), str(HERE / "joeynmt/worker.py"), what, str(self.folder), *configs, *words]
        return json.loads(last_line([*command, f"--threads={self._threads}"]))


def last_line(command: Sequence[str]) -> str:
    """Return the last line that a command prints. Raises: ReportedError with its last message if it fails."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        message = (done.stderr.strip() or "no message").splitlines()[-1]
        raise ReportedError(f"{' '.join(command[:3])} ended with status {done.returncode}: {message}")
    return done.stdout.strip().splitlines()[-1]


def write_texts(root: Path, folder: Path) -> None:
    """Write the texts of Multi30k in ``root`` to ``folder`` without compression."""
    for ours, theirs in FILES.items():
        for language in ("en", "de"):
            source = root / f"multi30k/task1/raw/{theirs}.{language}.gz"
            if not source.exists():
                command = f"python -m rmsexp.prepare task=rnnsearch scale=small data.root={root}"
                raise SystemExit(f"{source} is missing; {command} downloads it")
            (folder / f"{ours}.{language}").write_bytes(gzip.decompress(source.read_bytes()))


def speed_identity(model: str, options: argparse.Namespace) -> dict[str, Any]:
    """Return what tells the record of a speed from those of other commands."""
    return {"model": model, "threads": options.threads, "steps": options.steps}


def translation_identity(model: str, options: argparse.Namespace) -> dict[str, Any]:
    """Return what tells the record of translations from those of other commands."""
    return {"model": model, "threads": options.threads, "minutes": options.minutes}


class Children:
    """The sessions of the processes of this package that a check starts. ``dirty``: whether any had changed code."""

    def __init__(self) -> None:
        self.dirty = False

    def add(self, session: Mapping[str, Any]) -> None:
        """Take account of a session. Raises: SystemExit if its code is not that of this process."""
        if session["code"] != provenance.code():
            raise SystemExit("the code of rmsexp changed during the check, so it has no record; start it again")
        self.dirty |= bool(session["git"]["dirty"])


def compare_speed(model: str, joeynmt: JoeyNMT, options: argparse.Namespace) -> None:
    """Measure target tokens per second of both in each round, and write the record."""
    check, order = check_record.Check("joeynmt_speed", options.results), random.Random(0)
    speeds: dict[str, list[float]] = {"rmsexp": [], "joeynmt": []}
    versions: dict[str, str] = {}
    states: list[str] = []  # of the rounds of rmsexp, whose processes see whether other work slowed them
    children = Children()
    for round_number in range(options.rounds):
        for name in order.sample(list(speeds), 2):
            if name == "rmsexp":
                session, found = our_speed(model, options)
                children.add(session)
                states.append(time_state(session))
            else:
                with measuring(inform):
                    found = joeynmt.run("speed", model, f"--steps={options.steps}")
                versions = found["versions"]
            speeds[name].append(sum(found["tokens"]) / sum(found["seconds"]))
        shown = ", ".join(f"{name} {values[-1]:,.0f}" for name, values in speeds.items())
        print(f"{model} {round_number + 1}/{options.rounds}: {shown} target tokens per second", flush=True)
    found = {"versions": versions, **speeds, "time_states": states}
    check.write(speed_identity(model, options) | found, children.dirty)


def our_speed(model: str, options: argparse.Namespace) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the session and the results of words_per_second.py in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, str(HERE / "words_per_second.py"), f"--steps={options.steps}"]
        last_line([*command, f"--results={folder}", *overrides(model, options)])
        (path,) = Path(folder).glob(f"checks/*/{check_record.FILE}")
        content = read_json(path)
        return content["session"], content["results"]


def overrides(model: str, options: argparse.Namespace) -> list[str]:
    return [*COMMON, *MODELS[model], f"threads={options.threads}", *options.overrides]


def compare_translations(model: str, joeynmt: JoeyNMT, options: argparse.Namespace) -> None:
    """Train both for the same time, and write the BLEU of their translations of the test set to a record.

    There is no record if JoeyNMT fails or is interrupted; then a line says what is lost.
    """
    check, children = check_record.Check("joeynmt_bleu", options.results), Children()
    session, found = our_speed(model, options)
    children.add(session)
    seconds = found["seconds"]
    steps = max(1, round(60 * options.minutes / (sum(seconds) / len(seconds))))
    with measuring(inform):
        sessions, ours = our_translations(model, steps, options)
        for session in sessions:
            children.add(session)
        print(f"{model}: BLEU {ours['bleu']:.1f} after {ours['minutes']:.1f} minutes; JoeyNMT trains now", flush=True)
        try:
            theirs = joeynmt.run("train", model, f"--minutes={options.minutes}")
        except BaseException:
            inform(f"{model}: JoeyNMT did not end, so there is no record, and rmsexp will train again, too")
            raise
    print(f"{model}: BLEU {ours['bleu']:.1f}, JoeyNMT {theirs['bleu']:.1f}", flush=True)
    check.write(translation_identity(model, options) | {"rmsexp": ours, "joeynmt": theirs}, children.dirty)


def our_translations(
    model: str, steps: int, options: argparse.Namespace
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Train for some steps, and translate.

    Returns: the sessions of the run; BLEU of the translations, minutes of training, their time state, and the steps.
    """
    with tempfile.TemporaryDirectory() as folder:
        words = [f"max_steps={steps}", f"schedule.steps={steps}", f"eval_every={steps}", f"checkpoint_every={steps}"]
        last_line([sys.executable, "-m", "rmsexp", *overrides(model, options), *words, f"results={folder}"])
        (path,) = Path(folder).glob(f"*/*/*/*/{record.METRICS}")
        rows = record.RunFolder(path.parent).read_metrics()[0]
        sessions = read_json(path.parent / record.RUN)["sessions"]
    last = next(row for row in reversed(rows) if row["split"] == "test")
    seconds_in = last["seconds"]
    minutes = sum(seconds_in[bucket] for bucket in record.TIMED) / 60
    return sessions, {
        "bleu": number(last["bleu"]),
        "minutes": minutes,
        "time_state": run_state(sessions),
        "steps": steps,
    }


if __name__ == "__main__":
    check_record.run(main)

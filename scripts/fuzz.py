"""Damage files of runs and campaigns, and words of command lines, with Hypothesis; report what is not refused well.

    python scripts/fuzz.py [--examples 200] [--reader NAME] [--seed 0]

A reader gets valid input in which bytes, values, keys, lines or whole files are changed. It must return, or raise one
of its documented exceptions with a message of at most two lines. A command must end with status 0, or with 1 or 2 and
such a message. Whatever carries a digest must be refused or give the result of undamaged files. Findings are anything
else, and inputs that take more than 5 seconds of processor time or 2 GiB of memory; Hypothesis reduces each to a small
one and prints it. Exit status 1 if there are any. Inputs follow from ``--seed`` and the name of the reader.
"""

import argparse
import copy
import io
import json
import os
import resource
import shutil
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import disturb
import hypothesis
import torch
import yaml
from hypothesis import strategies as st

from rmsexp import compare, config
from rmsexp.campaign import question
from rmsexp.commands import result, status
from rmsexp.data.synthetic import stories
from rmsexp.records import record
from rmsexp.records.frames import timing_records
from rmsexp.system.command_line import LONGEST_MESSAGE, brief
from rmsexp.tasks import attentive_reader
from rmsexp.train import checkpoint
from rmsexp.work import runner

Draw = Callable[[st.SearchStrategy[Any]], Any]
CPU_SECONDS, MEMORY_BYTES, MOST_LINES = 5, 2**31, 2
REFERENCE = Path(__file__).parents[1] / "results/reference"
RUN = ("task=attentive_reader", "model.width=6", "batch_size=10", "results=results", "threads=1", "log_every=1")
RUN += ("eval_every=2", "checkpoint_every=2", "data.root=data", "device=cpu")

# --------------------------------------------------------------------------------------------------------- damage

BOMB = "\n".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9) if n else 'x'}]" for n in range(10))  # 9^9 words
TEXTS = ["", "x", "0", "-1", "1e999", "nan", "\0", "../..", "/dev/null", "???", "${seed}", "${oc.env:HOME}", "é"]
TEXTS += ["null", "true", "[1", "{", "9" * 400, "a" * 10_000, "[" * 3000, "2020-01-01", "!!python/name:os.system"]
FILES = ["", "{}", "[]", "null", "3", "[" * 100_000, '{"a": 1}{"b": 2}', '{"step": 1e999, "split": []}\n', BOMB]
FILES += ["a: *x", "a: &x [*x]", "\ufeff{}", "x" * 2**20, "a: !!python/object/apply:os.system [true]", "a: ${a}"]
VALUES = st.one_of(
    st.sampled_from([None, True, False, -1, 0, 2**64, 10**400, float("nan"), float("inf"), [], {}, [[]], {"": None}]),
    st.sampled_from(TEXTS),
    st.integers(),
    st.floats(),
    st.text(max_size=20),
)


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield (container, key) of every value in nested dicts and lists."""
    for key in list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield value, key
        yield from places(value[key])


def damaged_value(draw: Draw, value: Any) -> Any:
    """Return a copy with a nested value replaced, perhaps by another of them, wrapped or removed, or a key renamed."""
    root = [copy.deepcopy(value)]
    known = list(places(root))
    (container, key), (other, other_key) = (known[draw(st.integers(0, len(known) - 1))] for _ in range(2))
    match draw(st.sampled_from(["replaced", "text", "wrapped", "removed", "moved", "renamed"])):
        case "replaced":
            container[key] = draw(VALUES)
        case "text":
            container[key] = str(container[key])
        case "wrapped":
            container[key] = [container[key]]
        case "removed" if container is not root:
            del container[key]
        case "renamed" if isinstance(container, dict):
            container[draw(st.text(max_size=5))] = container.pop(key)
        case _:
            container[key] = copy.deepcopy(other[other_key])
    return root[0]


def damaged_bytes(draw: Draw, data: bytes) -> bytes:
    """Return the data with a piece of it replaced, cut out or inserted, or cut at a random place."""
    start = draw(st.integers(0, len(data)))
    end = draw(st.one_of(st.integers(start, min(len(data), start + 64)), st.just(len(data))))
    return data[:start] + draw(st.binary(max_size=64)) + data[end:]


def damaged_lines(draw: Draw, lines: list[bytes]) -> bytes:
    """Return the lines with one of them replaced by another one, by nothing or by a text; or with its JSON damaged."""
    place = draw(st.integers(0, len(lines) - 1))
    match draw(st.sampled_from(["json", "other", "none", "text"])):
        case "json":
            lines[place] = json.dumps(damaged_value(draw, json.loads(lines[place]))).encode()
        case "other":
            lines[place] = draw(st.sampled_from(lines))
        case "none":
            del lines[place]
        case _:
            lines[place] = draw(st.sampled_from(TEXTS)).encode()
    return b"\n".join(lines) + b"\n"


def damaged_file(draw: Draw, path: Path) -> None:
    """Damage a file in a way that suits its format, remove it, or put a folder in its place."""
    data = path.read_bytes()
    match draw(st.sampled_from(["format", "format", "format", "bytes", "whole", "gone", "folder"])):
        case "format" if path.suffix == ".json":
            path.write_text(json.dumps(damaged_value(draw, json.loads(data))))
        case "format" if path.suffix == ".yaml":
            path.write_text(yaml.safe_dump(damaged_value(draw, yaml.safe_load(data)), sort_keys=False))
        case "format" if path.suffix == ".jsonl":
            path.write_bytes(damaged_lines(draw, data.splitlines()))
        case "whole":
            path.write_bytes(draw(st.sampled_from(FILES)).encode())
        case "gone":
            path.unlink()
        case "folder":
            path.unlink()
            path.mkdir()
        case _:
            path.write_bytes(damaged_bytes(draw, data))


def files(pattern: str) -> Callable[[Draw, Path], object]:
    """Return a function that damages one of the files that match a pattern: ``damage`` of most readers."""

    def damage(draw: Draw, folder: Path) -> None:
        damaged_file(draw, draw(st.sampled_from(sorted(path for path in folder.rglob(pattern) if path.is_file()))))

    return damage


# -------------------------------------------------------------------------------------------------------- readers


class Refused(Exception):
    """A command or a run refused its input; the text is its message."""


@dataclass(frozen=True)
class Reader:
    """A reader of files or words.

    Attributes:
        prepare: writes valid files to the working folder.
        damage: draws damage to the files in a folder; what it returns is given to ``read``.
        read: reads the input in the working folder. ``refuses``: the documented exceptions for damaged input.
        right: whether damage must be refused, or give the result of undamaged files.
        cost: the factor by which an input takes longer than those of most readers.
    """

    prepare: Callable[[], object]
    damage: Callable[[Draw, Path], Any]
    read: Callable[[Any], Any]
    refuses: tuple[type[Exception], ...] = (OSError, ValueError)
    right: bool = False
    cost: int = 1


def train(steps: int) -> Path:
    """Begin or continue a small run; return its folder. Raises: Refused if it fails, AssertionError if by a bug."""
    job, questions = config.job([*RUN, f"max_steps={steps}"]), stories.stories(40, 10)
    with mock.patch.dict(attentive_reader.SOURCES, stories=lambda *_: questions), redirect_stderr(io.StringIO()):
        outcome = runner.execute(job)
    error = str(outcome.error)
    if outcome.status == "failed" and ("(traceback in" not in error or "[Errno" in error):  # names a file
        raise Refused(outcome.error)
    assert outcome.status == "finished", f"{outcome.status}: {outcome.error}"
    return Path(job.folder)


def continue_run(_: object) -> Any:
    """Continue the run, and return its parameters, optimiser, metrics and status without times."""
    folder = record.RunFolder(train(6))
    payload = torch.load(folder.checkpoints / checkpoint.LAST, weights_only=True)
    rows, problem = folder.read_metrics()
    state = {key: part for key, part in payload["state"].items() if not key.startswith("metrics_")}
    metrics = [row | {"seconds": None} for row in rows]
    return payload["model"], payload["optimizer"], state, metrics, problem, folder.read_status()["status"]


def run_folder() -> Path:
    return next(Path("results").glob("*/*/*/seed0"))


def read_checkpoint(_: object) -> object:
    return checkpoint.read(run_folder() / "checkpoints" / checkpoint.LAST)


def copy_records(folder: str, *parts: str) -> Callable[[], object]:
    """Return a function that copies some committed records to the folder of results."""

    def prepare() -> None:
        for part in parts:
            ignored = shutil.ignore_patterns("*.png", "*.svg", "*.csv", "*.md")
            shutil.copytree(REFERENCE / folder / part, Path("results", part), ignore=ignored)

    return prepare


def copy_campaign_config() -> None:
    Path("campaign").mkdir()
    shutil.copy(config.CONFIGS / "campaign/quality_cifar10.yaml", "campaign/mine.yaml")


def words(draw: Draw, _: Path) -> list[str]:
    """Return words of a command line: some are valid, and some have other keys or values."""
    known = config.flatten(config.job(["task=rnnsearch", "norm=prms"]).resolved)
    drawn = draw(st.lists(st.tuples(st.sampled_from(sorted(known)), st.sampled_from(TEXTS) | st.text(max_size=8))))
    free = draw(st.lists(st.sampled_from(TEXTS) | st.text(max_size=8), max_size=1))
    return ["task=rnnsearch", "norm=prms", *free, *(f"{key}={value}" for key, value in drawn)]


def show_status(_: object) -> None:
    """Run the status command. Raises: Refused, with its message, if the exit status is 1 or 2."""
    with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()) as error:
        try:
            exit_status = status.main(["results"])
        except SystemExit as end:
            exit_status = int(end.code or 0)
    assert exit_status in (0, 1, 2), f"exit status {exit_status}"
    assert "Traceback" not in out.getvalue() + error.getvalue(), error.getvalue()
    if exit_status:
        raise Refused(error.getvalue().strip())


RECORDS = copy_records("intel-xeon-2-cores", "cifar10/small/ln/seed0", "cifar10/small/rms/seed0")
TIMINGS = copy_records("intel-xeon-2-cores", "cifar10/small/timing/steps3")
CAMPAIGN = copy_records("quality", "campaigns/quality_cifar10")
READERS = {
    "words": Reader(lambda: None, words, config.job, (config.ConfigError,)),
    "config of a run": Reader(RECORDS, files("config.yaml"), lambda _: config.read(run_folder() / record.CONFIG)),
    "record of a run": Reader(
        RECORDS, files("*.json*"), lambda _: [*map(result.read, Path("results").glob("*/*/*/*"))]
    ),
    "records": Reader(RECORDS, files("*.*"), lambda _: compare.load(Path("results")), ()),
    "timing records": Reader(TIMINGS, files("*.json"), lambda _: timing_records.load(Path("results"), problems=[]), ()),
    "checkpoint": Reader(
        lambda: train(4), files("last.pt"), read_checkpoint, (checkpoint.CheckpointError,), right=True
    ),
    "continued run": Reader(lambda: train(4), files("*.*"), continue_run, (Refused, OSError), right=True, cost=10),
    "campaign file": Reader(
        copy_campaign_config, files("*.yaml"), lambda _: question.read("mine", config_dir="."), (config.ConfigError,)
    ),
    "campaign": Reader(CAMPAIGN, files("*.json"), show_status, (Refused,)),
}


def poor(message: str) -> str:
    """Return what is wrong with the message of a refusal: it is empty or too long; else ""."""
    is_good = message.strip() and message.count("\n") < MOST_LINES and len(message) <= LONGEST_MESSAGE
    return "" if is_good else f"a message of {len(message)} characters: {message:.1000}"


def check(reader: Reader, examples: int, seed: int) -> Counter[str]:
    """Give a reader damaged inputs, and return how many it "refused" and "accepted". Raises: what a finding raised."""
    counts: Counter[str] = Counter()
    before = Path.cwd()
    with tempfile.TemporaryDirectory(prefix="rmsexp-fuzz-") as folder:
        valid, place = Path(folder, "valid"), Path(folder, "input")

        def fresh(source: Path) -> Path:
            """Make the working folder a copy of a folder."""
            os.chdir(folder)
            shutil.rmtree(place, ignore_errors=True)
            shutil.copytree(source, place)
            os.chdir(place)
            return place

        @hypothesis.seed(seed)
        @hypothesis.settings(
            max_examples=max(1, examples // reader.cost),
            deadline=None,
            database=None,
            report_multiple_bugs=False,
            suppress_health_check=list(hypothesis.HealthCheck),
        )
        @hypothesis.given(st.data())
        def read(data: st.DataObject) -> None:
            given = reader.damage(data.draw, fresh(valid))
            began = time.process_time()
            try:
                result = reader.read(given)
            except reader.refuses as error:
                problem = poor(str(error) if isinstance(error, Refused) else brief(error))
                assert not problem, problem
                counts["refused"] += 1
            else:
                changed = disturb.differences(expected, result) if reader.right else []
                assert not changed, f"damage was accepted and changed the result: {changed}"
                counts["accepted"] += 1
            assert time.process_time() - began < CPU_SECONDS * reader.cost, "too much processor time"

        try:
            valid.mkdir()
            os.chdir(valid)
            reader.prepare()
            fresh(valid)
            expected = reader.read(None) if reader.right else None
            read()
        finally:
            os.chdir(before)
    return counts


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--examples", type=int, default=200, help="inputs per reader, fewer for slow ones (200)")
    parser.add_argument("--reader", choices=READERS, metavar="NAME", help=f"only one of {', '.join(READERS)}")
    parser.add_argument("--seed", type=int, default=0, help="seed of the inputs (0)")
    options = parser.parse_args(argv)
    reserved = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (reserved + MEMORY_BYTES, resource.getrlimit(resource.RLIMIT_AS)[1]))
    findings = 0
    for name in [options.reader] if options.reader else READERS:
        try:
            counts = check(READERS[name], options.examples, options.seed)
        except Exception:
            findings += 1
            print(f"{name}: FINDING\n{traceback.format_exc()}", flush=True)
        else:
            print(f"{name}: {counts['refused']} refused, {counts['accepted']} accepted", flush=True)
    return int(findings > 0)


if __name__ == "__main__":
    sys.exit(main())

"""The committed records: timings, runs, benchmarks, checks and campaigns below one folder."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from rmsexp import compare
from rmsexp.campaign import results as campaign_results
from rmsexp.records.frames import timing_records
from rmsexp.system.readers import read_json

TASKS = ("cifar10", "rnnsearch", "transformer", "attentive_reader", "order_embedding", "language_model")


@dataclass(frozen=True)
class Evidence:
    """Records below ``reference``, which has a folder for each machine, for texts in the folder ``page``."""

    reference: Path
    page: Path

    @cached_property
    def timings(self) -> pd.DataFrame:
        """All timing records, with the column ``place``: the folder of the machine.

        Raises: ValueError if one cannot be read.
        """
        loaded = _timings(self.reference)
        return loaded.assign(place=[self.place(folder) for folder in loaded["folder"]])

    @property
    def machines(self) -> list[str]:
        """The folders of machines, which have reference runs, timings, benchmarks or checks."""
        found = [path.name for path in self.reference.iterdir() if path.is_dir()]
        return sorted(set(found) - {"quality", "report"})

    def place(self, folder: str | Path) -> str:
        """Return the first folder below ``reference`` in which a record lies."""
        return Path(folder).relative_to(self.reference).parts[0]

    def runs(self, place: str) -> compare.Records:
        """Return the runs of a machine.

        Raises: ValueError if one cannot be read.
        """
        records = _runs(self.reference / place)
        _fail(records.problems)
        return records

    def checks(self, name: str) -> dict[str, dict[str, Any]]:
        """Return the newest record of a check on each machine, by place, the newest first."""
        newest: dict[str, dict[str, Any]] = {}
        for folder, content in self.all_checks(name).items():
            newest.setdefault(self.place(folder), content)
        return newest

    def all_checks(self, name: str) -> dict[Path, dict[str, Any]]:
        """Return all records of a check by their folder, the newest first."""
        found = {path.parent: read_json(path) for path in self.reference.glob(f"*/checks/{name}[0-9]*/check.json")}
        return dict(sorted(found.items(), key=lambda item: _started(item[1]), reverse=True))

    def benchmarks(self, what: str) -> dict[str, list[dict[str, Any]]]:
        """Return the benchmarks of layers that repeat the newest one on each machine, by place; the newest come first.

        They have its code, threads and version of torch, its data type, and the same cases and layers.
        """
        contents = [
            (self.place(path), read_json(path)) for path in self.reference.glob(f"*/bench/{what}[0-9]*/bench.json")
        ]
        found: dict[str, list[dict[str, Any]]] = {}
        for place, content in sorted(contents, key=lambda item: _started(item[1]), reverse=True):
            same = found.setdefault(place, [])
            if not same or _measured(content) == _measured(same[0]):
                same.append(content)
        return found

    @property
    def campaigns(self) -> list[campaign_results.Campaign]:
        """The campaigns. Raises: ValueError if one cannot be read."""
        return _campaigns(self.reference)

    def link(self, text: str, folder: str | Path) -> str:
        """Return a Markdown link from the page to a folder."""
        return f"[{text}]({Path(os.path.relpath(folder, self.page)).as_posix()})"


@functools.cache
def _timings(reference: Path) -> pd.DataFrame:
    problems: list[str] = []
    loaded = timing_records.load(reference, problems)
    _fail(problems)
    return loaded


@functools.cache
def _campaigns(reference: Path) -> list[campaign_results.Campaign]:
    problems: list[str] = []
    found = campaign_results.load_all(reference, problems)
    _fail(problems)
    return found


@functools.cache
def _runs(folder: Path) -> compare.Records:
    return compare.load(folder)


def _fail(problems: Iterable[str]) -> None:
    if lines := "\n".join(problems):
        raise ValueError(f"a committed record cannot be read: {lines}")


def _measured(bench: dict[str, Any]) -> tuple[Any, ...]:
    """Return what two benchmarks of layers must have in common to be repetitions of one measurement."""
    session = bench["session"]
    cases = [(case["shape"], case["passes"], sorted(case["seconds"])) for case in bench["measurements"]]
    machine = session.get("machine", {}).get("id")
    return session["code"], machine, session["threads"], session["versions"]["torch"], bench["dtype"], cases


def _started(content: dict[str, Any]) -> str:
    return str(content["session"]["started"])

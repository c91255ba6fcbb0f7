"""Write the record of a check: what a script of this folder measured, and by which command, code and machine.

A record is ``<results>/checks/<name><number>/check.json``. Its keys: ``format`` (1); ``check``, its name; ``command``,
without the words that say where data and results lie; ``session``, as in ``run.json``; ``results``, of the check.
"""

import argparse
import json
import random
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import torch

from rmsexp.measure.probes import ProbedContention, probe
from rmsexp.records.frames.timing_records import new_folder
from rmsexp.system import atomic
from rmsexp.system.command_line import entry_point, inform, recorded
from rmsexp.system.machine_lock import measuring
from rmsexp.train import provenance

FILE, FORMAT = "check.json", 1
CPU = torch.device("cpu")


class Check:
    """A check that begins now.

    ``name``: a word. ``results``: the folder below which its record is written; without it, there is no record.
    """

    def __init__(self, name: str, results: Path | None) -> None:
        self._name, self._results = name, results and results.expanduser()
        self._contention: ProbedContention | None = None
        self._session = provenance.session(CPU, 0)
        if self._results:
            (self._results / "checks").mkdir(parents=True, exist_ok=True)  # before measuring, so that it fails at once

    @contextmanager
    def measuring(self) -> Iterator[None]:
        """Inside the context campaign workers pause, and it is recorded whether other work slowed this process down.

        Probes are taken at the beginning and at the end; call :meth:`probe` between pieces of work for more.
        """
        self._contention = self._contention or ProbedContention(CPU)
        with measuring(inform):
            self._contention.probe_at_an_edge()
            with self._contention.watch():
                yield
            self._contention.probe_at_an_edge()

    def probe(self) -> None:
        """Take a probe inside :meth:`measuring` (rmsexp/measure/probes.py), after one that does not count."""
        assert self._contention is not None
        probe().take()
        self._contention.probe()

    def write(self, results: Mapping[str, Any]) -> Path | None:
        """Write the record to a new folder, report its path, and return the path; None without a folder of results."""
        if not self._results:
            return None
        contention = {"contention": self._contention.report()} if self._contention else {}
        folder = new_folder(self._results / "checks", self._name)
        content = {
            "format": FORMAT,
            "check": self._name,
            "command": command(sys.argv),
            "session": self._session | contention,
            "results": dict(results),
        }
        atomic.write_json(folder / FILE, content)
        inform(f"record  {folder / FILE}")
        return folder / FILE


class Parts:
    """The finished parts of a check that takes hours: a line for each in ``<results>/checks/<name>.jsonl``.

    A later process with the same command goes on after the last one. ``planned``: what identifies each part, in the
    order in which they are done. ``done``: the finished parts, with what identifies them and their code and machine.

    Raises: SystemExit if there are parts of another command, code or machine.
    """

    def __init__(self, name: str, results: Path, planned: Sequence[Mapping[str, Any]]) -> None:
        self._check, self._lines = Check(name, results), results.expanduser() / "checks" / f"{name}.jsonl"
        session = provenance.session(CPU, 0)
        here = {"code": session["code"], "machine": session["machine"]["id"], "dirty": session["git"]["dirty"]}
        self._planned = [{**part, **here} for part in planned]
        lines = self._lines.read_text().splitlines(keepends=True) if self._lines.exists() else []
        self.done: list[dict[str, Any]] = [json.loads(line) for line in lines if line.endswith("\n")]
        for part, expected in zip(self.done, self._planned, strict=False):
            if any(part.get(key) != value for key, value in expected.items()):
                sys.exit(f"{self._lines} has parts of another command, code or machine: move it away to begin again")

    @property
    def left(self) -> range:
        """The places in ``planned`` of the parts that are not done yet."""
        return range(len(self.done), len(self._planned))

    def add(self, found: Mapping[str, Any]) -> None:
        """Keep what the next part has found."""
        self.done.append({**found, **self._planned[len(self.done)]})
        atomic.write_atomic(self._lines, "".join(f"{json.dumps(part)}\n" for part in self.done))

    def write(self, results: Mapping[str, Any]) -> None:
        """Write the record of the check; remove the lines."""
        self._check.write(results)
        self._lines.unlink()


def command(words: list[str]) -> str:
    """Return the command line of a script for its record (:func:`rmsexp.system.command_line.recorded`)."""
    return recorded(["python", f"scripts/{Path(words[0]).name}", *words[1:]])


def run(main: Callable[[], int | None]) -> NoReturn:
    """Run the function of a script and exit; mistakes and failures are reported as those of commands are.

    See :func:`rmsexp.system.command_line.entry_point`.
    """
    sys.exit(entry_point(lambda _: main() or 0)([]))


def shuffled(numbers: Mapping[str, int]) -> list[str]:
    """Return each kind as often as its number says, shuffled with a fixed seed."""
    kinds = [kind for kind, number in numbers.items() for _ in range(number)]
    random.Random(0).shuffle(kinds)
    return kinds


def add_option(parser: argparse.ArgumentParser, default: Path | None = Path("results")) -> None:
    """Add the option ``--results``, the folder for :class:`Check`."""
    text = f"folder for the record, checks/NAME0/check.json ({default or 'without it, there is no record'})"
    parser.add_argument("--results", type=Path, default=default, help=text)

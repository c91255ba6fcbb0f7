"""Write the record of a check: what a script of this folder measured, and by which command, code and machine.

A record is ``<results>/checks/<name><number>/check.json``. Its keys: ``format`` (1); ``check``, its name; ``command``,
without the words that say where data and results lie; ``session``, as in ``run.json``; ``results``, of the check.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import torch

from rmsexp import config
from rmsexp.measure.probes import ProbedContention, probe
from rmsexp.records.frames.timing_records import new_folder
from rmsexp.system import atomic
from rmsexp.system.command_line import entry_point, inform, recorded
from rmsexp.system.machine_lock import measuring
from rmsexp.system.readers import read_json
from rmsexp.train import provenance

FILE, FORMAT = "check.json", 1
CPU = torch.device("cpu")


def is_done(results: Path, name: str, identity: Mapping[str, Any]) -> bool:
    """Return whether this code and machine have a record of this check with these values, and print its path."""
    here = {"code": provenance.code(), "machine": provenance.machine_id()}
    for path in sorted(results.expanduser().glob(f"checks/{name}*/{FILE}")):
        content = read_json(path)
        session, stored = content["session"], content["results"]
        measured = {"code": session["code"], "machine": session["machine"]["id"]}
        if measured == here and all(stored.get(key) == value for key, value in identity.items()):
            print(f"already there: {path}", flush=True)
            return True
    return False


class Check:
    """A check that begins now.

    ``name``: a word. ``results``: the folder below which its record is written; without it, there is no record.
    """

    def __init__(self, name: str, results: Path | None, device: torch.device = CPU) -> None:
        self._name, self._results, self._device = name, results and results.expanduser(), device
        self._contention: ProbedContention | None = None
        self._session = provenance.session(device, 0)
        if self._results:
            (self._results / "checks").mkdir(parents=True, exist_ok=True)  # before measuring, so that it fails at once

    @contextmanager
    def measuring(self, processes: Collection[int | str] = ("self",)) -> Iterator[None]:
        """Inside the context campaign workers pause, and it is recorded whether other work slowed ``processes`` down.

        ``processes``: the ids of the processes that do the work; by default, it is this one. Probes are taken at the
        beginning and at the end; call :meth:`probe` between pieces of work for more.
        """
        self._contention = self._contention or ProbedContention(self._device, processes=processes)
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

    def write(self, results: Mapping[str, Any], dirty: bool = False) -> Path | None:
        """Write the record to a new folder, report its path, and return the path; None without a folder of results.

        ``dirty``: whether something in the results was measured by code with uncommitted changes.
        """
        if not self._results:
            return None
        contention = {"contention": self._contention.report()} if self._contention else {}
        git = self._session["git"]
        folder = new_folder(self._results / "checks", self._name)
        content = {
            "format": FORMAT,
            "check": self._name,
            "command": command(sys.argv),
            "session": self._session | contention | {"git": git | {"dirty": dirty or git["dirty"]}},
            "results": dict(results),
        }
        atomic.write_json(folder / FILE, content)
        inform(f"record  {folder / FILE}")
        return folder / FILE


class Parts:
    """The finished parts of a check that takes hours: a line for each in ``<results>/checks/<name>.jsonl``.

    A later process with the same command goes on after the last one.

    Args:
        planned: what identifies each part, in the order in which they are done.

    Attributes:
        done: the finished parts, with what identifies them.

    Raises: SystemExit if there are parts of another command, code or machine.
    """

    def __init__(self, name: str, results: Path, planned: Sequence[Mapping[str, Any]]) -> None:
        self._planned, self._check = planned, Check(name, results)
        self._lines = results.expanduser() / "checks" / f"{name}.jsonl"
        self._lines.parent.mkdir(parents=True, exist_ok=True)
        content = self._lines.read_bytes() if self._lines.exists() else b""
        whole = content[: content.rfind(b"\n") + 1]  # without a line that was not written to its end
        if whole != content:
            os.truncate(self._lines, len(whole))
        texts = whole.decode().splitlines()
        self.done: list[dict[str, Any]] = [json.loads(text) for text in texts]
        self._here = {"code": provenance.code(), "machine": provenance.machine_id(), "files": _files()}
        expected = [{**part, **self._here} for part in planned[: len(texts)]]
        if [{key: part.get(key) for key in (*planned[0], *self._here)} for part in self.done] != expected:
            sys.exit(f"{self._lines} has parts of another command, code or machine: move it away to begin again")
        if provenance.git()["dirty"]:
            inform("the code has uncommitted changes, and the record will say so")

    @property
    def left(self) -> range:
        """The places in ``planned`` of the parts that are not done yet."""
        return range(len(self.done), len(self._planned))

    def add(self, found: Mapping[str, Any]) -> None:
        """Keep what the next part has found, which includes ``code``, ``dirty`` and the id of the ``machine``.

        Raises: SystemExit, without keeping it, if code, configs, scripts or machine are not those of the first part.
        """
        found = {**found, "files": _files()}
        if differ := [name for name, value in self._here.items() if found[name] != value]:
            sys.exit(
                f"the {' and the '.join(differ)} changed during the check, so this part is not kept; "
                f"{self._lines} has {len(self.done)} before it: restore what changed and repeat the command to "
                "continue, or move the file away to begin again"
            )
        self.done.append({**self._planned[len(self.done)], **found})
        with self._lines.open("a") as file:
            file.write(json.dumps(self.done[-1]) + "\n")

    def write(self, results: Mapping[str, Any]) -> None:
        """Write the record of the check, whose tree counts as changed if that of any part was; remove the lines."""
        self._check.write(results, any(part["dirty"] for part in self.done))
        self._lines.unlink()


def _files() -> str:
    """Return a digest of the configs and scripts, which ``code`` does not cover."""
    paths = [*config.CONFIGS.rglob("*.yaml"), *Path(__file__).parent.rglob("*.py")]
    return hashlib.sha256(b"\0".join(path.read_bytes() for path in sorted(paths))).hexdigest()[:16]


def command(words: list[str]) -> str:
    """Return the command line of a script for its record (:func:`rmsexp.system.command_line.recorded`)."""
    return recorded(["python", f"scripts/{Path(words[0]).name}", *words[1:]])


def run(main: Callable[[], int | None]) -> NoReturn:
    """Run the function of a script and exit; mistakes and failures are reported as those of commands are.

    See :func:`rmsexp.system.command_line.entry_point`.
    """
    sys.exit(entry_point(lambda _: main() or 0)([]))


def at_least(least: int) -> Callable[[str], int]:
    """Return the type of an option whose value is an integer that is not less than ``least``."""

    def integer(text: str) -> int:
        if int(text) < least:
            raise argparse.ArgumentTypeError(f"must be at least {least}, got {text}")
        return int(text)

    return integer


def add_option(parser: argparse.ArgumentParser, default: Path | None = Path("results")) -> None:
    """Add the option ``--results``, the folder for :class:`Check`."""
    text = f"folder for the record, checks/NAME0/check.json ({default or 'without it, there is no record'})"
    parser.add_argument("--results", type=Path, default=default, help=text)

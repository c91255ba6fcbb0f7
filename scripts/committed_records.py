"""List committed records that do not say exactly which code made them.

Such a record names no commit or one that is not in the history, or it was made while code, configs, scripts or locked
versions had uncommitted changes. Those made before this was checked are listed in results/reference/unclean.csv. Any
other is printed, as is a line of the list that does not hold, and the exit status is then 1.

    python scripts/committed_records.py
"""

import argparse
import csv
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rmsexp.system.readers import read_json

ROOT = Path(__file__).parents[1]
REFERENCE = ROOT / "results/reference"
LISTED = "unclean.csv"
FILES = ("run.json", "timing.json", "bench.json", "check.json", "campaign.json")
CHANGES, LOST, UNKNOWN = "uncommitted changes", "commit not in the history", "no commit"


def main() -> int:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    history = commits(ROOT)
    if history is None:
        print("the history of this checkout is not complete: only uncommitted changes are looked for")
    found, listed = unclean(REFERENCE, history), read_list(REFERENCE)
    lines = [f"{record}: {problems}" for record, problems in found.items() if record not in listed]
    lines += [
        f"{record}: {LISTED} says {listed[record]}, but it is {found.get(record, 'clean or gone')}"
        for record in stale(listed, found, history)
    ]
    print("\n".join([*lines, f"{len(found)} unclean records, {len(listed)} of them listed in {LISTED}"]))
    return 1 if lines else 0


def commits(checkout: Path) -> frozenset[str] | None:
    """Return all commits of the history; None if it is not complete, as in a shallow clone, or without git."""

    def git(*words: str) -> str:
        done = subprocess.run(["git", "-C", str(checkout), *words], capture_output=True, text=True, check=True)
        return done.stdout.strip()

    try:
        shallow = git("rev-parse", "--is-shallow-repository") == "true"
        return None if shallow else frozenset(git("rev-list", "HEAD").split())
    except (OSError, subprocess.CalledProcessError):
        return None


def records(reference: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the path below ``reference`` and the content of every record."""
    for path in sorted(path for name in FILES for path in reference.rglob(name)):
        yield path.relative_to(reference).as_posix(), read_json(path)


def unclean(reference: Path, history: frozenset[str] | None) -> dict[str, str]:
    """Return what is wrong with each unclean record below ``reference``, by its path.

    ``history``: all commits; if it is None, no commit counts as lost.
    """
    found = {}
    for path, stored in records(reference):
        problems = {problem for state in _states(stored) for problem in _problems(state, history)}
        if problems:
            found[path] = "; ".join(sorted(problems))
    return found


def _states(stored: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the git states (commit, dirty) of the processes that made a record; of a campaign, of its registration."""
    if "jobs" in stored:  # a campaign; its commit ends with "+" if there were uncommitted changes
        commit = (stored.get("registered") or {}).get("commit")
        return [{"commit": commit.rstrip("+"), "dirty": commit.endswith("+")}] if commit else []
    sessions = [*stored.get("sessions", []), *(process["session"] for process in stored.get("processes", []))]
    sessions += [stored["session"]] if "session" in stored else []
    return [session["git"] for session in sessions]


def _problems(state: Mapping[str, Any], history: frozenset[str] | None) -> Iterator[str]:
    if state["commit"] is None:
        yield UNKNOWN
    elif history is not None and state["commit"] not in history:
        yield LOST
    if state["dirty"]:
        yield CHANGES


def read_list(reference: Path) -> dict[str, str]:
    """Return what is wrong with each listed record, by its path."""
    with (reference / LISTED).open(newline="") as file:
        return {row["record"]: row["problems"] for row in csv.DictReader(file)}


def stale(listed: Mapping[str, str], found: Mapping[str, str], history: frozenset[str] | None) -> list[str]:
    """Return the records of which ``listed`` says something else than ``found``.

    If ``history`` is None, what the list says about lost commits is taken to be true.
    """
    if history is None:
        listed = {record: problems.replace(LOST, "").strip("; ") for record, problems in listed.items()}
    return [record for record, problems in listed.items() if problems and found.get(record) != problems]


if __name__ == "__main__":
    raise SystemExit(main())

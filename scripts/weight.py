"""Print how many lines and words the project has, beside its budgets (``make weight``).

Lines are those of tracked files (``wc -l``); words are those of the pages and the README (``wc -w``). A test fails
beyond the caps (tests/test_weight.py).
"""

import subprocess
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]


class Budget(NamedTuple):
    """What a part is meant to have, and what it may have at most. ``patterns``: of its files, for git."""

    unit: str
    patterns: tuple[str, ...]
    budget: int
    cap: int


BUDGETS = {
    "package": Budget("lines", ("rmsexp",), 31_000, 32_000),
    "tests": Budget("lines", ("tests",), 27_000, 29_000),
    "scripts": Budget("lines", ("scripts",), 4_200, 4_600),
    "docs": Budget("words", ("docs/*.md",), 17_000, 19_000),
    "README": Budget("words", ("README.md",), 900, 1_000),
}


def today(part: Budget) -> int:
    """Return how many lines or words a part has."""
    command = ["git", "-C", str(ROOT), "ls-files", "-z", "--", *part.patterns]
    names = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split("\0")
    contents = [path.read_bytes() for name in names if name and (path := ROOT / name).is_file()]
    return sum(len(content.split()) if part.unit == "words" else content.count(b"\n") for content in contents)


def beyond() -> dict[str, int]:
    """Return the parts that are larger than their caps, with today's numbers."""
    return {name: number for name, part in BUDGETS.items() if (number := today(part)) > part.cap}


def main() -> None:
    print(f"{'part':10} {'unit':6} {'today':>8} {'budget':>8} {'cap':>8}")
    for name, part in BUDGETS.items():
        number = today(part)
        mark = "  over the cap" if number > part.cap else "  over the budget" if number > part.budget else ""
        print(f"{name:10} {part.unit:6} {number:8,} {part.budget:8,} {part.cap:8,}{mark}")


if __name__ == "__main__":
    main()

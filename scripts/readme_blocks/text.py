"""Words, lists and tables for the texts of blocks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pandas as pd

from rmsexp.report.tables import markup


def listed(words: Iterable[str]) -> str:
    """Return "a", "a and b" or "a, b and c"."""
    words = list(words)
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def tasks(names: Iterable[str]) -> str:
    return listed(f"`{name}`" for name in names)


def plural(count: int, noun: str) -> str:
    """Return "one process" or "6 processes"."""
    if count == 1:
        return f"one {noun}"
    return f"{count} {noun}{'es' if noun.endswith('s') else 's'}"


def counted(states: Iterable[str]) -> str:
    """Return how often each state occurs, such as "4 clear, 1 contended"."""
    return ", ".join(f"{count} {state}" for state, count in sorted(Counter(states).items()))


def table(rows: Sequence[Mapping[str, str]]) -> str:
    return markup.markdown(pd.DataFrame(rows)).strip()


def paragraphs(*parts: str) -> str:
    """Return the parts that are not empty, as paragraphs of Markdown."""
    return "\n\n".join(part for part in parts if part)


def sentences(*parts: str) -> str:
    """Return a paragraph of the sentences that are not empty, a line each."""
    return "\n".join(part for part in parts if part)


def machine(content: Mapping[str, Any]) -> str:
    """Return machine, threads, torch and date of the record of a check or a benchmark.

    The threads are those of the processes that were measured, which are not always those of the script's own process.
    """
    session = content["session"]
    threads = content.get("results", {}).get("threads") or session["threads"]
    return f"{processor(session, threads)}, torch {session['versions']['torch']}, {session['started'][:10]}"


def processor(session: Mapping[str, Any], threads: int) -> str:
    """Return processor, identity of the machine, which older records lack, and threads."""
    identity = f" ({session['machine']['id']})" if "machine" in session else ""
    return f"{session['device']}{identity}, {plural(int(threads), 'thread')}"


def not_recorded(command: str, of: str = "this") -> str:
    """Return what a block says as long as no record is committed."""
    return f"No record of {of} is committed yet. The command is `{command}`."

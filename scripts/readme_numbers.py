"""Write the marked blocks of README.md, docs and results/README.md from the committed records in results/reference.

A block stands between two lines of its own, and nobody edits it by hand:

    <!-- numbers: NAME -->
    <!-- end -->

Its text comes from the function with this name in ``BLOCKS``. A test fails where a block differs from what the records
say; with --check this script lists these places instead of writing, and exits with status 1. It also lists numbers with
decimals, percentages and counts ("9 of 10") outside of blocks, code and links, unless readme_blocks/constants.yaml has
them as constants of the page: definitions, limits, and quotes of the paper.

    python scripts/readme_numbers.py
    python scripts/readme_numbers.py --check
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterator, Mapping, Set
from functools import partial
from pathlib import Path
from typing import NamedTuple

from readme_blocks import (
    ablations,
    agreement,
    baselines,
    campaign_costs,
    checks,
    gains,
    layers,
    origin,
    paper_items,
    processes,
    quality,
    savings,
    size,
    verdicts,
)
from readme_blocks.evidence import Evidence

from rmsexp.system import atomic
from rmsexp.system.readers import read_yaml

ROOT = Path(__file__).parents[1]
REFERENCE = ROOT / "results/reference"
PAGES = (ROOT / "README.md", ROOT / "results/README.md", *sorted((ROOT / "docs").glob("*.md")))
BEGIN, END = re.compile(r"<!-- numbers: (\S+) -->"), "<!-- end -->"
COMMAND = "python scripts/readme_numbers.py"
CONSTANTS = ROOT / "scripts/readme_blocks/constants.yaml"
NUMBER = re.compile(
    r"(?<![\w.])(?:\d[\d,]*\.\d+(?!\.?\d)(?:e-?\d+)?(?: %)?|\d[\d,]*(?:e-?\d+| %)|\d+ of (?:the )?\d+)(?!\w)"
)
# what is no prose: blocks, fenced code, code, targets of links, and HTML
OTHER = re.compile(
    r"<!-- numbers: .*?<!-- end -->|^```.*?^```|`[^`\n]+`|\]\([^()\s]+\)|<[^>\n]+>", re.DOTALL | re.MULTILINE
)

Blocks = Mapping[str, Callable[[Evidence], str]]
BLOCKS: Blocks = {
    "savings": savings.readme,
    "savings-of-tasks": savings.timing_page,
    "savings-of-layers": savings.layers,
    "savings-on-gpu": savings.gpu_page,
    "agreement": agreement.of_tasks,
    "fused-steps": savings.fused,
    "verdicts": verdicts.readme,
    "all-verdicts": verdicts.whole,
    "campaign-costs": campaign_costs.runs_and_seconds,
    "plan-accuracy": campaign_costs.accuracy,
    "gains": gains.last_fifth,
    "baselines": baselines.trained,
    "unclean-records": origin.unclean,
    "paper-items": paper_items.scores,
    "metrics-of-cifar10": quality.cifar10,
    "metrics-of-full-width": partial(quality.cifar10, setting="paper"),
    "metrics-of-translation": quality.translation,
    "metrics-of-reading": quality.reading,
    "p-sweep": ablations.p_sweep,
    "init-center": ablations.init_center,
    "hidden-to-hidden": ablations.hidden_to_hidden,
    "metrics-of-language-model": quality.language_model,
    "norm-layers": layers.norms,
    "torch-layers": layers.of_torch,
    "answer": verdicts.answer,
    "trivial-answers": checks.trivial_answers,
    "planted-neighbours": checks.neighbours,
    "timing-power": checks.timing_power,
    "timing-coverage": checks.timing_coverage,
    "commits": checks.commits,
    "trainer-overhead": checks.trainer_overhead,
    "verdict-rules": checks.verdict_rules,
    "fuzz": checks.fuzz,
    "chaos-sweep": checks.chaos_sweep,
    "kills": checks.kills,
    "preempted-sweep": checks.preempted_sweep,
    "ray-node-lost": checks.ray_node_lost,
    "distributed-equality": processes.equality,
    "distributed-hang": processes.hang,
    "distributed-throughput": checks.distributed_throughput,
    "recurrences": layers.recurrences,
    "data-at-size": size.data_at_size,
}


class Block(NamedTuple):
    """A block of a page: its name, the number of its first marker's line, and its text."""

    name: str
    line: int
    text: str


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="list the blocks that differ, and write nothing")
    arguments = parser.parse_args()
    texts = {page: updated(page.read_text(), Evidence(REFERENCE, page.parent), BLOCKS) for page in PAGES}
    found = [line for page in PAGES for line in (*differences(page, texts[page]), *unsourced(page, constants(page)))]
    if not arguments.check:
        for page, text in texts.items():
            atomic.write_atomic(page, text)
    elif found:
        found.append(f"next    {COMMAND}")
    print("\n".join(found) or "all blocks are as the records say")
    return int(bool(found) and arguments.check)


def blocks(document: str) -> list[Block]:
    """Return the blocks of a page.

    Raises: ValueError, with the number of the line, if a block has no end, or an end no beginning.
    """
    found, name, begun = [], "", 0
    lines = document.splitlines()
    for number, line in enumerate(lines, 1):
        begins = BEGIN.fullmatch(line)
        if (begins and name) or (line == END and not name):
            raise ValueError(f"line {number}: {line} without {END if begins else 'a beginning'} before it")
        if begins:
            name, begun = begins[1], number
        elif line == END:
            found.append(Block(name, begun, "\n".join(lines[begun : number - 1])))
            name = ""
    if name:
        raise ValueError(f"line {begun}: the block {name} has no {END}")
    return found


def updated(document: str, evidence: Evidence, texts: Blocks) -> str:
    """Return the page with the text of each block as the records say.

    Raises: ValueError if the blocks are not well formed, or one has an unknown name.
    """
    lines = document.splitlines()
    for block in reversed(blocks(document)):
        if block.name not in texts:
            raise ValueError(f"line {block.line}: no block is named {block.name}; known: {', '.join(texts)}")
        end = lines.index(END, block.line)
        lines[block.line : end] = texts[block.name](evidence).splitlines()
    return "\n".join(lines) + "\n"


def differences(page: Path, after: str) -> list[str]:
    """Return a line for each block of a page that differs from the records: where, and how.

    ``after``: the page as the records say (:func:`updated`).
    """
    return [
        f"{_name(page)}:{line} block {old.name}: {text}"
        for old, new in zip(blocks(page.read_text()), blocks(after), strict=True)
        for line, text in _first_difference(old, new)
    ]


def constants(page: Path) -> set[str]:
    """Return the numbers that are stated as constants of a page, or of all pages."""
    stated = read_yaml(CONSTANTS)
    return {number for name in ("all pages", _name(page)) for number in stated.get(name, [])}


def _name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix() if page.is_relative_to(ROOT) else page.name


def unsourced(page: Path, stated: Set[str]) -> list[str]:
    """Return a line for each number of a page that is neither in a block nor stated as a constant."""
    prose = OTHER.sub(lambda match: "\n" * match[0].count("\n"), page.read_text())
    return [
        f"{_name(page)}:{line} {number} is neither in a block nor in {CONSTANTS.name}; measured numbers need a block"
        for line, text in enumerate(prose.splitlines(), 1)
        for number in NUMBER.findall(text)
        if number not in stated
    ]


def _first_difference(old: Block, new: Block) -> Iterator[tuple[int, str]]:
    """Yield (number of the line, what differs) for the first line that differs, if any."""
    mine, theirs = (block.text.splitlines() for block in (old, new))
    for number in range(max(len(mine), len(theirs))):
        has, says = (lines[number] if number < len(lines) else "nothing" for lines in (mine, theirs))
        if has != says:
            yield old.line + 1 + number, f"has {_short(has, says)!r}, the records say {_short(says, has)!r}"
            return


def _short(text: str, other: str) -> str:
    """Return the part of a line around its first difference from another line."""
    same = next((i for i, (a, b) in enumerate(zip(text, other, strict=False)) if a != b), min(len(text), len(other)))
    return text[max(0, same - 20) : same + 40]


if __name__ == "__main__":
    raise SystemExit(main())

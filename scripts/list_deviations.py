"""List every difference from the original code in docs/deviations.md. The docstrings of the package state them.

A difference is stated in one place: the docstring of the module, class or function that differs, in this form:

    Deviation: subject, what differs
        original: what the original does (SOURCE:FILE:LINE)
        ours: what this package does, and the key that restores the original, if there is one
        why: the reason for the difference
        effect: what the difference changes, with its size if that is known

SOURCE is a key of ``SOURCES``; FILE is a path in its repository. A field that needs another line continues with deeper
indentation. The block ends at the next block, an empty line or the end of the docstring. Each point occurs once.

The table is the end of the document, after its marker line. A test fails if the document is out of date.

    python scripts/list_deviations.py
"""

from __future__ import annotations

import argparse
import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE, DOCUMENT = ROOT / "rmsexp", ROOT / "docs" / "deviations.md"
MARKER = "<!-- the rest is written by scripts/list_deviations.py from the docstrings of rmsexp -->"

# The original code: names used in citations, with repository and commit.
SOURCES = {
    "nematus": ("EdinburghNLP/nematus", "a956559"),  # version 0.4, TensorFlow
    "nematus-theano": ("EdinburghNLP/nematus", "5727727"),  # branch theano
    "zero": ("bzhangGo/zero", "d97e2c2"),
    "rmsnorm": ("bzhangGo/rmsnorm", "2e726f1"),
    "attentive-reader": ("cooijmanstim/Attentive_reader", "7c1ea8a"),  # branch bn
    "order-embedding": ("ivendrov/order-embedding", "2057e60"),
    "weight-norm": ("TimSalimans/weight_norm", "e625840"),
    "wmt17-scripts": ("EdinburghNLP/wmt17-scripts", "a1e7100"),
}
FIELDS = ("original", "ours", "why", "effect")
START = "Deviation: "
FIELD = re.compile(rf" {{4}}({'|'.join(FIELDS)}): (\S.*)")
CITATION = re.compile(rf"\b({'|'.join(SOURCES)}):([\w./-]+):(\d+)(?:-(\d+))?")


@dataclass(frozen=True)
class Deviation:
    """A difference from the original code. ``path``: the file whose docstring states it, relative to the root."""

    path: str
    point: str
    original: str
    ours: str
    why: str
    effect: str


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    DOCUMENT.write_text(updated(DOCUMENT.read_text(), deviations(PACKAGE)))


def deviations(package: Path) -> list[Deviation]:
    """Return the differences that the docstrings of a package state, sorted by point.

    Raises: ValueError for a difference that lacks a field or a citation, and for a point that occurs twice.
    """
    found: dict[str, Deviation] = {}
    for path in sorted(package.rglob("*.py")):
        name = path.relative_to(package.parent).as_posix()
        for docstring in docstrings(path):
            for deviation in stated(docstring, name):
                if deviation.point in found:
                    raise ValueError(f"{name}: {deviation.point!r} is also in {found[deviation.point].path}")
                found[deviation.point] = deviation
    return sorted(found.values(), key=lambda deviation: deviation.point.lower())


def docstrings(path: Path) -> Iterator[str]:
    """Yield the docstrings of a file: those of the module and of its classes and functions."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            yield ast.get_docstring(node) or ""


def stated(docstring: str, path: str) -> Iterator[Deviation]:
    """Yield the differences that a docstring states. ``path``: that of its file. Raises: ValueError."""
    for paragraph in docstring.split("\n\n"):
        text, *blocks = re.split(f"^{START}", paragraph, flags=re.MULTILINE)
        if text and blocks:
            raise ValueError(f"{path}: put an empty line before {START}{blocks[0].splitlines()[0]}")
        yield from (deviation(block, path) for block in blocks)


def deviation(block: str, path: str) -> Deviation:
    """Return the difference that a block states; its first line is the point. Raises: ValueError."""
    point, *lines = block.rstrip().splitlines()
    fields: dict[str, str] = {}
    for line in lines:
        if match := FIELD.fullmatch(line):
            fields[match[1]] = match[2]
        elif fields and line.startswith(" " * 8):
            fields[list(fields)[-1]] += f" {line.strip()}"
        else:
            raise ValueError(f"{path}: {START}{point}: the line {line!r} is no field ({', '.join(FIELDS)})")
    if tuple(fields) != FIELDS:
        raise ValueError(f"{path}: {START}{point} needs the fields {', '.join(FIELDS)}, in this order")
    if not CITATION.search(fields["original"]):
        raise ValueError(f"{path}: {START}{point}: original needs a citation such as zero:search.py:176")
    return Deviation(path, point, **fields)


def updated(document: str, rows: list[Deviation]) -> str:
    """Return the document with the text after its marker replaced by the table of the differences.

    Raises: ValueError if the document does not have the marker once.
    """
    if document.count(MARKER) != 1:
        raise ValueError(f"the document needs the line {MARKER!r} once")
    header = ["| point | original | ours | why | effect | stated in |", "| --- | --- | --- | --- | --- | --- |"]
    return "\n".join([document.split(MARKER)[0] + MARKER, "", *header, *map(_row, rows), ""])


def _row(row: Deviation) -> str:
    module = row.path.removesuffix(".py").replace("/", ".")
    cells = [row.point, CITATION.sub(_link, row.original), row.ours, row.why, row.effect]
    return f"| {' | '.join(map(_cell, cells))} | [`{module}`](../{row.path}) |"


def _cell(text: str) -> str:
    return text.replace("``", "`").replace("|", r"\|")


def _link(citation: re.Match[str]) -> str:
    source, file, first, last = citation.groups()
    repository, commit = SOURCES[source]
    lines = f"L{first}-L{last}" if last else f"L{first}"
    return f"[{citation[0]}](https://github.com/{repository}/blob/{commit}/{file}#{lines})"


if __name__ == "__main__":
    main()

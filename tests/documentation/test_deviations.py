"""The page of deviations has every difference from the original code that the docstrings of the package state."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest
from helpers import documents

SCRIPT = runpy.run_path(str(documents.ROOT / "scripts/list_deviations.py"))
PAGE = documents.ROOT / "docs/deviations.md"
BLOCK = """Deviation: search, beam
    original: shrinks
        slowly (zero:search.py:176-230)
    ours: ``beam`` | stays
    why: none
    effect: not measured"""


def test_the_page_lists_what_the_docstrings_state() -> None:
    rows = SCRIPT["deviations"](SCRIPT["PACKAGE"])
    assert len(rows) > 5
    assert PAGE.read_text() == SCRIPT["updated"](PAGE.read_text(), rows), (
        "docs/deviations.md is out of date; run python scripts/list_deviations.py"
    )


def test_a_stated_difference_becomes_a_row(tmp_path: Path) -> None:
    package = tmp_path / "rmsexp"
    package.mkdir()
    second = BLOCK.replace("search, beam", "Batches")
    (package / "a.py").write_text(f'def f():\n    r"""Text.\n\n{BLOCK}\n{second}\n\nText.\n"""\n')
    rows = SCRIPT["deviations"](package)
    assert [row.point for row in rows] == ["Batches", "search, beam"]
    table = SCRIPT["updated"](f"# Page\n\n{SCRIPT['MARKER']}\nold", rows)
    assert table.startswith(f"# Page\n\n{SCRIPT['MARKER']}\n\n| point |")
    assert "old" not in table
    link = "[zero:search.py:176-230](https://github.com/bzhangGo/zero/blob/d97e2c2/search.py#L176-L230)"
    assert table.splitlines()[-1] == (
        f"| search, beam | shrinks slowly ({link}) | `beam` \\| stays | none | not measured "
        "| [`rmsexp.a`](../rmsexp/a.py) |"
    )


@pytest.mark.parametrize(
    ("docstring", "message"),
    [
        (BLOCK.replace("    why: none\n", ""), "needs the fields original, ours, why, effect, in this order"),
        (BLOCK.replace("why: none", "reason: none"), "is no field"),
        (BLOCK.replace("(zero:search.py:176-230)", "(search.py)"), "original needs a citation"),
        (f"Text.\n{BLOCK}", "put an empty line before Deviation: search, beam"),
        (f"{BLOCK}\n{BLOCK}", "'search, beam' is also in rmsexp/a.py"),
    ],
)
def test_an_incomplete_statement_is_an_error(tmp_path: Path, docstring: str, message: str) -> None:
    package = tmp_path / "rmsexp"
    package.mkdir()
    (package / "a.py").write_text(f'"""Text.\n\n{docstring}\n"""\n')
    with pytest.raises(ValueError, match=message):
        SCRIPT["deviations"](package)

"""The marked blocks of the pages are as the committed report and records say, and an edit by hand is found."""

from pathlib import Path

import pytest
import readme_numbers
from readme_numbers import BLOCKS

PAGE = "before\n<!-- numbers: one -->\nfirst 1 %\n<!-- end -->\nabout 95 %, `2 %`\n"


@pytest.mark.parametrize("page", readme_numbers.PAGES, ids=lambda page: f"{page.parent.name}-{page.stem}")
def test_the_numbers_of_a_page_are_as_the_records_say(page: Path) -> None:
    assert not readme_numbers.problems(page), "run python scripts/readme_numbers.py"


def test_the_spread_of_the_records_is_that_of_plans() -> None:
    assert readme_numbers.SPREAD.read_text() == readme_numbers.spread(), "run python scripts/readme_numbers.py"


def test_every_text_has_a_block() -> None:
    used = {name for page in readme_numbers.PAGES for name, _ in readme_numbers.BLOCK.findall(page.read_text())}
    assert used == set(BLOCKS)


@pytest.mark.parametrize(
    ("edit", "problem"),
    [
        (("1 %", "2 %"), "block one is not as the records say"),
        (("<!-- end -->", ""), "a block has no end"),
        (("about", "about 7.5 and"), "5: 7.5 is neither in a block"),
    ],
)
def test_an_edit_by_hand_is_found(
    edit: tuple[str, str], problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readme_numbers, "ROOT", tmp_path)
    monkeypatch.setitem(BLOCKS, "one", lambda: "first 1 %")
    page = tmp_path / "page.md"
    page.write_text(PAGE)
    assert readme_numbers.problems(page) == []
    page.write_text(PAGE.replace(*edit))
    assert problem in readme_numbers.problems(page)[0]
    if edit[0] == "1 %":
        assert readme_numbers.updated(page.read_text()) == PAGE

"""The files of the paper's items are valid, and their tables show every number that the paper prints."""

from __future__ import annotations

from pathlib import Path

import pytest

from rmsexp import config
from rmsexp.campaign import item_file as items
from rmsexp.campaign.item_file import Part
from rmsexp.report import paper
from rmsexp.report.tables import items as item_tables

COUNTS = (("figure", 7), ("table", 10))
DERIVED = ("image_recall", "caption_recall")  # means of printed numbers
NAMES = items.options()
TABLES = [name for name in NAMES if items.read(name).draw == "table"]


def test_every_table_and_figure_of_the_paper_is_an_item() -> None:
    figures, tables = ([f"{kind}{number}" for number in range(1, last + 1)] for kind, last in COUNTS)
    assert ["appendix_wn", *figures, *tables] == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_the_runs_of_an_item_compose(name: str) -> None:
    """The first and the last of each group; composing takes a tenth of a second."""
    for group in items.read(name).groups:
        norms = [] if group.absent else list(group.norms.values())
        for norm in {*norms[:1], *norms[-1:]}:
            words = [f"{key}={value}" for key, value in group.runs.items()]
            assert config.job([*words, *config.norm_words(norm)])


@pytest.mark.parametrize("name", TABLES)
def test_a_table_shows_all_numbers_of_the_paper(name: str) -> None:
    item = items.read(name)
    cells = item_tables.table(item, [Part(group, None) for group in item.groups]).numbers
    numbers = paper.numbers()
    numbers = numbers[(numbers["table"] == item.title) & ~numbers["metric"].isin(DERIVED)]
    is_saving = numbers["metric"] == "saving_vs_ln"
    dashes = numbers["note"].str.startswith(item_tables.PRINTED_AS_DASH).sum()
    assert cells["paper"].count() == len(numbers) - is_saving.sum() - dashes > 0
    assert sorted(cells["paper_saving"].dropna()) == sorted(numbers.loc[is_saving, "value"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("title: T\ncaption: C\ndraw: tabel", "draw"),
        ("title: T\ncaption: C\ngroups: [{norm: ln}]", r"groups\[0\] has no norms"),
        ("title: T\ncaption: C\npanels: 3", "panels"),
        ("caption: C", "title"),
        ("[]", "does not consist of keys and values"),
    ],
)
def test_mistakes_are_named(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "item").mkdir()
    (tmp_path / "item/mine.yaml").write_text(text)
    with pytest.raises(config.ConfigError, match=f"^item mine: .*{message}"):
        items.read("mine", str(tmp_path))

"""The paper's numbers and curves have our names and units, and agree; its items are valid and show every number."""

from __future__ import annotations

from pathlib import Path

import pytest

from rmsexp import config
from rmsexp.campaign import item_file as items
from rmsexp.campaign.item_file import Part
from rmsexp.records.frames import names
from rmsexp.report import paper
from rmsexp.report.tables import items as item_tables

NUMBERS = paper.numbers()
COUNTS = (("figure", 7), ("table", 10))
DERIVED = ("image_recall", "caption_recall")  # means of printed numbers
NAMES = items.options()
TABLES = [name for name in NAMES if items.read(name).draw == "table"]


def test_printed_savings_follow_from_printed_times() -> None:
    times = NUMBERS[NUMBERS["metric"] == "seconds_per_1k_steps"].set_index(["task", "framework", "norm"])["value"]
    savings = NUMBERS[NUMBERS["metric"] == "saving_vs_ln"]
    assert len(savings) == 14  # rms and prms, in the seven columns of tables 2, 3 (two), 4, 6, 8 and 10
    for row in savings.itertuples():
        column = (row.task, row.framework)
        assert row.value == pytest.approx(1 - times[*column, row.norm] / times[*column, "ln"], abs=6e-4)
        assert row.norm in ("rms", "prms")


def test_names_and_units_are_ours() -> None:
    assert set(NUMBERS["task"]) == {*filter(config.papers_scale, config.options("task")), "invariance", "all"}
    assert {names.norm_of(norm) for norm in NUMBERS["norm"]} <= {*config.options("norm"), ""}
    fractions = NUMBERS[NUMBERS["unit"] == "fraction"]
    assert fractions["value"].between(0, 1).all()
    assert set(fractions["metric"]) >= {"error", "saving_vs_ln", "image_r1", "image_recall"}
    assert NUMBERS["value"].notna().all()
    assert (NUMBERS["spread"].dropna() >= 0).all()
    assert not NUMBERS.duplicated(["table", "task", "framework", "norm", "metric", "data", "note"]).any()


def test_a_sample_of_numbers_is_as_printed() -> None:
    times = NUMBERS[NUMBERS["metric"] == "seconds_per_1k_steps"].set_index(["table", "norm"])["value"]
    assert (times["Table 2", "ln"], times["Table 6", "rms"], times["Table 8", "prms"]) == (
        665,
        3330,
        pytest.approx(43.4),
    )
    assert times["Table 10", "bn"] == 76  # 38 s per epoch of 500 steps
    errors = paper.select("cifar10", "error").set_index("norm")["value"]
    assert (errors["rms"], errors["prms"]) == (0.0883, 0.1037)
    recall = paper.select("order_embedding", "image_recall").set_index(["framework", "norm"])["value"]
    assert recall["Theano", "rms"] == pytest.approx((0.390 + 0.748 + 0.863) / 3)
    bleu = paper.select("rnnsearch", "bleu").set_index(["table", "framework", "norm", "data"])["value"]
    assert bleu["Table 3", "Theano Nematus", "prms", "newstest2017"] == 24.0


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

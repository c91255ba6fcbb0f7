"""Figures are drawn again only if something that they depend on has changed."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from helpers.records import make_row, write_run
from matplotlib.figure import Figure

from rmsexp.commands import report
from rmsexp.records import record
from rmsexp.report.plots import canvas, unchanged

drawn: list[str] = []


@pytest.fixture(autouse=True)
def nothing_drawn() -> None:
    drawn.clear()


def draw(title: str) -> Figure:
    drawn.append(title)
    return canvas.row(1, title)[0]


def test_a_figure_is_drawn_again_only_if_its_arguments_change(tmp_path: Path) -> None:
    for title in ("a", "a", "b"):
        unchanged.write(partial(draw, title), tmp_path / "figure")
    assert drawn == ["a", "b"]


def test_a_figure_is_drawn_again_if_the_code_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unchanged.write(partial(draw, "a"), tmp_path / "figure")
    monkeypatch.setattr(unchanged, "_software", lambda: b"other")
    unchanged.write(partial(draw, "a"), tmp_path / "figure")
    assert drawn == ["a"] * 2


@pytest.mark.parametrize("damage", [slice(0), slice(20), slice(60), slice(1000), slice(-20)])
def test_a_damaged_figure_is_drawn_again(tmp_path: Path, damage: slice) -> None:
    unchanged.write(partial(draw, "a"), tmp_path / "figure")
    content = (tmp_path / "figure.png").read_bytes()
    (tmp_path / "figure.png").write_bytes(content[damage])
    unchanged.write(partial(draw, "a"), tmp_path / "figure")
    assert drawn == ["a"] * 2
    assert (tmp_path / "figure.png").read_bytes() == content


def test_a_figure_with_a_changed_byte_is_drawn_again(tmp_path: Path) -> None:
    unchanged.write(partial(draw, "a"), tmp_path / "figure")
    content = bytearray((tmp_path / "figure.png").read_bytes())
    content[-500] ^= 1
    (tmp_path / "figure.png").write_bytes(content)
    unchanged.write(partial(draw, "a"), tmp_path / "figure")
    assert drawn == ["a"] * 2


def test_a_report_draws_the_figures_of_changed_settings_alone(tmp_path: Path) -> None:
    changed = write_run(tmp_path, "rms")
    write_run(tmp_path, "rms", setting="small", scale="small")
    figures = [tmp_path / f"report/cifar10/{setting}/curves.png" for setting in ("demo", "small")]

    def times() -> list[int]:
        report.run(tmp_path)
        return [figure.stat().st_mtime_ns for figure in figures]

    first = times()
    record.RunFolder(changed).append([make_row(440, 0.5)])
    demo, small = times()
    assert (demo != first[0], small == first[1]) == (True, True)

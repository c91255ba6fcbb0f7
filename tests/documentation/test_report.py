"""The committed report has what the records say today."""

from pathlib import Path

import pytest
from helpers import documents

from rmsexp.commands import report
from rmsexp.report.plots import canvas

REFERENCE = Path("results/reference")


def texts(folder: Path) -> dict[str, str]:
    files = sorted(path for path in folder.rglob("*") if path.suffix in (".md", ".csv"))
    return {path.relative_to(folder).as_posix(): path.read_text() for path in files}


@pytest.mark.minutes
def test_the_committed_report_is_of_the_committed_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(documents.ROOT)
    monkeypatch.setattr(canvas, "draw", lambda *_: None)  # figures take most of the time of a report
    monkeypatch.setattr(canvas, "write", lambda *_: None)
    report.run(REFERENCE, out=tmp_path)
    written, committed = texts(tmp_path), texts(REFERENCE / "report")
    assert "report.md" in committed
    assert [name for name in committed if written.get(name) != committed[name]] == [], "make report"

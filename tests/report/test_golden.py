"""The committed report has what today's code makes of the committed records: every table that a report can have."""

from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest
from helpers import documents

from rmsexp.campaign import results as campaign_results
from rmsexp.commands import report
from rmsexp.compare import load
from rmsexp.records.frames import timing_records
from rmsexp.report import setting_report
from rmsexp.report.plots import canvas
from rmsexp.report.tables import markup, verdicts

REFERENCE = Path("results/reference")
SETTINGS = (
    "intel-xeon-2-cores/transformer/small",  # times, savings, differences from LayerNorm
    "amd-epyc-2-cores/cifar10/small",  # times alone
    "amd-epyc-2-cores/cifar10/paper",  # runs shorter than their recipe
    "quality/rnnsearch/medium",  # scores, several p, and learning rates
)


@pytest.fixture
def committed(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(documents.ROOT)
    return (REFERENCE / "report/report.md").read_text()


@pytest.mark.parametrize("name", SETTINGS)
def test_the_report_of_a_setting(name: str, committed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(setting_report, "canvas", Mock())
    folder = REFERENCE / name
    settings = load(folder.parent).settings()
    records = settings.get(folder, load(folder))
    reported = setting_report.write(folder, records, timing_records.load(folder), tmp_path)
    assert replace(reported, folder=REFERENCE / "report" / name).markdown(REFERENCE / "report", level=2) in committed
    written = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert written.keys() == {"report.md", *(f"{table.name}.csv" for table in reported.tables)}
    assert len(reported.tables) == written["report.md"].count("\n## ")


def test_verdicts_and_tuning_of_campaigns(committed: str) -> None:
    problems: list[str] = []
    campaigns = campaign_results.load_all(REFERENCE, problems=problems)
    table = verdicts.table(campaigns)
    matrix = verdicts.matrix(verdicts.newest(table, campaigns), campaigns)
    assert markup.csv(table) == (REFERENCE / "report/verdicts.csv").read_text()
    assert markup.csv(verdicts.rates(campaigns)) == (REFERENCE / "report/rates.csv").read_text()
    for shown in (matrix, verdicts.readable(table), *map(verdicts.readable_rates, campaigns)):
        assert markup.document([markup.markdown(shown)]) in committed


def texts(folder: Path) -> dict[str, str]:
    files = sorted(path for path in folder.rglob("*") if path.suffix in (".md", ".csv"))
    return {path.relative_to(folder).as_posix(): path.read_text() for path in files}


@pytest.mark.minutes
@pytest.mark.usefixtures("committed")
def test_the_whole_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for method in ("draw", "write"):  # figures take most of the time of a report
        monkeypatch.setattr(canvas, method, lambda *_: None)
    report.run(REFERENCE, out=tmp_path)
    written, stored = texts(tmp_path), texts(REFERENCE / "report")
    assert [name for name in stored if written.get(name) != stored[name]] == [], "make report"
